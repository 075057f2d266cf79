"""The queue of runners on a real PostgreSQL: what is offered, given back, taken over and told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from procrastinate.jobs import Job, Status

from gpuops.extras.fleet.runner.procrastinate_queue import TAKEN_FOR_DEAD_S, ProcrastinateQueue
from gpuops.extras.fleet.runner.queue_port import HandedOver
from gpuops.model.nights.runners import PolicyTurn, TurnState
from tests.execute.journal.postgres import Server

TURN = PolicyTurn("prod", "nights")
SINCE = datetime(2026, 11, 2, 22, 0, tzinfo=UTC)
LATER = SINCE + timedelta(minutes=10)


@asynccontextmanager
async def queues(url: str, count: int = 1) -> AsyncIterator[list[ProcrastinateQueue]]:
    """So many runners' queues on one new database."""
    opened = [ProcrastinateQueue(url) for _ in range(count)]
    contexts = [queue.opened() for queue in opened]
    for context in contexts:
        await context.__aenter__()
    try:
        await opened[0].make()
        yield opened
    finally:
        for context in contexts:
            await context.__aexit__(None, None, None)


async def until(true: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Returns when it is true; fails after so long."""
    async with asyncio.timeout(seconds):
        while not await true():
            await asyncio.sleep(0.05)


async def take_turn(queue: ProcrastinateQueue) -> tuple[int, Job | None]:
    """What a worker with a new number takes now, and its number."""
    number = await queue._jobs.register_worker()
    return number, await queue._jobs.fetch_job(queues=None, worker_id=number)


async def silent(queue: ProcrastinateQueue, number: int) -> None:
    """Its last sign of life is too long ago."""
    query = "UPDATE procrastinate_workers SET last_heartbeat = now() - make_interval(secs => %(s)s) WHERE id = %(id)s"
    await queue._app.connector.execute_query_async(query, s=TAKEN_FOR_DEAD_S + 5, id=number)


async def states(queue: ProcrastinateQueue) -> list[TurnState]:
    return [turn.state for turn in (await queue.status()).turns]


@pytest.mark.parametrize("pruned", [False, True])
def test_a_turn_of_a_dead_runner_gives_way_to_one_that_waits(postgresql: Server, pruned: bool) -> None:
    """Its night was longer than ten minutes: the next turn was offered meanwhile."""

    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            assert await queue.offer(TURN, SINCE)
            number, first = await take_turn(queue)
            assert first is not None
            assert await queue.offer(TURN, LATER)
            await (queue._jobs.unregister_worker(number) if pruned else silent(queue, number))
            assert await queue.rescue() == 1
            assert await queue.rescue() == 0
            assert await states(queue) == [TurnState.WAITING]
            _, second = await take_turn(queue)
            assert second is not None
            assert second.id != first.id

    asyncio.run(story())


def test_a_turn_that_is_handed_over_gives_way_to_one_that_waits(postgresql: Server) -> None:
    async def story() -> None:
        async with queues(postgresql.database(), 2) as (queue, second_queue):
            begun = asyncio.Event()
            go_on = asyncio.Event()

            async def play(turn: PolicyTurn) -> None:
                begun.set()
                await go_on.wait()
                raise HandedOver

            await queue.offer(TURN, SINCE)
            serving = asyncio.create_task(queue.serve(lambda: [TURN.site], play))
            await begun.wait()
            assert await queue.offer(TURN, LATER)
            queue.stop()
            go_on.set()
            await asyncio.wait_for(serving, 20)
            assert await states(queue) == [TurnState.WAITING]
            assert (await take_turn(second_queue))[1] is not None

    asyncio.run(story())


def test_an_offer_between_look_and_hand_over_is_found_by_the_second_try(postgresql: Server) -> None:
    """The one transaction offers while the other gives back."""

    async def story() -> None:
        async with queues(postgresql.database(), 2) as (first_queue, second_queue):
            await first_queue.offer(TURN, SINCE)
            _, job = await take_turn(first_queue)
            assert job is not None
            async with second_queue._pool.connection() as connection:
                await connection.execute(
                    "INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, lock) "
                    "SELECT queue_name, task_name, queueing_lock, lock FROM procrastinate_jobs"
                )
                giving = asyncio.create_task(first_queue._jobs.give_back(job))
                await asyncio.sleep(0.5)
                assert not giving.done(), "it waits for the offer"
                await connection.commit()
            assert await asyncio.wait_for(giving, 10)
            rows = await first_queue._app.connector.execute_query_all_async("SELECT id, status FROM procrastinate_jobs")
            assert [(row["id"] == job.id, row["status"]) for row in rows] == [(False, "todo")]

    asyncio.run(story())


def test_a_turn_that_somebody_else_has_by_now_is_left_alone(postgresql: Server) -> None:
    """Two runners saw the same dead one; what the late one saw is no longer so."""

    async def story() -> None:
        async with queues(postgresql.database(), 2) as (first_queue, second_queue):
            await first_queue.offer(TURN, SINCE)
            number, _ = await take_turn(first_queue)
            await silent(first_queue, number)
            (stalled_job,) = list(await second_queue._jobs.get_stalled_jobs(seconds_since_heartbeat=TAKEN_FOR_DEAD_S))
            assert await first_queue.rescue() == 1
            _, second_job = await take_turn(first_queue)
            assert second_job is not None
            assert not await second_queue._jobs.give_back(stalled_job, TAKEN_FOR_DEAD_S)
            await second_queue._jobs.finish_job(stalled_job, Status.SUCCEEDED, True)
            await second_queue._jobs.retry_job(stalled_job)
            assert await states(first_queue) == [TurnState.RUNNING]

    asyncio.run(story())


def test_a_runner_that_gave_a_sign_of_life_meanwhile_keeps_its_turn(postgresql: Server) -> None:
    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            await queue.offer(TURN, SINCE)
            number, _ = await take_turn(queue)
            await silent(queue, number)
            (stalled_job,) = list(await queue._jobs.get_stalled_jobs(seconds_since_heartbeat=TAKEN_FOR_DEAD_S))
            await queue._jobs.update_heartbeat(number)
            assert not await queue._jobs.give_back(stalled_job, TAKEN_FOR_DEAD_S)
            assert await states(queue) == [TurnState.RUNNING]

    asyncio.run(story())


def test_what_is_given_back_is_taken_at_once_whatever_a_runners_clock_says(postgresql: Server) -> None:
    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            await queue.offer(TURN, SINCE)
            _, job = await take_turn(queue)
            assert job is not None
            await queue._jobs.retry_job(job, retry_at=datetime(2099, 1, 1, tzinfo=UTC))
            assert (await take_turn(queue))[1] is not None

    asyncio.run(story())


def test_a_runner_that_wakes_after_it_was_struck_off_takes_turns_again(postgresql: Server) -> None:
    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            number = await queue._jobs.register_worker()
            await silent(queue, number)
            assert [*await queue._jobs.prune_stalled_workers(TAKEN_FOR_DEAD_S)] == [number]
            await queue.offer(TURN, SINCE)
            assert await queue._jobs.fetch_job(queues=None, worker_id=number) is None
            job = await queue._jobs.fetch_job(queues=None, worker_id=number)
            assert job is not None
            assert (await queue.status()).turns[0].runner == number
            await queue._jobs.unregister_worker(number)
            await queue._jobs.update_heartbeat(number)
            assert [(runner.number, runner.lives) for runner in (await queue.status()).runners] == [(number, True)]

    asyncio.run(story())


@pytest.mark.long
def test_turns_of_a_site_that_is_added_are_taken_by_a_runner_that_serves(postgresql: Server) -> None:
    """Turns of a site that is unknown here are left to other runners."""

    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            played: list[str] = []
            sites = ["prod"]

            async def play(turn: PolicyTurn) -> None:
                played.append(turn.site)

            async def has_played(count: int) -> bool:
                return len(played) == count

            serving = asyncio.create_task(queue.serve(lambda: sites, play))
            await queue.offer(PolicyTurn("munich", "nights"), SINCE)
            await queue.offer(TURN, SINCE)
            await until(lambda: has_played(1))
            await asyncio.sleep(0.5)
            assert played == ["prod"]
            sites.append("munich")
            await until(lambda: has_played(2))
            queue.stop()
            await asyncio.wait_for(serving, 20)
            assert played == ["prod", "munich"]

    asyncio.run(story())
