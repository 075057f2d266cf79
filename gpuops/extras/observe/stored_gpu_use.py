"""The stored use of GPUs and VMs: the newest one, and the last week of GPUs in steps of three hours."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.gpu_counters import TEMPERATURE_COUNTERS, USE_COUNTERS, measured_use, numbers_by_gpu
from gpuops.extras.observe.blocks import HOUR_S, Values
from gpuops.extras.observe.store_reads import OLD, MeasurementReads, newest_use
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.measurements.measurement import (
    FRAGMENTATION_COUNTERS,
    FRAGMENTED_MEMORY,
    FREE_GPUS,
    FREE_MEMORY,
    GPU_MEMORY,
    GPU_POWER,
    SMI_SLOWED_BY_HEAT,
    SMI_SLOWED_BY_POWER,
    UNUSABLE_GPUS,
    CurrentUse,
    MeasuredUse,
    NewestUse,
)
from gpuops.model.vcenter.inventory import Inventory

GpuKey = tuple[str, PciAddress]
"""The host's managed object id, and the address of the GPU in it."""
Numbers = NDArray[np.float64]
"""One number for each step; NaN = not measured."""

HOURS_PER_STEP: Final = 3
STEPS: Final = 7 * 24 // HOURS_PER_STEP

_HISTORY_COUNTERS: Final = (
    *USE_COUNTERS,
    GPU_MEMORY,
    GPU_POWER,
    *TEMPERATURE_COUNTERS,
    SMI_SLOWED_BY_HEAT,
    SMI_SLOWED_BY_POWER,
)


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """The history of one GPU in `STEPS` steps of `HOURS_PER_STEP` hours. None = it was measured in none of them."""

    utilization_percent: Numbers | None
    memory_mib: Numbers | None
    power_w: Numbers | None
    temperature_c: Numbers | None
    slowed: Numbers | None
    """1 = it was clocked down at a reading, because of heat or its power limit."""


@dataclass(frozen=True, slots=True)
class FragmentationHistory:
    """One host in the same steps: free memory in MiB, and numbers of GPUs (`advise/fragmentation.py`)."""

    free_mib: Numbers
    fragmented_mib: Numbers
    free_gpus: Numbers
    unusable_gpus: Numbers | None
    """None = no VM waited at any observation."""


@dataclass(frozen=True, slots=True)
class StoredUse:
    """The stored use of the GPUs and VMs of one vCenter."""

    newest: NewestUse
    now: CurrentUse | None
    """The use in the newest five minutes; None = the last observation is more than an hour old."""
    begin: datetime
    """The begin of the first step of `history`."""
    history: Mapping[GpuKey, GpuHistory]
    fragmentation: Mapping[str, FragmentationHistory] = field(default_factory=dict)
    """By the host's managed object id."""


