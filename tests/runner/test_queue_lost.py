"""The queue of runners when its PostgreSQL is lost, refuses, or knows several runners: on a real one."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from procrastinate.jobs import Status

from gpuops.extras.fleet.runner import procrastinate_queue as module
from gpuops.extras.fleet.runner import service as service_module
from gpuops.extras.fleet.runner.procrastinate_queue import TAKEN_FOR_DEAD_S, ProcrastinateQueue
from gpuops.extras.fleet.runner.queue_port import HandedOver, QueueAway
from gpuops.model.nights.runners import Half, PolicyTurn, TurnState
from tests.execute.journal.postgres import PASSWORD, Server
from tests.runner.memory_queue import service_of
from tests.runner.test_queue import LATER, SINCE, TURN, queues, silent, states, take_turn, until


async def nothing(turn: PolicyTurn) -> None:
    """Plays nothing."""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less patience than in earnest."""
    monkeypatch.setattr(module, "ANSWERS_S", 1.0)
    monkeypatch.setattr(module, "ENDS_S", 0.2)


def let_in(server: Server, url: str) -> None:
    server._do(f"ALTER DATABASE {urlsplit(url).path.strip('/')} ALLOW_CONNECTIONS true")


def test_a_return_of_a_runner_that_lost_its_turn_and_died_goes_on_at_once(postgresql: Server, at: object) -> None:
    """It began the return beside its night, and the turn of these ten minutes has been played elsewhere."""
    at("2026-11-03T04:31:10")  # type: ignore[operator]

    async def story() -> None:
        async with queues(postgresql.database(), 2) as (lost, second_queue):
            dies, its_children, _ = service_of(lost)
            lives, children, _ = service_of(second_queue)
            serving = asyncio.create_task(second_queue.serve(lambda: [TURN.site], lives.play))

            async def has_played(returns: int) -> bool:
                return children.called == [(Half.DAY, TURN.site)] * returns and await states(second_queue) == []

            await dies._look()
            await until(lambda: has_played(1))
            its_children.lasts = asyncio.Event()
            night = its_children.begin(Half.NIGHT, TURN.site, Path("policy.yaml"))
            await dies._look()
            assert its_children.called == [(Half.NIGHT, TURN.site), (Half.DAY, TURN.site)]
            await until(lambda: has_played(2))
            its_children.lasts.set()
            await asyncio.gather(night, *dies.alone)
            second_queue.stop()
            await asyncio.wait_for(serving, 20)

    asyncio.run(story())


@pytest.mark.long
@pytest.mark.usefixtures("soon")
def test_a_runner_takes_turns_again_when_the_database_is_found_whatever_it_plays(postgresql: Server) -> None:
    url = postgresql.database()
    other_turn = PolicyTurn("munich", "nights")

    async def story() -> None:
        async with queues(url) as (queue,):
            begun: list[PolicyTurn] = []
            broken_off: list[PolicyTurn] = []

            async def play(turn: PolicyTurn) -> None:
                begun.append(turn)
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    broken_off.append(turn)
                    raise

            async def has(turns: int) -> bool:
                return len(begun) == turns

            await queue.offer(TURN, SINCE)
            serving = asyncio.create_task(queue.serve(lambda: [TURN.site, other_turn.site], play))
            await until(lambda: has(1))
            postgresql.cut_off()
            with pytest.raises(QueueAway):
                await asyncio.wait_for(serving, 20)
            assert broken_off == [TURN]
            let_in(postgresql, url)
            await queue.offer(other_turn, SINCE)
            serving = asyncio.create_task(queue.serve(lambda: [TURN.site, other_turn.site], play))
            await until(lambda: has(2))
            assert begun[1] == other_turn
            await queue.rescue()
            await until(lambda: has(3))
            assert begun[2] == TURN, "what was broken off is offered again, and not left out"
            serving.cancel()
            await asyncio.wait([serving])

    asyncio.run(story())


@pytest.mark.usefixtures("soon")
def test_a_runner_that_is_told_to_end_waits_for_what_it_plays(postgresql: Server) -> None:
    """A vCenter's process takes its time to close its journal: until then no other runner begins."""

    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            begun, process_ends = asyncio.Event(), asyncio.Event()
            ended = []

            async def play(turn: PolicyTurn) -> None:
                begun.set()
                await process_ends.wait()
                ended.append(turn)
                raise HandedOver

            await queue.offer(TURN, SINCE)
            serving = asyncio.create_task(queue.serve(lambda: [TURN.site], play))
            await begun.wait()
            queue.stop()
            await asyncio.sleep(1)
            assert await states(queue) == [TurnState.RUNNING]
            process_ends.set()
            await asyncio.wait_for(serving, 20)
            assert ended == [TURN]
            assert await states(queue) == [TurnState.WAITING]

    asyncio.run(story())


