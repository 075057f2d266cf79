"""VMs that are larger than a NUMA node: GPUs on as many nodes as they need, as evenly as their number divides.

Larger means more cores or memory than a node has, or more GPUs than are beside one. `plan/vm/attach.py`,
`plan/queue/one_workload.py` and `plan/queue/batch/place_all.py` call `place_near` instead of `place`.

ESXi gives such a VM several NUMA clients, one per node, and with `coresPerNumaNode` the guest sees as many virtual
nodes (VMware vSphere Resource Management, "Using NUMA Systems with ESXi"; vSphere API, VirtualMachineVirtualNuma).
A host does not look at nodes when it chooses GPUs, so each vGPU is pinned to its own.

Example: 96 vCPUs on a host with two nodes of 64 cores need two nodes; of four vGPUs two go beside each, of three two
beside the one node and one beside the other, whichever has room for two.
"""

from __future__ import annotations

from collections import Counter
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
from gpuops.plan.core.plan import Choice
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.gpu_filters import matches_type
from gpuops.plan.placement.host_filters import cores_of, node_shortages, refusals
from gpuops.plan.placement.keep_free import KeptRoom, reserved_unknown
from gpuops.plan.placement.seating import Seating, seat
from gpuops.plan.placement.select import place, without_full_hosts
from gpuops.plan.placement.vm_demand import (
    Demand,
    PinPolicy,
    Placement,
    Wanted,
    WantsDirectPath,
    WantsDynamic,
    WantsVgpu,
)

_UNKNOWN_DEVICES: Final = 64
"""More devices than a VM may have: an unknown GPU counts as room for all of them."""


def place_near(needs: Wanted, inventory: Inventory, catalog: Catalog) -> Placement | tuple[Rejection, ...]:
    """Return the best place. If locality counts and the VM is larger than a node, its GPUs are spread over its nodes.
    For a VM that fits into one node it does the same as `place`."""
    # 1. The ordinary placement. If it is local, or locality does not count, that is all.
    if not needs.reasons:  # no refusals are listed, so hosts without room need no check
        needs = without_full_hosts(needs, inventory, catalog)
    best = place(needs, inventory, catalog)
    is_local = isinstance(best, Placement) and best.numa_node is not None
    if is_local or needs.numa is NumaPolicy.NONE:
        return best
    if not _may_spread(needs, inventory, refused=not isinstance(best, Placement)):
        return best
    # 2. Spread over nodes, first on the host of the ordinary placement. A place without doubts comes before any other,
    # except that a VM stays on the host that it is on.
    rejections: dict[str, tuple[Rejection, ...]] = {}
    unsure_placements: list[Placement] = []
    for host in _hosts_in_order(needs, best, inventory):
        spread = spread_over_nodes(needs, host, inventory, catalog)
        if not isinstance(spread, Placement):
            rejections[host.name] = spread
        elif spread.doubts and host.ref != needs.vm.host:
            unsure_placements.append(spread)
        else:
            return spread
    if unsure_placements:
        surest = min(unsure_placements, key=_doubts)
        return best if isinstance(best, Placement) and _doubts(best) < _doubts(surest) else surest
    if isinstance(best, Placement) or needs.numa is not NumaPolicy.REQUIRED:
        # If locality is not required, the refusal had other reasons than NUMA nodes.
        return best
    # 3. Of hosts where the VM needs several nodes, leave out what single nodes lack for the complete VM. The subject of
    # such a rejection is the host, or one of its nodes or GPUs: "esx-01 numa0".
    spread_hosts = tuple(f"{name} " for name, reasons in rejections.items() if reasons)
    other_reasons = (reason for reason in best if not f"{reason.subject} ".startswith(spread_hosts))
    return tuple(dict.fromkeys((*other_reasons, *(reason for spread in rejections.values() for reason in spread))))


