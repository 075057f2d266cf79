"""Host filters: why a host cannot take a VM, whatever its GPUs say. Cheapest question first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.plan.placement.nodes import unreserved
from gpuops.plan.placement.wanted import Wanted, WantsVgpu
from gpuops.plan.plan import Rejection

HostFilter = Callable[[Wanted, Host, Inventory], Rejection | None]


def connected(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    if host.connected is True:
        return None
    state = "is not connected to vCenter" if host.connected is False else "its connection state cannot be read"
    return Rejection(host.name, state)


def not_in_maintenance(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    if host.in_maintenance is False:
        return None
    if host.in_maintenance is None:
        return Rejection(host.name, "whether it is in maintenance mode cannot be read")
    return Rejection(host.name, "is in maintenance mode", hint="take it out of maintenance mode, or name another host")


def memory_to_reserve(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """All of the VM's memory is reserved at power-on (VMware vSphere docs, passthrough devices)."""
    free_mib = unreserved(host, wanted.vm, inventory)
    if free_mib is None or wanted.vm.memory_mib is None or wanted.vm.memory_mib <= free_mib:
        return None
    rule = "memory to reserve in full, beside what running VMs reserve"
    return Rejection(host.name, rule, wanted.vm.memory_mib, free_mib, "MiB")


def logical_cpus(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """A VM has no more vCPUs than its host has logical CPUs (VMware vSphere docs, virtual CPU limitations)."""
    if host.cpu_threads is None or wanted.vm.vcpus is None or wanted.vm.vcpus <= host.cpu_threads:
        return None
    return Rejection(host.name, "logical CPUs for the VM's vCPUs", wanted.vm.vcpus, host.cpu_threads)


def offers(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    profiles = dict.fromkeys(demand.profile for demand in wanted.demands if isinstance(demand, WantsVgpu))
    if not profiles:
        return None
    if not host.gpus and not host.profiles:
        return Rejection(host.name, "has no GPU")
    if host.profiles is None:
        return Rejection(host.name, "the vGPU profiles it offers cannot be read")
    missing = [profile for profile in profiles if host.offers(profile) is None]
    return Rejection(host.name, f"does not offer {', '.join(missing)}") if missing else None


HOST_FILTERS: Final[tuple[HostFilter, ...]] = (
    connected,  # a host that cannot be reached is not worth any other question
    not_in_maintenance,
    logical_cpus,
    memory_to_reserve,
    offers,  # the host's own list is the authority on what it runs
)


def refusals(wanted: Wanted, host: Host, inventory: Inventory) -> tuple[Rejection, ...]:
    """Every reason why the host cannot take the VM, but for its GPUs."""
    found = (host_filter(wanted, host, inventory) for host_filter in HOST_FILTERS)
    return tuple(rejection for rejection in found if rejection is not None)