@pytest.mark.long
def test_a_runner_that_is_told_to_end_gives_signs_of_life_until_the_last_turn_has_ended(
    postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process takes longer than a runner is silent before it is taken for dead; it takes nothing more meanwhile."""
    monkeypatch.setattr(module, "SIGN_OF_LIFE_S", 0.2)
    monkeypatch.setattr(module, "TAKEN_FOR_DEAD_S", 3.0)
    monkeypatch.setattr(module, "ENDS_S", 0.2)
    monkeypatch.setattr(module, "LOOK_S", 0.1)
    other_turn = PolicyTurn("munich", "nights")

    async def story() -> None:
        async with queues(postgresql.database(), 2) as (ends, lives):
            begun: list[PolicyTurn] = []
            process_ends = asyncio.Event()

            async def play(turn: PolicyTurn) -> None:
                begun.append(turn)
                await process_ends.wait()
                raise HandedOver

            async def has_begun() -> bool:
                return begun == [TURN]

            await ends.offer(TURN, SINCE)
            serving = asyncio.create_task(ends.serve(lambda: [TURN.site, other_turn.site], play))
            await until(has_begun)
            ends.stop()
            await lives.offer(other_turn, SINCE)
            for _ in range(50):
                await asyncio.sleep(0.1)
                assert await lives.rescue() == 0
                assert [runner.lives for runner in (await lives.status()).runners] == [True]
            assert await states(lives) == [TurnState.RUNNING, TurnState.WAITING]
            process_ends.set()
            await asyncio.wait_for(serving, 20)
            assert begun == [TURN]
            assert await states(lives) == [TurnState.WAITING, TurnState.WAITING]
            assert (await lives.status()).runners == (), "it took its leave"

    asyncio.run(story())


@pytest.mark.long
def test_a_turn_whose_end_was_not_taken_down_is_offered_again(postgresql: Server) -> None:
    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            await queue.offer(TURN, SINCE)
            _, job = await take_turn(queue)
            assert job is not None
            execute = queue._app.connector.execute_query_async
            await execute("ALTER TABLE procrastinate_jobs RENAME TO elsewhere")
            await queue._jobs.finish_job(job, Status.SUCCEEDED, True)
            await execute("ALTER TABLE elsewhere RENAME TO procrastinate_jobs")
            assert await states(queue) == [TurnState.RUNNING]
            await queue.rescue()
            assert await states(queue) == [TurnState.WAITING]

    asyncio.run(story())


@pytest.mark.long
def test_a_turn_that_was_broken_off_is_offered_again(postgresql: Server) -> None:
    """The database is there again before its runner says so."""

    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            await queue.offer(TURN, SINCE)
            _, job = await take_turn(queue)
            assert job is not None
            await queue._jobs.finish_job(job, Status.ABORTED, True)
            assert await states(queue) == [TurnState.WAITING]

    asyncio.run(story())


@pytest.mark.long
def test_runners_that_played_nothing_have_ranks_and_dead_ones_have_none(postgresql: Server) -> None:
    async def story() -> None:
        async with queues(postgresql.database(), 3) as runners:
            first = runners[0]
            dead = await first._jobs.register_worker()
            await silent(first, dead)
            serving = []
            for number, new_runner in enumerate(runners, 1):
                serving.append(asyncio.create_task(new_runner.serve(lambda: [TURN.site], nothing)))

                async def are_registered(number: int = number) -> bool:
                    return len((await first.status()).runners) >= number

                await until(are_registered)
                await asyncio.sleep(0.2)
            await first._app.connector.execute_query_one_async(
                "INSERT INTO procrastinate_workers (id, last_heartbeat) OVERRIDING SYSTEM VALUE "
                "VALUES (-1, now() - make_interval(secs => %(s)s)) RETURNING id",
                s=TAKEN_FOR_DEAD_S + 5,
            )
            statuses = [await runner.status() for runner in runners]
            assert [runner.rank for runner in runners] == [0, 1, 2]
            assert [runner.lives for runner in statuses[0].runners] == [False, True, True, True]
            for runner in runners:
                runner.stop()
            await asyncio.wait_for(asyncio.gather(*serving), 20)

    asyncio.run(story())


@pytest.mark.long
def test_names_may_be_long(postgresql: Server) -> None:
    turn = PolicyTurn("vcenter-" + "x" * 150, "nights-" + "ü" * 150)

    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            played: list[PolicyTurn] = []

            async def play(turn: PolicyTurn) -> None:
                played.append(turn)

            async def both_played() -> bool:
                return played == [turn, TURN]

            serving = asyncio.create_task(queue.serve(lambda: [turn.site, TURN.site], play))
            assert await queue.offer(turn, SINCE)
            assert not await queue.offer(turn, SINCE)
            await asyncio.sleep(1)
            assert await queue.offer(TURN, LATER)
            await until(both_played)
            assert not serving.done()
            queue.stop()
            await asyncio.wait_for(serving, 20)

    asyncio.run(story())


@pytest.mark.long
@pytest.mark.usefixtures("soon")
def test_the_reason_of_a_database_that_lets_nobody_in_is_told(postgresql: Server) -> None:
    name = urlsplit(postgresql.database()).path.strip("/")

    async def story() -> QueueAway:
        async with ProcrastinateQueue(postgresql.url(name, "wrong")).opened() as queue:
            with pytest.raises(QueueAway) as caught:
                await queue.require()
        return caught.value

    error = asyncio.run(story())
    assert "password authentication failed" in error.message
    assert "\n" not in error.message
    assert error.exit_code == 7


@pytest.mark.long
def test_a_grant_that_is_missing_is_no_database_that_is_away(postgresql: Server) -> None:
    url = postgresql.database()
    name = urlsplit(url).path.strip("/")

    async def story() -> QueueAway:
        async with ProcrastinateQueue(url).opened() as owner:
            execute = owner._app.connector.execute_query_async
            await execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            await execute(f"CREATE ROLE guest_{name} LOGIN PASSWORD 'guest'")
        guest = postgresql.url(name, "guest").replace("//gpuops:", f"//guest_{name}:")
        async with ProcrastinateQueue(guest).opened() as queue:
            with pytest.raises(QueueAway) as caught:
                await queue.make()
        return caught.value

    error = asyncio.run(story())
    assert error.message == "the queue's PostgreSQL refuses the statement: permission denied for schema public"
    assert "GRANT" in (error.hint or "")


@pytest.mark.long
def test_a_turn_that_fails_is_told_in_one_line(postgresql: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):

            async def play(turn: PolicyTurn) -> None:
                raise OSError("no more processes")

            async def is_empty() -> bool:
                return await states(queue) == []

            await queue.offer(TURN, SINCE)
            serving = asyncio.create_task(queue.serve(lambda: [TURN.site], play))
            await until(is_empty)
            queue.stop()
            await asyncio.wait_for(serving, 20)

    asyncio.run(story())
    errors = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [error.getMessage() for error in errors] == ["prod: the turn of nights failed: OSError('no more processes')"]
    assert PASSWORD not in caplog.text


@pytest.mark.long
@pytest.mark.usefixtures("soon")
def test_a_database_that_is_lost_leaves_no_traceback(postgresql: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A turn ends just when its end cannot be taken down."""

    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            begun = asyncio.Event()

            async def play(turn: PolicyTurn) -> None:
                begun.set()
                await asyncio.sleep(0.1)

            await queue.offer(TURN, SINCE)
            serving = asyncio.create_task(queue.serve(lambda: [TURN.site], play))
            await begun.wait()
            postgresql.cut_off()
            with pytest.raises(QueueAway):
                await asyncio.wait_for(serving, 20)
            del serving
            gc.collect()  # then asyncio logs an exception that was never read

    asyncio.run(story())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.long
def test_tables_that_two_make_at_once(postgresql: Server) -> None:
    url = postgresql.database()

    async def story() -> list[bool]:
        async with ProcrastinateQueue(url).opened() as first_queue, ProcrastinateQueue(url).opened() as second_queue:
            was_made = await asyncio.gather(first_queue.make(), second_queue.make())
            await first_queue.require()
            return list(was_made)

    assert sorted(asyncio.run(story())) == [False, True]


@pytest.mark.long
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("ends_first", [True, False])
def test_a_turn_that_had_no_journal_is_offered_again_once_in_ten_minutes(
    postgresql: Server, at: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, ends_first: bool
) -> None:
    """PostgreSQL is started anew while it runs, and its process cannot write its journal (exit code 7): it ends while
    PostgreSQL is away, or after. The journal stays broken: it is tried with each further turn, not without end."""
    monkeypatch.setattr(service_module, "LOOK_S", 0.2)
    at("2026-11-02T22:00:10")

    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            service, children, messages = service_of(queue)
            children.code, children.lasts = 7, asyncio.Event()

            async def has_begun(turns: int) -> bool:
                return len(children.called) == turns

            running = asyncio.create_task(service.run())
            await until(lambda: has_begun(1))
            await asyncio.to_thread(postgresql.stop)
            if ends_first:
                children.lasts.set()
                await asyncio.sleep(1)
            await asyncio.to_thread(postgresql.start)
            children.lasts.set()

            async def is_over() -> bool:
                return len(children.called) > 1 and await states(queue) == []

            await until(is_over)
            first = len(children.called)
            assert first in (2, 3), "its waiter may have been cancelled before it ended; then once"
            await asyncio.sleep(2)
            assert await has_begun(first), "once for each turn"
            at("2026-11-02T22:10:10")
            await until(lambda: has_begun(first + 2))
            await asyncio.sleep(1)
            assert children.called == [(Half.NIGHT, "prod")] * (first + 2)
            children.code = 0
            at("2026-11-02T22:20:10")
            await until(lambda: has_begun(first + 3))
            await asyncio.sleep(1)
            assert await has_begun(first + 3), "one that had its journal is over"
            service.end()
            await asyncio.wait_for(running, 30)
            assert messages.count("prod: rotate night of nights ended with 7") == 4

    asyncio.run(story())
