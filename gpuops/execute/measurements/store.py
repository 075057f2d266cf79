"""Keeps measurements of one vCenter: writes blocks, rolls them up, forgets old ones, and reads a while of a counter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from itertools import groupby
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import ColumnElement, Connection, delete, func, insert, inspect, select, update

from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import Database
from gpuops.execute.measurements import rolling_up
from gpuops.execute.measurements.packing import WHOLE, Block, Values, pack, unpack
from gpuops.execute.measurements.tables import (
    FILE_NAME,
    alone,
    blocks_table,
    found_database,
    made_database,
    spans_table,
    vgpus_table,
)
from gpuops.model.measurement import CounterSeries, Measured, Retention, Span, Stored, StoredTier, StoredVcenter

ROWS_AT_ONCE: Final = 500
_FIRST_DAY: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class _Tier:
    step_s: int
    block_s: int
    """How long a block is; each begins at a multiple of it."""

    @property
    def steps(self) -> int:
        return self.block_s // self.step_s


class Step(Enum):
    """The length of steps."""

    FINE = _Tier(rolling_up.FINE_S, 12 * 3600)
    HOUR = _Tier(rolling_up.HOUR_S, 10 * 24 * 3600)

    @property
    def seconds(self) -> int:
        return self.value.step_s


class Measurements:
    """The measurements of one vCenter in a database. Every method raises only StateDamaged."""

    def __init__(self, database: Database, vcenter: str) -> None:
        self._database = database
        self._vcenter = vcenter

    @classmethod
    def open(cls, state_dir: Path, url: str, vcenter: str) -> Self:
        """To write into. `url` empty = the file in the state directory. Raises UsageError, StateDamaged."""
        return cls(made_database(state_dir, url), vcenter)

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

    # --- reading --------------------------------------------------------------------------------------------------

    def observed(self) -> tuple[Span, ...]:
        """When it was observed, oldest first."""
        with self._database.reading() as connection:
            return _spans(connection, self._vcenter)

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
                found.setdefault(profile, {})[_FIRST_DAY + timedelta(days=day)] = most
        return found

    def _in_blocks(self, begin: datetime, until: datetime, step: Step) -> tuple[ColumnElement[bool], ...]:
        return (
            blocks_table.c.step_s == step.seconds,
            blocks_table.c.begin > int(begin.timestamp()) - step.value.block_s,
            blocks_table.c.begin < ceil(until.timestamp()),
            blocks_table.c.vcenter == self._vcenter,
        )

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, begin: int, measured: Mapping[str, Block]) -> None:
        """Adds steps of five minutes from `begin` on, by managed object id; what is there already is merged with them.

        Durable when it returns; two that write the same leave it there once.
        """
        tier = Step.FINE.value
        by_block: dict[int, dict[str, Block]] = {}
        for entity, block in measured.items():
            for at, part in _cut(block, begin, tier):
                by_block.setdefault(at, {})[entity] = part
        with self._database.writing() as connection:
            alone(connection, self._vcenter)
            for at, parts in by_block.items():
                self._merge(connection, Step.FINE, at, parts)

    def note_vgpus(self, now: datetime, running: Mapping[str, int]) -> None:
        """From here on the day has had so many vGPUs of each profile at once, or as many as before if that is more."""
        day = (now.astimezone(UTC).date() - _FIRST_DAY).days
        with self._database.writing() as connection:
            alone(connection, self._vcenter)
            mine = (vgpus_table.c.vcenter == self._vcenter, vgpus_table.c.day == day)
            query = select(vgpus_table.c.profile, vgpus_table.c.most).where(*mine)
            there = {str(row.profile): int(row.most) for row in connection.execute(query)}
            for profile, count in running.items():
                if profile not in there:
                    row = {"vcenter": self._vcenter, "day": day, "profile": profile, "most": count}
                    connection.execute(insert(vgpus_table).values(row))
                elif count > there[profile]:
                    of_profile = vgpus_table.c.profile == profile
                    connection.execute(update(vgpus_table).where(*mine, of_profile).values(most=count))

    def note_observed(self, begin: int, until: int) -> None:
        """From here on this while counts as observed."""
        with self._database.writing() as connection:
            alone(connection, self._vcenter)
            touching = [
                span
                for span in _spans(connection, self._vcenter)
                if span.begin.timestamp() <= until and span.until.timestamp() >= begin
            ]
            ends = [
                begin,
                until,
                *(int(moment.timestamp()) for span in touching for moment in (span.begin, span.until)),
            ]
            for span in touching:
                connection.execute(
                    delete(spans_table).where(
                        spans_table.c.vcenter == self._vcenter, spans_table.c.begin == int(span.begin.timestamp())
                    )
                )
            connection.execute(insert(spans_table).values(vcenter=self._vcenter, begin=min(ends), until=max(ends)))

    def roll_up(self, until: int) -> None:
        """Makes hours of the blocks that end before then and were not rolled up since they were written."""
        fine, hour = Step.FINE.value, Step.HOUR.value
        due = select(blocks_table.c.begin, blocks_table.c.entity, blocks_table.c.packed).where(
            blocks_table.c.step_s == fine.step_s,
            blocks_table.c.begin <= until - fine.block_s,
            blocks_table.c.vcenter == self._vcenter,
            blocks_table.c.rolled_up.is_(False),
        )
        while True:
            with self._database.writing() as connection:
                alone(connection, self._vcenter)
                rows = connection.execute(due.limit(ROWS_AT_ONCE)).all()
                for begin in {row.begin for row in rows}:
                    at = begin // hour.block_s * hour.block_s
                    place = (begin - at) // hour.step_s
                    parts = {
                        row.entity: rolling_up.placed(rolling_up.hours(self._unpacked(row.packed)), place, hour.steps)
                        for row in rows
                        if row.begin == begin
                    }
                    self._merge(connection, Step.HOUR, at, parts)
                    connection.execute(
                        update(blocks_table)
                        .where(
                            blocks_table.c.step_s == fine.step_s,
                            blocks_table.c.begin == begin,
                            blocks_table.c.vcenter == self._vcenter,
                            blocks_table.c.entity.in_(parts),
                        )
                        .values(rolled_up=True)
                    )
            if len(rows) < ROWS_AT_ONCE:
                return

    def forget(self, now: datetime, retention: Retention) -> None:
        """Drops blocks whose steps are all older than is to be kept."""
        with self._database.writing() as connection:
            alone(connection, self._vcenter)
            for step, days in ((Step.FINE, retention.fine_days), (Step.HOUR, retention.hourly_days)):
                oldest = int((now - timedelta(days=days)).timestamp())
                connection.execute(
                    delete(blocks_table).where(
                        blocks_table.c.step_s == step.seconds,
                        blocks_table.c.begin <= oldest - step.value.block_s,
                        blocks_table.c.vcenter == self._vcenter,
                    )
                )
            first_day = (now.astimezone(UTC).date() - _FIRST_DAY).days - retention.hourly_days
            connection.execute(
                delete(vgpus_table).where(vgpus_table.c.vcenter == self._vcenter, vgpus_table.c.day < first_day)
            )
            oldest = int((now - timedelta(days=retention.hourly_days)).timestamp())
            connection.execute(
                delete(spans_table).where(spans_table.c.vcenter == self._vcenter, spans_table.c.until <= oldest)
            )

    def _merge(self, connection: Connection, step: Step, at: int, parts: Mapping[str, Block]) -> None:
        """Writes these blocks, merged with those that are there; what did not change is not written."""
        mine = (
            blocks_table.c.step_s == step.seconds,
            blocks_table.c.begin == at,
            blocks_table.c.vcenter == self._vcenter,
        )
        there: dict[str, bytes] = {}
        for some in _in_pieces(parts):
            query = select(blocks_table.c.entity, blocks_table.c.packed).where(*mine, blocks_table.c.entity.in_(some))
            there.update((row.entity, row.packed) for row in connection.execute(query))
        rows: list[dict[str, Any]] = []
        for entity, part in parts.items():
            old = there.get(entity)
            # an hour is made anew from all of its steps, and so counts before what was there
            packed = pack(part if old is None else rolling_up.merged(*self._order(step, old, part)))
            if packed != old:
                rows.append(
                    {
                        "step_s": step.seconds,
                        "begin": at,
                        "vcenter": self._vcenter,
                        "entity": entity,
                        "rolled_up": step is Step.HOUR,
                        "packed": packed,
                    }
                )
        for some in _in_pieces([row["entity"] for row in rows]):
            connection.execute(delete(blocks_table).where(*mine, blocks_table.c.entity.in_(some)))
        if rows:
            connection.execute(insert(blocks_table), rows)

    def _order(self, step: Step, old: bytes, part: Block) -> tuple[Block, Block]:
        before = self._unpacked(old)
        return (part, before) if step is Step.HOUR else (before, part)

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
    return StoredVcenter(vcenter, _spans(connection, vcenter), tuple(tiers))


def _spans(connection: Connection, vcenter: str) -> tuple[Span, ...]:
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


def _cut(block: Block, begin: int, tier: _Tier) -> Iterable[tuple[int, Block]]:
    """(begin of a block of the tier, what of these steps is in it)."""
    end = begin + block.steps * tier.step_s
    for at in range(begin // tier.block_s * tier.block_s, end, tier.block_s):
        first = max(0, (at - begin) // tier.step_s)
        last = min(block.steps, (at + tier.block_s - begin) // tier.step_s)
        series = {
            name: part for name, values in block.series.items() if not rolling_up.nothing_in(part := values[first:last])
        }
        if series:
            place = max(0, (begin - at) // tier.step_s)
            yield at, rolling_up.placed(Block(last - first, series), place, tier.steps)


def _in_pieces(names: Iterable[str]) -> Iterable[list[str]]:
    """SQLite takes so many values in a statement, PostgreSQL more."""
    found = list(names)
    return (found[at : at + ROWS_AT_ONCE] for at in range(0, len(found), ROWS_AT_ONCE))
