"""Sends what waits in the outbox, to all receivers at once and within a bounded time; and a test, to each.

What is not accepted in time stays in the outbox for the next run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from threading import Event, Thread, Timer
from typing import Any, Final

from gpuops.config.vcenter.targets import shown, url_of
from gpuops.distribution import install_extra
from gpuops.errors import GpuopsError, StateDamaged, UsageError
from gpuops.execute.site.site import NoticeWay
from gpuops.extras.notify.delivery import digest
from gpuops.extras.notify.outbox import Outbox
from gpuops.files.file import parse_json
from gpuops.model.notice import NoticeText, Receipt
from gpuops.model.vcenter.target import Secret

LIMIT_S: Final = 20.0
"""The limit for sending, however many receivers hang."""
NO_ANSWER: Final = f"no answer within {LIMIT_S:.0f} s"
_PROGRAM: Final = "gpuops.extras.notify.delivery"


@dataclass(slots=True)
class Receiver:
    """One receiver, and the outcome of sending to it. `trouble` empty = it accepted every notice."""

    entry: str
    called: str
    """Its scheme and host, for people."""
    url: Secret | None
    trouble: str = NO_ANSWER
    accepted: int = 0

    @property
    def id(self) -> str:
        """Return the id for the name of its lock file."""
        return digest(self.entry)

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.called, self.accepted, self.trouble)

    @property
    def address_prefix(self) -> str:
        """Return the prefix of this receiver's mail address rows in the outbox; the address digest follows."""
        return f"{self.entry}#"


def receivers_of(way: NoticeWay) -> tuple[Receiver, ...]:
    """Return the configured receivers; `trouble` is set if a URL cannot be read. Raises UsageError without apprise."""
    if find_spec("apprise") is None:
        raise UsageError("notices need apprise, and it is not installed", hint=install_extra("notify"))
    receivers = []
    for setting in way.settings.entries:
        try:
            url = url_of(setting, way.environ)
        except GpuopsError as error:
            receivers.append(Receiver(setting, shown(setting, None), None, error.line))
        else:
            receivers.append(Receiver(setting, shown(setting, url), url))
    return tuple(receivers)


def send_waiting(way: NoticeWay, outbox: Outbox) -> tuple[Receipt, ...]:
    """Send the waiting notices; each receiver's trouble is in its receipt.

    Raises StateDamaged, and UsageError without apprise.
    """
    outbox.forget(way.settings.vcenter, way.settings.entries, way.clock())
    if not outbox.waiting(way.settings.vcenter):
        return ()
    receivers = receivers_of(way)
    _run_in_parallel([partial(_all_to, receiver, way, outbox) for receiver in receivers if receiver.url is not None])
    return tuple(receiver.receipt for receiver in receivers)


def send_once(way: NoticeWay, notice: NoticeText) -> tuple[Receipt, ...]:
    """Send this notice to each receiver, without the outbox. Raises UsageError without apprise."""
    receivers = receivers_of(way)
    _run_in_parallel([partial(_one_to, receiver, notice) for receiver in receivers if receiver.url is not None])
    return tuple(receiver.receipt for receiver in receivers)


def deliver_all(url: Secret, notices: Sequence[Mapping[str, Any]], limit_s: float) -> Iterator[Mapping[str, str]]:
    """Start a process that delivers these notices, and yield its answers (`deliver_ordered`).

    The process is killed after `limit_s` seconds, or when the caller stops iterating. There are then no more answers.
    """
    with subprocess.Popen(  # noqa: S603 (gpuops itself)
        [sys.executable, "-m", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        is_late = Event()

        def end() -> None:
            is_late.set()
            process.kill()

        timer = Timer(limit_s, end)
        timer.daemon = True
        timer.start()
        try:
            with suppress(BrokenPipeError), process.stdin:  # the process may end before it has read the order
                json.dump({"url": url.reveal(), "notices": notices}, process.stdin)
            for line in process.stdout:
                yield parse_json(line)
            if process.wait() != 0 and not is_late.is_set():
                yield {"key": "", "trouble": f"the process that sends to it ended with exit code {process.returncode}"}
        finally:
            timer.cancel()
            process.kill()


def _run_in_parallel(tasks: list[Callable[[], None]]) -> None:
    """Run the tasks in threads and return when all have ended; each task is limited to `LIMIT_S`."""
    threads = [Thread(target=task, name="gpuops-notice") for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _one_to(receiver: Receiver, notice: NoticeText) -> None:
    _send(receiver, [(notice, ())], lambda key, row: None)


def _all_to(receiver: Receiver, way: NoticeWay, outbox: Outbox) -> None:
    """Send all waiting notices to this receiver in turn; stop at the first one that it does not accept."""
    try:
        with outbox.sending_to(receiver.id) as alone:
            if not alone:
                receiver.trouble = "another gpuops is sending to it"
                return
            waiting = outbox.waiting(way.settings.vcenter, receiver.entry)
            prefix = receiver.address_prefix
            # with each notice the digests of the receiver's mail addresses that accepted it before
            notices = [
                (notice, [row.removeprefix(prefix) for row in outbox.accepted_by(notice.key) if row.startswith(prefix)])
                for notice in waiting
            ]
            _send(receiver, notices, lambda key, row: outbox.note_acceptance(key, row, way.clock()))
    except StateDamaged as damaged:
        receiver.trouble = damaged.message


def _send(
    receiver: Receiver, notices: Sequence[tuple[NoticeText, Sequence[str]]], note_accepted: Callable[[str, str], None]
) -> None:
    """Deliver notices, and set `trouble` and `accepted` of the receiver.

    Each notice comes with the digests of the mail addresses that accepted it before. `note_accepted` is called with the
    key of a notice and the outbox row of the receiver, or of the mail address, that accepted it.
    """
    assert receiver.url is not None, "callers skip receivers without a URL"
    ordered_notices = [
        {"key": notice.key, "subject": notice.subject, "body": notice.body, "has": digests}
        for notice, digests in notices
    ]
    trouble = ""
    for answer in deliver_all(receiver.url, ordered_notices, LIMIT_S):
        if "address" in answer:
            note_accepted(answer["key"], f"{receiver.address_prefix}{answer['address']}")
            continue
        trouble = answer["trouble"]
        if not trouble:
            note_accepted(answer["key"], receiver.entry)
            receiver.accepted += 1
    # fewer answers than notices: the process was killed because it took too long
    receiver.trouble = trouble or ("" if receiver.accepted == len(notices) else NO_ANSWER)
