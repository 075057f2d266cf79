"""Stores records in a database, chained when they are written and checked when they are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from sqlalchemy import BindParameter, Connection, Row, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import RETURN_HINT, Database, heads_table, records_table
from gpuops.execute.journal.record import GENESIS, Kind, Record, checksum, text_of
from gpuops.execute.journal.store import Overtaken

_OF_VCENTER: Final[BindParameter[str]] = bindparam("of_vcenter")
_HEAD: Final = select(heads_table).where(heads_table.c.vcenter == _OF_VCENTER)
_FIRST: Final = select(func.min(records_table.c.seq)).where(records_table.c.vcenter == _OF_VCENTER)
_CHECKSUM: Final = select(records_table.c.checksum).where(
    records_table.c.vcenter == _OF_VCENTER, records_table.c.seq == bindparam("at_seq")
)
_ROWS: Final = (
    select(records_table)
    .where(records_table.c.vcenter == _OF_VCENTER, records_table.c.seq > bindparam("after_seq"))
    .order_by(records_table.c.seq)
)
_ADVANCE: Final = update(heads_table).where(
    heads_table.c.vcenter == _OF_VCENTER,
    heads_table.c.seq == bindparam("was_seq"),
    heads_table.c.checksum == bindparam("was_checksum"),
)
"""Statements are built once: each step of a night appends three records."""


class SqlStore:
    """Implements `Store` over one database, for one vCenter."""

    def __init__(self, database: Database, vcenter: str) -> None:
        self._database = database
        self._vcenter = vcenter
        self._last = (0, GENESIS)
        """The last record that this process has read or written, and its checksum."""

    def read(self, after: int | None) -> Sequence[Record]:
        try:
            with self._database.reading() as connection:
                head = head_of(connection, self._vcenter)
                chain = Chain(self._vcenter, *self._begin(connection, after, head.checkpoint))
                records = [chain.follow(row) for row in rows_of(connection, self._vcenter, chain.seq)]
                chain.ends_at(head.seq, head.checksum)
        except Broken as broken:
            raise StateDamaged(
                f"the journal {self._database.name} was changed by a program other than gpuops: {broken}",
                hint=f"gpuops rotate audit verify shows how far it can be trusted; {RETURN_HINT}",
            ) from broken
        self._last = (chain.seq, chain.checksum)
        return records

    def append(self, records: Sequence[Record]) -> None:
        seq, previous = self._last
        if records[0].seq != seq + 1:
            raise Overtaken
        rows, head = _seal(self._vcenter, previous, records)
        try:
            with self._database.writing() as connection:
                _advance(connection, self._vcenter, self._last, head)
                connection.execute(insert(records_table), rows)
        except StateDamaged as failed:
            if isinstance(failed.__cause__, IntegrityError):  # another process wrote the first record of this vCenter
                raise Overtaken from failed
            raise
        self._last = (rows[-1]["seq"], rows[-1]["checksum"])

    def close(self) -> None:
        self._database.close()

    def _begin(self, connection: Connection, after: int | None, checkpoint: int) -> tuple[int, str]:
        """Return the record after which to read, and its checksum."""
        if after == self._last[0]:
            return self._last
        begin = after if after is not None else max(checkpoint - 1, 0)
        if begin == 0:
            return 0, GENESIS
        checksum = connection.scalar(_CHECKSUM, {"of_vcenter": self._vcenter, "at_seq": begin})
        if checksum is None:
            raise Broken(begin, "it is missing")
        return begin, checksum


def append_entry(connection: Connection, chain: str, at: datetime, body: Mapping[str, Any]) -> None:
    """Append an entry to a chain that is not a vCenter's, in a transaction in which no other process appends to it.

    Raises Broken where the head is missing.
    """
    head = head_of(connection, chain)
    row = _row(chain, head.seq + 1, "", "entry", at, body, head.checksum)
    _advance(connection, chain, (head.seq, head.checksum), {key: row[key] for key in ("seq", "checksum")})
    connection.execute(insert(records_table), row)


class Broken(Exception):
    """The first record that does not match the ones before it."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(f"record {seq}: {reason}")
        self.seq = seq
        self.reason = reason


class Head(Protocol):
    """The database's own entry about its last record."""

    @property
    def seq(self) -> int: ...
    @property
    def checksum(self) -> str: ...
    @property
    def checkpoint(self) -> int: ...


