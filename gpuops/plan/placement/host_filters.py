"""Reasons why a host or one of its NUMA nodes cannot take a VM other than its GPUs. The cheapest check comes first.

`HOST_FILTERS` is the list, with a reason for its order.

`Headroom` checks HA admission control. Sources: VMware vSphere Availability, "vSphere HA Admission Control"; vSphere
API, ClusterDasAdmissionControlPolicy and InsufficientFailoverResourcesFault. HA counts reserved memory and CPU, not
GPUs. It does not check whether another host has GPUs for the VMs of a failed host, and neither does this module. A VM
with a vGPU or a DirectPath device reserves all of its memory and, by default, no CPU. What VMs need in addition to
their reservations (overhead memory, the 32 MHz that HA counts for a VM that reserves no CPU) is not counted: vCenter
refuses whatever is refused here, and may also refuse a VM that only just passes.

NUMA nodes need the cores and the memory for a VM beside their GPUs. Sources: vSphere API, HostNumaNode (logical CPUs,
memory, PCI devices beside it); VMware vSphere Resource Management: `numa.nodeAffinity` binds vCPUs hard and memory as
far as the node has any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from gpuops.advise.capacity import Slots
from gpuops.model.vcenter.host import AdmissionControl, Cluster, Host, NumaNode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, PowerState, Vm
from gpuops.plan.core.rejection import READ_HOST, READ_VM, Rejection, Shortage, some_names
from gpuops.plan.placement.vm_demand import Wanted, WantsVgpu

AFFINITY_KEY: Final = "numa.nodeAffinity"


def node_shortages(vm: Vm, node: NumaNode, host: Host, inventory: Inventory) -> tuple[Rejection, ...]:
    """Return what the node lacks for the VM: cores, memory or both."""
    subject = f"{host.name} numa{node.id}"
    cores, memory_mib = free_cores(node, vm, host, inventory), free_memory_mib(node, vm, host, inventory)
    rejections = []
    if vm.vcpus is None:
        rejections.append(Rejection(vm.name, "its number of vCPUs cannot be read", hint=READ_VM))
    elif vm.vcpus > cores:
        reserved = ", without those that VMs bound there reserve" if cores < cores_of(node, host) else ""
        rule = f"cores beside the GPU{reserved}"
        rejections.append(Rejection(subject, rule, vm.vcpus, cores, "cores", short_of=Shortage.VCPUS))
    if vm.memory_mib is None:
        rejections.append(Rejection(vm.name, "its memory size cannot be read", hint=READ_VM))
    elif vm.memory_mib > memory_mib:
        holders = {neighbour.awaited for neighbour in inventory.vms_on(host) if _holds_memory_of(node, neighbour, vm)}
        holders_text = " and ".join(awaited.value for awaited in Awaited if awaited in holders)
        rule = "memory beside the GPU" + (f", without that of {holders_text}" if holders_text else "")
        rejections.append(Rejection(subject, rule, vm.memory_mib, memory_mib, "MiB", short_of=Shortage.MEMORY))
    return tuple(rejections)


def cores_of(node: NumaNode, host: Host) -> int:
    """Return the physical cores of a node: its logical CPUs, without the second threads of hyper-threaded cores."""
    if not host.cpu_cores or not host.cpu_threads:
        return node.logical_cpus
    return node.logical_cpus * host.cpu_cores // host.cpu_threads


def free_cores(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """Return the cores of a node less the CPU reservations of VMs that are bound to it and not surely powered off. ESXi
    shares the other cores among its VMs.

    Example: a node of 32 cores at 2,000 MHz, and a VM that is bound to it and another node and reserves 8,000 MHz. Half
    of that, 4,000 MHz, counts here as two cores: 30 are free.
    """
    cores = cores_of(node, host)
    reserved_mhz = 0
    for neighbour in inventory.vms_on(host):
        nodes = _bound_nodes(neighbour)
        if neighbour.ref != vm.ref and neighbour.may_run and str(node.id) in nodes:
            reserved_mhz += -(-(neighbour.cpu_reservation_mhz or 0) // len(nodes))
    if not reserved_mhz or not host.cpu_mhz:
        return cores
    return max(0, cores - -(-reserved_mhz // host.cpu_mhz))


def free_memory_mib(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """Return the memory of a node less the reservations of VMs that are bound to it and not surely powered off. vCenter
    does not show what unbound VMs use of the node."""
    reserved_mib = 0
    for neighbour in inventory.vms_on(host):
        if _holds_memory_of(node, neighbour, vm):
            # a VM has an equal part of its memory on each node that it is bound to, rounded up
            reserved_mib += -(-(neighbour.most_reserved_mib or 0) // len(_bound_nodes(neighbour)))
    return node.memory_mib - reserved_mib


def _holds_memory_of(node: NumaNode, neighbour: Vm, vm: Vm) -> bool:
    """Return whether another VM of the host is bound to the node, possibly among others, and not surely powered off."""
    return neighbour.ref != vm.ref and neighbour.may_run and str(node.id) in _bound_nodes(neighbour)


def surely_free_memory_mib(node: NumaNode, vm: Vm, host: Host, inventory: Inventory) -> int:
    """Return the memory of a node that is free even if all VMs that may use the node have all their memory on it."""
    free_mib = node.memory_mib
    for neighbour in inventory.vms_on(host):
        # a VM that is bound to no node may use this one
        may_use_node = str(node.id) in (_bound_nodes(neighbour) or (str(node.id),))
        if neighbour.ref != vm.ref and neighbour.may_run and may_use_node:
            if neighbour.most_reserved_mib is None:
                return 0
            free_mib -= neighbour.most_reserved_mib
    return max(0, free_mib)


def unreserved_mhz(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """Return the CPU of the host, in MHz, less the known reservations of other running VMs; None = unknown."""
    if host.cpu_mhz is None or host.cpu_cores is None:
        return None
    running = (
        neighbour
        for neighbour in inventory.vms_on(host)
        if neighbour.power is PowerState.ON and neighbour.ref != vm.ref
    )
    return host.cpu_mhz * host.cpu_cores - sum(neighbour.cpu_reservation_mhz or 0 for neighbour in running)


def unreserved_mib(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """Return the memory of the host, in MiB, less the reservations of other running VMs; None = unknown. A suspended VM
    reserves no memory (assumption: suspended-vm-memory)."""
    if host.memory_mib is None:
        return None
    running = (
        neighbour
        for neighbour in inventory.vms_on(host)
        if neighbour.power is PowerState.ON and neighbour.ref != vm.ref
    )
    return host.memory_mib - sum(neighbour.memory_reservation_mib or 0 for neighbour in running)


def surely_unreserved_mib(host: Host, vm: Vm, inventory: Inventory) -> int | None:
    """Return the memory of the host, in MiB, that no other VM can have reserved; None = unknown. A VM reserves at most
    its memory size."""
    free_mib = unreserved_mib(host, vm, inventory)
    claims_mib = [neighbour.most_reserved_mib for neighbour in _with_unknown_reservation(host, vm, inventory)]
    if free_mib is None or None in claims_mib:
        return None
    return free_mib - sum(claim_mib for claim_mib in claims_mib if claim_mib is not None)


def memory_doubt(vm: Vm, host: Host, inventory: Inventory) -> str:
    """Return why it is uncertain whether the host can reserve the VM's memory; empty if it surely can or cannot."""
    free_mib = unreserved_mib(host, vm, inventory)
    unclear_vms = _with_unknown_reservation(host, vm, inventory)
    if not unclear_vms or free_mib is None or vm.memory_mib is None:
        return ""
    sure_mib = surely_unreserved_mib(host, vm, inventory)
    if sure_mib is not None and vm.memory_mib <= sure_mib:
        return ""
    names = some_names(sorted(neighbour.name for neighbour in unclear_vms))
    return f"{host.name}: the memory reservation of {names} cannot be read: too little memory may be free"


