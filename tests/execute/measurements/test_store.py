"""The store, in a file and in a real PostgreSQL: written once, rolled up, deleted; missing steps read as None."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from sqlalchemy import select, text, update

from gpuops.errors import StateDamaged
from gpuops.execute.journal.database import Database
from gpuops.extras.observe.blocks import WHOLE, Block
from gpuops.extras.observe.store import Measurements
from gpuops.extras.observe.store_reads import FILE_NAME, SCHEMA_VERSION, Step, open_to_write, schema_table, vgpus_table
from gpuops.extras.observe.store_reads import stored_measurements as stored
from gpuops.model.measurements.measurement import CPU_MHZ, Measured, Span
from gpuops.model.measurements.measurement_settings import Retention

VC: Final = "vc-1"
MIDNIGHT: Final = datetime(2026, 11, 20, tzinfo=UTC)
BEGIN: Final = int(MIDNIGHT.timestamp())
FIVE: Final = timedelta(minutes=5)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "sqlite" else str(request.getfixturevalue("postgresql").database())


@pytest.fixture
def store(tmp_path: Path, url: str) -> Iterator[Measurements]:
    with Measurements.open(tmp_path / "state", url, VC) as opened:
        yield opened


def steps(*averages_given: int | None) -> Block:
    """So much CPU in each step; None = missing."""
    rows = [(-1, -1, 0) if average is None else (average, average, WHOLE) for average in averages_given]
    return Block(len(rows), {CPU_MHZ: np.array(rows, dtype=np.int64)})


def averages(
    store: Measurements, begin: datetime, until: datetime, step: Step = Step.FINE, vm: str = "vm-1"
) -> list[int | None]:
    series = store.window(vm, [CPU_MHZ], begin, until, step)[CPU_MHZ]
    return [measured.average if measured is not None else None for measured in series.steps]


def test_a_while_across_two_blocks_with_what_is_missing(store: Measurements) -> None:
    noon = MIDNIGHT + timedelta(hours=12)
    store.write(BEGIN + 12 * 3600 - 600, {"vm-1": steps(1, None, 3, 4)})
    assert averages(store, noon - 3 * FIVE, noon + 3 * FIVE) == [None, 1, None, 3, 4, None]
    assert averages(store, noon - FIVE / 2, noon) == [None], "the step that the moment is in"
    assert averages(store, noon, noon + FIVE, vm="vm-2") == [None]
    assert store.window("vm-1", ["gpu.utilization.average"], noon, noon + FIVE)["gpu.utilization.average"].steps == (
        None,
    )


def test_the_newest_step_of_a_while_across_two_blocks(store: Measurements) -> None:
    noon = MIDNIGHT + timedelta(hours=12)
    written = {"vm-1": steps(1, 2, None, None), "vm-2": steps(5, 6, 7, None), "vm-3": steps(8, None, None, 9)}
    store.write(BEGIN + 12 * 3600 - 600, written)

    def newest(begin: datetime, until: datetime, *vms: str) -> dict[str, dict[str, int]]:
        newest_series = store.newest(vms, [CPU_MHZ], begin, until)
        return {vm: dict(series) for vm, series in newest_series.items()}

    every = ("vm-1", "vm-2", "vm-3", "vm-4")
    assert newest(noon - 2 * FIVE, noon + 2 * FIVE, *every) == {
        "vm-1": {CPU_MHZ: 2},
        "vm-2": {CPU_MHZ: 7},
        "vm-3": {CPU_MHZ: 9},
    }
    assert newest(noon - FIVE, noon + FIVE, *every) == {"vm-1": {CPU_MHZ: 2}, "vm-2": {CPU_MHZ: 7}}
    assert newest(noon, noon + 2 * FIVE, "vm-1", "vm-2") == {"vm-2": {CPU_MHZ: 7}}, "before is before"
    assert newest(noon + 2 * FIVE, noon + 4 * FIVE, *every) == {}
    assert store.newest(every, ["gpu.utilization.average"], noon - 2 * FIVE, noon) == {}


def test_a_series_of_a_gpu_is_of_its_counter(store: Measurements) -> None:
    rows = np.array([(20, 30, WHOLE)], dtype=np.int64)  # small values come out as they were
    names = (CPU_MHZ, "gpu.utilization.average@0000:3b:00.0", "gpu.utilization.average", "gpu.mem.used.average")
    store.write(BEGIN, {"host-1": Block(1, dict.fromkeys(names, rows))})
    newest = store.newest(["host-1"], ["gpu.utilization.average"], MIDNIGHT, MIDNIGHT + FIVE)
    assert newest == {"host-1": {names[1]: 20, names[2]: 20}}


def test_many_are_read_as_arrays_and_say_what_a_window_says(store: Measurements) -> None:
    noon = MIDNIGHT + timedelta(hours=12)
    store.write(BEGIN + 12 * 3600 - 600, {"vm-1": steps(1, None, 3, 4), "vm-2": steps(5)})
    store.write(BEGIN + 12 * 3600, {"vm-3": steps(6)})
    begin = noon - 3 * FIVE
    arrays = dict(store.arrays(["vm-1", "vm-2", "vm-4"], [CPU_MHZ, "net.usage.average"], int(begin.timestamp()), 6))
    assert set(arrays) == {"vm-1", "vm-2"}, "those that have any"
    for vm, series in arrays.items():
        read_averages = [int(average) if covered else None for average, _, covered in series[CPU_MHZ]]
        assert read_averages == averages(store, begin, begin + 6 * FIVE, vm=vm)
        assert not series["net.usage.average"][:, 2].any()
    assert dict(store.arrays(["vm-1"], [CPU_MHZ], int((noon + FIVE).timestamp()), 2))["vm-1"][CPU_MHZ].tolist() == [
        [4, 4, WHOLE], [-1, -1, 0]
    ]  # fmt: skip


def test_two_that_write_the_same_leave_it_there_once(store: Measurements, tmp_path: Path, url: str) -> None:
    store.write(BEGIN, {"vm-1": steps(1, 2, None), "vm-2": steps(7)})
    once = stored(tmp_path / "state", url)
    with Measurements.open(tmp_path / "state", url, VC) as second_store:
        second_store.write(BEGIN, {"vm-1": steps(1, 2, None), "vm-2": steps(7)})
        assert stored(tmp_path / "state", url) == once
        second_store.write(BEGIN + 300, {"vm-1": steps(None, 3)})
    assert averages(store, MIDNIGHT, MIDNIGHT + 3 * FIVE) == [1, 2, 3]
    with Measurements.open(tmp_path / "state", url, "vc-2") as elsewhere:
        assert averages(elsewhere, MIDNIGHT, MIDNIGHT + FIVE) == [None]


def test_hours_stay_when_the_steps_are_forgotten(store: Measurements, tmp_path: Path, url: str) -> None:
    store.write(BEGIN, {"vm-1": steps(*[10] * 12, *[None] * 12, 30)})
    store.note_observed(BEGIN, BEGIN + 25 * 300)
    store.roll_up(BEGIN + 12 * 3600 - 1)
    assert averages(store, MIDNIGHT, MIDNIGHT + timedelta(hours=1), Step.HOUR) == [None], "the block goes on"
    store.roll_up(BEGIN + 12 * 3600)
    three = (MIDNIGHT, MIDNIGHT + timedelta(hours=3), Step.HOUR)
    assert averages(store, *three) == [10, None, 30]
    store.write(BEGIN + 12 * 300, {"vm-1": steps(20)})  # filled later
    store.roll_up(BEGIN + 12 * 3600)
    hourly = store.window("vm-1", [CPU_MHZ], *three)[CPU_MHZ].steps
    assert hourly[1] == Measured(20, 20, 1 / WHOLE)

    later = MIDNIGHT + timedelta(days=3)
    store.remove_old(later, Retention(fine_days=2, hourly_days=100))
    assert averages(store, MIDNIGHT, MIDNIGHT + FIVE) == [None]
    assert averages(store, *three) == [10, 20, 30]
    store.remove_old(later + timedelta(days=200), Retention(fine_days=2, hourly_days=100))
    assert averages(store, *three) == [None, None, None]
    [vcenter] = stored(tmp_path / "state", url).vcenters or [None]
    assert vcenter is None, "nothing is left"


def test_what_was_observed_grows_together(store: Measurements) -> None:
    for begin, until in ((0, 600), (1200, 1800), (1500, 2400), (300, 900)):
        store.note_observed(begin, until)
    at = [datetime.fromtimestamp(seconds, UTC) for seconds in (0, 900, 1200, 2400)]
    assert store.observed_spans() == (Span(at[0], at[1]), Span(at[2], at[3]))
    store.note_observed(900, 1200)
    assert store.observed_spans() == (Span(at[0], at[3]),)


def test_a_store_that_is_none_is_said_to_be_damaged(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Measurements.open(state, "", VC):
        pass
    for path in state.glob(f"{FILE_NAME}*"):
        path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StateDamaged, match=r"the store of measurements .* cannot be used") as damaged:
        Measurements.open(state, "", VC)
    assert "move the damaged file to another directory" in damaged.value.hint


def test_one_query_tells_of_many_vms_what_each_of_them_is_asked_alone(store: Measurements) -> None:
    noon = MIDNIGHT + timedelta(hours=12)
    store.write(BEGIN + 12 * 3600 - 600, {"vm-1": steps(1, None, 3, 4), "vm-2": steps(7), "vm-9": steps(5)})
    store.write(BEGIN - 24 * 3600, {"vm-8": steps(5)})
    for begin, until in ((noon - 3 * FIVE, noon + 3 * FIVE), (noon - FIVE / 2, noon + FIVE), (MIDNIGHT, MIDNIGHT)):
        windows = dict(store.windows(("vm-1", "vm-2", "vm-3"), [CPU_MHZ, "net.usage.average"], begin, until))
        assert windows == {
            vm: store.window(vm, [CPU_MHZ, "net.usage.average"], begin, until) for vm in ("vm-1", "vm-2", "vm-3")
        }
    assert store.entities(noon - FIVE, noon) == {"vm-1", "vm-2", "vm-9"}
    assert store.entities(MIDNIGHT - timedelta(days=1), MIDNIGHT) == {"vm-8"}


def test_whoever_only_reads_makes_no_store(tmp_path: Path, url: str) -> None:
    state = tmp_path / "state"
    assert Measurements.open_if_exists(state, url, VC) is None
    assert not state.exists()
    assert stored(state, url).vcenters == ()
    with Measurements.open(state, url, VC) as new_store:
        new_store.write(BEGIN, {"vm-1": steps(1)})
    store = Measurements.open_if_exists(state, url, VC)
    assert store is not None
    with store:
        assert averages(store, MIDNIGHT, MIDNIGHT + FIVE) == [1]


def test_a_store_of_schema_1_is_read_and_becomes_one_of_this_version(tmp_path: Path, url: str) -> None:
    with Measurements.open(tmp_path, url, VC) as store:
        store.write(BEGIN, {"vm-1": steps(7)})
    with closing(open_to_write(tmp_path, url)) as database:
        _say_schema(database, 1)
        with database.writing() as connection:
            vgpus_table.drop(connection)  # schema 1 had none
            connection.execute(text("DROP TABLE alembic_version"))  # nor had its gpuops
        upgraded = Measurements.open_if_exists(tmp_path, url, VC)
        assert upgraded is not None
        with upgraded:
            assert averages(upgraded, MIDNIGHT, MIDNIGHT + FIVE) == [7]
            assert upgraded.vgpu_peaks() == {}
        with Measurements.open(tmp_path, url, VC) as store:
            store.note_vgpus(MIDNIGHT, {"nvidia_a40-8q": 3})
            assert store.vgpu_peaks() == {"nvidia_a40-8q": {MIDNIGHT.date(): 3}}
        with database.reading() as connection:
            assert connection.scalars(select(schema_table.c.version)).all() == [SCHEMA_VERSION]
        _say_schema(database, SCHEMA_VERSION + 1)
        with pytest.raises(StateDamaged, match="reads schema 1 and 2"):
            Measurements.open(tmp_path, url, VC)
        _say_schema(database, SCHEMA_VERSION)


def _say_schema(database: Database, version: int) -> None:
    with database.writing() as connection:
        connection.execute(update(schema_table).values(version=version))
