"""The queue of runners on Procrastinate: jobs, locks, heartbeats and periodic turns are its own.

One job is one turn. Its lock is the vCenter, so that one turn of it runs at a time; its queue is the vCenter as well,
so that a runner takes turns of vCenters that it knows alone. What a runner that was taken for dead says of a job that
another one has by then is not written down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, UniqueViolation
from procrastinate.jobs import DeleteJobCondition, Job, Status
from procrastinate.manager import JobManager
from psycopg import OperationalError
from psycopg_pool import AsyncConnectionPool

from gpuops.errors import UsageError
from gpuops.model.runners import PolicyTurn, QueuedTurn, QueueStatus, RunnerSeen, TurnState
from gpuops.runner.job_queue import HandedOver, Play, QueueAway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SIGN_OF_LIFE_S: Final = 4.0
TAKEN_FOR_DEAD_S: Final = 15.0
"""Without a sign of life for so long: a few that were missed, and well below the 30 s within which a turn goes on."""
ANSWERS_S: Final = 10.0
"""A database that gives no connection for so long is away."""
LOOK_S: Final = 2.0
"""How often it is looked for turns where PostgreSQL's notice of one was lost."""
AT_ONCE: Final = 64
"""Turns that one runner plays at a time: vCenters, each a process of its own."""
_TURN: Final = "gpuops.turn"


# the row is locked before Procrastinate's function sees it: whoever comes second finds no such row, and does nothing
_HELD: Final = (
    "WITH held AS MATERIALIZED (SELECT id, queueing_lock FROM procrastinate_jobs j "
    "WHERE id = %(id)s AND status = 'doing' AND worker_id IS NOT DISTINCT FROM %(worker)s "
    "AND (%(silent_s)s::float IS NULL OR NOT EXISTS (SELECT 1 FROM procrastinate_workers w "
    "WHERE w.id = j.worker_id AND w.last_heartbeat >= now() - make_interval(secs => %(silent_s)s::float))) FOR UPDATE) "
)
_FINISH: Final = (
    _HELD + "SELECT procrastinate_finish_job_v1(id, %(status)s::procrastinate_job_status, %(delete)s)::text FROM held"
)
# one that waits for the same turn already does its work; else it is to be taken from now on, by no machine's clock
_GIVE_BACK: Final = (
    _HELD + "SELECT CASE WHEN EXISTS (SELECT 1 FROM procrastinate_jobs w "
    "WHERE w.status = 'todo' AND w.queueing_lock = held.queueing_lock) "
    "THEN procrastinate_finish_job_v1(id, 'failed', true)::text "
    "ELSE procrastinate_retry_job_v2(id, NULL, NULL, NULL, NULL)::text END FROM held"
)


class OwnJobs(JobManager):
    """Says what became of a job only where its runner still has it, in one statement."""

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        held = {"id": job.id, "worker": job.worker_id, "silent_s": None}
        await self.connector.execute_query_all_async(_FINISH, status=status.value, delete=delete_job, **held)

    async def retry_job(self, job: Job, *args: Any, **told: Any) -> None:
        await self.give_back(job)

    async def give_back(self, job: Job, silent_s: float | None = None) -> bool:
        """Offers a job again that its runner has; whether it did. With `silent_s` only where that runner is silent."""
        for _ in range(2):
            with suppress(UniqueViolation):  # one was offered just now: the next try finds it
                held = {"id": job.id, "worker": job.worker_id, "silent_s": silent_s}
                return bool(await self.connector.execute_query_all_async(_GIVE_BACK, **held))
        return False


