"""The queue that runners share, built on Procrastinate: it provides the jobs, locks, heartbeats and periodic jobs.

One job is one turn of a policy. The lock of the job is its vCenter, so that only one turn of a vCenter runs at a time.
Its queue is the vCenter as well, so that a runner takes only turns of vCenters that it knows. If a runner was taken for
dead and another one has its job, the first runner can no longer record how the job ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy
from procrastinate.connector import BaseConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException, UniqueViolation
from procrastinate.jobs import DeleteJobCondition, Job, Status
from procrastinate.manager import JobManager, NotificationCallback, get_channel_for_queues
from psycopg import AsyncConnection, OperationalError
from psycopg import Error as PostgresError
from psycopg.errors import ForeignKeyViolation, InsufficientPrivilege
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.journal.stores import refuse_transaction_pooler
from gpuops.extras.fleet.runner.queue_port import HandedOver, Play, QueueAway
from gpuops.model.nights.runners import PolicyTurn, QueuedTurn, QueueStatus, RunnerSeen, TurnState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SIGN_OF_LIFE_S: Final = 4.0
TAKEN_FOR_DEAD_S: Final = 15.0
"""After so long without a sign of life: several missed ones, and well below the 30 s within which a turn continues."""
ANSWERS_S: Final = 10.0
"""A database that gives no connection for this time counts as lost."""
LOOK_S: Final = 2.0
"""How often a runner looks for turns, in case PostgreSQL's notice was lost."""
ENDS_S: Final = 3.0
"""How long a worker that lost the database waits for its running turns; then it ends and is started anew."""
AT_ONCE: Final = 64
"""Turns that one runner plays at a time: vCenters, each a process of its own."""
LAST_RANK: Final = 9
"""The highest rank: rows of runners that do not exist must not put a return off without end."""
_TURN: Final = "gpuops.turn"
_OUTAGE_CLASSES: Final = frozenset({"08", "53", "57"})
"""Classes of PostgreSQL's errors: connection, resources, operator intervention."""
_HELP: Final = "gpuops help sites"
_GRANT: Final = "a GRANT is missing: GRANT USAGE, CREATE ON SCHEMA public TO the role, or what it names"
_LOG: Final = logging.getLogger(__name__)


# The row is locked before Procrastinate's function changes it. If two runners settle one job, the second finds no row
# and does nothing. A job that is given back is due at once (no scheduled time, so no machine's clock matters). If a job
# for the same turn waits already, the given-back one ends as failed and the waiting one is run instead.
_SETTLE: Final = """
WITH held AS MATERIALIZED (
    SELECT id, queueing_lock FROM procrastinate_jobs j
    WHERE id = %(id)s AND status = 'doing' AND worker_id IS NOT DISTINCT FROM %(worker)s
    AND (%(silent_s)s::float IS NULL OR NOT EXISTS (
        SELECT 1 FROM procrastinate_workers w
        WHERE w.id = j.worker_id AND w.last_heartbeat >= now() - make_interval(secs => %(silent_s)s::float)))
    FOR UPDATE)
SELECT CASE
    WHEN %(status)s::procrastinate_job_status IS NOT NULL
        THEN procrastinate_finish_job_v1(id, %(status)s::procrastinate_job_status, true)::text
    WHEN EXISTS (SELECT 1 FROM procrastinate_jobs w WHERE w.status = 'todo' AND w.queueing_lock = held.queueing_lock)
        THEN procrastinate_finish_job_v1(id, 'failed', true)::text
    ELSE procrastinate_retry_job_v2(id, NULL, NULL, NULL, NULL)::text
END FROM held
"""

# Any role that may write into the tables can write rows that no runner wrote. The database selects these, because some
# of them cannot even be read: a time before year 1, arguments of 200 MB.
_IS_TURN: Final = """
coalesce(j.task_name = 'gpuops.turn' AND j.lock = j.queue_name AND j.scheduled_at IS NULL
    AND pg_column_size(j.args) <= 4096 AND jsonb_typeof(j.args) = 'object'
    AND jsonb_typeof(j.args -> 'site') = 'string' AND jsonb_typeof(j.args -> 'policy') = 'string', false)
"""
_REMOVE_FOREIGN_ROWS: Final = f"""
DELETE FROM procrastinate_jobs j
WHERE j.status = 'todo' AND j.queue_name = ANY(%(queues)s) AND NOT {_IS_TURN}
RETURNING j.id
"""  # noqa: S608 - text of this file alone
_STALLED_TURNS: Final = f"""
SELECT j.id, j.worker_id FROM procrastinate_jobs j LEFT JOIN procrastinate_workers w ON w.id = j.worker_id
WHERE j.status = 'doing' AND (w.id IS NULL OR w.last_heartbeat < now() - make_interval(secs => %(dead_s)s))
AND {_IS_TURN}
"""  # noqa: S608 - text of this file alone
_WORKERS: Final = """
SELECT id, last_heartbeat, last_heartbeat >= now() - make_interval(secs => %(dead_s)s) AS lives
FROM procrastinate_workers WHERE last_heartbeat BETWEEN '2000-01-01' AND now() + interval '1 day' ORDER BY id
"""
_TURNS: Final = f"""
SELECT j.args, j.status::text AS status, j.worker_id, max(e.at) AS at FROM procrastinate_jobs j
LEFT JOIN procrastinate_events e ON e.job_id = j.id AND e.at BETWEEN '2000-01-01' AND now()
WHERE j.status IN ('todo', 'doing') AND {_IS_TURN} GROUP BY j.id ORDER BY j.id
"""  # noqa: S608 - text of this file alone

