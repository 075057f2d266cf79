"""Reads the measurements of one vCenter from their store: a while of a counter, the newest use, and what there is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from itertools import groupby
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqlalchemy import ColumnElement, Connection, func, inspect, select

from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import Database
from gpuops.execute.measurements import rolling_up
from gpuops.execute.measurements.packing import WHOLE, Block, Values, unpack
from gpuops.execute.measurements.tables import (
    FILE_NAME,
    blocks_table,
    found_database,
    spans_table,
    vgpus_table,
)
from gpuops.model.measurements.measurement import CounterSeries, Measured, Span, Stored, StoredTier, StoredVcenter

FIRST_DAY: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Tier:
    """Steps of one length, and the blocks that they lie in."""

    step_s: int
    block_s: int
    """How long a block is; each begins at a multiple of it."""

    @property
    def steps(self) -> int:
        return self.block_s // self.step_s


class Step(Enum):
    """The length of steps."""

    FINE = Tier(rolling_up.FINE_S, 12 * 3600)
    HOUR = Tier(rolling_up.HOUR_S, 10 * 24 * 3600)

    @property
    def seconds(self) -> int:
        return self.value.step_s


class MeasurementReads:
    """The measurements of one vCenter in a database, to read from. Every method raises only StateDamaged."""

    def __init__(self, database: Database, vcenter: str) -> None:
        self._database = database
        self._vcenter = vcenter

    @classmethod
    def found(cls, state_dir: Path, url: str, vcenter: str) -> Self | None:
        """To read from: nothing is made. None = there is no store. Raises UsageError, StateDamaged."""
        database = found_database(state_dir, url)
        return cls(database, vcenter) if database is not None else None

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def observed(self) -> tuple[Span, ...]:
        """When it was observed, oldest first."""
        with self._database.reading() as connection:
            return spans_of(connection, self._vcenter)

    def window(
        self, entity: str, counters: Collection[str], begin: datetime, until: datetime, step: Step = Step.FINE
    ) -> Mapping[str, CounterSeries]:
        """What these series of a VM or host said from `begin` until `until`, from the begin of the first step on.

        Steps that are missing are None, and a series of which nothing is known has none but these.
        """
        query = (
            select(blocks_table.c.begin, blocks_table.c.packed)
            .where(*self._in_blocks(begin, until, step))
            .where(blocks_table.c.entity == entity)
        )
        window = _Window(counters, begin, until, step)
        with self._database.reading() as connection:
            for at, packed in connection.execute(query):
                window.add(at, self._unpacked(packed))
        return window.series

    def windows(
        self, entities: Collection[str], counters: Collection[str], begin: datetime, until: datetime
    ) -> Iterator[tuple[str, Mapping[str, CounterSeries]]]:
        """The same of each of these VMs and hosts in steps of five minutes, by one query; one at a time in memory."""
        wanted, step = set(entities), Step.FINE
        query = (
            select(blocks_table.c.entity, blocks_table.c.begin, blocks_table.c.packed)
            .where(*self._in_blocks(begin, until, step))
            .order_by(blocks_table.c.entity, blocks_table.c.begin)
        )
        with self._database.reading() as connection:
            for entity, rows in groupby(connection.execute(query), key=lambda row: str(row.entity)):
                if entity in wanted:
                    wanted.remove(entity)
                    window = _Window(counters, begin, until, step)
                    for row in rows:
                        window.add(row.begin, self._unpacked(row.packed))
                    yield entity, window.series
        for entity in sorted(wanted):
            yield entity, _Window(counters, begin, until, step).series

    def arrays(
        self, entities: Collection[str], counters: Collection[str], begin_s: int, steps: int
    ) -> Iterator[tuple[str, Mapping[str, Values]]]:
        """So many steps of five minutes of each of these that has any, from this one on, as arrays by the counter: of
        many desktops over weeks the values of a series would take minutes to make."""
        begin, until = (datetime.fromtimestamp(begin_s + at * rolling_up.FINE_S, UTC) for at in (0, steps))
        query = (
            select(blocks_table.c.entity, blocks_table.c.begin, blocks_table.c.packed)
            .where(*self._in_blocks(begin, until, Step.FINE))
            .order_by(blocks_table.c.entity, blocks_table.c.begin)
        )
        with self._database.reading() as connection:
            for entity, rows in groupby(connection.execute(query), key=lambda row: str(row.entity)):
                if entity not in entities:
                    continue
                found = {name: rolling_up.empty(steps) for name in counters}
                for row in rows:
                    block, place = self._unpacked(row.packed), (row.begin - begin_s) // rolling_up.FINE_S
                    skipped = max(0, -place)
                    for name in found.keys() & block.series.keys():
                        values = block.series[name][skipped : max(skipped, steps - place)]
                        found[name][place + skipped : place + skipped + len(values)] = values
                yield entity, found

    def newest(
        self, entities: Collection[str], counters: Collection[str], begin: datetime, until: datetime
    ) -> Mapping[str, Mapping[str, int]]:
        """Of each of these VMs and hosts (ids) the average of the newest step of five minutes in this while that has
        one, by series: the counter, and those of its GPUs (`counter@GPU`). What was not measured is left out."""
        query = (
            select(blocks_table.c.entity, blocks_table.c.begin, blocks_table.c.packed)
            .where(*self._in_blocks(begin, until, Step.FINE))
            .order_by(blocks_table.c.begin)
        )
        found: dict[str, dict[str, int]] = {}
        with self._database.reading() as connection:
            for row in connection.execute(query):
                if row.entity not in entities:
                    continue
                first, end = (ceil((at.timestamp() - row.begin) / Step.FINE.seconds) for at in (begin, until))
                for name, values in self._unpacked(row.packed).series.items():
                    if name.partition("@")[0] in counters:
                        known = [average for average, _, covered in values[max(0, first) : max(0, end)] if covered]
                        if known:
                            found.setdefault(row.entity, {})[name] = int(known[-1])
        return found

    def entities(self, begin: datetime, until: datetime) -> frozenset[str]:
        """The VMs and hosts (ids) of which a block of five-minute steps touches this while."""
        query = select(blocks_table.c.entity).where(*self._in_blocks(begin, until, Step.FINE)).distinct()
        with self._database.reading() as connection:
            return frozenset(connection.scalars(query))

    def vgpu_peaks(self) -> Mapping[str, Mapping[date, int]]:
        """By profile and day, the most vGPUs that ran at once at the looks of that day."""
        query = select(vgpus_table.c.profile, vgpus_table.c.day, vgpus_table.c.most).where(
            vgpus_table.c.vcenter == self._vcenter
        )
        found: dict[str, dict[date, int]] = {}
        with self._database.reading() as connection:
            there = inspect(connection).has_table(vgpus_table.name)  # not in a store of schema 1
            for profile, day, most in connection.execute(query) if there else ():
                found.setdefault(profile, {})[FIRST_DAY + timedelta(days=day)] = most
        return found

    def _in_blocks(self, begin: datetime, until: datetime, step: Step) -> tuple[ColumnElement[bool], ...]:
        return (
            blocks_table.c.step_s == step.seconds,
            blocks_table.c.begin > int(begin.timestamp()) - step.value.block_s,
            blocks_table.c.begin < ceil(until.timestamp()),
            blocks_table.c.vcenter == self._vcenter,
        )

    def _unpacked(self, packed: bytes) -> Block:
        return _unpacked(packed, self._database.name)


class _Window:
    """A while of some series, filled block by block."""

    def __init__(self, counters: Collection[str], begin: datetime, until: datetime, step: Step) -> None:
        self._step_s = step.seconds
        self._first = int(begin.timestamp()) // self._step_s * self._step_s
        self._count = max(0, -(-(int(until.timestamp()) - self._first) // self._step_s))
        self._found: dict[str, list[Measured | None]] = {name: [None] * self._count for name in counters}

    def add(self, at: int, block: Block) -> None:
        """What a block that begins then has of it."""
        place = (at - self._first) // self._step_s
        skipped = max(0, -place)
        for name in self._found.keys() & block.series.keys():
            values = block.series[name][skipped : max(skipped, self._count - place)].tolist()
            for step, (average, highest, covered) in enumerate(values, place + skipped):
                if covered:
                    known = highest if highest >= 0 else None
                    self._found[name][step] = Measured(average, known, covered / WHOLE)

    @property
    def series(self) -> Mapping[str, CounterSeries]:
        begin, step = datetime.fromtimestamp(self._first, UTC), timedelta(seconds=self._step_s)
        return {name: CounterSeries(begin, step, tuple(steps)) for name, steps in self._found.items()}


def stored(state_dir: Path, url: str = "") -> Stored:
    """What the store holds, of each vCenter. Asks no vCenter, makes nothing. Raises UsageError, StateDamaged."""
    database = found_database(state_dir, url)
    if database is None:
        return Stored("the database of the journal" if url else str(state_dir / FILE_NAME))
    try:
        with database.reading() as connection:
            of = select(blocks_table.c.vcenter).union(select(spans_table.c.vcenter))
            vcenters = sorted(connection.scalars(of))
            return Stored(database.name, tuple(_stored(connection, each) for each in vcenters))
    finally:
        database.close()


def _stored(connection: Connection, vcenter: str) -> StoredVcenter:
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
    query = select(spans_table).where(spans_table.c.vcenter == vcenter).order_by(spans_table.c.begin)
    return tuple(
        Span(datetime.fromtimestamp(row.begin, UTC), datetime.fromtimestamp(row.until, UTC))
        for row in connection.execute(query)
    )


def _unpacked(packed: bytes, name: str) -> Block:
    try:
        return unpack(packed)
    except ValueError as error:
        raise StateDamaged(
            f"the store of measurements {name} holds a block that cannot be read: {error}",
            hint="move it aside: the next look begins a new one",
        ) from error