def _with_unknown_reservation(host: Host, vm: Vm, inventory: Inventory) -> list[Vm]:
    """Return the other VMs of the host that may reserve an unknown amount of memory."""
    other_vms = [neighbour for neighbour in inventory.vms_on(host) if neighbour.ref != vm.ref]
    return [
        neighbour
        for neighbour in other_vms
        if neighbour.power is None or (neighbour.power is PowerState.ON and neighbour.memory_reservation_mib is None)
    ]


def node_of(seats: Iterable[int | None]) -> int | None:
    """Return the NUMA node that all these GPUs are on; None = several nodes, unknown, or no GPU."""
    nodes = set(seats)
    return nodes.pop() if len(nodes) == 1 else None


def affinity(nodes: Iterable[int]) -> str:
    """Return the value of `numa.nodeAffinity` that names these nodes."""
    return ",".join(map(str, nodes))


def _bound_nodes(vm: Vm) -> tuple[str, ...]:
    """Return the nodes that the VM is bound to. It is assumed to use each of them in equal parts."""
    return _nodes_in((vm.extra_config or {}).get(AFFINITY_KEY, ""))


@cache
def _nodes_in(text: str) -> tuple[str, ...]:
    """Parse a value of `numa.nodeAffinity`. Cached, since a fleet has few such values and looks them up often."""
    return tuple(node.strip() for node in text.split(",") if node.strip())