_SIGN_OF_LIFE: Final = """
INSERT INTO procrastinate_workers (id, last_heartbeat) OVERRIDING SYSTEM VALUE VALUES (%(id)s, now())
ON CONFLICT (id) DO UPDATE SET last_heartbeat = excluded.last_heartbeat
"""


class HeldTurn(NamedTuple):
    """A turn that a runner has, as far as giving it back needs."""

    id: int
    worker_id: int | None


class OwnJobs(JobManager):
    """Records the end of a job only if its runner still holds it; check and change are one SQL statement."""

    number: int | None = None
    """Id of the worker that runs or ran last; None = none ran yet."""

    def __init__(self, connector: BaseConnector) -> None:
        super().__init__(connector)
        self.unrecorded: list[Job] = []
        """Jobs whose end could not be written to the database; `rescue` offers them again."""
        self.takes_more = True
        self.sites: Callable[[], Sequence[str]] | None = None
        """Returns the sites whose turns are taken; they may change meanwhile. None = the worker's queues."""

    async def register_worker(self) -> int:
        self.number = await super().register_worker()
        return self.number

    async def update_heartbeat(self, worker_id: int) -> None:
        """Also of a worker that was silent for so long that others have struck it off."""
        await self.connector.execute_query_async(_SIGN_OF_LIFE, id=worker_id)

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Take a turn of one of the sites, after removing rows that no runner wrote.

        None = no turn waits, `stop` was called, or this worker had been removed and was only added again.
        """
        if not self.takes_more:
            return None
        if self.sites is not None:
            queues = [_digest(site) for site in self.sites()]  # not those of the worker's start: sites may change
            removed = await self.connector.execute_query_all_async(_REMOVE_FOREIGN_ROWS, queues=queues)
            if removed:
                _LOG.error("%d rows of the queue were removed: no runner wrote them", len(removed))
        try:
            return await super().fetch_job(queues, worker_id)
        except ConnectorException as error:
            if not isinstance(error.__cause__, ForeignKeyViolation):
                raise
            # other runners removed this worker while it was silent: add it again; the next look fetches a job
            await self.update_heartbeat(worker_id)
            return None

    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        """Take any notice as a reason to look for turns: every role that may connect can send one, with any text."""

        async def look(*, channel: str, payload: str) -> None:
            await on_notification(channel=channel, notification={"type": "job_inserted", "job_id": 0})

        await self.connector.listen_notify(on_notification=look, channels=get_channel_for_queues(queues=queues))

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        """One that was broken off, because the database was lost and found while it ran, is offered again."""
        with self._keep_if_unrecorded(job):
            await (self.give_back(job) if status is Status.ABORTED else self._settle(job, status=status.value))

    async def retry_job(self, job: Job, *args: Any, **options: Any) -> None:
        with self._keep_if_unrecorded(job):
            await self.give_back(job)

    async def give_back(self, job: Job | HeldTurn, silent_s: float | None = None) -> bool:
        """Offer a job again that its runner has; whether it did. With `silent_s` only where that runner is silent."""
        for _ in range(2):
            with suppress(UniqueViolation):  # one was offered just now: the next try finds it
                return await self._settle(job, silent_s=silent_s)
        return False

    async def _settle(self, job: Job | HeldTurn, status: str | None = None, silent_s: float | None = None) -> bool:
        words = {"id": job.id, "worker": job.worker_id, "status": status, "silent_s": silent_s}
        return bool(await self.connector.execute_query_all_async(_SETTLE, **words))

    @contextmanager
    def _keep_if_unrecorded(self, job: Job) -> Iterator[None]:
        try:
            yield
        except ConnectorException:
            self.unrecorded.append(job)


class _ReasonedConnection(AsyncConnection[TupleRow]):
    """Stores why a connection could not be made, which the pool only logs."""

    @classmethod
    async def connect(cls, conninfo: str = "", *, refusals: list[str], **words: Any) -> Self:  # type: ignore[override]
        try:
            connection = await super().connect(conninfo, **words)
        except OperationalError as error:
            refusals[:] = [" ".join(str(error).split())]
            raise
        refusals.clear()
        return connection


class ProcrastinateQueue:
    """Implements `JobQueue`. `url` is a connection string of libpq."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_checked = False
        """Whether it is known that no pooler is in transaction mode between here and the database."""
        self._refusals: list[str] = []
        """Why the last connection could not be made; nothing where it could."""
        self._pool = AsyncConnectionPool(
            url, open=False, min_size=1, max_size=8, timeout=ANSWERS_S, reconnect_timeout=ANSWERS_S,
            check=AsyncConnectionPool.check_connection, connection_class=_ReasonedConnection,
            kwargs={"refusals": self._refusals},
        )  # fmt: skip
        self._app = App(connector=PsycopgConnector())
        self._app.job_manager = self._jobs = OwnJobs(self._app.connector)
        self._play: Play | None = None
        self._worker: asyncio.Task[None] | None = None
        self._playing = 0
        """Turns that run."""
        self._stopping = False
        self._rank = 0
        # a turn that is given back goes to the next runner that asks
        offer_again = RetryStrategy(wait=0, retry_exceptions=[HandedOver])
        self._task = self._app.task(name=_TURN, pass_context=True, retry=offer_again)(self._run)

    async def _run(self, context: JobContext, site: str, policy: str, timestamp: int = 0) -> None:
        """Play a turn from the queue. `timestamp`: since when it is due, in s; it only makes two jobs differ.

        Raises ValueError if the job is in the queue of another site: its lock then does not protect this vCenter.
        """
        if context.job.queue != _digest(site):
            raise ValueError("a turn in the queue of another site")
        self._playing += 1
        try:
            await self._play_to_the_end(PolicyTurn(site, policy))
        finally:
            self._playing -= 1
            self._end_worker()

    async def _play_to_the_end(self, turn: PolicyTurn) -> None:
        """Play a turn, and after `stop` wait until it has ended although the worker cancels it. Raises HandedOver."""
        assert self._play is not None, "a worker is started by serve()"
        playing = asyncio.ensure_future(self._play(turn))
        while True:
            try:
                return await asyncio.shield(playing)
            except asyncio.CancelledError:
                # not by `stop`: the database was lost. Its process continues, and the site's next turn waits for it
                if playing.done() or not self._stopping:
                    playing.cancel()
                    raise
                # by `stop`: the turn is ending, so wait for it again
            except HandedOver:
                raise
            except Exception as error:
                _LOG.error("%s: the turn of %s failed: %r", turn.site, turn.policy, error)
                raise

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ProcrastinateQueue]:
        """Yield the queue with its connections, which are made when the database answers."""
        for name in ("psycopg.pool", "procrastinate"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # their errors are reported here
        await self._pool.open(wait=False)
        await self._app.open_async(self._pool)
        try:
            yield self
        finally:
            await self._app.close_async()
            await self._pool.close()

    async def make(self) -> bool:
        if await self._has_tables():
            return False
        with self._translated_errors():
            try:
                await self._app.schema_manager.apply_schema_async()
            except ConnectorException:
                if await self._has_tables():  # another runner made them at the same time
                    return False
                raise
        return True

    async def sql_to_make(self) -> str:
        """The SQL that makes the tables of the queue, "" where they are there. Changes nothing; raises QueueAway."""
        return "" if await self._has_tables() else self._app.schema_manager.get_schema()

    async def require(self) -> None:
        """Raise UsageError where the database has no tables of the queue, and QueueAway."""
        if not await self._has_tables():
            raise UsageError("the database has no tables of runners", hint="gpuops runner init makes them")

    async def _has_tables(self) -> bool:
        """Return whether the database has the tables of the queue.

        Raises QueueAway, and UsageError for a pooler in transaction mode: it drops a session's notices and prepared
        statements.
        """
        with self._translated_errors():
            rows = await self._app.connector.execute_query_all_async(
                "SELECT to_regclass('procrastinate_jobs') IS NOT NULL AS there"
            )
        if not self._is_checked:
            try:
                await asyncio.to_thread(refuse_transaction_pooler, self._url)
            except StateDamaged as error:
                raise QueueAway(error.message, hint=_HELP) from error
            self._is_checked = True
        return bool(rows[0]["there"])

    async def offer(self, turn: PolicyTurn, since: datetime) -> bool:
        moment = int(since.timestamp())
        with self._translated_errors():
            try:
                # of all runners that offer this turn and moment, the database accepts the first
                job_id = await self._app.job_manager.defer_periodic_job(
                    job=self._job(turn, timestamp=moment),
                    periodic_id=_digest(turn.site, turn.policy),
                    defer_timestamp=moment,
                )
            except AlreadyEnqueued:
                return False
        return job_id is not None

    async def ask(self, turn: PolicyTurn) -> bool:
        with self._translated_errors():
            try:
                await self._app.job_manager.defer_job_async(self._job(turn))
            except AlreadyEnqueued:
                return False
        return True

    def _job(self, turn: PolicyTurn, **words: int) -> Job:
        return self._task.configure(
            queue=_digest(turn.site),
            lock=_digest(turn.site),
            queueing_lock=_digest(turn.site, turn.policy),
            task_kwargs={"site": turn.site, "policy": turn.policy, **words},
        ).job

    async def serve(self, sites: Callable[[], Sequence[str]], play: Play) -> None:
        self._play, self._jobs.sites = play, sites
        with self._translated_errors():
            self._worker = asyncio.ensure_future(
                self._app.run_worker_async(
                    concurrency=AT_ONCE,
                    install_signal_handlers=False,
                    fetch_job_polling_interval=LOOK_S,
                    update_heartbeat_interval=SIGN_OF_LIFE_S,
                    stalled_worker_timeout=TAKEN_FOR_DEAD_S,
                    shutdown_graceful_timeout=ENDS_S,
                    delete_jobs=DeleteJobCondition.ALWAYS,
                )
            )
            try:
                await self._worker
            except asyncio.CancelledError:
                if not self._stopping:  # after `stop` it is `_end_worker` that cancels: the regular end
                    raise
        if not self._stopping:
            raise QueueAway("the queue's PostgreSQL ended the connection", hint=_HELP)

    def stop(self) -> None:
        self._stopping = True
        self._jobs.takes_more = False
        self._end_worker()

    def _end_worker(self) -> None:
        """After `stop`, cancel the worker once no turn runs: a worker that is ending sends no signs of life.

        Only once: a worker that is cancelled again does not wait until its last turn is given back.
        """
        if self._stopping and not self._playing and self._worker is not None:
            worker, self._worker = self._worker, None
            worker.cancel()

    async def rescue(self) -> int:
        with self._translated_errors():
            for job in tuple(self._jobs.unrecorded):
                await self._jobs.give_back(job)
                self._jobs.unrecorded.remove(job)
            rows = await self._app.connector.execute_query_all_async(_STALLED_TURNS, dead_s=TAKEN_FOR_DEAD_S)
            return sum([await self._jobs.give_back(HeldTurn(**row), TAKEN_FOR_DEAD_S) for row in rows])

    async def status(self) -> QueueStatus:
        query = self._app.connector.execute_query_all_async
        with self._translated_errors():
            workers = await query(_WORKERS, dead_s=TAKEN_FOR_DEAD_S)
            jobs = await query(_TURNS)
        runners = tuple(RunnerSeen(row["id"], row["last_heartbeat"], lives=row["lives"]) for row in workers)
        living = [row.number for row in runners if row.lives]
        if self._jobs.number in living:
            # oldest first: without the database, runners begin returns in this order
            self._rank = min(living.index(self._jobs.number), LAST_RANK)
        turns = tuple(
            QueuedTurn(
                PolicyTurn(row["args"]["site"], row["args"]["policy"]),
                TurnState.RUNNING if row["status"] == "doing" else TurnState.WAITING,
                row["worker_id"] if row["status"] == "doing" else None,
                row["at"],
            )
            for row in jobs
        )
        return QueueStatus(runners, turns)

    @property
    def rank(self) -> int:
        return self._rank

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn an error of the database inside the block into QueueAway, with a message for the admin."""
        try:
            yield
        except (ConnectorException, OperationalError, OSError) as error:
            cause = error.__cause__ or error
            # an answer of PostgreSQL, unless its class (the first two characters) means an outage
            if isinstance(cause, PostgresError) and cause.sqlstate and cause.sqlstate[:2] not in _OUTAGE_CLASSES:
                hint = _GRANT if isinstance(cause, InsufficientPrivilege) else _HELP
                raise QueueAway(
                    f"the queue's PostgreSQL refuses the statement: {cause.diag.message_primary}", hint=hint
                ) from error
            reasons = self._refusals if isinstance(cause, PoolTimeout) else []
            line = " ".join(reasons or str(cause).split()) or type(cause).__name__
            raise QueueAway(f"the queue's PostgreSQL does not answer: {line}", hint=_HELP) from error


def _digest(*names: str) -> str:
    """Return a short digest of the names: PostgreSQL's channels have names of at most 63 bytes."""
    return sha256(json.dumps(names).encode()).hexdigest()[:32]
