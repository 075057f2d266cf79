"""Read past nights and changes from every record of a journal: once, or repeatedly, each time only the new records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.journal import Journal
from gpuops.execute.journal.database import RETURN_HINT, has_journal, vcenters_in
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.stores import (
    FILE_NAME,
    Broken,
    Chain,
    file_database,
    head_of,
    look_into_store,
    open_database,
    rows_of,
)
from gpuops.execute.past.past_events import PastEventsReader, read_events
from gpuops.model.nights.history import EventKind, PastEvents, PastNight


@dataclass(frozen=True, slots=True)
class OpenedJournal:
    """All records of a journal, open for reading."""

    name: str
    """The file, or the database without its password."""
    vcenters: tuple[str, ...] = ()
    """Their instance uuids; empty if nothing was ever recorded."""
    connection: Connection | None = None

    def records(self, vcenter: str) -> Iterator[Record]:
        """Yield all records of this vCenter in order. Raises StateDamaged at the first that was changed or is
        missing."""
        if self.connection is None:
            return
        try:
            end, chain = head_of(self.connection, vcenter), Chain(vcenter)
            for row in rows_of(self.connection, vcenter, 0):
                yield chain.follow(row)
            chain.ends_at(end.seq, end.checksum)
        except Broken as broken:
            raise StateDamaged(
                f"the journal {self.name} was changed by a program other than gpuops: {broken}",
                hint=f"gpuops rotate audit verify shows how far it can be trusted; {RETURN_HINT}",
            ) from broken


@contextmanager
def opened_journal(state_dir: Path, url: str = "") -> Iterator[OpenedJournal]:
    """Open the file in the state directory, or the PostgreSQL database at the URL, in one view; change nothing.

    Raises UsageError, StateDamaged.
    """
    database = open_database(url) if url else file_database(state_dir)
    if database is None:
        yield OpenedJournal(str(state_dir / FILE_NAME))
        return
    with closing(database), database.reading() as connection:
        if not has_journal(connection, database):
            yield OpenedJournal(database.name)
            return
        yield OpenedJournal(database.name, tuple(vcenters_in(connection)), connection)


class FollowedHistory:
    """The events of one vCenter in the journal of this directory, or in the database at the URL.

    Only `events` changes it.
    """

    def __init__(self, state_dir: Path, url: str, vcenter: str) -> None:
        self._state_dir, self._url, self._vcenter = state_dir, url, vcenter
        self._name = "the database of the journal" if url else str(state_dir / FILE_NAME)
        self._forget_all()

    def _forget_all(self) -> None:
        self._reader = PastEventsReader(self._vcenter)
        self._seq = 0
        self._events: PastEvents | None = None

    def events(self) -> PastEvents | None:
        """Return all events so far, in the order of the records; None if this vCenter has no records.

        Raises StateDamaged for a journal that cannot be read, that another program changed, or that was replaced; the
        next call then begins at the first record. Raises UsageError for a wrong URL.
        """
        try:
            return self._read_new_records()
        except BaseException:
            self._forget_all()
            raise

    def _read_new_records(self) -> PastEvents | None:
        """Return the events, with those of records written since the last call; None without a journal or record."""
        store = look_into_store(self._state_dir, self._url, self._vcenter)
        if store is None:
            self._forget_all()
            return None
        with closing(store):
            records = store.read(self._seq)
        with _report_unreadable("the journal"):
            for record in records:
                self._reader.take(record)
                self._seq, self._events = record.seq, None
        if self._events is None and self._seq:
            self._events = PastEvents(self._name, self._reader.nights(), self._reader.changes())
        return self._events


def history(
    state_dir: Path,
    url: str = "",
    *,
    since: datetime | None = None,
    kind: EventKind | None = None,
    limit: int | None = None,
    vcenter: str | None = None,
) -> PastEvents:
    """Return the events of this kind that began after `since`, at most `limit` of each kind. Sends no request.

    `vcenter`: instance uuid of the vCenter whose events are returned; None = all vCenters in the journal.

    Raises StateDamaged for a journal that cannot be read, or that another program changed.
    """
    with opened_journal(state_dir, url) as journal:
        with _report_unreadable(f"the journal {journal.name}"):
            readers = [
                read_events(listed_vcenter, journal.records(listed_vcenter))
                for listed_vcenter in journal.vcenters
                if vcenter in (None, listed_vcenter)
            ]
        events = PastEvents(
            journal.name,
            tuple(night for reader in readers for night in reader.nights()),
            tuple(change for reader in readers for change in reader.changes()),
        )
    return events.only(since=since, kind=kind, limit=limit)


def past_night(state_dir: Path, night: str, url: str = "") -> PastEvents:
    """Return the nights of this name, one for each vCenter that has one. Raises UsageError if no vCenter has one."""
    events = history(state_dir, url, kind=EventKind.NIGHT)
    if not events.nights:
        raise UsageError(
            f"no night {night!r}: the journal {events.journal} has no night yet", hint="gpuops history lists the nights"
        )
    nights = tuple(night_event for night_event in events.nights if night_event.id == night)
    if not nights:
        raise UsageError(f"no night {night!r} in the journal {events.journal}", hint="gpuops history lists the nights")
    return PastEvents(events.journal, nights)


@contextmanager
def _report_unreadable(journal: str) -> Iterator[None]:
    """Raise StateDamaged for a record that lacks a field or holds a wrong one, as a later version may write."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise StateDamaged(
            f"{journal} holds a record that this version cannot read: {error!r}",
            hint="gpuops rotate audit verify names it; use the gpuops that wrote it",
        ) from error


class FollowedNights:
    """The past nights of one vCenter, from its growing journal. Only `nights` changes it."""

    def __init__(self) -> None:
        self._reader: PastEventsReader | None = None
        self._seq = 0

    def nights(self, journal: Journal | None) -> tuple[PastNight, ...]:
        """Return the nights recorded so far; empty without a journal.

        Raises StateDamaged for a journal that cannot be read; the next call then begins at the first record.
        """
        if journal is None:
            return ()
        reader, seq = self._reader, self._seq
        if reader is None or journal.state.seq < seq:  # the first call, or the journal was replaced by another one
            reader, seq = PastEventsReader(journal.vcenter), 0
        self._reader, self._seq = None, 0  # stays so if a record cannot be read
        with _report_unreadable("the journal"):
            for record in journal.records(seq):
                reader.take(record)
                seq = record.seq
        self._reader, self._seq = reader, seq
        return reader.nights()
