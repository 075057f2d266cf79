"""What the store of measurements holds of GPUs: what they did last, and their last week in steps of three hours."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.gpu_counters import gpus_of_instances
from gpuops.extras.observe.packing import Values
from gpuops.extras.observe.rolling_up import HOUR_S
from gpuops.extras.observe.store_reads import OLD, MeasurementReads, newest_use
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.measurements.gpu_use import CurrentUse, MeasuredUse
from gpuops.model.measurements.measurement import (
    FRAGMENTATION_COUNTERS,
    FRAGMENTED_MEMORY,
    FREE_GPUS,
    FREE_MEMORY,
    GPU_MEMORY,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_USE,
    SMI_CLOCK,
    SMI_ECC,
    SMI_POWER_LIMIT,
    SMI_SLOWED_BY_HEAT,
    SMI_SLOWED_BY_POWER,
    SMI_TEMPERATURE,
    SMI_USE,
    UNUSABLE_GPUS,
    NewestUse,
)
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory

GpuKey = tuple[str, PciAddress]
"""The host's managed object id, and the address of the GPU in it."""
Numbers = NDArray[np.float64]
"""One number for each step; NaN = not measured."""

Number = TypeVar("Number")

HOURS_PER_STEP: Final = 3
STEPS: Final = 7 * 24 // HOURS_PER_STEP

_HISTORY_COUNTERS: Final = (
    GPU_USE,
    SMI_USE,
    GPU_MEMORY,
    GPU_POWER,
    GPU_TEMPERATURE,
    SMI_TEMPERATURE,
    SMI_SLOWED_BY_HEAT,
    SMI_SLOWED_BY_POWER,
)


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """One GPU in `STEPS` steps of `HOURS_PER_STEP` hours. None = it was measured in none of them."""

    utilization_percent: Numbers | None
    memory_mib: Numbers | None
    power_w: Numbers | None
    temperature_c: Numbers | None
    slowed: Numbers | None
    """1 = it was clocked down at a reading, because of heat or for want of power."""


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
    """What a store knows of the GPUs and VMs of one vCenter."""

    newest: NewestUse
    now: CurrentUse | None
    """The newest five minutes; None = the last observation is too old to say anything about now."""
    begin: datetime
    """Of the first step of `history`."""
    history: Mapping[GpuKey, GpuHistory]
    fragmentation: Mapping[str, FragmentationHistory] = field(default_factory=dict)
    """By the host's managed object id."""


def stored_use(state_dir: Path, url: str, inventory: Inventory, earlier: StoredUse | None = None) -> StoredUse | None:
    """Return the stored use of the GPUs and VMs of this vCenter; None without a store or an observation.

    `earlier`: an answer for the same vCenter, which is returned if nothing was observed since. Asks no vCenter. Raises
    UsageError, StateDamaged.
    """
    hosts = {host.ref for host in inventory.hosts.values() if host.gpus}
    entities = hosts | {vm.ref for vm in inventory.vms.values() if vm.profiles}
    earlier_newest = earlier.newest if earlier is not None else None
    newest = newest_use(state_dir, url, inventory.vcenter, entities, inventory.taken_at, earlier_newest)
    if newest is None or newest is earlier_newest:
        return earlier
    is_old = inventory.taken_at - newest.until > OLD
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
            vms[ref] = _measured(series)
        elif ref in inventory.hosts:
            gpus |= {
                (ref, address): _measured(numbers)
                for address, numbers in numbers_by_gpu(series, inventory.hosts[ref]).items()
            }
    return CurrentUse(newest.until, gpus, vms)


def _measured(numbers: Mapping[str, int]) -> MeasuredUse:
    """Return the numbers of counters in the units of `MeasuredUse`: use is stored in hundredths of a percent."""
    use, memory_kb = numbers.get(GPU_USE, numbers.get(SMI_USE)), numbers.get(GPU_MEMORY)
    by_heat, by_power = numbers.get(SMI_SLOWED_BY_HEAT), numbers.get(SMI_SLOWED_BY_POWER)
    return MeasuredUse(
        utilization_percent=None if use is None else use / 100,
        memory_used_mib=None if memory_kb is None else memory_kb >> 10,
        temperature_c=numbers.get(GPU_TEMPERATURE, numbers.get(SMI_TEMPERATURE)),
        power_w=numbers.get(GPU_POWER),
        power_limit_w=numbers.get(SMI_POWER_LIMIT),
        clock_mhz=numbers.get(SMI_CLOCK),
        ecc_uncorrected=numbers.get(SMI_ECC),
        slowed_by_heat=None if by_heat is None else bool(by_heat),
        slowed_by_power=None if by_power is None else bool(by_power),
    )


def numbers_by_gpu(series: Mapping[str, Number], host: Host) -> Mapping[PciAddress, Mapping[str, Number]]:
    """Return the numbers of each GPU of a host by counter, from series such as `gpu.utilization.average@gpu-1`.

    vCenter and nvidia-smi may name the same GPU differently, so their instances are mapped to GPUs separately.
    """
    by_source: dict[bool, dict[str, dict[str, Number]]] = {False: {}, True: {}}
    for name, number in series.items():
        counter, _, instance = name.partition("@")
        if instance:
            by_source[counter.startswith("smi.")].setdefault(instance, {})[counter] = number
    by_address: dict[PciAddress, dict[str, Number]] = {}
    for by_instance in by_source.values():
        for instance, address in gpus_of_instances(by_instance, host).items():
            by_address.setdefault(address, {}).update(by_instance[instance])
    return by_address


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
    first = next((hours[counter] for counter in counters if counter in hours), None)
    if first is None:
        return None
    steps = first.reshape(STEPS, HOURS_PER_STEP, 3)
    covered = steps[:, :, 2]
    weights = covered.sum(axis=1)
    numbers = np.full(STEPS, np.nan)
    is_measured = weights > 0
    sums = (np.where(covered > 0, steps[:, :, 0], 0) * covered).sum(axis=1)
    numbers[is_measured] = sums[is_measured] / weights[is_measured] * scale
    return numbers


def _history(hours: Mapping[str, Values]) -> GpuHistory:
    # readings are 0 or 1, and 1 is rare: an average would be rounded to 0, so the highest is used
    slowed = [hours[name] for name in (SMI_SLOWED_BY_HEAT, SMI_SLOWED_BY_POWER) if name in hours]
    highest = None
    if slowed:
        by_step = np.max(slowed, axis=0).reshape(STEPS, HOURS_PER_STEP, 3)
        highest = np.where((by_step[:, :, 2] > 0).any(axis=1), by_step[:, :, 1].max(axis=1), np.nan).clip(min=0)
    return GpuHistory(
        _averages(hours, GPU_USE, SMI_USE, scale=0.01),
        _averages(hours, GPU_MEMORY, scale=1 / 1024),
        _averages(hours, GPU_POWER),
        _averages(hours, GPU_TEMPERATURE, SMI_TEMPERATURE),
        highest,
    )
