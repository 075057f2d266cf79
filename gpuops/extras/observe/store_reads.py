"""The store of measurements: its tables, and the reads of series, of the newest use, and of the peaks of vGPUs.

The tables are in their own SQLite file next to the journal, or in the journal's PostgreSQL. Measurements are no records
of the journal: a series gets new values every few minutes and loses old ones, and the audited chain of the journal
would grow with each of them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from itertools import groupby
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    and_,
    func,
    inspect,
    or_,
    select,
)

from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import Database, to_read, to_write
from gpuops.execute.journal.stores import make_file, open_database
from gpuops.execute.migrations import Contents
from gpuops.extras.observe import blocks
from gpuops.extras.observe.blocks import FINE_S, WHOLE, Block, Values, unpack
from gpuops.model.measurements.measurement import (
    GPU_MEMORY,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_USE,
    SMI_GPU_COUNTERS,
    SMI_POWER_LIMIT,
    CounterSeries,
    Measured,
    NewestUse,
    Span,
    Stored,
    StoredTier,
    StoredVcenter,
)

FILE_NAME: Final = "measurements.sqlite"
SCHEMA_VERSION: Final = 2
"""Increase it for another format of blocks, and add a revision (`execute/migrations`) that writes it."""
_READABLE_VERSIONS: Final = (1, 2)
"""Schema 1 has no blocks of format 2 (`blocks.py`) and no `vgpus_table`; revision 0001 makes it schema 2."""
PAGE_BYTES: Final = 16 * 1024
"""The page size of a new file. Blocks have one to five kilobytes, and a fifth of smaller pages would stay empty."""
_HINT: Final = (
    "free disk space, start the database server, or move the damaged file to another directory: gpuops observe then "
    "begins a new one"
)
_FOR_ERRORS: Final = {"keeps": "store of measurements", "hint": _HINT}
"""The name of the database and the next step, for error messages."""

metadata = MetaData()

schema_table = Table("measurements_schema", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

blocks_table = Table(
    "measurements",
    metadata,
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("begin", BigInteger, primary_key=True, autoincrement=False),  # seconds since 1970
    Column("vcenter", String, primary_key=True),
    Column("entity", String, primary_key=True),
    Column("rolled_up", Boolean, nullable=False),
    Column("packed", LargeBinary, nullable=False),
)

spans_table = Table(
    "measurements_observed",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("begin", BigInteger, primary_key=True, autoincrement=False),
    Column("until", BigInteger, nullable=False),
)
"""The spans of time in which a vCenter was observed."""

vgpus_table = Table(
    "measurements_vgpus",
    metadata,
    Column("vcenter", String, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),  # days since 1970, by UTC
    Column("profile", String, primary_key=True),
    Column("most", Integer, nullable=False),
)
"""The most vGPUs of a profile that ran at once in the observations of a day. They are counted when vCenter is observed,
because the profile of a VM that was removed is unknown later."""


def open_to_write(state_dir: Path, url: str) -> Database:
    """Open the database to write to it, with the tables of this version. Raises UsageError, StateDamaged."""
    return to_write(_open_database(state_dir, url), Contents.MEASUREMENTS, _has_tables)


def open_to_read(state_dir: Path, url: str) -> Database | None:
    """Open the database to read it without changes, or return None if it does not exist.

    Raises UsageError, StateDamaged.
    """
    if not url and not os.path.lexists(state_dir / FILE_NAME):
        return None
    return to_read(_open_database(state_dir, url), _has_tables)


def _open_database(state_dir: Path, url: str) -> Database:
    return open_database(url, **_FOR_ERRORS) if url else make_file(state_dir, FILE_NAME, PAGE_BYTES, **_FOR_ERRORS)


def _has_tables(connection: Connection, database: Database) -> bool:
    """Return whether the tables exist. Raises StateDamaged for tables of a version that this gpuops cannot read."""
    if database.revision(connection) is None and not inspect(connection).has_table(schema_table.name):
        return False
    versions = connection.scalars(select(schema_table.c.version)).all()
    if len(versions) == 1 and versions[0] in _READABLE_VERSIONS:
        return True
    version = f"schema {versions[-1]}" if versions else "no schema"
    raise StateDamaged(
        f"the store of measurements {database.name} has {version}, this version reads schema "
        f"{' and '.join(map(str, _READABLE_VERSIONS))}",
        hint="use the version of gpuops that wrote it, or a newer one",
    )


FIRST_DAY: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Tier:
    """Steps of one length, and the blocks that hold them."""

    step_s: int
    block_s: int
    """The length of a block in seconds; each block begins at a multiple of it."""

    @property
    def steps(self) -> int:
        return self.block_s // self.step_s


class Step(Enum):
    """The length of steps."""

    FINE = Tier(blocks.FINE_S, 12 * 3600)
    HOUR = Tier(blocks.HOUR_S, 10 * 24 * 3600)

    @property
    def seconds(self) -> int:
        return self.value.step_s


class MeasurementReads:
    """The measurements of one vCenter in a database, to read. Methods raise only StateDamaged."""

    def __init__(self, database: Database, vcenter: str) -> None:
        self._database = database
        self._vcenter = vcenter

    @classmethod
    def open_if_exists(cls, state_dir: Path, url: str, vcenter: str) -> Self | None:
        """Open the store to read, or return None if it does not exist. Raises UsageError, StateDamaged."""
        database = open_to_read(state_dir, url)
        return cls(database, vcenter) if database is not None else None

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def observed_spans(self) -> tuple[Span, ...]:
        """Return the spans of time in which the vCenter was observed, oldest first."""
        with self._database.reading() as connection:
            return spans_of(connection, self._vcenter)

    def fine_begin(self) -> datetime | None:
        """Return the begin of the oldest stored steps of five minutes; None if none is stored.

        Older steps are removed (`Measurements.remove_old`) long before the spans in which they were observed.
        """
        oldest = select(func.min(blocks_table.c.begin)).where(
            blocks_table.c.step_s == Step.FINE.seconds, blocks_table.c.vcenter == self._vcenter
        )
        with self._database.reading() as connection:
            begin_s = connection.execute(oldest).scalar()
        return None if begin_s is None else datetime.fromtimestamp(begin_s, UTC)

    def window(
        self, entity: str, counters: Collection[str], begin: datetime, until: datetime, step: Step = Step.FINE
    ) -> Mapping[str, CounterSeries]:
        """Return the series of these counters of a VM or host; they begin with the step in which `begin` lies.

        Missing steps are None; a series without any measurement consists of None only.
        """
        query = (
            select(blocks_table.c.begin, blocks_table.c.packed)
            .where(*self._touches(begin, until, step))
            .where(blocks_table.c.entity == entity)
        )
        window = _Window(counters, begin, until, step)
        with self._database.reading() as connection:
            for at, packed in connection.execute(query):
                window.add(at, self._unpack(packed))
        return window.series

    def windows(
        self, entities: Collection[str], counters: Collection[str], begin: datetime, until: datetime
    ) -> Iterator[tuple[str, Mapping[str, CounterSeries]]]:
        """Yield each of these VMs and hosts with its series as of `window`, in steps of five minutes, by one query.

        Those without any measurement come last.
        """
        remaining, step = set(entities), Step.FINE
        query = (
            select(blocks_table.c.entity, blocks_table.c.begin, blocks_table.c.packed)
            .where(*self._touches(begin, until, step))
            .order_by(blocks_table.c.entity, blocks_table.c.begin)
        )
        with self._database.reading() as connection:
            for entity, rows in groupby(connection.execute(query), key=lambda row: str(row.entity)):
                if entity in remaining:
                    remaining.remove(entity)
                    window = _Window(counters, begin, until, step)
                    for row in rows:
                        window.add(row.begin, self._unpack(row.packed))
                    yield entity, window.series
        for entity in sorted(remaining):
            yield entity, _Window(counters, begin, until, step).series

    def arrays(
        self, entities: Collection[str], counters: Collection[str], begin_s: int, steps: int
    ) -> Iterator[tuple[str, Mapping[str, Values]]]:
        """Yield each of these VMs and hosts that has a block, with an array of `steps` five-minute steps by counter.

        `begin_s` is the begin of the first step, in seconds since 1970. Use this for many desktops over weeks, for
        which `windows` would take minutes.
        """
        begin, until = (datetime.fromtimestamp(begin_s + at * blocks.FINE_S, UTC) for at in (0, steps))
        query = (
            select(blocks_table.c.entity, blocks_table.c.begin, blocks_table.c.packed)
            .where(*self._touches(begin, until, Step.FINE))
            .order_by(blocks_table.c.entity, blocks_table.c.begin)
        )
        with self._database.reading() as connection:
            for entity, rows in groupby(connection.execute(query), key=lambda row: str(row.entity)):
                if entity not in entities:
                    continue
                series_arrays = {name: blocks.empty(steps) for name in counters}
                for row in rows:
                    block = self._unpack(row.packed)
                    place = (row.begin - begin_s) // blocks.FINE_S  # the step at which the block begins
                    skipped = max(0, -place)  # the first block may begin before the first step
                    for name in series_arrays.keys() & block.series.keys():
                        known_rows = block.series[name][skipped : max(skipped, steps - place)]
                        series_arrays[name][place + skipped : place + skipped + len(known_rows)] = known_rows
                yield entity, series_arrays

    def hours(
        self, entities: Collection[str], counters: Collection[str], begin_s: int, steps: int
    ) -> Iterator[tuple[str, Mapping[str, Values]]]:
        """Yield each of these VMs and hosts that has a block, with an array of `steps` hours by series.

        A series is a counter, or a counter of a GPU (`counter@GPU`). `begin_s` is the begin of the first hour, in
        seconds since 1970. Five-minute steps that are not rolled up yet are combined into hours here.
        """
        begin, until = (datetime.fromtimestamp(begin_s + at * blocks.HOUR_S, UTC) for at in (0, steps))
        not_rolled_up = and_(*self._touches(begin, until, Step.FINE), blocks_table.c.rolled_up.is_(False))
        query = (
            select(blocks_table.c.entity, blocks_table.c.step_s, blocks_table.c.begin, blocks_table.c.packed)
            .where(or_(and_(*self._touches(begin, until, Step.HOUR)), not_rolled_up))
            # stored hours come first, so that hours made of newer five-minute steps replace them
            .order_by(blocks_table.c.entity, blocks_table.c.step_s.desc(), blocks_table.c.begin)
        )
        with self._database.reading() as connection:
            for entity, rows in groupby(connection.execute(query), key=lambda row: str(row.entity)):
                if entity not in entities:
                    continue
                series_arrays: dict[str, Values] = {}
                for row in rows:
                    block = self._unpack(row.packed)
                    block = block if row.step_s == Step.HOUR.seconds else blocks.hours(block)
                    place = (row.begin - begin_s) // blocks.HOUR_S  # the hour at which the block begins
                    skipped = max(0, -place)  # the first block may begin before the first hour
                    for name, block_rows in block.series.items():
                        if name.partition("@")[0] in counters:
                            added = block_rows[skipped : max(skipped, steps - place)]
                            hours = series_arrays.setdefault(name, blocks.empty(steps))[place + skipped :]
                            # only hours with samples: others must not replace known ones
                            hours[: len(added)][added[:, 2] > 0] = added[added[:, 2] > 0]
                yield entity, series_arrays

    def newest(
        self, entities: Collection[str], counters: Collection[str], begin: datetime, until: datetime
    ) -> Mapping[str, Mapping[str, int]]:
        """Return the average of the newest measured step of five minutes in this span, by VM or host (id) and series.

        A series is a counter, or a counter of a GPU (`counter@GPU`). Series without a measurement are left out.
        """
        query = (
            select(blocks_table.c.entity, blocks_table.c.begin, blocks_table.c.packed)
            .where(*self._touches(begin, until, Step.FINE))
            .order_by(blocks_table.c.begin)
        )
        newest_by_entity: dict[str, dict[str, int]] = {}
        with self._database.reading() as connection:
            for row in connection.execute(query):
                if row.entity not in entities:
                    continue
                # the steps of this block that begin in the span
                first, end = (ceil((at.timestamp() - row.begin) / Step.FINE.seconds) for at in (begin, until))
                for name, rows in self._unpack(row.packed).series.items():
                    if name.partition("@")[0] in counters:
                        averages = [average for average, _, covered in rows[max(0, first) : max(0, end)] if covered]
                        if averages:
                            newest_by_entity.setdefault(row.entity, {})[name] = int(averages[-1])
        return newest_by_entity

    def entities(self, begin: datetime, until: datetime) -> frozenset[str]:
        """Return the VMs and hosts (ids) that have a block of five-minute steps which touches this span."""
        query = select(blocks_table.c.entity).where(*self._touches(begin, until, Step.FINE)).distinct()
        with self._database.reading() as connection:
            return frozenset(connection.scalars(query))

    def vgpu_peaks(self) -> Mapping[str, Mapping[date, int]]:
        """Return the most vGPUs that ran at once in the observations of a day, by profile and day."""
        query = select(vgpus_table.c.profile, vgpus_table.c.day, vgpus_table.c.most).where(
            vgpus_table.c.vcenter == self._vcenter
        )
        peaks: dict[str, dict[date, int]] = {}
        with self._database.reading() as connection:
            has_table = inspect(connection).has_table(vgpus_table.name)  # not in a store of schema 1
            for profile, day, most in connection.execute(query) if has_table else ():
                peaks.setdefault(profile, {})[FIRST_DAY + timedelta(days=day)] = most
        return peaks

    def _touches(self, begin: datetime, until: datetime, step: Step) -> tuple[ColumnElement[bool], ...]:
        """Return the conditions for blocks of this vCenter and step that touch the span."""
        return (
            blocks_table.c.step_s == step.seconds,
            blocks_table.c.begin > int(begin.timestamp()) - step.value.block_s,
            blocks_table.c.begin < ceil(until.timestamp()),
            blocks_table.c.vcenter == self._vcenter,
        )

    def _unpack(self, packed: bytes) -> Block:
        return _unpack_block(packed, self._database.name)


class _Window:
    """The series of one VM or host in a span, filled block by block."""

    def __init__(self, counters: Collection[str], begin: datetime, until: datetime, step: Step) -> None:
        self._step_s = step.seconds
        self._first = int(begin.timestamp()) // self._step_s * self._step_s
        self._count = max(0, -(-(int(until.timestamp()) - self._first) // self._step_s))
        self._steps: dict[str, list[Measured | None]] = {name: [None] * self._count for name in counters}

    def add(self, at: int, block: Block) -> None:
        """Add the steps of a block that begins at `at`."""
        place = (at - self._first) // self._step_s
        skipped = max(0, -place)
        for name in self._steps.keys() & block.series.keys():
            rows = block.series[name][skipped : max(skipped, self._count - place)].tolist()
            for step, (average, highest, covered) in enumerate(rows, place + skipped):
                if covered:
                    known_highest = highest if highest >= 0 else None
                    self._steps[name][step] = Measured(average, known_highest, covered / WHOLE)

    @property
    def series(self) -> Mapping[str, CounterSeries]:
        begin, step = datetime.fromtimestamp(self._first, UTC), timedelta(seconds=self._step_s)
        return {name: CounterSeries(begin, step, tuple(steps)) for name, steps in self._steps.items()}


def stored_measurements(state_dir: Path, url: str = "") -> Stored:
    """Return the contents of the store by vCenter. Creates nothing. Raises UsageError, StateDamaged."""
    database = open_to_read(state_dir, url)
    if database is None:
        return Stored("the database of the journal" if url else str(state_dir / FILE_NAME))
    try:
        with database.reading() as connection:
            query = select(blocks_table.c.vcenter).union(select(spans_table.c.vcenter))
            vcenters = sorted(connection.scalars(query))
            return Stored(database.name, tuple(_describe_vcenter(connection, vcenter) for vcenter in vcenters))
    finally:
        database.close()


def _describe_vcenter(connection: Connection, vcenter: str) -> StoredVcenter:
    """Return what is stored of a vCenter: the observed spans, and the numbers and sizes of its blocks."""
    tiers = []
    for step in Step:
        row = connection.execute(
            select(
                func.count(func.distinct(blocks_table.c.entity)).label("entities"),
                func.count().label("blocks"),
                func.coalesce(func.sum(func.length(blocks_table.c.packed)), 0).label("size"),
                func.min(blocks_table.c.begin).label("since"),
            ).where(blocks_table.c.step_s == step.seconds, blocks_table.c.vcenter == vcenter)
        ).one()
        since = datetime.fromtimestamp(row.since, UTC) if row.since is not None else None
        tiers.append(StoredTier(timedelta(seconds=step.seconds), row.entities, row.blocks, int(row.size), since))
    return StoredVcenter(vcenter, spans_of(connection, vcenter), tuple(tiers))


def spans_of(connection: Connection, vcenter: str) -> tuple[Span, ...]:
    """Return the spans of time in which the vCenter was observed, oldest first."""
    query = select(spans_table).where(spans_table.c.vcenter == vcenter).order_by(spans_table.c.begin)
    return tuple(
        Span(datetime.fromtimestamp(row.begin, UTC), datetime.fromtimestamp(row.until, UTC))
        for row in connection.execute(query)
    )


def _unpack_block(packed: bytes, name: str) -> Block:
    try:
        return unpack(packed)
    except ValueError as error:
        raise StateDamaged(
            f"the store of measurements {name} holds a block that cannot be read: {error}",
            hint="move the store to another directory: gpuops observe then begins a new one",
        ) from error


OLD: Final = timedelta(hours=1)
"""An older observation is not used for now: the store is filled every 20 minutes, and one observation may fail."""
NEWEST_COUNTERS: Final = (GPU_USE, GPU_MEMORY, GPU_TEMPERATURE, GPU_POWER, *SMI_GPU_COUNTERS, SMI_POWER_LIMIT)
_NEWEST_WITHIN: Final = timedelta(seconds=2 * FINE_S)
"""The newest step is searched this long before the end of the observation: samples may be late."""


def newest_use(
    state_dir: Path,
    url: str,
    vcenter: str,
    entities: Collection[str],
    now: datetime,
    earlier_answer: NewestUse | None = None,
) -> NewestUse | None:
    """Return the numbers of these VMs, and of the GPUs of these hosts (ids), in the last observation, from the store.

    None = there was no observation; without numbers if the last one is older than `OLD`. `earlier_answer`: an answer
    for the same entities, which is returned if nothing was observed since. Raises UsageError, StateDamaged.
    """
    store = MeasurementReads.open_if_exists(state_dir, url, vcenter)
    if store is None:
        return None
    with store:
        observed = store.observed_spans()
        until = observed[-1].until if observed else None
        if until is None:
            return None
        if now - until > OLD:
            return NewestUse(until, {})
        if earlier_answer is not None and earlier_answer.until == until:
            return earlier_answer
        # nvidia-smi is read after the newest whole step: its reading is in the step that had begun
        return NewestUse(until, store.newest(entities, NEWEST_COUNTERS, until - _NEWEST_WITHIN, until + _NEWEST_WITHIN))