class Chain:
    """Follows rows in order, and checks each against the one before."""

    def __init__(self, vcenter: str, seq: int = 0, previous: str = GENESIS) -> None:
        self._vcenter = vcenter
        self.seq = seq
        self.checksum = previous

    def follow(self, row: Row[Any]) -> Record:
        """Return the record in this row. Raises Broken."""
        self.check(row)
        try:
            return Record(row.seq, row.run, Kind(row.kind), datetime.fromisoformat(row.at), json.loads(row.body))
        except (ValueError, RecursionError) as error:
            raise Broken(row.seq, f"this version cannot read it: {error}") from error

    def check(self, row: Row[Any]) -> None:
        """Raise Broken unless this row comes next and is as it was written."""
        expected = self.seq + 1
        if row.seq != expected:
            raise Broken(expected, f"it is missing; record {row.seq} comes after {self.seq}")
        if not all(isinstance(field, str) for field in (row.run, row.kind, row.at, row.body)):
            raise Broken(expected, "it is no text any more")
        computed = checksum(self.checksum, self._vcenter, row.seq, row.run, row.kind, row.at, row.body)
        if computed != row.checksum:
            raise Broken(expected, "its text does not fit its checksum: it was changed, or moved here")
        self.seq, self.checksum = expected, computed

    def ends_at(self, seq: int, last: str) -> None:
        """Raise Broken unless the last row that was followed is the last one that was written."""
        if self.seq < seq:
            raise Broken(self.seq + 1, f"it is missing; {seq} records were written")
        if self.seq > seq:
            raise Broken(seq + 1, f"only {seq} records were written by gpuops")
        if self.checksum != last:
            raise Broken(seq, "its checksum is not the one that was written last")


class _NoHead:
    seq = 0
    checksum = GENESIS
    checkpoint = 0


def head_of(connection: Connection, vcenter: str) -> Head:
    """Return the head of this vCenter; for a new vCenter, the position before the first record.

    Raises Broken if there are records and no head.
    """
    head = connection.execute(_HEAD, {"of_vcenter": vcenter}).one_or_none()
    if head is not None:
        return head
    first = connection.scalar(_FIRST, {"of_vcenter": vcenter})
    if first is not None:
        raise Broken(first, "the journal has records of this vCenter without a head, which gpuops never writes")
    return _NoHead()


def rows_of(connection: Connection, vcenter: str, after: int) -> Iterator[Row[Any]]:
    """Yield the rows of this vCenter after that position, in order, reading a thousand at a time."""
    parameters = {"of_vcenter": vcenter, "after_seq": after}
    with connection.execute(_ROWS, parameters, execution_options={"yield_per": 1000}) as rows:
        yield from rows


def _seal(vcenter: str, previous: str, records: Iterable[Record]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of these records, and the new values of the head."""
    rows: list[dict[str, Any]] = []
    head: dict[str, Any] = {}
    for record in records:
        rows.append(_row(vcenter, record.seq, record.run, str(record.kind), record.at, record.body, previous))
        previous = rows[-1]["checksum"]
        head |= {"seq": record.seq, "checksum": previous}
        if record.kind is Kind.CHECKPOINT:
            head["checkpoint"] = record.seq
    return rows, head


def _row(
    vcenter: str, seq: int, run: str, kind: str, at: datetime, body: Mapping[str, Any], previous: str
) -> dict[str, Any]:
    at_text, body_text = at.isoformat(), text_of(body)
    fields = {"vcenter": vcenter, "seq": seq, "run": run, "kind": kind, "at": at_text, "body": body_text}
    return {**fields, "checksum": checksum(previous, vcenter, seq, run, kind, at_text, body_text)}


def _advance(connection: Connection, vcenter: str, last: tuple[int, str], head: dict[str, Any]) -> None:
    """Move the head forward if it is still at `last`. Raises Overtaken."""
    seq, previous = last
    if seq == 0:
        connection.execute(insert(heads_table).values({"vcenter": vcenter, "checkpoint": 0, **head}))
        return
    mine = {"of_vcenter": vcenter, "was_seq": seq, "was_checksum": previous}
    if connection.execute(_ADVANCE, {**mine, **head}).rowcount != 1:
        raise Overtaken
