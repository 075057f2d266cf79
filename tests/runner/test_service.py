"""The runner's loop on a queue in memory: what it does while the database is away, and what it leaves out."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuops import clock
from gpuops.clock import set_ahead
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.runners import ASSIGNING, Half, PolicyTurn, QueueStatus
from gpuops.runner import children as children_module
from gpuops.runner import service as module
from gpuops.runner.children import Children
from gpuops.runner.job_queue import HandedOver, JobQueue, Play, QueueAway
from gpuops.runner.service import Service
from gpuops.runner.site_policy import SitePolicy, loaded, read_anew
from tests.runner.test_due import PARIS, policy_of

TURN = PolicyTurn("prod", "nights")


@dataclass
class MemoryQueue:
    """Implements `JobQueue`; it is away while it is told so."""

    place: int = 0
    away: bool = False
    offered: list[tuple[PolicyTurn, datetime]] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    lost: int = 0
    refuses: tuple[str, ...] = ()
    """Sites whose turns it does not take."""

    def _reach(self) -> None:
        if self.away:
            raise QueueAway("the queue's PostgreSQL does not answer: it is away")

    async def make(self) -> bool:
        return False

    async def offer(self, turn: PolicyTurn, since: datetime) -> bool:
        self._reach()
        if turn.site in self.refuses:
            raise QueueAway("the queue's PostgreSQL refuses: too long")
        self.offered.append((turn, since))
        return True

    async def ask(self, turn: PolicyTurn) -> bool:
        return True

    async def serve(self, sites: Callable[[], Sequence[str]], play: Play) -> None:
        self._reach()
        while not self.stopped.is_set():
            self._reach()
            if self.offered:
                turn, since = self.offered.pop(0)
                if turn.site in sites():
                    try:
                        await play(turn)
                    except HandedOver:  # as the queue in PostgreSQL does
                        self.offered.append((turn, since))
            await asyncio.sleep(0)

    def stop(self) -> None:
        self.stopped.set()

    async def rescue(self) -> int:
        self._reach()
        return self.lost

    async def status(self) -> QueueStatus:
        self._reach()
        return QueueStatus((), ())

    @property
    def rank(self) -> int:
        return self.place


@dataclass
class CalledChildren(Children):
    """Notes what would be started."""

    called: list[tuple[Half, str]] = field(default_factory=list)
    code: int = 0

    lasts: asyncio.Event | None = None
    """Until it is set those of `lasting` run; None = all end at once."""
    lasting: tuple[Half, ...] = tuple(Half)

    assigned: list[datetime] = field(default_factory=list)
    """When requests across sites were."""

    async def _run(
        self, words: tuple[str, ...], about: str, more: Mapping[str, str] | None = None, *, errors_alone: bool = False
    ) -> int:
        if words[0] == "queue":
            assert words == ("queue", "--site", "all", "--assign", "--quiet")
            self.assigned.append(clock.wall_clock())
            return self.code
        self.called.append((Half(words[1]), words[-1]))
        if self.lasts is not None and Half(words[1]) in self.lasting:
            await self.lasts.wait()
        return self.code


@pytest.fixture
def at() -> Iterator[object]:
    """Sets the time of day."""
    before = clock.wall_clock() - clock.machine_time()

    def set_to(text: str) -> None:
        set_ahead(datetime.fromisoformat(text).replace(tzinfo=UTC) - clock.machine_time())

    yield set_to
    set_ahead(before)


def service_of(queue: JobQueue) -> tuple[Service, CalledChildren, list[str]]:
    said: list[str] = []
    children = CalledChildren({})
    known = {"prod": {"nights": SitePolicy(policy_of(PARIS), Path("policy.yaml"))}}
    return Service(queue, known, children, said.append, load=lambda _, policy: policy), children, said


async def looks(service: Service, count: int, minutes: float = 0) -> None:
    """So many looks, each so many minutes after the one before."""
    for _ in range(count):
        await service._look()
        await asyncio.sleep(0)
        set_ahead(clock.wall_clock() - clock.machine_time() + timedelta(minutes=minutes))


def test_a_turn_is_offered_once_for_ten_minutes(at: object) -> None:
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    queue = MemoryQueue()
    service, _, _ = service_of(queue)
    asyncio.run(looks(service, 5, minutes=3))
    assert [since.minute for _, since in queue.offered] == [0, 10]


@pytest.mark.parametrize(("rank", "expected"), [(0, [2]), (1, [5]), (2, [8]), (5, [17])])
def test_returns_go_on_while_the_database_is_away(at: object, rank: int, expected: list[int]) -> None:
    """The first runner begins it after two minutes, each further one three minutes after the one before."""
    at("2026-11-03T06:00:10")  # type: ignore[operator]
    queue = MemoryQueue(place=rank, away=True)
    service, children, said = service_of(queue)
    begun: list[int] = []

    async def minute_by_minute() -> None:
        for minute in range(9 if rank < 5 else 18):
            await looks(service, 1, minutes=1)
            begun.extend([minute] * (len(children.called) - len(begun)))

    asyncio.run(minute_by_minute())
    assert begun == expected
    assert children.called == [(Half.DAY, "prod")]
    assert said[0].endswith("nothing new is taken; returns go on")


def test_no_night_begins_while_the_database_is_away(at: object) -> None:
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    service, children, _ = service_of(MemoryQueue(away=True))
    asyncio.run(looks(service, 20, minutes=1))
    assert children.called == []


def test_what_came_back_is_said_and_the_turns_of_a_dead_runner_too(at: object) -> None:
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    queue = MemoryQueue(away=True)
    service, _, said = service_of(queue)
    asyncio.run(looks(service, 1))
    queue.away, queue.lost = False, 2
    asyncio.run(looks(service, 1))
    assert said[1:] == [
        "2 turns of a runner that gives no sign of life are offered again",
        "the queue's PostgreSQL answers again",
    ]


def test_a_turn_of_a_policy_that_is_not_configured_here_is_left_out(at: object) -> None:
    service, children, said = service_of(MemoryQueue())
    asyncio.run(service.play(PolicyTurn("prod", "other")))
    assert children.called == []
    assert said == ["prod: no policy other is configured here: its turn is left out"]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_turn_that_ends_because_the_runner_does_is_handed_over(at: object, cancelled: bool) -> None:
    """When its process has ended, also where the queue stops waiting for it before."""
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    service, children, said = service_of(MemoryQueue())

    async def play() -> None:
        children.code, children.lasts = 143, asyncio.Event()
        playing = asyncio.create_task(service.play(TURN))
        await asyncio.sleep(0.01)
        service.end()
        if cancelled:
            playing.cancel()
        await asyncio.sleep(0.01)
        assert not playing.done(), "another runner would take it while it closes its journal"
        children.lasts.set()
        with pytest.raises(HandedOver):
            await playing

    asyncio.run(play())
    assert said == ([] if cancelled else ["prod: rotate night of nights ended with 143"])


def test_no_night_begins_when_the_runner_ends(at: object) -> None:
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    service, children, _ = service_of(MemoryQueue())

    async def play() -> None:
        service.end()
        with pytest.raises(HandedOver):
            await service.play(TURN)

    asyncio.run(play())
    assert children.called == []


def test_a_process_that_is_begun_while_the_runner_ends_is_told_to_end() -> None:
    """It did not exist yet when all were told."""
    children = Children({})

    async def play() -> int:
        begun = children.begin(Half.NIGHT, "prod", Path("/none/policy.yaml"))
        await asyncio.sleep(0)
        children.end()
        assert not children.processes
        return await asyncio.wait_for(begun, 60)

    assert asyncio.run(play()) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert children.running == {}


def test_a_process_whose_waiter_was_cancelled_goes_on_and_is_found_again(at: object) -> None:
    """The queue was lost and found while it ran; when it has ended, the next turn is a process of its own."""
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    service, children, said = service_of(MemoryQueue())

    async def play() -> None:
        children.code, children.lasts = 4, asyncio.Event()
        playing = asyncio.create_task(service.play(TURN))
        await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        again = asyncio.create_task(service.play(TURN))
        await asyncio.sleep(0.01)
        assert children.called == [(Half.NIGHT, "prod")]
        children.lasts.set()
        await again
        children.code = 0
        await service.play(TURN)

    asyncio.run(play())
    assert children.called == [(Half.NIGHT, "prod")] * 2
    assert said == ["prod: rotate night of nights ended with 4"]


@pytest.mark.parametrize(("code", "handed_over"), [(7, [True, False, True]), (4, [False] * 3), (0, [False] * 3)])
def test_a_turn_that_had_no_journal_is_offered_again_once(at: object, code: int, handed_over: list[bool]) -> None:
    """PostgreSQL was started anew while it ran. What stays wrong is tried with each further turn, not without end."""
    service, children, _ = service_of(MemoryQueue())
    children.code = code
    found: list[bool] = []
    for moment in ("2026-11-02T22:01:10", "2026-11-02T22:01:20", "2026-11-02T22:10:10"):
        at(moment)  # type: ignore[operator]
        try:
            asyncio.run(service.play(TURN))
            found.append(False)
        except HandedOver:
            found.append(True)
    assert found == handed_over
    assert children.called == [(Half.NIGHT, "prod")] * 3


def test_a_return_is_begun_beside_a_night_that_does_not_end(at: object) -> None:
    """As cron calls it: every ten minutes from the closing on; the night hangs."""
    at("2026-11-03T04:29:10")  # type: ignore[operator]
    service, children, _ = service_of(MemoryQueue())
    begun: list[int] = []

    async def minute_by_minute() -> None:
        children.lasts, children.lasting = asyncio.Event(), (Half.NIGHT,)
        night = asyncio.create_task(service.play(TURN))
        await asyncio.sleep(0)
        for minute in range(29, 47):
            await looks(service, 1, minutes=1)
            await asyncio.sleep(0.001)
            begun.extend([minute] * (len(children.called) - 1 - len(begun)))
        assert not night.done()
        children.lasts.set()
        await night

    asyncio.run(minute_by_minute())
    assert begun == [31, 41]
    assert children.called == [(Half.NIGHT, "prod"), (Half.DAY, "prod"), (Half.DAY, "prod")]


def test_a_site_whose_turns_the_queue_refuses_stops_no_other(at: object) -> None:
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    queue = MemoryQueue(refuses=("a",))
    service, _, said = service_of(queue)
    service.rotations = {"a": dict(service.rotations["prod"]), **service.rotations}
    asyncio.run(looks(service, 3))
    assert [turn.site for turn, _ in queue.offered] == ["prod"]
    assert said == ["a: its turns cannot be offered: the queue's PostgreSQL refuses: too long"]


def test_a_policy_is_obeyed_as_its_file_says_now(at: object, tmp_path: Path) -> None:
    """What cannot be obeyed is said once: no night begins under it, and returns go on by the last good one."""
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    service, children, said = service_of(MemoryQueue())
    file = tmp_path / "policy.yaml"
    service.load, service.rotations = loaded, {"prod": {"nights": SitePolicy(policy_of(PARIS), file)}}

    def written(text: str) -> None:
        file.write_text(text, encoding="utf-8")
        asyncio.run(service.play(TURN))

    written(policy_of(PARIS).text)
    assert (children.called, said) == ([(Half.NIGHT, "prod")], [])
    for _ in range(2):
        written("version: 1")
    written(policy_of(PARIS, "others").text)
    assert len(children.called) == 1
    assert len(said) == 2
    assert "no night of nights begins" in said[0]
    assert "is called others by now" in said[1]
    at("2026-11-03T12:00:10")  # type: ignore[operator]
    written("version: 1")
    assert children.called[1:] == [(Half.DAY, "prod")]
    written(policy_of('[{opens: "11:00", closes: "13:00", zone: UTC}]').text)
    assert children.called[2:] == [(Half.NIGHT, "prod")]
    assert said[3:] == [f"prod: policy nights is another one by now: {file}"]


def test_policies_of_one_vcenter_that_are_edited_together_are_compared_as_they_are_now(tmp_path: Path) -> None:
    """Each alone would clash with the other as it was."""
    early = '[{opens: "18:00", closes: "20:00", zone: UTC}]', '[{opens: "20:00", closes: "22:00", zone: UTC}]'
    late = '[{opens: "21:00", closes: "23:00", zone: UTC}]', '[{opens: "23:00", closes: "01:00", zone: UTC}]'
    files = {name: tmp_path / name for name in ("early", "late")}
    policies, said = {}, list[str]()
    for (name, file), windows in zip(files.items(), (early, late), strict=True):
        policies[name] = SitePolicy(policy_of(windows[0], name), file)
        file.write_text(policy_of(windows[1], name).text, encoding="utf-8")
    now = datetime(2026, 11, 2, 12, tzinfo=UTC)
    read_anew("prod", policies, now, loaded, said.append)
    assert said == [f"prod: policy {name} is another one by now: {file}" for name, file in files.items()]
    files["early"].write_text(
        policy_of('[{opens: "20:00", closes: "23:10", zone: UTC}]', "early").text, encoding="utf-8"
    )
    read_anew("prod", policies, now, loaded, said.append)
    assert len(said) == 3
    assert "no night of early begins" in said[2]
    assert str(policies["early"].policy.windows[0]).startswith("20:00 to 22:00")


def test_the_loop_goes_on_after_the_database_was_away_and_ends_when_it_is_told(
    at: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    queue = MemoryQueue(away=True)
    service, children, said = service_of(queue)
    answered: list[bool] = []
    service.looked = answered.append

    async def play() -> None:
        running = asyncio.create_task(service.run())
        await asyncio.sleep(0.1)
        assert not running.done(), "a database that is away ends nobody"
        assert set(answered) == {False}, "it looks all the same, and says that it finds none"
        queue.away = False
        while not children.called:
            await asyncio.sleep(0.01)
        service.end()
        await asyncio.wait_for(running, 5)

    asyncio.run(play())
    assert children.called == [(Half.NIGHT, "prod")]
    assert answered[-1]
    assert len(said) == 2


def test_no_return_of_one_policy_ends_the_night_of_another(at: object) -> None:
    """It is neither offered nor played nor begun alone, until the last window of the vCenter has closed."""
    at("2026-11-02T23:00:10")  # type: ignore[operator]
    queue = MemoryQueue()
    service, children, _ = service_of(queue)
    early = policy_of('[{opens: "20:00", closes: "22:00", zone: UTC}]', "early")
    service.rotations = {"prod": {**service.rotations["prod"], "early": SitePolicy(early, Path("early.yaml"))}}

    async def night() -> None:
        await looks(service, 3, minutes=10)
        assert {turn.policy for turn, _ in queue.offered} == {"nights"}
        await service.play(PolicyTurn("prod", "early"))
        queue.away = True
        await looks(service, 12, minutes=1)

    asyncio.run(night())
    assert children.called == []
    at("2026-11-03T05:00:10")  # type: ignore[operator]
    asyncio.run(service.play(PolicyTurn("prod", "early")))
    assert children.called == [(Half.DAY, "prod")]


def with_requests(service: Service) -> None:
    known = service.rotations["prod"]["nights"]
    known.policy = replace(known.policy, ml=(QueuedVm("ml-1", across_sites=True),))


@pytest.mark.parametrize(("across", "expected"), [(True, [0, 10]), (False, [])])
def test_to_assign_requests_across_sites_is_a_turn(at: object, across: bool, expected: list[int]) -> None:
    """Of every ten minutes, where a policy has any. A runner without such requests does not take it, whichever lived
    first."""
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    queue = MemoryQueue(place=3)
    service, _, _ = service_of(queue)
    if across:
        with_requests(service)
    asyncio.run(looks(service, 6, minutes=3))
    assert [since.minute for turn, since in queue.offered if turn == ASSIGNING] == expected
    assert (ASSIGNING.site in service._sites()) is across
    service.rotations = {
        "prod": {name: replace(each, leaving=True) for name, each in service.rotations["prod"].items()}
    }
    assert service._sites() == ["prod"]


def test_whoever_takes_that_turn_assigns_them(at: object) -> None:
    """What goes wrong is said once."""
    at("2026-11-02T22:01:00")  # type: ignore[operator]
    service, children, said = service_of(MemoryQueue())
    children.code = 4
    for _ in range(2):
        asyncio.run(service.play(ASSIGNING))
    assert (len(children.assigned), children.called) == (2, [])
    assert said == ["requests across sites: gpuops queue --site all --assign ended with 4"]


def test_that_turn_is_handed_over_where_its_runner_ends(at: object) -> None:
    service, children, _ = service_of(MemoryQueue())

    async def play() -> None:
        service.end()
        with pytest.raises(HandedOver):
            await service.play(ASSIGNING)

    asyncio.run(play())
    assert children.assigned == []


def test_a_line_without_an_end_does_not_stop_what_prints_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A return that waits for its pipe would bring nobody back."""
    monkeypatch.setattr(children_module, "LONGEST_LINE", 1000)
    said: list[str] = []
    children = Children({}, say=said.append)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", partial(_instead, asyncio.create_subprocess_exec))
    assert asyncio.run(asyncio.wait_for(children.assign_requests(), 20)) == 0
    assert said[-1] == "requests across sites: the end"
    assert any("is left out" in line for line in said)


async def _instead(real: Callable[..., Any], *words: str, **options: Any) -> Any:
    return await real(
        "/bin/sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2; echo the end >&2", **options
    )
