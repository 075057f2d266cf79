"""A real PgBouncer before the queue of runners: in transaction mode it is refused once, in session mode it is used."""

from __future__ import annotations

import asyncio

import pytest

from gpuops.errors import UsageError
from gpuops.extras.fleet.runner.procrastinate_queue import ProcrastinateQueue
from tests.execute.journal.pooler import pgbouncer, pooler
from tests.execute.journal.postgres import Server
from tests.runner.test_hostile_rows import played_of
from tests.runner.test_queue import TURN, queues

__all__ = ["pgbouncer"]


def test_a_pooler_in_transaction_mode_is_refused_before_anything_is_made(pgbouncer: str, postgresql: Server) -> None:
    async def all_refused(url: str) -> None:
        async with ProcrastinateQueue(url).opened() as queue:
            for call in (queue.require, queue.make, queue.sql_to_make):
                with pytest.raises(UsageError, match="through a pooler in transaction mode") as refused:
                    await call()
                assert "pool_mode=session" in refused.value.hint

    with pooler(pgbouncer, postgresql, "transaction") as url:
        asyncio.run(all_refused(url))


def test_a_pooler_in_session_mode_is_used(pgbouncer: str, postgresql: Server) -> None:
    async def use_pooler(url: str) -> None:
        async with queues(url) as (queue,):
            assert await played_of(queue) == [TURN]

    with pooler(pgbouncer, postgresql, "session") as url:
        asyncio.run(use_pooler(url))
