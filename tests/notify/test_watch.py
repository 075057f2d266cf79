"""Runs and their notices, to real receivers: at least once, with one key, and never in the way of a run."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuops.config.vcenter.targets import NotifySettings
from gpuops.distribution import install_extra
from gpuops.errors import Locked, PartlyDone, Refused, UsageError
from gpuops.execute.site.site import NoticeWay
from gpuops.extras.notify import sending
from gpuops.extras.notify.outbox import FILE_NAME, Outbox
from gpuops.extras.notify.run_watch import RunWatch, connect_watched, flush, run_watched, send_failure, send_test
from gpuops.extras.notify.view import notice_text
from gpuops.model.notice import Notice, NoticeKind
from gpuops.plan.core.plan import Plan, Report
from gpuops.plan.core.rejection import Rejection
from tests.execute.small_vcenter import small_world
from tests.notify.conftest import MailServer, Webhook

NOW = datetime(2026, 11, 23, 6, 30, tzinfo=UTC)
HOSTILE = "desk\r\nBcc: all@example.com\n<script>alert(1)</script>"


class Told:
    """A way for notices, and what was said on it."""

    def __init__(self, state_dir: Path, *urls: str, environ: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        names = {f"URL_{number}": url for number, url in enumerate(urls)}
        entries = tuple(f"env:{name}" for name in names)
        self.way = NoticeWay(
            NotifySettings("prod", entries), state_dir, {**names, **(environ or {})}, lambda: NOW, self.lines.append
        )


def left_out(*names: str) -> Report[Any]:
    unmet = tuple(Rejection(name, "no host has room for it", hint="gpuops rotate day --yes") for name in names)
    return Report(None, small_world().snapshot(), Plan(unmet=unmet), applied=True)


def agree(report: Any) -> None:
    """Agree to every question."""


def run(receivers: Told, report: Report[Any]) -> None:
    assert run_watched(receivers.way, "rotate day", lambda consent: report, consent=agree) is report


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.mark.long
def test_an_alarm_arrives_by_mail_and_webhook(state: Path, mail_server: MailServer, webhook: Webhook) -> None:
    receivers = Told(state, mail_server.url, webhook.url)
    run(receivers, left_out("vdi-07", HOSTILE))
    assert receivers.lines == []
    (mail,) = mail_server.mails
    assert mail["Subject"] == "gpuops prod: alarm: rotate day: nothing done: 2 left out (exit code 4)"
    assert mail["Bcc"] is None
    body = mail.get_payload(decode=True)
    assert isinstance(body, bytes)
    text = body.decode().replace("\r\n", "\n")
    assert "- vdi-07: no host has room for it\n" in text
    assert r"- desk\u{d}\u{a}Bcc: all@example.com\u{a}<script>alert(1)</script>: no host" in text
    assert "\nnext: gpuops rotate day --yes\n" in text
    ((key, sent),) = webhook.calls
    assert mail.get_all("Message-ID") == [f"<{key}.gpuops@127.0.0.1>"]
    document = json.loads(sent)
    assert (document["title"], document["message"].strip()) == (mail["Subject"], text.strip())


def test_the_same_names_are_told_once_a_day(state: Path, webhook: Webhook) -> None:
    receivers = Told(state, webhook.url)
    run(receivers, left_out("vdi-07"))
    run(receivers, left_out("vdi-07"))
    run(receivers, left_out("vdi-08"))
    assert len(set(webhook.keys)) == len(webhook.calls) == 2


@pytest.mark.parametrize(
    ("told_of", "by_the_hour"), [(0, (True,)), (1, (False,)), (1, (True, False))], ids=["hour", "policy", "both"]
)
def test_a_refused_night_is_told_of_once_a_day_unless_only_the_hour_is_wrong(
    state: Path, webhook: Webhook, told_of: int, by_the_hour: tuple[bool, ...]
) -> None:
    refusals = tuple(
        Rejection(f"night-{is_by_the_hour}", "no", by_the_hour=is_by_the_hour) for is_by_the_hour in by_the_hour
    )
    report = Report(None, small_world().snapshot(), Plan(rejections=refusals))
    receivers = Told(state, webhook.url)
    for _ in range(2):
        assert run_watched(receivers.way, "rotate night", lambda consent: report, consent=agree) is report
    assert len(webhook.calls) == told_of
    assert receivers.lines == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (PartlyDone("2 desktops are away", hint="gpuops rotate resume"), True),
        (Refused("the morning that began at 06:00 did not end"), True),
        (ZeroDivisionError("a bug"), True),
        (Locked("another run is at it"), False),
        (UsageError("--vm: the name is empty"), False),
    ],
)
def test_a_run_that_ends_in_an_error(error: Exception, sent: bool, state: Path, webhook: Webhook) -> None:
    def fails(consent: Any) -> Report[Any]:
        raise error

    with pytest.raises(type(error)) as raised:
        run_watched(Told(state, webhook.url).way, "rotate day", fails, consent=agree)
    assert raised.value is error
    assert len(webhook.calls) == sent


def test_what_somebody_did_not_agree_to_is_told_to_nobody(state: Path, webhook: Webhook) -> None:
    def declines(report: Any) -> None:
        raise Refused("not confirmed")

    def asks(consent: Callable[[Any], None]) -> Report[Any]:
        consent(None)
        raise AssertionError("it was declined")

    receivers = Told(state, webhook.url)
    with pytest.raises(Refused):
        run_watched(receivers.way, "rotate day", asks, consent=declines)
    assert flush(receivers.way) == ()
    assert webhook.calls == []


@pytest.mark.long
def test_a_receiver_that_refuses_gets_it_from_the_next_run(
    state: Path, webhook: Webhook, mail_server: MailServer
) -> None:
    receivers = Told(state, webhook.url, mail_server.url)
    webhook.status, mail_server.refuses = 500, True
    run(receivers, left_out("vdi-07"))
    (line,) = receivers.lines
    assert line == (
        "notices not accepted by json://127.0.0.1 (env:URL_0): the receiver did not accept it; "
        "mailto://127.0.0.1 (env:URL_1): the mail server refused it; "
        "the next run sends them again, or run gpuops notify flush"
    )
    webhook.status, mail_server.refuses = 200, False
    run(receivers, Report(None, small_world().snapshot(), Plan(), applied=True))
    assert len(receivers.lines) == 1
    assert len(webhook.calls) == 2
    assert len(set(webhook.keys)) == 1, "the same notice"
    assert len(mail_server.mails) == 1
    run(receivers, Report(None, small_world().snapshot(), Plan(), applied=True))
    assert len(webhook.calls) == 2, "it is accepted now"


@pytest.mark.long
def test_a_receiver_that_hangs_delays_nobody_for_long(
    state: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LIMIT_S", 12.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        receivers = Told(state, f"json://127.0.0.1:{silent.getsockname()[1]}/x", webhook.url)
        run(receivers, left_out("vdi-07"))
        assert len(webhook.calls) == 1, "the others are not kept waiting"
        assert len(receivers.lines) == 1
        assert re.match(
            r"notices not accepted by json://127.0.0.1 \(env:URL_0\): "
            r"(no answer within|the receiver did not accept it)",
            receivers.lines[0],
        )


KILLED_IN_BETWEEN = """
import os, signal, sys
from pathlib import Path
from gpuops.extras.notify.outbox import Outbox
from tests.notify.test_watch import Told, left_out, run
Outbox.note_acceptance = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
run(Told(Path(sys.argv[1]), sys.argv[2]), left_out("vdi-07"))
"""


def kill_run(script: str, *arguments: str) -> None:
    """Plays the script in a process that kills itself."""
    root = Path(__file__).parents[2]
    died = subprocess.run([sys.executable, "-c", script, *arguments], cwd=root, check=False)
    assert died.returncode == -signal.SIGKILL


@pytest.mark.long
def test_killed_between_acceptance_and_record_it_is_sent_twice_with_one_key(state: Path, webhook: Webhook) -> None:
    kill_run(KILLED_IN_BETWEEN, str(state), webhook.url)
    assert len(webhook.calls) == 1
    receivers = Told(state, webhook.url)
    assert [receipt.trouble for receipt in flush(receivers.way)] == [""]
    assert len(webhook.calls) == 2
    assert len(set(webhook.keys)) == 1
    assert flush(receivers.way) == ()
    assert len(webhook.calls) == 2


DIES = """
import os, signal, sys
from tests.notify.test_watch import Told
from gpuops.extras.notify.run_watch import RunWatch
from pathlib import Path
watch = RunWatch(Told(Path(sys.argv[1]), "json://127.0.0.1:1").way, "rotate night")
watch.begin()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_a_run_that_was_killed_is_told_of_by_the_next_one(state: Path, webhook: Webhook) -> None:
    kill_run(DIES, str(state))
    receivers = Told(state, webhook.url)
    alive = RunWatch(receivers.way, "rotate day")
    alive.begin()
    alive.end(None)
    ((_, sent),) = webhook.calls
    document = json.loads(sent)
    assert document["title"].startswith("gpuops prod: run died: rotate night, begun at 2026-11-23 06:30")
    assert "gpuops rotate resume --yes --vcenter prod" in document["message"]
    assert flush(receivers.way) == ()


