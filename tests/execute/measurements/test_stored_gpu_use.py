"""What the store says of GPUs, now and in the last week, beside what was written into it; and the records of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from gpuops.extras.observe.blocks import FINE_S, HOUR_S, WHOLE, Block
from gpuops.extras.observe.store import Measurements
from gpuops.extras.observe.stored_gpu_use import HOURS_PER_STEP, STEPS, StoredUse, stored_use
from gpuops.extras.web.page.fleet_report import MeasuredFleetRecord, measured_record
from gpuops.model.measurements.measurement import (
    FRAGMENTED_MEMORY,
    FREE_GPUS,
    FREE_MEMORY,
    GPU_MEMORY,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_USE,
    SMI_ECC,
    SMI_SLOWED_BY_HEAT,
    SMI_TEMPERATURE,
    SMI_USE,
    UNUSABLE_GPUS,
)
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from tests.plan.snapshots import SNAPSHOTS

LAB: Final = SNAPSHOTS["lab"]()
HOST: Final = next(host for host in LAB.hosts.values() if len(host.gpus) > 1)
FIRST, SECOND = (str(gpu.address) for gpu in HOST.gpus[:2])
VM: Final = next(vm for vm in LAB.vms.values() if vm.profiles)
STEP_S: Final = HOURS_PER_STEP * HOUR_S


def near(expected: Sequence[float | None]) -> list[Any]:
    """Equal but for the rounding of the store: at most 3.2 % (`packing.py`), and once more to a whole number."""
    return [None if number is None else pytest.approx(number, rel=0.04, abs=0.5) for number in expected]


def write(folder: Path, entity: str, begin: int, series: Mapping[str, Sequence[int | None]]) -> None:
    rows = {
        name: np.array(
            [(-1, -1, 0) if average is None else (average, average, WHOLE) for average in averages], dtype=np.int64
        )
        for name, averages in series.items()
    }
    with Measurements.open(folder, "", LAB.vcenter) as store:
        store.write(begin, {entity: Block(len(next(iter(rows.values()))), rows)})


def note_observed(folder: Path, until: int) -> None:
    with Measurements.open(folder, "", LAB.vcenter) as store:
        store.note_observed(until - 8 * 24 * HOUR_S, until)
        store.roll_up(until)


def at(moment: int) -> Inventory:
    return replace(LAB, taken_at=datetime.fromtimestamp(moment, LAB.taken_at.tzinfo))


UNTIL: Final = int(LAB.taken_at.timestamp()) // HOUR_S * HOUR_S
BEGIN: Final = UNTIL - STEPS * STEP_S


def read(folder: Path, now: int = UNTIL) -> tuple[StoredUse, MeasuredFleetRecord]:
    stored = stored_use(folder, "", at(now))
    assert stored is not None
    return stored, measured_record(stored, at(now))


def test_now_is_the_newest_step_and_the_reading_of_nvidia_smi_after_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        HOST.ref,
        UNTIL - 2 * FINE_S,
        {
            f"{GPU_USE}@{FIRST}": [1_000, 2_500],
            f"{GPU_MEMORY}@{FIRST}": [0, 3 << 20],
            f"{GPU_POWER}@{FIRST}": [90, None],
            f"{GPU_TEMPERATURE}@{FIRST}": [50, 61],
        },
    )
    smi = {f"{SMI_USE}@{SECOND}": [700], f"{SMI_SLOWED_BY_HEAT}@{FIRST}": [1], f"{SMI_ECC}@{FIRST}": [4]}
    write(tmp_path, HOST.ref, UNTIL, smi | {f"{SMI_TEMPERATURE}@{address}": [70] for address in (FIRST, SECOND)})
    write(tmp_path, VM.ref, UNTIL - FINE_S, {GPU_USE: [1_200], GPU_MEMORY: [2 << 20]})
    note_observed(tmp_path, UNTIL)
    _, record = read(tmp_path)
    assert record.gpus is not None and record.vms is not None
    first, second = record.gpus[f"{HOST.ref} {FIRST}"], record.gpus[f"{HOST.ref} {SECOND}"]
    assert [first.utilization_percent, first.memory_used_mib, first.power_w] == near((25.0, 3 << 10, 90))
    assert [first.temperature_c, second.temperature_c] == near((61, 70)), "vCenter's own number comes first"
    assert (first.slowed_by_heat, first.slowed_by_power, first.ecc_uncorrected) == (True, None, 4)
    assert [second.utilization_percent, second.memory_used_mib] == near((7.0, None))
    assert list(record.vms) == [VM.ref]
    assert [record.vms[VM.ref].utilization_percent, record.vms[VM.ref].memory_used_mib] == near((12.0, 2 << 10))


def test_a_cluster_shows_how_fragmented_the_free_memory_of_its_hosts_was(tmp_path: Path) -> None:
    cluster, other_hosts = (
        HOST.cluster,
        [host for host in LAB.hosts.values() if host.cluster == HOST.cluster and host != HOST],
    )
    series = {FREE_MEMORY: [80_000], FRAGMENTED_MEMORY: [40_000], FREE_GPUS: [2], UNUSABLE_GPUS: [1]}
    write(tmp_path, HOST.ref, UNTIL - STEP_S, series)
    # another host of the cluster where no VM waits, so that its GPUs are no part of the second share
    write(tmp_path, other_hosts[0].ref, UNTIL - STEP_S, {FREE_MEMORY: [80_000], FRAGMENTED_MEMORY: [0], FREE_GPUS: [2]})
    note_observed(tmp_path, UNTIL)
    _, record = read(tmp_path)
    of_cluster = record.history.fragmentation[LAB.clusters[cluster or ""].name]
    assert of_cluster.percent == near([None] * (STEPS - 1) + [25])
    assert of_cluster.unusable_gpus_percent == near([None] * (STEPS - 1) + [50])


def test_instances_without_addresses_are_the_gpus_in_their_order_beside_readings_by_address(tmp_path: Path) -> None:
    numbered = {f"{GPU_USE}@gpu-{number}": [100 * number] for number in range(len(HOST.gpus))}
    write(tmp_path, HOST.ref, UNTIL - FINE_S, numbered | {f"{SMI_TEMPERATURE}@{SECOND}": [66]})
    note_observed(tmp_path, UNTIL)
    _, record = read(tmp_path)
    assert record.gpus is not None
    second = record.gpus[f"{HOST.ref} {SECOND}"]
    assert [second.utilization_percent, second.temperature_c] == near((1.0, 66))


def test_a_week_has_means_sums_and_gaps(tmp_path: Path) -> None:
    size = HOST.gpus[0].memory_mib
    assert size is not None
    hour = HOUR_S // FINE_S
    # the first step is measured in one of its hours, the last one is not rolled up yet; between them nothing is known
    for begin, use in ((BEGIN, 4_000), (UNTIL - 2 * HOUR_S, 8_000)):
        write(
            tmp_path,
            HOST.ref,
            begin,
            {
                f"{GPU_USE}@{FIRST}": [use] * hour,
                f"{GPU_USE}@{SECOND}": [0] * hour,
                f"{GPU_POWER}@{FIRST}": [96] * hour,
                f"{GPU_POWER}@{SECOND}": [48] * hour,
                f"{GPU_TEMPERATURE}@{FIRST}": [40] * hour,
                f"{GPU_TEMPERATURE}@{SECOND}": [80] * hour,
                f"{GPU_MEMORY}@{FIRST}": [size * 1024 // 2] * hour,
                f"{SMI_SLOWED_BY_HEAT}@{FIRST}": [0] * (hour - 1) + [1],
            },
        )
    note_observed(tmp_path, UNTIL)
    stored, record = read(tmp_path)
    history = record.history
    assert (stored.begin.timestamp(), history.step_s) == (BEGIN, STEP_S)
    assert history.gpus is not None
    first, host = history.gpus[f"{HOST.ref} {FIRST}"], history.hosts[HOST.ref]
    nothing = [None] * (STEPS - 2)
    assert first.utilization_percent == near([40, *nothing, 80])
    assert host.utilization_percent == near([20, *nothing, 40])
    assert host.power_w == near([144, *nothing, 144])
    assert host.temperature_c == near([80, *nothing, 80])
    assert host.slowed == [1, *nothing, 1], "a single reading counts"
    assert first.memory_percent is not None
    assert first.memory_percent[:1] == near([50])
    assert history.gpus[f"{HOST.ref} {SECOND}"].memory_percent is None
    assert list(history.clusters.values()) == [host]


def test_an_old_observation_says_nothing_about_now_and_is_read_once(tmp_path: Path) -> None:
    assert stored_use(tmp_path, "", LAB) is None, "no store"
    write(tmp_path, HOST.ref, UNTIL - FINE_S, {f"{GPU_USE}@{FIRST}": [100]})
    note_observed(tmp_path, UNTIL)
    _, record = read(tmp_path, UNTIL + 2 * HOUR_S)
    assert (record.gpus, record.vms) == (None, None)
    assert record.history.hosts[HOST.ref].utilization_percent is not None
    fresh, _ = read(tmp_path)
    assert stored_use(tmp_path, "", at(UNTIL + 60), fresh) is fresh
    note_observed(tmp_path, UNTIL + FINE_S)
    second_use = stored_use(tmp_path, "", at(UNTIL + FINE_S), fresh)
    assert second_use is not fresh and second_use is not None and second_use.newest.until > fresh.newest.until


def test_gpus_that_are_gone_and_fleets_that_are_too_large_have_no_history_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, HOST.ref, UNTIL - FINE_S, {f"{GPU_USE}@{address}": [100] for address in (FIRST, SECOND)})
    note_observed(tmp_path, UNTIL)
    stored, _ = read(tmp_path)
    alone: Host = replace(HOST, gpus=HOST.gpus[:1])
    record = measured_record(stored, LAB.with_hosts([alone]))
    assert record.history.gpus is not None and list(record.history.gpus) == [f"{HOST.ref} {FIRST}"]
    monkeypatch.setattr("gpuops.extras.web.page.fleet_report.MOST_GPUS", 1)
    _, record = read(tmp_path)
    assert record.history.gpus is None and record.history.hosts[HOST.ref].utilization_percent is not None
