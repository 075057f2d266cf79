"""Reads the current use of GPUs and VMs from vCenter: the newest of the samples that hosts make every 20 s."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gpuops.advise.gpu_counters import measured_use, numbers_by_gpu
from gpuops.extras.observe.blocks import without_unknown_use
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.measurements.measurement import (
    GPU_MEMORY,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_USE,
    CurrentUse,
    MeasuredUse,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gpuops.execute.site import Site
    from gpuops.model.vcenter.inventory import Inventory

NEWEST: Final = timedelta(minutes=2)
"""The age up to which a sample is used: the newest ones come late."""

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
    for answers in site.vcenter.samples("HostSystem", host_refs, names, _SAMPLE_S, span, _no_wait):
        for samples in answers:
            host = inventory.hosts[samples.entity]
            by_gpu = numbers_by_gpu(samples.values, host)
            gpus |= {(host.ref, address): measured_use(newest(series)) for address, series in by_gpu.items()}
    vm_use: dict[str, MeasuredUse] = {}
    vm_refs = sorted(ref for ref in vms if inventory.vms[ref].vgpus and inventory.vms[ref].may_run)
    for answers in site.vcenter.samples("VirtualMachine", vm_refs, (GPU_USE, GPU_MEMORY), _SAMPLE_S, span, _no_wait):
        for samples in answers:
            with_known_use = without_unknown_use(inventory.vms[samples.entity], samples)
            vm_use[samples.entity] = measured_use(newest(with_known_use.values))
    return CurrentUse(inventory.taken_at, gpus, vm_use)


def newest(series: Mapping[str, NDArray[np.int64]]) -> dict[str, int]:
    """Return the newest value of each series that has one."""
    known_numbers = {name: numbers[numbers >= 0] for name, numbers in series.items()}  # -1 = no value
    return {name: int(numbers[-1]) for name, numbers in known_numbers.items() if len(numbers)}


def _no_wait() -> None:
    """Do not wait before a call: there are few, and a user waits for the answer."""
