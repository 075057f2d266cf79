"""Turns that a runner takes: what it starts, finds again, leaves to others, and hands over when it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuops.extras.fleet.runner import children as children_module
from gpuops.extras.fleet.runner.children import Children
from gpuops.extras.fleet.runner.due import SitePolicy
from gpuops.extras.fleet.runner.queue_port import HandedOver
from gpuops.model.nights.runners import Half, PolicyTurn
from tests.runner.memory_queue import TURN, MemoryQueue, looks, service_of
from tests.runner.test_due import policy_of


def test_a_turn_of_a_policy_that_is_not_configured_here_is_left_out(at: object) -> None:
    service, children, messages = service_of(MemoryQueue())
    asyncio.run(service.play(PolicyTurn("prod", "other")))
    assert children.called == []
    assert messages == ["prod: no policy other is configured here: its turn is skipped"]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_turn_that_ends_because_the_runner_does_is_handed_over(at: object, cancelled: bool) -> None:
    """When its process has ended, also where the queue stops waiting for it before."""
    at("2026-11-02T22:00:10")  # type: ignore[operator]
    service, children, messages = service_of(MemoryQueue())

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
    assert messages == ([] if cancelled else ["prod: rotate night of nights ended with 143"])


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
    """It did not exist yet when the others were asked to end."""
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
    service, children, messages = service_of(MemoryQueue())

    async def play() -> None:
        children.code, children.lasts = 4, asyncio.Event()
        playing = asyncio.create_task(service.play(TURN))
        await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        second_turn = asyncio.create_task(service.play(TURN))
        await asyncio.sleep(0.01)
        assert children.called == [(Half.NIGHT, "prod")]
        children.lasts.set()
        await second_turn
        children.code = 0
        await service.play(TURN)

    asyncio.run(play())
    assert children.called == [(Half.NIGHT, "prod")] * 2
    assert messages == ["prod: rotate night of nights ended with 4"]


@pytest.mark.parametrize(("code", "handed_over"), [(7, [True, False, True]), (4, [False] * 3), (0, [False] * 3)])
def test_a_turn_that_had_no_journal_is_offered_again_once(at: object, code: int, handed_over: list[bool]) -> None:
    """PostgreSQL was started anew while it ran. What stays wrong is tried with each further turn, not without end."""
    service, children, _ = service_of(MemoryQueue())
    children.code = code
    offers_accepted: list[bool] = []
    for moment in ("2026-11-02T22:01:10", "2026-11-02T22:01:20", "2026-11-02T22:10:10"):
        at(moment)  # type: ignore[operator]
        try:
            asyncio.run(service.play(TURN))
            offers_accepted.append(False)
        except HandedOver:
            offers_accepted.append(True)
    assert offers_accepted == handed_over
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


def test_a_return_beside_a_night_has_a_turn_in_the_queue_even_if_its_runner_lost_its_own(at: object) -> None:
    """Its turn was given to another runner while it stood still, or the database was lost: if it dies now, no other
    runner knows of the return before the next full ten minutes.
    """
    at("2026-11-03T04:31:10")  # type: ignore[operator]
    queue = MemoryQueue()
    service, children, _ = service_of(queue)

    async def beside() -> None:
        children.lasts = asyncio.Event()
        night = children.begin(Half.NIGHT, "prod", Path("policy.yaml"))
        await looks(service, 3)
        assert children.called == [(Half.NIGHT, "prod"), (Half.DAY, "prod")]
        assert queue.asked == [TURN], "once for each return"
        taking = asyncio.create_task(service.play(TURN))
        await looks(service, 2)
        assert not taking.done(), "the runner that takes it here waits for the return"
        assert len(children.called) == 2
        children.lasts.set()
        await asyncio.gather(night, taking)

    asyncio.run(beside())


def test_a_return_that_was_begun_without_the_database_has_a_turn_once_it_answers(at: object) -> None:
    at("2026-11-03T06:00:10")  # type: ignore[operator]
    queue = MemoryQueue(away=True)
    service, children, _ = service_of(queue)

    async def alone() -> None:
        children.lasts = asyncio.Event()
        await looks(service, 4, minutes=1)
        assert (children.called, queue.asked) == ([(Half.DAY, "prod")], [])
        queue.away = False
        await looks(service, 2)
        assert queue.asked == [TURN]
        children.lasts.set()
        await asyncio.gather(*service.alone)

    asyncio.run(alone())


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


def test_a_line_without_an_end_does_not_stop_what_prints_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A return that waits for its pipe would bring no desktop back."""
    monkeypatch.setattr(children_module, "LONGEST_LINE", 1000)
    messages: list[str] = []
    children = Children({}, say=messages.append)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", partial(_instead, asyncio.create_subprocess_exec))

    async def play() -> int:
        return await asyncio.wait_for(children.begin(Half.DAY, "prod", Path("policy.yaml")), 20)

    assert asyncio.run(play()) == 0
    assert messages[-1] == "prod: the end"
    assert any("is left out" in line for line in messages)


async def _instead(real: Callable[..., Any], *words: str, **options: Any) -> Any:
    return await real(
        "/bin/sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2; echo the end >&2", **options
    )