def _may_spread(needs: Wanted, inventory: Inventory, *, refused: bool) -> bool:
    """Return whether a place on several nodes may exist. The VM has no local place; with `refused` it has no place."""
    vgpus = [demand for demand in needs.demands if isinstance(demand, WantsVgpu)]
    if len(needs.demands) <= 1 or any(isinstance(demand, WantsDirectPath) for demand in needs.demands):
        return False
    if vgpus and needs.pin is PinPolicy.NEVER:
        return False
    if not refused or needs.numa is not NumaPolicy.PREFERRED:
        return True
    # The VM was refused on all GPUs of each host. If its vGPUs are equal, the GPUs of some nodes have no room either,
    # unless the reason was that too little would stay free: other GPUs may leave enough.
    unpinned_profiles = [vgpu.profile for vgpu in vgpus if vgpu.pin is None]
    equal_vgpus = len(unpinned_profiles) == len(needs.demands) and len(set(unpinned_profiles)) == 1
    must_keep_free = bool(needs.keep_free.profiles) or inventory.reservations is not None
    return must_keep_free or not equal_vgpus


def _doubts(placement: Placement) -> int:
    return len(placement.doubts)


def nodes_needed(vm: Vm, demands: Sequence[Demand], host: Host, catalog: Catalog) -> int:
    """Return the smallest number of NUMA nodes of this host that hold the VM's cores, memory and GPUs; 0 if the host
    has not enough nodes or their number is unknown."""
    nodes = host.numa_nodes
    if not nodes or vm.vcpus is None or vm.memory_mib is None:
        return 0
    # Each of several nodes must hold an equal share, so the smallest node decides.
    cores, memory_mib = min(cores_of(node, host) for node in nodes), min(node.memory_mib for node in nodes)
    if not cores or not memory_mib:
        return 0
    # GPUs: as if all were free, since a node that is only full now is no reason to spread the VM.
    most_devices: Counter[int | None] = Counter()
    for device in host.devices:
        possible = (_devices_possible(device, demand, catalog) for demand in demands)
        most_devices[device.numa_node] += max(possible, default=0)
    # If no device fits on any node, their number is no limit here: the seating gives the reasons.
    devices_per_node = max(most_devices[node.id] for node in nodes) or len(demands)
    nodes_for_gpus = -(-len(demands) // devices_per_node) if demands else 1
    needed = max(-(-vm.vcpus // cores), -(-vm.memory_mib // memory_mib), nodes_for_gpus)
    return needed if needed <= len(nodes) else 0


def _devices_possible(gpu: PhysicalGpu | OtherDevice, demand: Demand, catalog: Catalog) -> int:
    """Return how many devices of this demand an empty GPU could hold."""
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
    needs: Wanted, host: Host, inventory: Inventory, catalog: Catalog
) -> Placement | tuple[Rejection, ...]:
    """Return the place with the fewest doubts among those on this host with GPUs on each node that the VM needs, or
    what the nodes lack. () = one node is enough, or the host is refused for other reasons than its nodes."""
    # The host itself chooses the GPUs of a vendor device group, so they require no number of nodes.
    count = nodes_needed(needs.vm, () if needs.grouped else needs.demands, host, catalog)
    # Each of the nodes must get at least one of the VM's devices.
    if count < 2 or len(needs.demands) < count or refusals(needs, host, inventory):
        return ()
    vm_share = share_of_vm(needs.vm, count)
    unknown = reserved_unknown(host, inventory)
    rejections = [_refuse_single_node(needs, host, count)]
    unsure_placements: list[Placement] = []
    for nodes in _nodes_in_order(needs, host, count):
        short = [reason for node in nodes for reason in node_shortages(vm_share, node, host, inventory)]
        seating = _seat_over_nodes(needs, nodes, host, inventory, catalog)
        kept_refusal = KeptRoom(needs, inventory, catalog).refusal(host, seating.seats) if seating.complete else None
        if not short and seating.complete and kept_refusal is None:
            placement = _placement(needs, host, nodes, seating)
            if unknown:
                placement = replace(placement, doubts=(*placement.doubts, unknown))
            if not placement.doubts:
                return placement
            unsure_placements.append(placement)
        rejections += (*short, *seating.rejections, *([kept_refusal] if kept_refusal else []))
    return min(unsure_placements, key=_doubts) if unsure_placements else tuple(dict.fromkeys(rejections))


def _nodes_in_order(needs: Wanted, host: Host, count: int) -> Iterator[tuple[NumaNode, ...]]:
    """Yield every choice of `count` nodes of the host. If the devices do not divide evenly, the first nodes of a choice
    get one device more: the same nodes then occur in several orders."""
    nodes_with_one_more = len(needs.demands) % count
    for nodes in combinations(sorted(host.numa_nodes, key=lambda node: node.id), count):
        for first_nodes in combinations(nodes, nodes_with_one_more):
            yield (*first_nodes, *(node for node in nodes if node not in first_nodes))


def _refuse_single_node(needs: Wanted, host: Host, count: int) -> Rejection:
    """Return the rejection that says what each of the `count` nodes must have."""
    vm_share, devices = share_of_vm(needs.vm, count), len(needs.demands)
    least, most = devices // count, -(-devices // count)
    device_word = "vGPUs" if any(isinstance(demand, WantsVgpu) for demand in needs.demands) else "GPUs"
    gpus = f"{most if least == most else f'{least} or {most}'} of its {devices} {device_word}"
    needed = f"{gpus}, {vm_share.vcpus} cores and {vm_share.memory_mib} MiB"
    return Rejection(host.name, f"one NUMA node is too small for the VM: each of {count} nodes needs {needed}")


def _hosts_in_order(needs: Wanted, best: Placement | tuple[Rejection, ...], inventory: Inventory) -> Iterator[Host]:
    """Yield the hosts to try: first the host of the ordinary placement, or else the VM's own host. An existing VM that
    has a place is not moved only to be spread."""
    has_place = isinstance(best, Placement)
    first_ref = best.host.ref if isinstance(best, Placement) else needs.vm.host
    if first_ref in needs.hosts:
        yield inventory.hosts[first_ref]
        if has_place and needs.vm.host is not None:
            return
    yield from (inventory.hosts[ref] for ref in needs.hosts if ref != first_ref)


def share_of_vm(vm: Vm, count: int) -> Vm:
    """Return the part of the VM on each of `count` nodes. Requires that `nodes_needed` returned a number above 0."""
    assert vm.vcpus is not None and vm.memory_mib is not None, "nodes_needed knew them"
    return replace(vm, vcpus=-(-vm.vcpus // count), memory_mib=-(-vm.memory_mib // count))


def _seat_over_nodes(
    needs: Wanted, nodes: Sequence[NumaNode], host: Host, inventory: Inventory, catalog: Catalog
) -> Seating:
    """Deal the demands to the nodes in turn and seat each node's part on its own."""
    seatings = []
    for number, node in enumerate(nodes):
        # with three nodes, node 0 gets the demands 0, 3, 6 and so on
        demands_of_node: list[Demand] = list(needs.demands[number :: len(nodes)])
        seatings.append(seat(needs.vm, demands_of_node, host, inventory, catalog, node.id))
    return Seating(
        seats={ordinal: address for seating in seatings for ordinal, address in seating.seats.items()},
        rejections=tuple(dict.fromkeys(reason for seating in seatings for reason in seating.rejections)),
        doubts=tuple(dict.fromkeys(doubt for seating in seatings for doubt in seating.doubts)),
    )


def _placement(needs: Wanted, host: Host, nodes: Sequence[NumaNode], seating: Seating) -> Placement:
    pins = {demand.ordinal: seating.seats[demand.ordinal] for demand in needs.demands if isinstance(demand, WantsVgpu)}
    ids = tuple(sorted(node.id for node in nodes))
    gpus = ", ".join(sorted({str(address) for address in seating.seats.values()}))
    reason = f"GPU {gpus}: wider than a NUMA node, with GPUs on nodes {', '.join(map(str, ids))}"
    chosen = (Choice(host.name, chosen=True, reason=reason, feasible=True),) if needs.explain else ()
    return Placement(host, seating.seats, pins, doubts=seating.doubts, choices=chosen, numa_nodes=ids)