def stored_use(state_dir: Path, url: str, inventory: Inventory, earlier: StoredUse | None = None) -> StoredUse | None:
    """Return the stored use of the GPUs and VMs of this vCenter; None without a store or an observation.

    `earlier`: an answer for the same vCenter, which is returned if nothing was observed since, also if the store is
    missing now. Reads no vCenter. Raises UsageError, StateDamaged.
    """
    hosts = {host.ref for host in inventory.hosts.values() if host.gpus}
    entities = hosts | {vm.ref for vm in inventory.vms.values() if vm.profiles}
    earlier_newest = earlier.newest if earlier is not None else None
    newest = newest_use(state_dir, url, inventory.vcenter, entities, inventory.taken_at, earlier_newest)
    if newest is None or newest is earlier_newest:
        return earlier
    is_old = inventory.taken_at - newest.until > OLD
    # the end of the hour that has begun: -(-a // b) rounds up
    last_hour = -(-int(newest.until.timestamp()) // HOUR_S)
    begin_s = (last_hour - STEPS * HOURS_PER_STEP) * HOUR_S
    store = MeasurementReads.open_if_exists(state_dir, url, inventory.vcenter)
    assert store is not None, "it held an observation just now"
    with store:
        history = dict(_histories(store, inventory, hosts, begin_s))
        fragmentation = dict(_fragmentation(store, hosts, begin_s))
    now = None if is_old else current_use_of(newest, inventory)
    return StoredUse(newest, now, datetime.fromtimestamp(begin_s, UTC), history, fragmentation)


def current_use_of(newest: NewestUse, inventory: Inventory) -> CurrentUse:
    """Return the newest stored numbers by GPU and by VM: those of vCenter, or else those of nvidia-smi."""
    gpus: dict[GpuKey, MeasuredUse] = {}
    vms: dict[str, MeasuredUse] = {}
    for ref, series in newest.averages.items():
        if ref in inventory.vms:
            vms[ref] = measured_use(series)
        elif ref in inventory.hosts:
            gpus |= {
                (ref, address): measured_use(numbers)
                for address, numbers in numbers_by_gpu(series, inventory.hosts[ref]).items()
            }
    return CurrentUse(newest.until, gpus, vms)


def _histories(
    store: MeasurementReads, inventory: Inventory, hosts: Collection[str], begin_s: int
) -> Iterator[tuple[GpuKey, GpuHistory]]:
    for host, series in store.hours(hosts, _HISTORY_COUNTERS, begin_s, STEPS * HOURS_PER_STEP):
        for address, hours in numbers_by_gpu(series, inventory.hosts[host]).items():
            yield (host, address), _history(hours)


def _fragmentation(
    store: MeasurementReads, hosts: Collection[str], begin_s: int
) -> Iterator[tuple[str, FragmentationHistory]]:
    for host, series in store.hours(hosts, FRAGMENTATION_COUNTERS, begin_s, STEPS * HOURS_PER_STEP):
        free, fragmented = _averages(series, FREE_MEMORY), _averages(series, FRAGMENTED_MEMORY)
        free_gpus = _averages(series, FREE_GPUS)
        if free is not None and fragmented is not None and free_gpus is not None:
            yield host, FragmentationHistory(free, fragmented, free_gpus, _averages(series, UNUSABLE_GPUS))


def _averages(hours: Mapping[str, Values], *counters: str, scale: float = 1.0) -> Numbers | None:
    """Return the averages in steps of three hours, times `scale`, of the first of these counters that was measured.

    None = none of them was. In an average an hour counts by the time that its samples cover.
    """
    hours_of_first = next((hours[counter] for counter in counters if counter in hours), None)
    if hours_of_first is None:
        return None
    steps = hours_of_first.reshape(STEPS, HOURS_PER_STEP, 3)
    covered = steps[:, :, 2]
    weights = covered.sum(axis=1)
    numbers = np.full(STEPS, np.nan)
    is_measured = weights > 0
    sums = (np.where(covered > 0, steps[:, :, 0], 0) * covered).sum(axis=1)
    numbers[is_measured] = sums[is_measured] / weights[is_measured] * scale
    return numbers


def _history(hours: Mapping[str, Values]) -> GpuHistory:
    """Return the history of a GPU from its hours by counter."""
    # readings of `slowed` are 0 or 1, and 1 is rare: an average would be rounded to 0, so the highest is used
    slowed = [hours[name] for name in (SMI_SLOWED_BY_HEAT, SMI_SLOWED_BY_POWER) if name in hours]
    highest = None
    if slowed:
        by_step = np.max(slowed, axis=0).reshape(STEPS, HOURS_PER_STEP, 3)  # 3: average, highest, covered
        highest = np.where((by_step[:, :, 2] > 0).any(axis=1), by_step[:, :, 1].max(axis=1), np.nan).clip(min=0)
    return GpuHistory(
        _averages(hours, *USE_COUNTERS, scale=0.01),
        _averages(hours, GPU_MEMORY, scale=1 / 1024),
        _averages(hours, GPU_POWER),
        _averages(hours, *TEMPERATURE_COUNTERS),
        highest,
    )
