"""A runner lives whatever becomes of what it plays: signs of life are given by its own process, which only waits."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from threading import Event

import pytest

from gpuops.extras.fleet.runner import procrastinate_queue
from gpuops.model.nights.runners import PolicyTurn, TurnState
from tests.execute.journal.postgres import Server
from tests.runner.test_queue import SINCE, queues, states, until

pytestmark = pytest.mark.long

SITES = ["prod", "munich", "paris"]


def test_turns_that_stand_still_leave_their_runner_alive(postgresql: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its processes are stopped, and a thread of it waits for a database."""
    monkeypatch.setattr(procrastinate_queue, "SIGN_OF_LIFE_S", 0.5)
    monkeypatch.setattr(procrastinate_queue, "TAKEN_FOR_DEAD_S", 3.0)
    answers = Event()

    async def story() -> None:
        async with queues(postgresql.database(), 2) as (queue, second_queue):
            lanes: list[Process] = []

            async def play(turn: PolicyTurn) -> None:
                lane = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
                lane.send_signal(signal.SIGSTOP)
                lanes.append(lane)
                await lane.wait()

            async def all_stand_still() -> bool:
                return len(lanes) == len(SITES)

            for site in SITES:
                await queue.offer(PolicyTurn(site, "nights"), SINCE)
            serving = asyncio.create_task(queue.serve(lambda: SITES, play))
            waiting = asyncio.create_task(asyncio.to_thread(answers.wait))
            try:
                await until(all_stand_still)
                await asyncio.sleep(2 * procrastinate_queue.TAKEN_FOR_DEAD_S)
                assert await second_queue.rescue() == 0
                assert await states(second_queue) == [TurnState.RUNNING] * len(SITES)
                assert [runner.lives for runner in (await second_queue.status()).runners] == [True]
            finally:
                answers.set()
                for lane in lanes:
                    lane.kill()
            queue.stop()
            await asyncio.wait_for(asyncio.gather(serving, waiting), 20)

    asyncio.run(story())