class ProcrastinateQueue:
    """Implements `JobQueue`. `url` is a connection string of libpq."""

    def __init__(self, url: str) -> None:
        self._pool = AsyncConnectionPool(
            url, open=False, min_size=1, max_size=8, timeout=ANSWERS_S, check=AsyncConnectionPool.check_connection
        )
        self._app = App(connector=PsycopgConnector())
        self._app.job_manager = self._jobs = OwnJobs(self._app.connector)
        self._play: Play | None = None
        self._worker: asyncio.Task[None] | None = None
        self._stopping = False
        self._rank = 0
        self._number: int | None = None
        # a turn that is given back goes to whoever asks next
        again = RetryStrategy(wait=0, retry_exceptions=[HandedOver])
        self._task = self._app.task(name=_TURN, pass_context=True, retry=again)(self._run)

    async def _run(self, context: JobContext, site: str, policy: str, timestamp: int = 0) -> None:
        """`timestamp`: since when it is due; it only tells two turns apart."""
        assert self._play is not None, "a worker is started by serve()"
        self._number = context.job.worker_id
        await self._play(PolicyTurn(site, policy))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ProcrastinateQueue]:
        """The queue with its connections, which are made when the database answers."""
        logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # what it says is told here
        await self._pool.open(wait=False)
        await self._app.open_async(self._pool)
        try:
            yield self
        finally:
            await self._app.close_async()
            await self._pool.close()

    async def make(self) -> bool:
        if await self._is_there():
            return False
        with _told():
            await self._app.schema_manager.apply_schema_async()
        return True

    async def require(self) -> None:
        """Raises UsageError where the database has no tables of the queue, and QueueAway."""
        if not await self._is_there():
            raise UsageError("the database has no tables of runners", hint="gpuops runner init makes them")

    async def _is_there(self) -> bool:
        with _told():
            found = await self._app.connector.execute_query_all_async(
                "SELECT to_regclass('procrastinate_jobs') IS NOT NULL AS there"
            )
        return bool(found[0]["there"])

    async def offer(self, turn: PolicyTurn, since: datetime) -> bool:
        moment = int(since.timestamp())
        with _told():
            try:
                made = await self._app.job_manager.defer_periodic_job(
                    job=self._job(turn, timestamp=moment),
                    periodic_id=f"{turn.site}:{turn.policy}",
                    defer_timestamp=moment,
                )
            except AlreadyEnqueued:
                return False
        return made is not None

    async def ask(self, turn: PolicyTurn) -> bool:
        with _told():
            try:
                await self._app.job_manager.defer_job_async(self._job(turn))
            except AlreadyEnqueued:
                return False
        return True

    def _job(self, turn: PolicyTurn, **words: int) -> Job:
        return self._task.configure(
            queue=turn.site,
            lock=turn.site,
            queueing_lock=f"{turn.site}:{turn.policy}",
            task_kwargs={"site": turn.site, "policy": turn.policy, **words},
        ).job

    async def serve(self, sites: Sequence[str], play: Play) -> None:
        self._play = play
        with _told():
            self._worker = asyncio.ensure_future(
                self._app.run_worker_async(
                    queues=list(sites),
                    concurrency=AT_ONCE,
                    install_signal_handlers=False,
                    fetch_job_polling_interval=LOOK_S,
                    update_heartbeat_interval=SIGN_OF_LIFE_S,
                    stalled_worker_timeout=TAKEN_FOR_DEAD_S,
                    delete_jobs=DeleteJobCondition.ALWAYS,
                )
            )
            try:
                await self._worker
            except asyncio.CancelledError:
                if not self._stopping:
                    raise

    def stop(self) -> None:
        self._stopping = True
        if self._worker is not None:
            self._worker.cancel()

    async def rescue(self) -> int:
        with _told():
            found = list(await self._jobs.get_stalled_jobs(seconds_since_heartbeat=TAKEN_FOR_DEAD_S))
            return sum([await self._jobs.give_back(job, TAKEN_FOR_DEAD_S) for job in found])

    async def status(self) -> QueueStatus:
        query = self._app.connector.execute_query_all_async
        with _told():
            workers = await query("SELECT id, last_heartbeat FROM procrastinate_workers ORDER BY id")
            jobs = await query(
                "SELECT j.args, j.status::text AS status, j.worker_id, max(e.at) AS at FROM procrastinate_jobs j "
                "LEFT JOIN procrastinate_events e ON e.job_id = j.id "
                "WHERE j.status IN ('todo', 'doing') GROUP BY j.id ORDER BY j.id"
            )
        runners = tuple(RunnerSeen(each["id"], each["last_heartbeat"]) for each in workers)
        numbers = [each.number for each in runners]
        if self._number in numbers:
            self._rank = numbers.index(self._number)
        turns = tuple(
            QueuedTurn(
                PolicyTurn(each["args"]["site"], each["args"]["policy"]),
                TurnState.RUNNING if each["status"] == "doing" else TurnState.WAITING,
                each["worker_id"],
                each["at"],
            )
            for each in jobs
        )
        return QueueStatus(runners, turns)

    @property
    def rank(self) -> int:
        return self._rank


@contextmanager
def _told() -> Iterator[None]:
    """What of the database's errors is told. Raises QueueAway."""
    try:
        yield
    except (ConnectorException, OperationalError, OSError) as error:
        cause = error.__cause__ or error
        line = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
        raise QueueAway(f"the queue's PostgreSQL does not answer: {line}", hint="gpuops help runner") from error
