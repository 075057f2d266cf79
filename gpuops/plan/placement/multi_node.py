"""VMs that are larger than a NUMA node: GPUs on as many nodes as they need, as evenly as their number divides.

Larger means more cores or memory than a node has, or more GPUs than are beside one. `plan/vm/attach.py`,
`plan/queue/one_workload.py` and `plan/queue/batch/admission.py` call `place_near` instead of `place`.

ESXi gives such a VM several NUMA clients, one per node, and with `coresPerNumaNode` the guest sees as many virtual
nodes (VMware vSphere Resource Management, "Using NUMA Systems with ESXi"; vSphere API, VirtualMachineVirtualNuma).
A host does not look at nodes when it chooses GPUs, so each vGPU is pinned to its own.

Example: 96 vCPUs on a host with two nodes of 64 cores need two nodes; of four vGPUs two go beside each, of three two
beside the one node and one beside the other, whichever has room for two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final, assert_never

from gpuops.advise.capacity import free_slots
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host, NumaNode, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Choice, Rejection
from gpuops.plan.placement.gpu_filters import matches_type
from gpuops.plan.placement.host_filters import refusals
from gpuops.plan.placement.keep_free import KeptRoom
from gpuops.plan.placement.nodes import cores_of, short_beside
from gpuops.plan.placement.reserved import reserved_unknown
from gpuops.plan.placement.seating import Seating, seat
from gpuops.plan.placement.select import place, without_full_hosts
from gpuops.plan.placement.wanted import Demand, PinPolicy, Placement, Wanted, WantsDirectPath, WantsDynamic, WantsVgpu

_UNKNOWN_DEVICES: Final = 64
"""More devices than a VM may have: a GPU of which nothing is known counts as room for all."""


def place_near(wanted: Wanted, inventory: Inventory, catalog: Catalog) -> Placement | tuple[Rejection, ...]:
    """The best place; where locality counts and the VM is larger than a node, with GPUs beside each of its nodes.

    For a VM that fits a node this is `place`.
    """
    # 1. The ordinary placement. If it is local, or locality does not count, that is all.
    if not wanted.reasons:
        wanted = without_full_hosts(wanted, inventory, catalog)
    best = place(wanted, inventory, catalog)
    local = isinstance(best, Placement) and best.numa_node is not None
    if local or wanted.numa is NumaPolicy.NONE or not _may_be_spread(wanted):
        return best
    refused = not isinstance(best, Placement)
    if refused and wanted.numa is NumaPolicy.PREFERRED and _alike(wanted) and _keeps_nothing(wanted, inventory):
        return best  # what all GPUs of a host together have no room for, those of some nodes have not either
    # 2. Spread over nodes, on the host that would be taken anyway first; a place without a doubt before any other,
    # but a VM stays where it is as it does otherwise.
    rejections: dict[str, tuple[Rejection, ...]] = {}
    doubtful: list[Placement] = []
    for host in _hosts_in_order(wanted, best, inventory):
        spread = spread_over_nodes(wanted, host, inventory, catalog)
        if not isinstance(spread, Placement):
            rejections[host.name] = spread
        elif spread.doubts and host.ref != wanted.vm.host:
            doubtful.append(spread)
        else:
            return spread
    if doubtful:
        surest = min(doubtful, key=_doubts)
        return best if isinstance(best, Placement) and _doubts(best) < _doubts(surest) else surest
    if isinstance(best, Placement) or wanted.numa is not NumaPolicy.REQUIRED:
        # Without required locality it was refused for other reasons than nodes.
        return best
    # 3. What one node lacks for all of the VM is no reason where it needs several.
    spread_on = [name for name, reasons in rejections.items() if reasons]
    others = (reason for reason in best if not any(_is_about(reason, name) for name in spread_on))
    return tuple(dict.fromkeys((*others, *(reason for spread in rejections.values() for reason in spread))))


def _doubts(placement: Placement) -> int:
    return len(placement.doubts)


def _is_about(rejection: Rejection, host: str) -> bool:
    """Whether it is about the host, or a NUMA node or GPU of it, whose name follows that of the host."""
    return rejection.subject == host or rejection.subject.startswith(f"{host} ")


def nodes_needed(vm: Vm, demands: Sequence[Demand], host: Host, catalog: Catalog) -> int:
    """The fewest NUMA nodes of this host that hold the VM's cores, memory and GPUs; 0 = more than it has, or
    unknown."""
    nodes = host.numa_nodes
    if not nodes or vm.vcpus is None or vm.memory_mib is None:
        return 0
    cores, memory_mib = min(cores_of(node, host) for node in nodes), min(node.memory_mib for node in nodes)
    if not cores or not memory_mib:
        return 0
    beside = max(_room_if_empty(node, demands, host, catalog) for node in nodes) or len(demands)
    gpus = -(-len(demands) // beside) if demands else 1
    needed = max(-(-vm.vcpus // cores), -(-vm.memory_mib // memory_mib), gpus)
    return needed if needed <= len(nodes) else 0


def _room_if_empty(node: NumaNode, demands: Sequence[Demand], host: Host, catalog: Catalog) -> int:
    """How many such devices the GPUs beside the node could give if all were free; what is not known counts as room."""
    there = [device for device in host.devices if device.numa_node == node.id]
    return sum(max((_devices_possible(each, demand, catalog) for demand in demands), default=0) for each in there)


def _devices_possible(gpu: PhysicalGpu | OtherDevice, demand: Demand, catalog: Catalog) -> int:
    match demand:
        case WantsVgpu(profile=profile):
            most = free_slots(gpu, (), profile, catalog).at_most if isinstance(gpu, PhysicalGpu) else 0
            return _UNKNOWN_DEVICES if most is None else most
        case WantsDynamic():
            return int(matches_type(gpu, demand) and gpu.passthrough is not None and gpu.passthrough.active)
        case WantsDirectPath(address=address):
            return int(gpu.address == address)
        case _:
            assert_never(demand)


def spread_over_nodes(
    wanted: Wanted, host: Host, inventory: Inventory, catalog: Catalog
) -> Placement | tuple[Rejection, ...]:
    """The place on this host with GPUs on each node that the VM needs about which least is in doubt, or what each of
    them lacks.

    () = one node is enough, or the host is refused whatever its nodes have.
    """
    count = nodes_needed(wanted.vm, () if wanted.grouped else wanted.demands, host, catalog)
    if count < 2 or len(wanted.demands) < count:
        return ()
    if refusals(wanted, host, inventory):
        return ()
    rejections = [_wider(wanted, host, count)]
    doubtful: list[Placement] = []
    for nodes in _nodes_in_order(wanted, host, count):
        vm_share = share_of_vm(wanted.vm, count)
        short = [reason for node in nodes for reason in short_beside(vm_share, node, host, inventory)]
        seating = _seat_over_nodes(wanted, nodes, host, inventory, catalog)
        taken = KeptRoom(wanted, inventory, catalog).refusal(host, seating.seats) if seating.complete else None
        if not short and seating.complete and taken is None:
            there = _placement(wanted, host, nodes, seating)
            unknown = reserved_unknown(host, inventory)
            there = replace(there, doubts=(*there.doubts, unknown)) if unknown else there
            if not there.doubts:
                return there
            doubtful.append(there)
        rejections += (*short, *seating.rejections, *([taken] if taken else []))
    return min(doubtful, key=_doubts) if doubtful else tuple(dict.fromkeys(rejections))


def _nodes_in_order(wanted: Wanted, host: Host, count: int) -> Iterator[tuple[NumaNode, ...]]:
    """Every choice of so many nodes of the host. Where the devices do not divide by them, the first of a choice get one
    more: each of its nodes in turn."""
    more = len(wanted.demands) % count
    for nodes in combinations(sorted(host.numa_nodes, key=lambda node: node.id), count):
        for first in combinations(nodes, more):
            yield (*first, *(node for node in nodes if node not in first))


def _wider(wanted: Wanted, host: Host, count: int) -> Rejection:
    """What is needed of each of its nodes."""
    part, devices = share_of_vm(wanted.vm, count), len(wanted.demands)
    least, most = devices // count, -(-devices // count)
    what = "vGPUs" if any(isinstance(demand, WantsVgpu) for demand in wanted.demands) else "GPUs"
    gpus = f"{most if least == most else f'{least} or {most}'} of its {devices} {what}"
    rule = f"is too small in one NUMA node: each of {count} needs {gpus}, {part.vcpus} cores and {part.memory_mib} MiB"
    return Rejection(host.name, rule)


def _keeps_nothing(wanted: Wanted, inventory: Inventory) -> bool:
    return not wanted.keep_free.profiles and inventory.reservations is None


def _may_be_spread(wanted: Wanted) -> bool:
    named = any(isinstance(demand, WantsDirectPath) for demand in wanted.demands)
    pins = any(isinstance(demand, WantsVgpu) for demand in wanted.demands) and wanted.pin is PinPolicy.NEVER
    return len(wanted.demands) > 1 and not named and not pins


def _alike(wanted: Wanted) -> bool:
    """Whether all are vGPUs of one profile, none of them pinned."""
    kinds = {
        (demand.profile, demand.pin) if isinstance(demand, WantsVgpu) else ("", demand) for demand in wanted.demands
    }
    return len(kinds) == 1 and all(isinstance(demand, WantsVgpu) and demand.pin is None for demand in wanted.demands)


def _hosts_in_order(wanted: Wanted, best: Placement | tuple[Rejection, ...], inventory: Inventory) -> Iterator[Host]:
    """The hosts to try, the one that would be taken anyway or else its own first; a VM that exists is not moved for
    this."""
    found = isinstance(best, Placement)
    first = best.host.ref if isinstance(best, Placement) else wanted.vm.host
    if first in wanted.hosts:
        yield inventory.hosts[first]
        if found and wanted.vm.host is not None:
            return
    yield from (inventory.hosts[ref] for ref in wanted.hosts if ref != first)


def share_of_vm(vm: Vm, count: int) -> Vm:
    """The part of the VM on each of `count` nodes; only for VMs that `nodes_needed` has an answer for."""
    assert vm.vcpus is not None and vm.memory_mib is not None, "nodes_needed knew them"
    return replace(vm, vcpus=-(-vm.vcpus // count), memory_mib=-(-vm.memory_mib // count))


def _seat_over_nodes(
    wanted: Wanted, nodes: Sequence[NumaNode], host: Host, inventory: Inventory, catalog: Catalog
) -> Seating:
    """The demands given to the nodes in turn, and each node's part seated on its own."""
    parts = []
    for number, node in enumerate(nodes):
        dealt: list[Demand] = list(wanted.demands[number :: len(nodes)])
        parts.append(seat(wanted.vm, dealt, host, inventory, catalog, node.id))
    return Seating(
        seats={ordinal: address for part in parts for ordinal, address in part.seats.items()},
        rejections=tuple(dict.fromkeys(reason for part in parts for reason in part.rejections)),
        doubts=tuple(dict.fromkeys(doubt for part in parts for doubt in part.doubts)),
    )


def _placement(wanted: Wanted, host: Host, nodes: Sequence[NumaNode], seating: Seating) -> Placement:
    pins = {demand.ordinal: seating.seats[demand.ordinal] for demand in wanted.demands if isinstance(demand, WantsVgpu)}
    ids = tuple(sorted(node.id for node in nodes))
    gpus = ", ".join(sorted({str(address) for address in seating.seats.values()}))
    reason = f"GPU {gpus}: wider than a NUMA node, with GPUs on nodes {', '.join(map(str, ids))}"
    chosen = (Choice(host.name, chosen=True, reason=reason, feasible=True),) if wanted.explain else ()
    return Placement(host, seating.seats, pins, doubts=seating.doubts, choices=chosen, numa_nodes=ids)
