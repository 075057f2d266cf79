"""Asks vCenter what GPUs and VMs use now: the newest of the samples that hosts make every 20 s."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gpuops.advise.gpu_counters import gpus_of_instances
from gpuops.execute.measurements.unknown_use import without_unknown_use
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.measurements.gpu_use import CurrentUse, MeasuredUse
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_USE, Samples

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.model.vcenter.host import Host
    from gpuops.model.vcenter.inventory import Inventory

NEWEST: Final = timedelta(minutes=2)
"""How old a sample may be: the newest ones come late."""

_TEMPERATURE: Final = "gpu.temperature.average"
_POWER: Final = "gpu.power.used.latest"
_SAMPLE_S: Final = 20


def current_use(site: Site, inventory: Inventory, hosts: Collection[str], vms: Collection[str]) -> CurrentUse:
    """Return what the GPUs of these hosts (refs) and the vGPUs of these VMs use, by one call for each fifty of them.

    Raises NotConnected in its kinds, and ProtocolError for what is no reply.
    """
    span = (inventory.taken_at - NEWEST, inventory.taken_at)
    gpus: dict[tuple[str, PciAddress], MeasuredUse] = {}
    asked = sorted(ref for ref in hosts if inventory.hosts[ref].gpus and inventory.hosts[ref].connected)
    names = (GPU_USE, GPU_MEMORY, _TEMPERATURE, _POWER)
    for told in site.vcenter.samples("HostSystem", asked, names, _SAMPLE_S, span, _at_once):
        for samples in told:
            host = inventory.hosts[samples.entity]
            gpus |= {(host.ref, address): use for address, use in gpus_of_samples(host, samples)}
    used: dict[str, MeasuredUse] = {}
    running = sorted(ref for ref in vms if inventory.vms[ref].vgpus and inventory.vms[ref].may_run)
    for told in site.vcenter.samples("VirtualMachine", running, (GPU_USE, GPU_MEMORY), _SAMPLE_S, span, _at_once):
        for samples in told:
            known = without_unknown_use(inventory.vms[samples.entity], samples)
            used[samples.entity] = _use({name: newest(known, name) for name in (GPU_USE, GPU_MEMORY)})
    return CurrentUse(inventory.taken_at, gpus, used)


def gpus_of_samples(host: Host, samples: Samples) -> Iterator[tuple[PciAddress, MeasuredUse]]:
    """Yield the use of each GPU of a host in the newest sample, for GPUs that have samples."""
    found: dict[str, dict[str, int | None]] = {}
    for series in samples.values:
        name, _, instance = series.partition("@")
        if instance:
            found.setdefault(instance, {})[name] = newest(samples, series)
    addresses = gpus_of_instances(found, host)
    yield from ((addresses[instance], _use(values)) for instance, values in found.items() if instance in addresses)


def newest(samples: Samples, series: str) -> int | None:
    """Return the newest value; None = there is no value."""
    values = samples.values.get(series)
    if values is None:
        return None
    present = values[values >= 0]
    return int(present[-1]) if len(present) else None


def _use(values: Mapping[str, int | None]) -> MeasuredUse:
    percent, memory_kb = values.get(GPU_USE), values.get(GPU_MEMORY)
    return MeasuredUse(
        None if percent is None else percent / 100,
        None if memory_kb is None else memory_kb >> 10,
        values.get(_TEMPERATURE),
        values.get(_POWER),
    )


def _at_once() -> None:
    """Do not wait: one look has few calls, and a user waits for it."""
