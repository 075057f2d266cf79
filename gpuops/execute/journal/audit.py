"""Checks every record from the first against the one before it, and each checkpoint against all records before it."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, inspect, select, text, union

from gpuops.errors import UsageError
from gpuops.execute.journal.book import sha256_of
from gpuops.execute.journal.database import BOOK_OF, book_table, has_journal, heads_table, records_table
from gpuops.execute.journal.journal_state import FOLD, JournalState, dump_state
from gpuops.execute.journal.record import GENESIS, Kind, text_of
from gpuops.execute.journal.stores import FILE_NAME, Broken, Chain, file_database, head_of, open_database, rows_of
from gpuops.model.nights.history import Audit, AuditedChain


def verify(state_dir: Path, url: str = "", head: str = "") -> Audit:
    """Return how far the journal can be trusted: the file in the state directory, or the PostgreSQL database at the
    URL.

    `head` is the last record of a chain as an earlier audit printed it (SEQ:CHECKSUM): the journal must still have it.
    Raises StateDamaged for a database that cannot be read at all or has another schema, UsageError for text that is not
    a head.
    """
    noted = _parse_head(head) if head else None
    database = open_database(url) if url else file_database(state_dir)
    if database is None:
        return Audit(str(state_dir / FILE_NAME), (), _cut_off(head, "there is no journal") if head else "")
    with closing(database), database.reading() as connection:
        exists = has_journal(connection, database)
        damage = _structure(connection)
        chains = tuple(_chain(connection, vcenter) for vcenter in _vcenters(connection)) if exists else ()
        if noted is not None and not (exists and _holds(connection, noted)):
            damage = damage or _cut_off(head, "the journal does not have it")
        return Audit(database.name, chains, damage)


def _parse_head(head: str) -> tuple[int, str]:
    seq, _, checksum = head.partition(":")
    if not seq.isascii() or not seq.isdigit() or len(checksum) != len(GENESIS):
        raise UsageError(
            f"{head!r} is no head of a journal", hint="use the line SEQ:CHECKSUM that gpuops rotate audit verify prints"
        )
    return int(seq), checksum


def _cut_off(head: str, reason: str) -> str:
    return f"record {head} was noted, and {reason}: it was cut off, or another one put in its place"


def _holds(connection: Connection, noted: tuple[int, str]) -> bool:
    table = records_table
    matching = connection.execute(select(table.c.seq).where(table.c.seq == noted[0], table.c.checksum == noted[1]))
    return matching.first() is not None


def _structure(connection: Connection) -> str:
    """Return SQLite's report about its file; PostgreSQL checks its pages by itself."""
    if connection.dialect.name != "sqlite":
        return ""
    answer = connection.scalar(text("PRAGMA integrity_check(1)"))
    return "" if answer == "ok" else f"SQLite: {answer}"


def _vcenters(connection: Connection) -> list[str]:
    names = [select(records_table.c.vcenter), select(heads_table.c.vcenter)]
    if inspect(connection).has_table(book_table.name):
        names.append(select(BOOK_OF + book_table.c.vcenter).where(book_table.c.version > 0))
    uuids = connection.scalars(union(*names))
    return sorted(vcenter for vcenter in uuids if isinstance(vcenter, str))  # a torn page may hold anything


def _chain(connection: Connection, vcenter: str) -> AuditedChain:
    """Check the records of one vCenter, up to the first that is wrong."""
    links = Chain(vcenter)
    content = _Book(vcenter.removeprefix(BOOK_OF)) if vcenter.startswith(BOOK_OF) else _Journal(JournalState(vcenter))
    last_good_seq, moments = 0, list[datetime]()
    head, damage = f"0:{GENESIS}", ""
    try:
        end = head_of(connection, vcenter)
        for row in rows_of(connection, vcenter, 0):
            moments[1:] = [content.take_in(links, row)]  # the first and the latest
            last_good_seq = links.seq
            head = f"{links.seq}:{links.checksum}"
        links.ends_at(end.seq, end.checksum)
        content.compare(connection, links.seq)
    except Broken as broken:
        damage = str(broken)
    first, last = (moments[0], moments[-1]) if moments else (None, None)
    return AuditedChain(vcenter, last_good_seq, first, last, head, damage)


class _Journal:
    """The records of a vCenter, and what they come to."""

    def __init__(self, state: JournalState) -> None:
        self._state = state

    def take_in(self, links: Chain, row: Row[Any]) -> datetime:
        """Apply the record, and return its time. Raises Broken, also for a record that contains something impossible,
        although its checksum matches."""
        record = links.follow(row)
        try:
            if record.kind is Kind.CHECKPOINT and record.body["fold"] == FOLD:
                computed_body = json.loads(text_of(dump_state(self._state)))
                if computed_body != record.body:
                    raise Broken(record.seq, "the state in this checkpoint is not that of the records before it")
            self._state.apply(record)
        except (KeyError, TypeError, ValueError) as error:
            raise Broken(record.seq, f"this version cannot read it: {error!r}") from error
        return record.at

    def compare(self, connection: Connection, seq: int) -> None:
        """Do nothing: the records are all that there is."""


class _Book:
    """The changes of a vCenter's book, and the last entry about each record."""

    def __init__(self, vcenter: str) -> None:
        self._vcenter = vcenter
        self._entries: dict[tuple[str, str], tuple[int, str]] = {}

    def take_in(self, links: Chain, row: Row[Any]) -> datetime:
        """Note the entry, and return its time. Raises Broken."""
        links.check(row)
        try:
            entry = json.loads(row.body)
            self._entries[entry["kind"], entry["key"]] = (entry["version"], entry["sha256"])
            return datetime.fromisoformat(row.at)
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise Broken(row.seq, f"this version cannot read it: {error!r}") from error

    def compare(self, connection: Connection, seq: int) -> None:
        """Raise Broken for a record of the book that is not as its last entry says."""
        missing = {place for place, (_, sha256) in self._entries.items() if sha256}
        for row in connection.execute(select(book_table).where(book_table.c.vcenter == self._vcenter)):
            entry = self._entries.get((row.kind, row.key))
            if (row.version != 0) if entry is None else (entry != (row.version, sha256_of(row.body))):
                raise Broken(seq, f"{row.kind} {row.key} of the book is not as gpuops wrote it last")
            missing.discard((row.kind, row.key))
        for kind, key in sorted(missing):
            raise Broken(seq, f"{kind} {key} is missing in the book")
