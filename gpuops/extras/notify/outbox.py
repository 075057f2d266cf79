"""The outbox: notices to send, the receivers that accepted them, and the runs that have not ended.

It is the file `notices.db` in the state directory, and not part of the journal: a night must not depend on it, and it
must work while vCenter cannot be reached.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gpuops.errors import StateDamaged
from gpuops.execute.state.lock import notices_of_run_lock, receiver_lock
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.extras.notify.view import ReportedRun
from gpuops.model.notice import NoticeText

FILE_NAME: Final = "notices.db"
KEPT: Final = timedelta(days=30)
"""How long a notice is stored, and sent again to receivers that have not accepted it."""
_WAIT_S: Final = 10.0
_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS notices (
         key TEXT PRIMARY KEY, vcenter TEXT NOT NULL, at TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS deliveries (
         key TEXT NOT NULL, receiver TEXT NOT NULL, accepted TEXT, PRIMARY KEY (key, receiver))""",
    """CREATE TABLE IF NOT EXISTS runs (
         id TEXT PRIMARY KEY, vcenter TEXT NOT NULL, command TEXT NOT NULL, began TEXT NOT NULL)""",
)


@dataclass(slots=True)
class BegunRun:
    """A run that is entered in the outbox. The kernel drops its lock when its process ends, however it ends."""

    run: ReportedRun
    began: datetime
    descriptor: int | None
    """The lock of a run of this process; None after its release."""

    def release(self) -> None:
        """Release the lock: from now on the run counts as one whose process has ended."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


class Outbox:
    """The outbox of a state directory. Every method raises StateDamaged where it cannot be used."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir

    def begin(self, run: ReportedRun, began: datetime) -> BegunRun:
        """Enter a run, and hold its lock until `end`, `release` or the end of the process."""
        with self._writing() as connection:
            descriptor = self._lock(notices_of_run_lock(self.state_dir, run.id))
            begun = BegunRun(run, began, descriptor)
            row = (run.id, run.vcenter, run.command, began.isoformat())
            connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?)", row)
        return begun

    def end(self, begun: BegunRun, vcenter: str, notice: NoticeText | None, at: datetime, to: Sequence[str]) -> None:
        """Remove the run and add its notice, in one commit."""
        with self._writing() as connection:
            if notice is not None:
                _put(connection, vcenter, notice, at, to)
            connection.execute("DELETE FROM runs WHERE id = ?", (begun.run.id,))
        begun.release()
        with suppress(OSError):
            notices_of_run_lock(self.state_dir, begun.run.id).unlink(missing_ok=True)

    def find_dead_runs(self, vcenter: str) -> tuple[BegunRun, ...]:
        """Return the runs of this target that are still entered although their process has ended: they died.

        Each is returned with its lock, which is held until `end` or `release`.
        """
        with self._reading() as connection:
            rows = connection.execute("SELECT id, command, began FROM runs WHERE vcenter = ?", (vcenter,)).fetchall()
        dead_runs = []
        for run_id, command, began in rows:
            descriptor = self._lock(notices_of_run_lock(self.state_dir, run_id))
            if descriptor is None:  # the process of the run holds its lock: it is alive
                continue
            begun = BegunRun(ReportedRun(run_id, vcenter, command), datetime.fromisoformat(began), descriptor)
            if self._is_entered(run_id):
                dead_runs.append(begun)
            else:  # it ended normally after `rows` was read; `_lock` has created its lock file again
                begun.release()
                notices_of_run_lock(self.state_dir, run_id).unlink(missing_ok=True)
        return tuple(dead_runs)

    def _is_entered(self, run: str) -> bool:
        with self._reading() as connection:
            return connection.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone() is not None

    def put(self, vcenter: str, notice: NoticeText, at: datetime, to: Iterable[str]) -> None:
        """Add a notice for the receivers `to`, unless the outbox has it already."""
        with self._writing() as connection:
            _put(connection, vcenter, notice, at, to)

    def knows(self, key: str) -> bool:
        """Return whether the outbox has that notice, sent or not."""
        with self._reading() as connection:
            return connection.execute("SELECT 1 FROM notices WHERE key = ?", (key,)).fetchone() is not None

    def waiting(self, vcenter: str, receiver: str = "") -> tuple[NoticeText, ...]:
        """Return the notices of this target that the receiver has not accepted, the oldest first.

        `receiver` '' = those that at least one receiver has not accepted.
        """
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT DISTINCT n.key, n.subject, n.body, n.at FROM notices n JOIN deliveries d ON d.key = n.key "
                "WHERE n.vcenter = ? AND d.accepted IS NULL AND (? = '' OR d.receiver = ?) ORDER BY n.at",
                (vcenter, receiver, receiver),
            ).fetchall()
        return tuple(NoticeText(key, subject, body) for key, subject, body, _ in rows)

    def note_acceptance(self, key: str, receiver: str, at: datetime) -> None:
        """Note that a receiver accepted the notice."""
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?)", (key, receiver, at.isoformat()))

    def accepted_by(self, key: str) -> tuple[str, ...]:
        """Return the receivers that accepted the notice, and the mail addresses of those that accepted it in part."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT receiver FROM deliveries WHERE key = ? AND accepted IS NOT NULL", (key,)
            ).fetchall()
        return tuple(receiver for (receiver,) in rows)

    def remove_old(self, vcenter: str, receivers: Sequence[str], at: datetime) -> None:
        """Delete notices older than `KEPT`, and waiting deliveries to receivers that are no longer configured."""
        with self._writing() as connection:
            connection.execute("DELETE FROM notices WHERE at < ?", ((at - KEPT).isoformat(),))
            connection.execute("DELETE FROM deliveries WHERE key NOT IN (SELECT key FROM notices)")
            rows = connection.execute(
                "SELECT d.key, d.receiver FROM deliveries d JOIN notices n ON d.key = n.key "
                "WHERE n.vcenter = ? AND d.accepted IS NULL",
                (vcenter,),
            ).fetchall()
            abandoned = [(key, receiver) for key, receiver in rows if receiver not in receivers]
            connection.executemany("DELETE FROM deliveries WHERE key = ? AND receiver = ?", abandoned)

    @contextmanager
    def sending_to(self, receiver_id: str) -> Iterator[bool]:
        """Hold the receiver's lock during the block; yield False if another process of this machine holds it."""
        descriptor = self._lock(receiver_lock(self.state_dir, receiver_id))
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _lock(self, path: Path) -> int | None:
        """Return a descriptor that holds the file's lock; None = another process holds it."""
        try:
            private_file(path)
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise _unusable(path, error) from error
        return descriptor

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        path = self.state_dir / FILE_NAME
        prepare_state_dir(self.state_dir)
        private_file(path)
        try:
            with closing(sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous=FULL")
                yield connection
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise _unusable(path, error) from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._writing() as connection:  # creates the tables of a new file
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for one commit; its changes are on disk when the block ends."""
        with self._opened() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for table in _TABLES:  # each is created only if it is missing
                    connection.execute(table)
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def new_run_id() -> str:
    """Return an id that no other run has."""
    return uuid.uuid4().hex[:12]


def _put(connection: sqlite3.Connection, vcenter: str, notice: NoticeText, at: datetime, to: Iterable[str]) -> None:
    row = (notice.key, vcenter, at.isoformat(), notice.subject, notice.body)
    if connection.execute("INSERT OR IGNORE INTO notices VALUES (?, ?, ?, ?, ?)", row).rowcount:
        connection.executemany(
            "INSERT OR IGNORE INTO deliveries VALUES (?, ?, NULL)", [(notice.key, receiver) for receiver in to]
        )


def _unusable(path: Path, error: Exception) -> StateDamaged:
    return StateDamaged(
        f"the outbox of notices {path} cannot be used: {getattr(error, 'strerror', None) or error}",
        hint=f"move {path} to another directory: it contains only notices of the last {KEPT.days} days",
    )
