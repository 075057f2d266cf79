"""Reads the current use of GPUs and VMs from vCenter: the newest of the samples that hosts make every 20 s."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gpuops.advise.gpu_counters import gpus_of_instances
from gpuops.extras.observe.rolling_up import without_unknown_use
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.measurements.gpu_use import CurrentUse, MeasuredUse
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_POWER, GPU_TEMPERATURE, GPU_USE, Samples

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.model.vcenter.host import Host
    from gpuops.model.vcenter.inventory import Inventory

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
            gpus |= {(host.ref, address): use for address, use in gpus_of_samples(host, samples)}
    vm_use: dict[str, MeasuredUse] = {}
    vm_refs = sorted(ref for ref in vms if inventory.vms[ref].vgpus and inventory.vms[ref].may_run)
    for answers in site.vcenter.samples("VirtualMachine", vm_refs, (GPU_USE, GPU_MEMORY), _SAMPLE_S, span, _at_once):
        for samples in answers:
            samples_with_known_use = without_unknown_use(inventory.vms[samples.entity], samples)
            vm_use[samples.entity] = _use(
                {name: newest(samples_with_known_use, name) for name in (GPU_USE, GPU_MEMORY)}
            )
    return CurrentUse(inventory.taken_at, gpus, vm_use)


def gpus_of_samples(host: Host, samples: Samples) -> Iterator[tuple[PciAddress, MeasuredUse]]:
    """Yield the use of each GPU of a host in the newest sample, for GPUs that have samples."""
    numbers_by_instance: dict[str, dict[str, int | None]] = {}
    for series in samples.values:
        name, _, instance = series.partition("@")
        if instance:
            numbers_by_instance.setdefault(instance, {})[name] = newest(samples, series)
    addresses = gpus_of_instances(numbers_by_instance, host)
    yield from (
        (addresses[instance], _use(numbers))
        for instance, numbers in numbers_by_instance.items()
        if instance in addresses
    )


def newest(samples: Samples, series: str) -> int | None:
    """Return the newest value; None = there is no value."""
    numbers = samples.values.get(series)
    if numbers is None:
        return None
    known_numbers = numbers[numbers >= 0]
    return int(known_numbers[-1]) if len(known_numbers) else None


def _use(numbers: Mapping[str, int | None]) -> MeasuredUse:
    percent, memory_kb = numbers.get(GPU_USE), numbers.get(GPU_MEMORY)
    return MeasuredUse(
        None if percent is None else percent / 100,
        None if memory_kb is None else memory_kb >> 10,
        numbers.get(GPU_TEMPERATURE),
        numbers.get(GPU_POWER),
    )


def _at_once() -> None:
    """Do not wait: one look has few calls, and a user waits for it."""