DIES_CONNECTING = """
import os, signal, sys
from tests.notify.test_watch import Told
from gpuops.extras.notify.run_watch import connect_watched
from pathlib import Path
way = Told(Path(sys.argv[1]), "json://127.0.0.1:1").way
connect_watched(way, "rotate day", lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.long
def test_a_return_that_was_killed_while_it_waited_for_vcenter_is_told_of(state: Path, webhook: Webhook) -> None:
    kill_run(DIES_CONNECTING, str(state))
    assert len(flush(Told(state, webhook.url).way)) == 1
    ((_, sent),) = webhook.calls
    document = json.loads(sent)
    assert document["title"].startswith("gpuops prod: run died: rotate day, begun at 2026-11-23 06:30")
    assert "gpuops rotate day --yes --vcenter prod brings back the desktops that are still away" in document["message"]


@pytest.mark.long
def test_a_run_that_connects_is_told_of_once(state: Path, webhook: Webhook) -> None:
    receivers = Told(state, webhook.url)
    assert connect_watched(receivers.way, "rotate day", lambda: "connected") == "connected"
    assert (flush(receivers.way), webhook.calls) == ((), [])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            connect_watched(receivers.way, "rotate day", lambda: 1 // 0)
    assert len(webhook.calls) == 1, "whatever went wrong, and once a day"


@pytest.mark.long
def test_a_run_that_is_alive_has_not_died(state: Path, webhook: Webhook) -> None:
    receivers = Told(state, webhook.url)
    RunWatch(receivers.way, "rotate night").begin()
    watch = RunWatch(receivers.way, "rotate day")
    watch.begin()
    watch.end(None)
    assert webhook.calls == []


@pytest.mark.long
def test_a_run_that_was_interrupted_is_told_of_once_it_may_have_begun(state: Path, webhook: Webhook) -> None:
    receivers = Told(state, webhook.url)

    def interrupted(consent: Callable[[Any], None]) -> Report[Any]:
        raise KeyboardInterrupt

    def interrupted_later(consent: Callable[[Any], None]) -> Report[Any]:
        consent(None)
        raise KeyboardInterrupt

    for interruption in (interrupted, interrupted_later):
        with pytest.raises(KeyboardInterrupt):
            run_watched(receivers.way, "rotate night", interruption, consent=agree)
    assert [receipt.accepted for receipt in flush(receivers.way)] == [1]


UNIT = {"MONITOR_UNIT": "gpuops-night.service", "MONITOR_INVOCATION_ID": "4f2a", "MONITOR_SERVICE_RESULT": "exit-code"}


@pytest.mark.long
@pytest.mark.parametrize(("code", "status", "sent"), [("exited", "2", 1), ("killed", "KILL", 1), ("exited", "4", 0)])
def test_a_unit_that_failed_is_told_of_once(code: str, status: str, sent: int, state: Path, webhook: Webhook) -> None:
    environ = {**UNIT, "MONITOR_EXIT_CODE": code, "MONITOR_EXIT_STATUS": status}
    receivers = Told(state, webhook.url, environ=environ)
    flush(receivers.way)
    flush(receivers.way)
    assert len(webhook.calls) == sent


@pytest.mark.long
def test_a_run_that_did_not_reach_its_vcenter(state: Path, webhook: Webhook) -> None:
    receivers = Told(state, webhook.url)
    send_failure(receivers.way, "rotate night", PartlyDone("no answer", hint="gpuops doctor"))
    send_failure(receivers.way, "rotate night", PartlyDone("no answer", hint="gpuops doctor"))
    assert len(webhook.calls) == 1, "once a day"


@pytest.mark.long
def test_an_outbox_that_cannot_be_used_keeps_no_notice_back(state: Path, webhook: Webhook) -> None:
    state.mkdir(mode=0o700)
    (state / FILE_NAME).write_text("no database, and longer than a header of one")
    (state / FILE_NAME).chmod(0o600)
    receivers = Told(state, webhook.url)
    run(receivers, left_out("vdi-07"))
    assert len(webhook.calls) == 1
    assert len(receivers.lines) == 1
    assert "the outbox of notices" in receivers.lines[0]


def test_no_secret_is_shown_or_kept(state: Path, webhook: Webhook) -> None:
    webhook.status = 500
    receivers = Told(state, webhook.url, "slack://s3cr3t-t0ken")
    run(receivers, left_out("vdi-07"))
    (receipt, _) = send_test(receivers.way)
    assert "s3cr3t" not in f"{receivers.lines} {receipt} {receivers.way}"
    stored_bytes = b"".join(path.read_bytes() for path in state.iterdir())
    assert b"s3cr3t" not in stored_bytes
    assert {path.stat().st_mode & 0o077 for path in state.iterdir()} == {0}


@pytest.mark.long
def test_without_apprise_a_run_says_what_to_install(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "find_spec", lambda name: None)
    receivers = Told(state, "json://127.0.0.1:1")
    run(receivers, left_out("vdi-07"))
    assert receivers.lines == [
        f"notices were not sent: notices need apprise, and it is not installed ({install_extra('notify')})"
    ]


@pytest.mark.long
def test_at_most_twenty_are_named() -> None:
    names = tuple(f"vdi-{number}" for number in range(23))
    notice = Notice(NoticeKind.ALARM, "prod", ("x",), NOW, "a headline", names, "gpuops rotate day")
    text = notice_text(notice).body
    assert len(re.findall("^- vdi-", text, re.MULTILINE)) == 20
    assert "\nand 3 more\n" in text


@pytest.mark.long
def test_a_notice_is_kept_for_a_month(state: Path) -> None:
    outbox = Outbox(state)
    old = notice_text(Notice(NoticeKind.TEST, "prod", ("x",), NOW, "old"))
    outbox.put("prod", old, NOW.replace(month=9), ["a"])
    outbox.put("prod", notice_text(Notice(NoticeKind.TEST, "prod", ("y",), NOW, "new")), NOW, ["a", "b"])
    outbox.remove_old("prod", ["a"], NOW)
    assert len(outbox.waiting("prod")) == 1
    assert outbox.waiting("prod", "b") == ()


@pytest.mark.long
def test_a_key_is_of_the_event_alone() -> None:
    first = Notice(NoticeKind.NIGHT, "prod", ("rotate night", "a1"), NOW, "one")
    same_event = Notice(NoticeKind.NIGHT, "prod", ("rotate night", "a1"), NOW.replace(hour=9), "in other words")
    other_event = Notice(NoticeKind.NIGHT, "prod", ("rotate night", "a2"), NOW, "one")
    assert first.key == same_event.key != other_event.key
