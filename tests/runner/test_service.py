"""The runner's loop on a queue in memory: what it does while the database is away, and what it leaves out."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuops.config.vcenter.targets import parsed_configuration
from gpuops.extras.fleet.runner import service as module
from gpuops.extras.fleet.runner.due import SitePolicy, load_policy_file, read_anew
from gpuops.extras.fleet.runner.service import OverdueAlarm
from gpuops.model.nights.runners import Half
from tests.execute.journal.postgres import PASSWORD, Server
from tests.execute.past.test_history import CLOSED, GONE, taken_elsewhere
from tests.notify.conftest import Webhook, webhook
from tests.runner.memory_queue import TURN, MemoryQueue, looks, service_of
from tests.runner.test_due import PARIS, policy_of, with_defrag


def test_a_turn_is_offered_once_for_ten_minutes(at: object) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    queue = MemoryQueue()
    service, _, _ = service_of(queue)
    asyncio.run(looks(service, 5, minutes=3))
    assert [since.minute for _, since in queue.offered] == [0, 10]


def test_moves_of_a_policy_are_made_once_in_their_window_after_the_return(at: object) -> None:
    policy = with_defrag(policy_of(PARIS), "12:00-14:00 Europe/Paris")
    service, children, messages = service_of(MemoryQueue())
    service.rotations = {"prod": {"nights": SitePolicy(policy, Path("policy.yaml"))}}

    def play(moment: str, code: int = 0) -> list[str]:
        at(moment)  # type: ignore[operator]
        children.called.clear()
        children.code = code
        asyncio.run(service.play(TURN))
        return [command for command, _ in children.called]

    assert play("2026-11-03T10:50:00") == ["day"]
    assert play("2026-11-03T11:00:00", code=4) == ["day"], "no VM is moved while desktops are not back"
    assert play("2026-11-03T11:10:00") == ["day", "defrag"]
    assert play("2026-11-03T11:20:00") == ["day"]
    assert play("2026-11-04T11:00:00") == ["day", "defrag"], "the next day is another window"
    assert play("2026-11-03T21:10:00") == ["night"]
    assert messages == ["prod: rotate day of nights ended with 4"]


@pytest.mark.parametrize(("rank", "expected"), [(0, [2]), (1, [5]), (2, [8]), (5, [17])])
def test_returns_go_on_while_the_database_is_away(at: object, rank: int, expected: list[int]) -> None:
    """The first runner begins it after two minutes, each further one three minutes after the one before."""
    at("2026-11-03T06:00:10")  # type: ignore[operator]
    queue = MemoryQueue(place=rank, away=True)
    service, children, messages = service_of(queue)
    begun: list[int] = []

    async def minute_by_minute() -> None:
        for minute in range(9 if rank < 5 else 18):
            await looks(service, 1, minutes=1)
            begun.extend([minute] * (len(children.called) - len(begun)))

    asyncio.run(minute_by_minute())
    assert begun == expected
    assert children.called == [(Half.DAY, "prod")]
    assert messages[0].endswith("no new turns begin; returns continue")


def test_no_night_begins_while_the_database_is_away(at: object) -> None:
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    service, children, _ = service_of(MemoryQueue(away=True))
    asyncio.run(looks(service, 20, minutes=1))
    assert children.called == []


def test_what_came_back_is_said_and_the_turns_of_a_dead_runner_too(at: object) -> None:
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    queue = MemoryQueue(away=True)
    service, _, messages = service_of(queue)
    asyncio.run(looks(service, 1))
    queue.away, queue.lost = False, 2
    asyncio.run(looks(service, 1))
    assert messages[1:] == [
        "2 turns of runners that have stopped are offered again",
        "the queue's PostgreSQL answers again",
    ]


def test_a_site_whose_turns_the_queue_refuses_stops_no_other(at: object) -> None:
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    queue = MemoryQueue(refuses=("a",))
    service, _, messages = service_of(queue)
    service.rotations = {"a": dict(service.rotations["prod"]), **service.rotations}
    asyncio.run(looks(service, 3))
    assert [turn.site for turn, _ in queue.offered] == ["prod"]
    assert messages == ["a: its turns cannot be offered: the queue's PostgreSQL refuses: too long"]


def test_a_policy_is_obeyed_as_its_file_says_now(at: object, tmp_path: Path) -> None:
    """What cannot be obeyed is said once: no night begins under it, and returns go on by the last good one."""
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    service, children, messages = service_of(MemoryQueue())
    file = tmp_path / "policy.yaml"
    service.load, service.rotations = load_policy_file, {"prod": {"nights": SitePolicy(policy_of(PARIS), file)}}

    def write_and_play(text: str) -> None:
        file.write_text(text, encoding="utf-8")
        asyncio.run(service.play(TURN))

    write_and_play(policy_of(PARIS).text)
    assert (children.called, messages) == ([(Half.NIGHT, "prod")], [])
    for _ in range(2):
        write_and_play("version: 1")
    write_and_play(policy_of(PARIS, "others").text)
    assert len(children.called) == 1
    assert len(messages) == 2
    assert "no night of nights begins" in messages[0]
    assert "is now called others" in messages[1]
    at("2026-11-03T12:00:10")  # type: ignore[operator]
    write_and_play("version: 1")
    assert children.called[1:] == [(Half.DAY, "prod")]
    write_and_play(policy_of('[{opens: "11:00", closes: "13:00", zone: UTC}]').text)
    assert children.called[2:] == [(Half.NIGHT, "prod")]
    assert messages[3:] == [f"prod: policy nights has changed: {file}"]


def test_policies_of_one_vcenter_that_are_edited_together_are_compared_as_they_are_now(tmp_path: Path) -> None:
    """Each alone would clash with the other as it was."""
    early = '[{opens: "18:00", closes: "20:00", zone: UTC}]', '[{opens: "20:00", closes: "22:00", zone: UTC}]'
    late = '[{opens: "21:00", closes: "23:00", zone: UTC}]', '[{opens: "23:00", closes: "01:00", zone: UTC}]'
    files = {name: tmp_path / name for name in ("early", "late")}
    policies, messages = {}, list[str]()
    for (name, file), windows in zip(files.items(), (early, late), strict=True):
        policies[name] = SitePolicy(policy_of(windows[0], name), file)
        file.write_text(policy_of(windows[1], name).text, encoding="utf-8")
    now = datetime(2026, 11, 2, 12, tzinfo=UTC)
    read_anew("prod", policies, now, load_policy_file, messages.append)
    assert messages == [f"prod: policy {name} has changed: {file}" for name, file in files.items()]
    files["early"].write_text(
        policy_of('[{opens: "20:00", closes: "23:10", zone: UTC}]', "early").text, encoding="utf-8"
    )
    read_anew("prod", policies, now, load_policy_file, messages.append)
    assert len(messages) == 3
    assert "no night of early begins" in messages[2]
    assert str(policies["early"].policy.windows[0]).startswith("20:00 to 22:00")


def test_the_loop_goes_on_after_the_database_was_away_and_ends_when_it_is_told(
    at: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    queue = MemoryQueue(away=True)
    service, children, messages = service_of(queue)
    answered: list[bool] = []
    service.looked = answered.append

    async def play() -> None:
        running = asyncio.create_task(service.run())
        await asyncio.sleep(0.1)
        assert not running.done(), "a database that is away ends no process"
        assert set(answered) == {False}, "it looks all the same, and says that it finds none"
        queue.away = False
        while not children.called:
            await asyncio.sleep(0.01)
        service.end()
        await asyncio.wait_for(running, 5)

    asyncio.run(play())
    assert children.called == [(Half.NIGHT, "prod")]
    assert answered[-1]
    assert len(messages) == 2


__all__ = ["webhook"]

FILE = """
[targets.prod]
host = "vc.example.com"
notify = ["env:HOOK"]
[targets.lab]
host = "lab.example.com"
notify = ["env:HOOK"]
"""


@pytest.fixture
def said() -> list[str]:
    return []


def alarm_of(folder: Path, url: str, hook: str, messages: list[str], now: datetime) -> OverdueAlarm:
    configured = parsed_configuration(FILE, folder / "config.toml")
    return OverdueAlarm(folder / "state", url, lambda: configured, {"HOOK": hook}, messages.append, lambda: now)


@pytest.mark.long
@pytest.mark.long
def test_it_is_told_once_to_each_receiver(
    postgresql: Server, tmp_path: Path, webhook: Webhook, said: list[str]
) -> None:
    pytest.importorskip("apprise", reason="needs apprise: make setup")
    url, later = postgresql.database(), CLOSED + timedelta(hours=1)
    taken_elsewhere(tmp_path / "another machine", url)
    early = alarm_of(tmp_path, url, webhook.url, said, CLOSED)
    early.look()
    assert (said, webhook.calls) == ([], [])
    alarm = alarm_of(tmp_path, url, webhook.url, said, later)
    for _ in range(2):
        alarm.look()
    assert [line.partition(":")[0] for line in said] == ["overdue"]
    assert GONE in said[0] and "desk-1 not back" in said[0]
    [(_, body)] = webhook.calls
    message = json.loads(body)
    assert GONE in message["title"] + message["message"] and "gpuops rotate day" in message["message"]
    assert PASSWORD not in str(message) + str(said)
    alarm_of(tmp_path, url, webhook.url, said, later + timedelta(days=1)).look()
    assert len(webhook.calls) == 2, "on the next day again"


@pytest.mark.long
def test_a_database_that_is_away_is_said_once(postgresql: Server, tmp_path: Path, said: list[str]) -> None:
    url = postgresql.database()
    postgresql.cut_off()
    alarm = alarm_of(tmp_path, url, "", said, CLOSED)
    for _ in range(2):
        alarm.look()
    assert len(said) == 1 and said[0].startswith("it is unknown whether all vCenters are returned: ")
    assert PASSWORD not in said[0]
