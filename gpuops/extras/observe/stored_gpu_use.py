"""What the store of measurements holds of GPUs: what they did last, and their last week in steps of three hours.

The last readings of desktops' vGPUs that `gpuops observe` stored from the hosts' nvidia-smi, for a snapshot.

Reads the current use of GPUs and VMs from vCenter: the newest of the samples that hosts make every 20 s."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gpuops.advise.gpu_counters import TEMPERATURE_COUNTERS, USE_COUNTERS, measured_use, numbers_by_gpu
from gpuops.advise.idle import vgpu_use_at
from gpuops.errors import GpuopsError
from gpuops.extras.observe.blocks import HOUR_S, Values, without_unknown_use
from gpuops.extras.observe.store_reads import OLD, MeasurementReads, newest_use
from gpuops.model.desktops.evidence import VgpuUse
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.measurements.measurement import (
    FRAGMENTATION_COUNTERS,
    FRAGMENTED_MEMORY,
    FREE_GPUS,
    FREE_MEMORY,
    GPU_MEMORY,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_USE,
    SMI_SLOWED_BY_HEAT,
    SMI_SLOWED_BY_POWER,
    UNUSABLE_GPUS,
    VGPU_USE,
    CurrentUse,
    MeasuredUse,
    NewestUse,
)
from gpuops.model.vcenter.inventory import Inventory

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.model.vcenter.vm import Vm

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

    `earlier`: an answer for the same vCenter, which is returned if nothing was observed since, also if the store is
    missing now. Asks no vCenter. Raises UsageError, StateDamaged.
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
        _averages(hours, *USE_COUNTERS, scale=0.01),
        _averages(hours, GPU_MEMORY, scale=1 / 1024),
        _averages(hours, GPU_POWER),
        _averages(hours, *TEMPERATURE_COUNTERS),
        highest,
    )


_LAST: Final = timedelta(hours=1)
"""How old a reading may be. A reading that is too old for evidence is shown with its age."""
_STEP: Final = timedelta(minutes=5)
_NOTHING: Final = "`gpuops observe` has stored no reading of it by its host's nvidia-smi in the last hour"


class StoredVgpuUse:
    """Implements `VgpuUseSource` by the store of measurements, for sites that do not enter hosts at each look."""

    def __init__(self, store_dir: Path, url: str, say: Callable[[str], None]) -> None:
        """`say` gets the reason once if the store cannot be read; no night ends because of it."""
        self._store_dir = store_dir
        self._url = url
        self._say = say
        self._said = False

    def use(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, VgpuUse]:
        try:
            return self._read(vms, inventory)
        except GpuopsError as error:
            if not self._said:
                self._said = True
                self._say(f"the use of vGPUs is not known: {error.line}")
            return {vm.ref: VgpuUse(None, because="the store of measurements cannot be read") for vm in vms}

    def _read(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, VgpuUse]:
        # imported here, because most sites do not need it
        from gpuops.extras.observe.store_reads import MeasurementReads

        without_reading = {vm.ref: VgpuUse(None, because=_NOTHING) for vm in vms}
        store = MeasurementReads.open_if_exists(self._store_dir, self._url, inventory.vcenter)
        if store is None:
            return without_reading
        now = inventory.taken_at
        with store:  # up to the end of the step that has begun: the newest reading may be in it
            windows = store.windows([vm.ref for vm in vms], [VGPU_USE], now - _LAST, now + _STEP)
            use_by_ref = {ref: vgpu_use_at(now, series[VGPU_USE]) for ref, series in windows}
        return without_reading | {ref: use for ref, use in use_by_ref.items() if use is not None}


NEWEST: Final = timedelta(minutes=2)
"""How old a sample may be: the newest ones come late."""

_SAMPLE_S: Final = 20


def current_use(site: Site, inventory: Inventory, hosts: Collection[str], vms: Collection[str]) -> CurrentUse:
    """Return the newest measured use of the GPUs of these hosts and of the vGPUs of these VMs, all given by their refs.

    Calls vCenter once for each fifty hosts or VMs.

    Raises NotConnected and its subclasses, and ProtocolError for an invalid reply.
    """
    span = (inventory.taken_at - NEWEST, inventory.taken_at)
    gpus: dict[tuple[str, PciAddress], MeasuredUse] = {}
    host_refs = sorted(ref for ref in hosts if inventory.hosts[ref].gpus and inventory.hosts[ref].connected)
    names = (GPU_USE, GPU_MEMORY, GPU_TEMPERATURE, GPU_POWER)
    for answers in site.vcenter.samples("HostSystem", host_refs, names, _SAMPLE_S, span, _at_once):
        for samples in answers:
            host = inventory.hosts[samples.entity]
            by_gpu = numbers_by_gpu(samples.values, host)
            gpus |= {(host.ref, address): measured_use(newest(series)) for address, series in by_gpu.items()}
    vm_use: dict[str, MeasuredUse] = {}
    vm_refs = sorted(ref for ref in vms if inventory.vms[ref].vgpus and inventory.vms[ref].may_run)
    for answers in site.vcenter.samples("VirtualMachine", vm_refs, (GPU_USE, GPU_MEMORY), _SAMPLE_S, span, _at_once):
        for samples in answers:
            with_known_use = without_unknown_use(inventory.vms[samples.entity], samples)
            vm_use[samples.entity] = measured_use(newest(with_known_use.values))
    return CurrentUse(inventory.taken_at, gpus, vm_use)


def newest(series: Mapping[str, NDArray[np.int64]]) -> dict[str, int]:
    """Return the newest value of each series that has one."""
    known = {name: numbers[numbers >= 0] for name, numbers in series.items()}  # -1 = no value
    return {name: int(numbers[-1]) for name, numbers in known.items() if len(numbers)}


def _at_once() -> None:
    """Do not wait: one look has few calls, and a user waits for it."""
