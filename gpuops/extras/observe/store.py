"""Stores the measurements of one vCenter: writes blocks, combines them into hours and removes old ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from sqlalchemy import Connection, delete, insert, select, update

from gpuops.execute.state.lock import DatabaseLock, hold_to_the_end
from gpuops.extras.observe import blocks
from gpuops.extras.observe.blocks import Block, pack
from gpuops.extras.observe.store_reads import (
    FIRST_DAY,
    MeasurementReads,
    Step,
    Tier,
    blocks_table,
    open_to_write,
    spans_of,
    spans_table,
    vgpus_table,
)
from gpuops.model.measurements.measurement_settings import Retention

ROWS_AT_ONCE: Final = 500


class Measurements(MeasurementReads):
    """The measurements of one vCenter in a database, to read and write. Methods raise only StateDamaged."""

    @classmethod
    def open(cls, state_dir: Path, url: str, vcenter: str) -> Self:
        """Open the store to write; an empty `url` means the file in the state directory.

        Raises UsageError, StateDamaged.
        """
        return cls(open_to_write(state_dir, url), vcenter)

    def write(self, begin: int, measured: Mapping[str, Block]) -> None:
        """Merge steps of five minutes, by managed object id, into the stored ones; `begin`: seconds since 1970.

        The steps are durable when this returns. If two processes write the same steps, they are stored once.
        """
        by_begin: dict[int, dict[str, Block]] = {}  # the parts of each stored block, by its begin
        for entity, block in measured.items():
            for block_begin, part in _cut_at_borders(block, begin, Step.FINE.value):
                by_begin.setdefault(block_begin, {})[entity] = part
        with self._database.writing() as connection:
            hold_to_the_end(connection, DatabaseLock.MEASUREMENTS, self._vcenter)
            for block_begin, parts in by_begin.items():
                self._merge(connection, Step.FINE, block_begin, parts)

    def note_vgpus(self, now: datetime, running: Mapping[str, int]) -> None:
        """Store the number of running vGPUs by profile as the peak of the day, unless the stored peak is higher."""
        day = (now.astimezone(UTC).date() - FIRST_DAY).days
        with self._database.writing() as connection:
            hold_to_the_end(connection, DatabaseLock.MEASUREMENTS, self._vcenter)
            of_this_day = (vgpus_table.c.vcenter == self._vcenter, vgpus_table.c.day == day)
            query = select(vgpus_table.c.profile, vgpus_table.c.most).where(*of_this_day)
            earlier_peaks = {str(row.profile): int(row.most) for row in connection.execute(query)}
            for profile, count in running.items():
                if profile not in earlier_peaks:
                    row = {"vcenter": self._vcenter, "day": day, "profile": profile, "most": count}
                    connection.execute(insert(vgpus_table).values(row))
                elif count > earlier_peaks[profile]:
                    of_profile = vgpus_table.c.profile == profile
                    connection.execute(update(vgpus_table).where(*of_this_day, of_profile).values(most=count))

    def note_observed(self, begin: int, until: int) -> None:
        """Store this span of time as observed, joined with the spans that it touches."""
        with self._database.writing() as connection:
            hold_to_the_end(connection, DatabaseLock.MEASUREMENTS, self._vcenter)
            touching_spans = [
                span
                for span in spans_of(connection, self._vcenter)
                if span.begin.timestamp() <= until and span.until.timestamp() >= begin
            ]
            ends = [
                begin,
                until,
                *(int(moment.timestamp()) for span in touching_spans for moment in (span.begin, span.until)),
            ]
            for span in touching_spans:
                connection.execute(
                    delete(spans_table).where(
                        spans_table.c.vcenter == self._vcenter, spans_table.c.begin == int(span.begin.timestamp())
                    )
                )
            connection.execute(insert(spans_table).values(vcenter=self._vcenter, begin=min(ends), until=max(ends)))

    def roll_up(self, until: int) -> None:
        """Combine into hours the blocks that end before `until` and changed since they were last combined."""
        fine, hour = Step.FINE.value, Step.HOUR.value
        due = select(blocks_table.c.begin, blocks_table.c.entity, blocks_table.c.packed).where(
            blocks_table.c.step_s == fine.step_s,
            blocks_table.c.begin <= until - fine.block_s,
            blocks_table.c.vcenter == self._vcenter,
            blocks_table.c.rolled_up.is_(False),
        )
        while True:  # one commit for each batch of blocks, until a batch is not full
            with self._database.writing() as connection:
                hold_to_the_end(connection, DatabaseLock.MEASUREMENTS, self._vcenter)
                rows = connection.execute(due.limit(ROWS_AT_ONCE)).all()
                for begin in {row.begin for row in rows}:
                    # a block of hours is longer: the hours of this block begin at step `place` of it
                    hour_block_begin = begin // hour.block_s * hour.block_s
                    place = (begin - hour_block_begin) // hour.step_s
                    parts = {
                        row.entity: blocks.place_block(blocks.hours(self._unpack(row.packed)), place, hour.steps)
                        for row in rows
                        if row.begin == begin
                    }
                    self._merge(connection, Step.HOUR, hour_block_begin, parts)
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

    def remove_old(self, now: datetime, retention: Retention) -> None:
        """Remove blocks, peaks and spans that are older than the retention."""
        with self._database.writing() as connection:
            hold_to_the_end(connection, DatabaseLock.MEASUREMENTS, self._vcenter)
            for step, days in ((Step.FINE, retention.fine_days), (Step.HOUR, retention.hourly_days)):
                oldest = int((now - timedelta(days=days)).timestamp())
                connection.execute(
                    delete(blocks_table).where(
                        blocks_table.c.step_s == step.seconds,
                        blocks_table.c.begin <= oldest - step.value.block_s,
                        blocks_table.c.vcenter == self._vcenter,
                    )
                )
            first_day = (now.astimezone(UTC).date() - FIRST_DAY).days - retention.hourly_days
            connection.execute(
                delete(vgpus_table).where(vgpus_table.c.vcenter == self._vcenter, vgpus_table.c.day < first_day)
            )
            oldest = int((now - timedelta(days=retention.hourly_days)).timestamp())
            connection.execute(
                delete(spans_table).where(spans_table.c.vcenter == self._vcenter, spans_table.c.until <= oldest)
            )

    def _merge(self, connection: Connection, step: Step, at: int, parts: Mapping[str, Block]) -> None:
        """Merge the blocks that begin at `at`, by managed object id, with the stored ones; write those that changed."""
        at_this_begin = (
            blocks_table.c.step_s == step.seconds,
            blocks_table.c.begin == at,
            blocks_table.c.vcenter == self._vcenter,
        )
        packed_by_entity: dict[str, bytes] = {}
        for names in _in_groups(parts):
            query = select(blocks_table.c.entity, blocks_table.c.packed).where(
                *at_this_begin, blocks_table.c.entity.in_(names)
            )
            packed_by_entity.update((row.entity, row.packed) for row in connection.execute(query))
        rows: list[dict[str, Any]] = []
        for entity, part in parts.items():
            old = packed_by_entity.get(entity)
            packed = pack(part if old is None else blocks.merge_blocks(*self._merge_order(step, old, part)))
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
        for names in _in_groups([row["entity"] for row in rows]):
            connection.execute(delete(blocks_table).where(*at_this_begin, blocks_table.c.entity.in_(names)))
        if rows:
            connection.execute(insert(blocks_table), rows)

    def _merge_order(self, step: Step, old: bytes, part: Block) -> tuple[Block, Block]:
        """Return the stored and the new block, first the one whose steps are kept if both cover as much.

        An hour is computed from all its steps, so the new one replaces the stored one.
        """
        old_block = self._unpack(old)
        return (part, old_block) if step is Step.HOUR else (old_block, part)


def _cut_at_borders(block: Block, begin: int, tier: Tier) -> Iterable[tuple[int, Block]]:
    """Cut the steps at the borders of the tier's blocks: yield the begin of each block, and the block with its steps.

    All begins are in seconds since 1970. Blocks without a measured step are left out.
    """
    end = begin + block.steps * tier.step_s
    for at in range(begin // tier.block_s * tier.block_s, end, tier.block_s):
        first = max(0, (at - begin) // tier.step_s)
        last = min(block.steps, (at + tier.block_s - begin) // tier.step_s)
        series = {name: part for name, rows in block.series.items() if not blocks.nothing_in(part := rows[first:last])}
        if series:
            place = max(0, (begin - at) // tier.step_s)
            yield at, blocks.place_block(Block(last - first, series), place, tier.steps)


def _in_groups(names: Iterable[str]) -> Iterable[list[str]]:
    """Return the names in groups that fit into one statement: SQLite limits the number of parameters."""
    all_names = list(names)
    return (all_names[at : at + ROWS_AT_ONCE] for at in range(0, len(all_names), ROWS_AT_ONCE))