_NO_VM: Final = Vm(ref="", name="")

HostFilter = Callable[[Wanted, Host, Inventory], Rejection | None]


def refuse_unreachable(needs: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    if host.connected is True:
        return None
    return unreachable(host)


def unreachable(host: Host) -> Rejection | None:
    """Return why vCenter's view of the host is not reliable; None if vCenter is connected to it."""
    if host.connected is True:
        return None
    if host.connected is False:
        hint = "reconnect it; until then vCenter shows old data for it"
        return Rejection(host.name, "is not connected to vCenter", hint=hint)
    hint = "this login needs the read-only role on the host" if host.unreadable else ""
    return Rejection(host.name, "its connection state cannot be read", hint=hint)


def refuse_maintenance(needs: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    if host.in_maintenance is False:
        return None
    if host.in_maintenance is None:
        return Rejection(host.name, "whether it is in maintenance mode cannot be read", hint=READ_HOST)
    return Rejection(host.name, "is in maintenance mode", hint="take it out of maintenance mode, or name another host")


def refuse_without_memory(needs: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """Refuse if the VM's memory, which is reserved in full at power-on, is not free (VMware vSphere docs, passthrough
    devices). Reservations of other VMs that cannot be read are a doubt in `seating.py` and no reason to refuse."""
    if needs.vm.memory_mib is None:
        rule = "its memory size cannot be read, and all of it must be reserved"
        return Rejection(needs.vm.name, rule, hint=READ_VM)
    free_mib = unreserved_mib(host, needs.vm, inventory)
    if free_mib is None:
        rule = "its memory size cannot be read, and all of the VM's must be reserved"
        return Rejection(host.name, rule, hint=READ_HOST)
    if needs.vm.memory_mib <= free_mib:
        return None
    rule = f"memory to reserve in full, beside what {_reserving(needs, host, inventory)} reserve"
    return Rejection(host.name, rule, needs.vm.memory_mib, free_mib, "MiB", short_of=Shortage.MEMORY)


def refuse_without_cpu(needs: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """Refuse if the CPU that the VM reserves is not free (vSphere API, InsufficientCpuResourcesFault). Most VMs reserve
    none; a reservation that cannot be read counts as none."""
    needed_mhz = needs.vm.cpu_reservation_mhz
    if not needed_mhz:
        return None
    free_mhz = unreserved_mhz(host, needs.vm, inventory)
    if free_mhz is None:
        rule = f"its CPU cannot be read, and {needs.vm.name} reserves {needed_mhz} MHz of it"
        return Rejection(host.name, rule, hint=READ_HOST)
    if needed_mhz <= free_mhz:
        return None
    rule = f"CPU to reserve, beside what {_reserving(needs, host, inventory)} reserve"
    return Rejection(host.name, rule, needed_mhz, max(0, free_mhz), "MHz")


def _reserving(needs: Wanted, host: Host, inventory: Inventory) -> str:
    """Name the VMs whose reservations on the host are counted: those that run, and those that the plan adds."""
    awaited_kinds = {vm.awaited for vm in inventory.vms_on(host) if vm.ref != needs.vm.ref}
    names = ["running VMs", *(awaited.value for awaited in Awaited if awaited in awaited_kinds)]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def refuse_too_many_vcpus(needs: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """Refuse a VM with more vCPUs than the host has logical CPUs (VMware vSphere docs, virtual CPU limitations)."""
    if host.cpu_threads is None or needs.vm.vcpus is None or needs.vm.vcpus <= host.cpu_threads:
        return None
    rule = "logical CPUs for the VM's vCPUs"
    return Rejection(host.name, rule, needs.vm.vcpus, host.cpu_threads, short_of=Shortage.VCPUS)


def refuse_missing_profiles(needs: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """Refuse a host that does not offer every vGPU profile that the VM needs, or whose offer cannot be read."""
    profiles = dict.fromkeys(demand.profile for demand in needs.demands if isinstance(demand, WantsVgpu))
    if not profiles:
        return None
    if not host.gpus and not host.profiles:
        if host.readable:
            return Rejection(host.name, "has no GPU")
        return Rejection(host.name, "its GPUs and vGPU profiles cannot be read", hint=READ_HOST)
    if host.profiles is None:
        return Rejection(host.name, "the vGPU profiles it offers cannot be read", hint=READ_HOST)
    missing = [profile for profile in profiles if host.offers(profile) is None]
    return Rejection(host.name, f"does not offer {', '.join(missing)}") if missing else None


def refuse_unseen_files(needs: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """Refuse a host that does not see the VM's files: a cold move leaves them where they are (vSphere API,
    RelocateVM_Task)."""
    vm = needs.vm
    if host.ref == vm.host:
        return None
    if "datastore" in vm.unreadable:
        rule = "its datastores cannot be read, so it is unknown which hosts see its files"
        return Rejection(vm.name, rule, hint=READ_VM)
    if vm.datastores and host.datastores is None:
        rule = f"its datastores cannot be read, so it is unknown whether it sees the files of {vm.name}"
        return Rejection(host.name, rule, hint=READ_HOST)
    unseen = [ref for ref in vm.datastores if ref not in (host.datastores or ())]
    if not unseen:
        return None
    datastores = inventory.datastores
    names = ", ".join(sorted(datastores[ref].name if ref in datastores else ref for ref in unseen))
    hint = f"mount it there, or move the files of {vm.name} to a datastore that both hosts see"
    return Rejection(host.name, f"does not see datastore {names}, where files of {vm.name} are", hint=hint)


def refuse_leaving_vapp(needs: Wanted, host: Host, inventory: Inventory) -> Rejection | None:
    """Refuse a host outside the cluster of the VM's vApp. A vApp is a resource pool of one cluster or host: a member
    that goes elsewhere leaves it, and loses its place in the start order and its properties (vSphere API, VirtualApp;
    RelocateSpec.pool)."""
    vm = needs.vm
    if host.ref == vm.host:
        return None
    if "parentVApp" in vm.unreadable:
        return Rejection(vm.name, "whether it is a member of a vApp cannot be read", hint=READ_VM)
    current_host = inventory.host_of(vm)
    own_cluster = None if current_host is None else current_host.cluster
    if vm.vapp is None or (own_cluster is not None and own_cluster == host.cluster):
        return None
    hint = f"choose a host of the same cluster, or take {vm.name} out of the vApp first"
    return Rejection(host.name, f"is outside the cluster of vApp {vm.vapp}: {vm.name} would leave the vApp", hint=hint)


HOST_FILTERS: Final[tuple[HostFilter, ...]] = (
    refuse_unreachable,  # nothing else that vCenter shows of a disconnected host can be relied on
    refuse_maintenance,
    refuse_too_many_vcpus,
    refuse_without_memory,
    refuse_without_cpu,
    refuse_unseen_files,
    refuse_leaving_vapp,
    refuse_missing_profiles,  # the host's own list is the authority on what it runs
)

MOVE_FILTERS: Final[tuple[HostFilter, ...]] = (refuse_unseen_files, refuse_leaving_vapp)
"""The filters whose answer depends on the host that the VM is on now: only a VM that exists can fail them."""


def refusals(needs: Wanted, host: Host, inventory: Inventory) -> tuple[Rejection, ...]:
    """Return every reason why the host cannot take the VM, except those of its GPUs."""
    answers = (host_filter(needs, host, inventory) for host_filter in HOST_FILTERS)
    return tuple(rejection for rejection in answers if rejection is not None)


@dataclass(frozen=True, slots=True)
class Bar:
    """One reason why a host may not be able to start another VM."""

    because: str
    certain: bool
    vgpus_alone: bool = False
    """Whether it concerns vGPUs only, and not GPUs given to a VM as a whole."""


def bars(host: Host, inventory: Inventory) -> Iterator[Bar]:
    """Yield every reason why this host may not be able to start another VM."""
    if host.connected is not True:
        is_certain = host.connected is False
        yield Bar("is not connected" if is_certain else "whether it is connected cannot be read", is_certain)
    if host.in_maintenance is not False:
        is_certain = host.in_maintenance is True
        because = "is in maintenance mode" if is_certain else "whether it is in maintenance mode cannot be read"
        yield Bar(because, is_certain)
    cluster = inventory.clusters.get(host.cluster) if host.cluster else None
    if cluster is not None and cluster.admission is not None and host.ref in cluster.admission.failover_hosts:
        yield Bar("is a failover host of HA", True)
    free_mib = unreserved_mib(host, _NO_VM, inventory)
    if free_mib is not None and free_mib <= 0:
        yield Bar("has no memory left to reserve", True)
    if host.profiles is None and host.gpus:
        yield Bar("the vGPU profiles it offers cannot be read", False, vgpus_alone=True)


def limit_slots(bars_on_host: Sequence[Bar], slots: Slots) -> Slots:
    """Return the slots that remain usable in spite of these reasons."""
    for bar in bars_on_host:
        slots = Slots(0, 0, bar.because) if bar.certain else slots.as_doubtful(bar.because)
    return slots


@dataclass(frozen=True, slots=True)
class Headroom:
    """Whether HA admission control would let one VM start, by cluster, in one snapshot."""

    vm: Vm
    inventory: Inventory
    _refusals: dict[str, Rejection | None] = field(default_factory=dict)

    def refusal(self, host: Host) -> Rejection | None:
        """Return why HA would not let the VM start on the host; None if no reason is known."""
        cluster = self.inventory.clusters.get(host.cluster) if host.cluster else None
        if cluster is None or cluster.admission is None:
            return None
        if host.ref in cluster.admission.failover_hosts:
            hint = "it starts no VM until another host fails; choose another host"
            return Rejection(host.name, f"is a failover host of HA in cluster {cluster.name}", hint=hint)
        if cluster.ref not in self._refusals:
            shortages = (_ha_shortage(resource, self.vm, cluster, self.inventory) for resource in _RESOURCES)
            self._refusals[cluster.ref] = next((rejection for rejection in shortages if rejection is not None), None)
        return self._refusals[cluster.ref]


@dataclass(frozen=True, slots=True)
class _Resource:
    """A resource that HA counts."""

    name: str
    unit: str
    amount_of: Callable[[Host], int | None]
    """How much a host has; None = unknown."""
    reserved_by: Callable[[Vm], int | None]
    """How much a running VM reserves. Unknown counts as 0: HA then surely refuses what is refused here."""
    requested_by: Callable[[Vm], int | None]
    """How much the VM that is to start reserves."""
    percent: Callable[[AdmissionControl], int | None]
    """The percentage that HA keeps free; None = HA uses no percentages."""
    shortage: Shortage | None = None


_RESOURCES: Final = (
    _Resource(
        "memory",
        "MiB",
        lambda host: host.memory_mib,
        lambda vm: vm.memory_reservation_mib,
        lambda vm: vm.memory_mib,
        lambda admission: admission.memory_percent,
        Shortage.MEMORY,
    ),
    _Resource(
        "CPU",
        "MHz",
        lambda host: None if host.cpu_mhz is None or host.cpu_cores is None else host.cpu_mhz * host.cpu_cores,
        lambda vm: vm.cpu_reservation_mhz,
        lambda vm: vm.cpu_reservation_mhz,
        lambda admission: admission.cpu_percent,
    ),
)


def _ha_shortage(resource: _Resource, vm: Vm, cluster: Cluster, inventory: Inventory) -> Rejection | None:
    """Return why the cluster is short of the resource, counting the reservations of running VMs, of this VM, and what
    HA keeps free. None = it has enough, or the size of a host is unknown.

    With slots (a failover level without percentages) vCenter is stricter: it refuses at least what is refused here.
    """
    hosts = [host for host in inventory.hosts.values() if host.cluster == cluster.ref]
    sizes = [resource.amount_of(host) for host in hosts if host.connected is True and host.in_maintenance is False]
    known_sizes, requested = sorted(size for size in sizes if size is not None), resource.requested_by(vm)
    if not requested or len(known_sizes) < len(sizes):
        return None
    # HA keeps free a percentage, or as much as the largest hosts have, for as many hosts as may fail.
    admission = cluster.admission
    assert admission is not None, "only called for clusters with HA admission control"
    by_percent = sum(known_sizes) * (resource.percent(admission) or 0) // 100
    by_hosts = sum(known_sizes[-admission.failover_level :]) if admission.failover_level else 0
    kept_free = max(by_percent, by_hosts)
    if kept_free == 0:
        return None
    powered_on = (other_vm for host in hosts for other_vm in inventory.vms_on(host) if other_vm.power is PowerState.ON)
    running = [other_vm for other_vm in powered_on if other_vm.ref != vm.ref]
    free = max(0, sum(known_sizes) - kept_free - sum(resource.reserved_by(other_vm) or 0 for other_vm in running))
    if requested <= free:
        return None
    awaited_kinds = {other_vm.awaited for other_vm in running}
    also_counted = "".join(f", and {awaited.value}" for awaited in Awaited if awaited in awaited_kinds)
    reserve = f"the {kept_free} {resource.unit} that HA keeps free for the failure of a host"
    rule = f"{resource.name} beside {reserve}{also_counted}"
    hint = "free reservations in the cluster, or change its admission control"
    cluster_name = f"cluster {cluster.name}"
    return Rejection(cluster_name, rule, requested, free, resource.unit, hint=hint, short_of=resource.shortage)
