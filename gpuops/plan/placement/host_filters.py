"""Why a host cannot take a VM, whatever its GPUs say. The cheapest question comes first.

`candidates.py`, `multi_node.py` and `fleet/choice.py` call it; `HOST_FILTERS` is the list, with a reason for its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.advise.capacity import Slots
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, Vm
from gpuops.plan.core.plan import Rejection, Shortage
from gpuops.plan.placement.nodes import unreserved, unreserved_mhz
from gpuops.plan.placement.wanted import Wanted, WantsVgpu

_NO_VM: Final = Vm(ref="", name="")

HostFilter = Callable[[Wanted, Host, Inventory], Rejection | None]


def connected(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    if host.connected is True:
        return None
    return unreachable(host)


def unreachable(host: Host) -> Rejection | None:
    """Why nothing that vCenter shows of the host can be relied on; None = vCenter reaches it."""
    if host.connected is True:
        return None
    if host.connected is False:
        hint = "reconnect it: what vCenter shows of it is from before"
        return Rejection(host.name, "is not connected to vCenter", hint=hint)
    hint = "this login needs the read-only role on the host" if host.unreadable else ""
    return Rejection(host.name, "its connection state cannot be read", hint=hint)


def not_in_maintenance(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    if host.in_maintenance is False:
        return None
    if host.in_maintenance is None:
        return Rejection(host.name, "whether it is in maintenance mode cannot be read")
    return Rejection(host.name, "is in maintenance mode", hint="take it out of maintenance mode, or name another host")


def memory_to_reserve(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """All of the VM's memory is reserved at power-on (VMware vSphere docs, passthrough devices).

    What other VMs may reserve and vCenter does not tell is a doubt in `seating.py`, no refusal.
    """
    if wanted.vm.memory_mib is None:
        return Rejection(wanted.vm.name, "its memory size cannot be read, and all of it must be reserved")
    free_mib = unreserved(host, wanted.vm, inventory)
    if free_mib is None:
        return Rejection(host.name, "its memory size cannot be read, and all of the VM's must be reserved")
    if wanted.vm.memory_mib <= free_mib:
        return None
    rule = f"memory to reserve in full, beside what {_reserving(wanted, host, inventory)} reserve"
    return Rejection(host.name, rule, wanted.vm.memory_mib, free_mib, "MiB", short_of=Shortage.MEMORY)


def cpu_to_reserve(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """The CPU that the VM reserves must be left at power-on (vSphere API, InsufficientCpuResourcesFault).

    Most VMs reserve none; a reservation that cannot be read counts as none.
    """
    wanted_mhz = wanted.vm.cpu_reservation_mhz
    if not wanted_mhz:
        return None
    free_mhz = unreserved_mhz(host, wanted.vm, inventory)
    if free_mhz is None:
        return Rejection(host.name, f"its CPU cannot be read, and {wanted.vm.name} reserves {wanted_mhz} MHz of it")
    if wanted_mhz <= free_mhz:
        return None
    rule = f"CPU to reserve, beside what {_reserving(wanted, host, inventory)} reserve"
    return Rejection(host.name, rule, wanted_mhz, max(0, free_mhz), "MHz")


def _reserving(wanted: Wanted, host: Host, inventory: Inventory) -> str:
    """In words, whose reservations on the host are counted: what runs, and what a plan counts beside it."""
    there = {vm.awaited for vm in inventory.vms_on(host) if vm.ref != wanted.vm.ref}
    first, *more = ("running VMs", *(awaited.value for awaited in Awaited if awaited in there))
    return " and ".join((", ".join((first, *more[:-1])), *more[-1:]))


def logical_cpus(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """A VM has no more vCPUs than its host has logical CPUs (VMware vSphere docs, virtual CPU limitations)."""
    if host.cpu_threads is None or wanted.vm.vcpus is None or wanted.vm.vcpus <= host.cpu_threads:
        return None
    rule = "logical CPUs for the VM's vCPUs"
    return Rejection(host.name, rule, wanted.vm.vcpus, host.cpu_threads, short_of=Shortage.VCPUS)


def offers(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    profiles = dict.fromkeys(demand.profile for demand in wanted.demands if isinstance(demand, WantsVgpu))
    if not profiles:
        return None
    if not host.gpus and not host.profiles:
        return Rejection(host.name, "has no GPU" if host.readable else "its GPUs and vGPU profiles cannot be read")
    if host.profiles is None:
        return Rejection(host.name, "the vGPU profiles it offers cannot be read")
    missing = [profile for profile in profiles if host.offers(profile) is None]
    return Rejection(host.name, f"does not offer {', '.join(missing)}") if missing else None


def sees_files(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """A cold move leaves the files where they are: the new host must see them (vSphere API, RelocateVM_Task)."""
    vm = wanted.vm
    if host.ref == vm.host:
        return None
    if "datastore" in vm.unreadable:
        return Rejection(vm.name, "which datastores hold its files cannot be read")
    if vm.datastores and host.datastores is None:
        return Rejection(host.name, f"which datastores it sees cannot be read; {vm.name} has files to take along")
    unseen = [ref for ref in vm.datastores if ref not in (host.datastores or ())]
    if not unseen:
        return None
    known = inventory.datastores
    names = ", ".join(sorted(known[ref].name if ref in known else ref for ref in unseen))
    hint = f"mount it there, or move the files of {vm.name} to a datastore that both hosts see"
    return Rejection(host.name, f"does not see datastore {names}, where files of {vm.name} are", hint=hint)


def stays_in_its_vapp(wanted: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """A vApp is a resource pool of one cluster or host: a member that goes to another leaves it, and loses its place in
    the start order and its properties (vSphere API, VirtualApp; RelocateSpec.pool)."""
    vm = wanted.vm
    if host.ref == vm.host:
        return None
    if "parentVApp" in vm.unreadable:
        return Rejection(vm.name, "whether it is a member of a vApp cannot be read")
    own = inventory.host_of(vm)
    if vm.vapp is None or (own is not None and own.cluster is not None and own.cluster == host.cluster):
        return None
    hint = f"choose a host of the same cluster, or take {vm.name} out of the vApp first"
    return Rejection(host.name, f"is outside the cluster of vApp {vm.vapp}: {vm.name} would leave the vApp", hint=hint)


HOST_FILTERS: Final[tuple[HostFilter, ...]] = (
    connected,  # a host that cannot be reached is not worth any other question
    not_in_maintenance,
    logical_cpus,
    memory_to_reserve,
    cpu_to_reserve,
    sees_files,
    stays_in_its_vapp,
    offers,  # the host's own list is the authority on what it runs
)

MOVE_FILTERS: Final[tuple[HostFilter, ...]] = (sees_files, stays_in_its_vapp)
"""The filters whose answer depends on the host that the VM is on now: only a VM that exists can fail them."""


def refusals(wanted: Wanted, host: Host, inventory: Inventory) -> tuple[Rejection, ...]:
    """Every reason why the host cannot take the VM, except those of its GPUs."""
    answers = (host_filter(wanted, host, inventory) for host_filter in HOST_FILTERS)
    return tuple(rejection for rejection in answers if rejection is not None)


@dataclass(frozen=True, slots=True)
class Bar:
    """One reason why a host may start no VM more."""

    because: str
    certain: bool
    vgpus_alone: bool = False
    """GPUs given whole are not concerned."""


def bars(host: Host, inventory: Inventory) -> Iterator[Bar]:
    """Every reason on this host."""
    if host.connected is not True:
        known = host.connected is False
        yield Bar("is not connected" if known else "whether it is connected cannot be read", known)
    if host.in_maintenance is not False:
        known = host.in_maintenance is True
        yield Bar("is in maintenance mode" if known else "whether it is in maintenance mode cannot be read", known)
    cluster = inventory.clusters.get(host.cluster) if host.cluster else None
    if cluster is not None and cluster.admission is not None and host.ref in cluster.admission.failover_hosts:
        yield Bar("is a failover host of HA", True)
    free_mib = unreserved(host, _NO_VM, inventory)
    if free_mib is not None and free_mib <= 0:
        yield Bar("has no memory left to reserve", True)
    if host.profiles is None and host.gpus:
        yield Bar("the vGPU profiles it offers cannot be read", False, vgpus_alone=True)


def behind(found: Sequence[Bar], slots: Slots) -> Slots:
    """What of the room is left behind these bars."""
    for bar in found:
        slots = Slots(0, 0, bar.because) if bar.certain else slots.doubted(bar.because)
    return slots
