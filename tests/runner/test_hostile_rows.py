"""Rows and notices that another user of the database writes: none ends a runner, plays a turn or delays a return."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gpuops.extras.fleet.cli import _say
from gpuops.extras.fleet.runner.procrastinate_queue import LAST_RANK, ProcrastinateQueue, _digest
from gpuops.model.nights.runners import PolicyTurn
from tests.execute.journal.postgres import Server
from tests.runner.test_queue import SINCE, TURN, queues, take_turn, until

TASK = "gpuops.turn"
GOOD = {"site": TURN.site, "policy": TURN.policy}
ARGUMENTS: tuple[Any, ...] = (
    {}, [], None, "prod", {"site": "prod"}, {"site": 5, "policy": "nights"}, {"site": ["prod"], "policy": {"a": []}},
    {"site": "prod", "policy": None}, {**GOOD, "more": 1}, {**GOOD, "context": 1}, {**GOOD, "self": 1},
    {**GOOD, "site": "munich"}, {**GOOD, "site": "x" * 3_000_000},
)  # fmt: skip
MANY = "generate_series(1, 99)"
TASKS = ("os.system", "procrastinate.builtin_tasks.remove_old_jobs", "")
_INSERT = (
    "INSERT INTO procrastinate_jobs (queue_name, task_name, args, lock, status, scheduled_at) "
    "VALUES (%(queue_name)s, %(task)s, %(args)s::jsonb, %(lock)s, %(status)s, %(due)s::timestamptz)"
)


async def put(queue: ProcrastinateQueue, arguments: Any, task: str = TASK, **columns: str | None) -> None:
    """Write a row into the queue of `TURN`'s site, as any client of the database can."""
    words = {"queue_name": _digest(TURN.site), "lock": None, "status": "todo", "due": None, **columns}
    await do(queue, _INSERT, task=task, args=json.dumps(arguments), **words)


async def do(queue: ProcrastinateQueue, statement: str, **words: Any) -> None:
    await queue._app.connector.execute_query_async(statement, **words)


async def played_of(queue: ProcrastinateQueue) -> list[PolicyTurn]:
    """What a runner plays until its queue has no turn that waits, beginning with one that is offered last."""
    played: list[PolicyTurn] = []

    async def play(turn: PolicyTurn) -> None:
        played.append(turn)

    async def is_empty() -> bool:
        if serving.done():
            serving.result()
        return bool(played) and not (await queue.status()).turns

    assert await queue.offer(TURN, SINCE)
    serving = asyncio.create_task(queue.serve(lambda: [TURN.site], play))
    await until(is_empty)
    queue.stop()
    await asyncio.wait_for(serving, 20)
    return played


@pytest.mark.long
def test_rows_of_any_content_play_nothing_and_end_no_runner(postgresql: Server) -> None:
    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            for arguments in ARGUMENTS:
                await put(queue, arguments)
                await put(queue, arguments, lock=_digest(TURN.site))
            for task in TASKS:
                await put(queue, {**GOOD, "max_hours": 0}, task)
            assert await played_of(queue) == [TURN]

    asyncio.run(story())


@pytest.mark.parametrize("due", ["-infinity", "4000-01-01 BC"])
def test_a_row_that_cannot_be_read_is_removed(postgresql: Server, due: str) -> None:
    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            await put(queue, GOOD, due=due)
            await put(queue, GOOD, due=due, status="doing")
            assert await queue.rescue() == 0
            assert await played_of(queue) == [TURN]

    asyncio.run(story())


def test_moments_that_cannot_be_read_hide_no_turn_and_no_runner(postgresql: Server) -> None:
    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            await queue.offer(TURN, SINCE)
            number, _ = await take_turn(queue)
            await do(queue, "INSERT INTO procrastinate_workers (last_heartbeat) VALUES ('infinity'), ('-infinity')")
            await do(queue, "UPDATE procrastinate_events SET at = 'infinity'")
            status = await queue.status()
            assert [(runner.number, runner.lives) for runner in status.runners] == [(number, True)]
            assert [turn.turn for turn in status.turns] == [TURN]

    asyncio.run(story())


def test_runners_that_do_not_exist_put_off_no_return(postgresql: Server) -> None:
    """While the database is away, a runner begins a return later by its rank."""

    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):
            await do(
                queue, "INSERT INTO procrastinate_workers (last_heartbeat) SELECT now() FROM generate_series(1, 99)"
            )
            await take_turn(queue)
            await queue.status()
            assert queue.rank == LAST_RANK

    asyncio.run(story())


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"type": "abort_job_requested"}', '{"type": 5}'])
def test_a_notice_of_any_text_is_a_reason_to_look_alone(postgresql: Server, text: str) -> None:
    """Every role that may connect can send one."""

    async def story() -> None:
        async with queues(postgresql.database()) as (queue,):

            async def play(turn: PolicyTurn) -> None:
                pass

            serving = asyncio.create_task(queue.serve(lambda: [TURN.site], play))
            for _ in range(5):
                await asyncio.sleep(0.1)
                await do(queue, "SELECT pg_notify('procrastinate_any_queue_v1', %(text)s)", text=text)
            await asyncio.sleep(0.3)
            assert not serving.done()
            queue.stop()
            await asyncio.wait_for(serving, 20)

    asyncio.run(story())


def test_a_name_in_a_row_writes_nothing_but_text_into_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    _say("prod: no policy \x1b[2J\u202enights\n is configured here")
    assert capsys.readouterr().err == "prod: no policy \\u{1b}[2J\\u{202e}nights\\u{a} is configured here\n"
