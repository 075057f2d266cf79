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
    earlier_head = _parse_head(head) if head else None
    database = open_database(url) if url else file_database(state_dir)
    if database is None:
        return Audit(str(state_dir / FILE_NAME), (), _missing_head(head, "there is no journal") if head else "")
    with closing(database), database.reading() as connection:
        exists = has_journal(connection, database)
        damage = _check_file(connection)
        chains = tuple(_audit_chain(connection, vcenter) for vcenter in _vcenters(connection)) if exists else ()
        if earlier_head is not None and not (exists and _contains(connection, earlier_head)):
            damage = damage or _missing_head(head, "the journal does not have it")
        return Audit(database.name, chains, damage)


def _parse_head(head: str) -> tuple[int, str]:
    """Return position and checksum of a head. Raises UsageError."""
    seq, _, checksum = head.partition(":")
    if not seq.isascii() or not seq.isdigit() or len(checksum) != len(GENESIS):
        raise UsageError(
            f"{head!r} is not a head of a journal",
            hint="use the line SEQ:CHECKSUM that gpuops rotate audit verify prints",
        )
    return int(seq), checksum


def _missing_head(head: str, reason: str) -> str:
    return f"record {head} was noted, and {reason}: it was removed or replaced"


def _contains(connection: Connection, head: tuple[int, str]) -> bool:
    """Return whether the journal has the record with this position and checksum."""
    seq, checksum = head
    columns = records_table.c
    matching = connection.execute(select(columns.seq).where(columns.seq == seq, columns.checksum == checksum))
    return matching.first() is not None


def _check_file(connection: Connection) -> str:
    """Return the damage that SQLite finds in its file; "" if it finds none. PostgreSQL checks its pages by itself."""
    if connection.dialect.name != "sqlite":
        return ""
    answer = connection.scalar(text("PRAGMA integrity_check(1)"))
    return "" if answer == "ok" else f"SQLite: {answer}"


def _vcenters(connection: Connection) -> list[str]:
    """Return the names of all chains: uuids of vCenters with a journal, and `book of UUID` for their books."""
    names = [select(records_table.c.vcenter), select(heads_table.c.vcenter)]
    if inspect(connection).has_table(book_table.name):
        names.append(select(BOOK_OF + book_table.c.vcenter).where(book_table.c.version > 0))
    uuids = connection.scalars(union(*names))
    return sorted(vcenter for vcenter in uuids if isinstance(vcenter, str))  # a torn page may hold anything


def _audit_chain(connection: Connection, vcenter: str) -> AuditedChain:
    """Check the records of one vCenter, up to the first that is wrong."""
    chain = Chain(vcenter)
    is_book = vcenter.startswith(BOOK_OF)
    content = _BookAudit(vcenter.removeprefix(BOOK_OF)) if is_book else _JournalAudit(JournalState(vcenter))
    last_good_seq, moments = 0, list[datetime]()
    head, damage = f"0:{GENESIS}", ""
    try:
        end = head_of(connection, vcenter)
        for row in rows_of(connection, vcenter, 0):
            moments[1:] = [content.take_in(chain, row)]  # keeps the first moment and replaces the latest
            last_good_seq = chain.seq
            head = f"{chain.seq}:{chain.checksum}"
        chain.ends_at(end.seq, end.checksum)
        content.compare(connection, chain.seq)
    except Broken as broken:
        damage = str(broken)
    first, last = (moments[0], moments[-1]) if moments else (None, None)
    return AuditedChain(vcenter, last_good_seq, first, last, head, damage)


class _JournalAudit:
    """Computes the state of a vCenter's journal again, to compare each checkpoint with it."""

    def __init__(self, state: JournalState) -> None:
        self._state = state

    def take_in(self, chain: Chain, row: Row[Any]) -> datetime:
        """Apply the record, and return its time. Raises Broken, also for a record that contains something impossible,
        although its checksum matches."""
        record = chain.follow(row)
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


class _BookAudit:
    """Reads the entries about a vCenter's book, to compare each record of the book with its last entry."""

    def __init__(self, vcenter: str) -> None:
        self._vcenter = vcenter
        self._entries: dict[tuple[str, str], tuple[int, str]] = {}
        """Kind and key of a record -> its version and SHA-256 by the last entry; the latter is "" if it was removed."""

    def take_in(self, chain: Chain, row: Row[Any]) -> datetime:
        """Note the entry, and return its time. Raises Broken."""
        chain.check(row)
        try:
            entry = json.loads(row.body)
            self._entries[entry["kind"], entry["key"]] = (entry["version"], entry["sha256"])
            return datetime.fromisoformat(row.at)
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise Broken(row.seq, f"this version cannot read it: {error!r}") from error

    def compare(self, connection: Connection, seq: int) -> None:
        """Raise Broken for a record of the book that differs from its last entry."""
        missing = {place for place, (_, sha256) in self._entries.items() if sha256}
        for row in connection.execute(select(book_table).where(book_table.c.vcenter == self._vcenter)):
            entry = self._entries.get((row.kind, row.key))
            # a record of version 0 was taken over from an earlier gpuops and has no entry yet
            is_wrong = row.version != 0 if entry is None else entry != (row.version, sha256_of(row.body))
            if is_wrong:
                raise Broken(seq, f"{row.kind} {row.key} of the book is not as gpuops wrote it last")
            missing.discard((row.kind, row.key))
        for kind, key in sorted(missing):
            raise Broken(seq, f"{kind} {key} is missing in the book")
