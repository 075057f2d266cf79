"""One VM of a cluster on one host: the steps that give it its GPUs and start it, on one NUMA node with its network
card where the host can.

A vGPU can be bound to a GPU, so the node is a promise: the plan is made on a snapshot that shows only the GPUs beside
the network card, and binds the VM to them. Where that has no room the VM is placed as any other, and the row says so.
A whole GPU by Dynamic DirectPath I/O is chosen by the host, and nobody can promise its node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, PowerState, Vm, VmDrs, pin_key, pins_of
from gpuops.model.workloads.cluster import ClusterWish, RdmaKind
from gpuops.plan.cluster.prerequisites import adapters_of
from gpuops.plan.core.plan import Plan, Rejection, Wave
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, SetVmDrs, Step, VmChange
from gpuops.plan.placement.numa_nodes import AFFINITY_KEY
from gpuops.plan.placement.project import project
from gpuops.plan.placement.select import place
from gpuops.plan.placement.vm_demand import PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy


@dataclass(frozen=True, slots=True)
class MemberSteps:
    """What one VM takes, and the snapshot when it is done."""

    steps: tuple[Step, ...]
    after: Inventory
    says: str
    """Where its GPU and its network card are."""
    warnings: tuple[str, ...] = ()


def member_steps(
    wish: ClusterWish, vm: Vm, card_node: int | None, inventory: Inventory, catalog: Catalog, now: datetime
) -> MemberSteps | tuple[Rejection, ...]:
    """The steps that give the VM, which is in the snapshot on its host, all of the wish; or every reason why not.

    `card_node`: the NUMA node of its network card, where the port group says it; None = not known, or it has none.
    """
    host = inventory.host_of(vm)
    if host is None:
        return (Rejection(vm.name, "its host cannot be read"),)
    if wish.rdma is RdmaKind.DIRECTPATH:
        return _with_whole_adapter(wish, vm, host, inventory, catalog, now)
    plan, beside = _gpus(wish, vm, card_node, PowerPolicy.ON, inventory, catalog, now)
    if not plan.feasible:
        return plan.rejections
    return _made(vm, plan.steps, _told(wish, card_node, beside=beside), plan.warnings, inventory, catalog)


def _gpus(
    wish: ClusterWish,
    vm: Vm,
    node: int | None,
    power: PowerPolicy,
    inventory: Inventory,
    catalog: Catalog,
    now: datetime,
) -> tuple[Plan, bool]:
    """The plan of its GPUs, and whether it promises that node."""
    types = () if wish.profile is not None else gpu_types(wish, inventory)
    runs = vm.power is PowerState.ON
    if runs:  # what runs is never stopped for a better place
        power = PowerPolicy.REFUSE
    request = Attach(f"moid:{vm.ref}", profile=wish.profile, count=wish.gpus, device_type=types, power=power, add=True)
    if runs:
        return request.plan(inventory, catalog, now), (vm.extra_config or {}).get(AFFINITY_KEY) == str(node)
    if node is not None and wish.profile is not None:
        beside = only_node(vm, node, inventory)
        near = replace(request, numa=NumaPolicy.REQUIRED).plan(beside, catalog, now)
        bound = _bound(vm, near, beside, catalog) if near.feasible else None
        if bound is not None:
            return bound, True
    return request.plan(inventory, catalog, now), False


def _bound(vm: Vm, plan: Plan, beside: Inventory, catalog: Catalog) -> Plan | None:
    """The plan with its vGPUs bound to the GPUs of that node, which the snapshot shows alone; None = they have none.

    The plan itself binds nothing where all GPUs that it sees are on one node.
    """
    changes = [step for step in plan.steps if isinstance(step, ReconfigureVm)]
    given = _after(tuple(changes), beside, catalog).vm(vm.ref)
    demands = demands_of(given.devices or (), pins_of(given))
    wanted = Wanted(given, demands, (given.host or "",), NumaPolicy.REQUIRED, PinPolicy.AUTO, explain=False)
    placement = place(wanted, beside, catalog)
    if not isinstance(placement, Placement):
        return None
    pins = {pin_key(ordinal): str(address) for ordinal, address in placement.seats.items()}
    missing = {key: address for key, address in pins.items() if (given.extra_config or {}).get(key) != address}
    if not missing:
        return plan
    first = changes[0] if changes else ReconfigureVm(vm.ref, VmChange())
    change = replace(first.change, extra_config={**first.change.extra_config, **missing})
    others = [wave for wave in plan.waves if not any(isinstance(step, ReconfigureVm) for step in wave.steps)]
    return replace(plan, waves=(Wave(f"reconfigure {vm.name}", (ReconfigureVm(vm.ref, change),)), *others))


def only_node(vm: Vm, node: int, inventory: Inventory) -> Inventory:
    """The snapshot in which the VM's host has only the GPUs of this NUMA node."""
    host = inventory.hosts[vm.host or ""]
    return inventory.with_hosts([replace(host, gpus=tuple(gpu for gpu in host.gpus if gpu.numa_node == node))])


def gpu_types(wish: ClusterWish, inventory: Inventory) -> tuple[str, ...]:
    """The PCI types of the hosts' GPUs of that model, `10de:26b9`; () = no host has one."""
    words = {(wish.model or "").lower()}
    found = {
        f"{gpu.vendor_id:04x}:{gpu.device_id:04x}"
        for host in inventory.hosts.values()
        for gpu in host.gpus
        if words <= set(gpu.name.lower().replace("-", " ").split()) or gpu.name.lower() in words
    }
    return tuple(sorted(found))


def _with_whole_adapter(
    wish: ClusterWish, vm: Vm, host: Host, inventory: Inventory, catalog: Catalog, now: datetime
) -> MemberSteps | tuple[Rejection, ...]:
    """GPUs and a network adapter given whole: the first free adapter whose node has the GPUs, else the first free."""
    there = [each for each in vm.devices or () if isinstance(each, DirectPathDevice)]
    own = {each.address for each in there}
    adapters = [each for each in adapters_of(wish, host) if each.address in own] or [
        each for each in adapters_of(wish, host) if each.address not in _taken(host, vm, inventory)
    ]
    reasons: tuple[Rejection, ...] = ()
    for strict in (True, False):
        for adapter in adapters:
            plan, beside = _gpus(wish, vm, adapter.numa_node, PowerPolicy.REFUSE, inventory, catalog, now)
            if not plan.feasible or (strict and not beside):
                reasons = reasons or plan.rejections
                continue
            world = _after(plan.steps, inventory, catalog)
            card = _adapter(vm, adapter.address).plan(world, catalog, now)
            if not card.feasible:
                reasons = reasons or card.rejections
                continue
            says = f"{adapter.address}, {_told(wish, adapter.numa_node, beside=beside)}"
            return _made(vm, (*plan.steps, *card.steps), says, (*plan.warnings, *card.warnings), inventory, catalog)
    return reasons or (Rejection(host.name, f"has no free network adapter {wish.device}"),)


def _adapter(vm: Vm, address: PciAddress) -> Attach:
    return Attach(f"moid:{vm.ref}", device=(str(address),), add=True, numa=NumaPolicy.NONE, power=PowerPolicy.ON)


def _taken(host: Host, vm: Vm, inventory: Inventory) -> frozenset[PciAddress]:
    """Devices of the host that another VM holds, or is to hold: one that is off counts."""
    held = {binding.address for binding in host.bindings}
    others = (each for each in inventory.vms.values() if each.host == host.ref and each.ref != vm.ref)
    planned = {
        device.address for each in others for device in each.devices or () if isinstance(device, DirectPathDevice)
    }
    return frozenset(held | planned)


def _told(wish: ClusterWish, node: int | None, *, beside: bool) -> str:
    if wish.rdma is RdmaKind.NONE:
        return "no RDMA network card"
    if node is None:
        return "NUMA node of the network card not known"
    if beside:
        return f"GPU and network card on NUMA node {node}"
    card = f"network card on NUMA node {node}"
    return f"{card}, GPUs where the host chooses" if wish.profile is None else f"{card}, no room for the VM beside it"


def _made(
    vm: Vm, steps: tuple[Step, ...], says: str, warnings: tuple[str, ...], inventory: Inventory, catalog: Catalog
) -> MemberSteps:
    ordered = tuple(_with_override(vm, steps, inventory))
    return MemberSteps(ordered, _after(ordered, inventory, catalog), says, warnings)


def _with_override(vm: Vm, steps: tuple[Step, ...], inventory: Inventory) -> Iterator[Step]:
    """The same with the override of DRS before the start: from its first moment on nobody moves the VM."""
    keeps = keeps_off_drs(vm, inventory)
    if keeps and not any(isinstance(step, PowerOnVm) for step in steps):
        yield SetVmDrs(vm.ref, VmDrs.MANUAL)
    for step in steps:
        if keeps and isinstance(step, PowerOnVm):
            yield SetVmDrs(vm.ref, VmDrs.MANUAL)
        yield step


def keeps_off_drs(vm: Vm, inventory: Inventory) -> bool:
    """Whether an override is still to be set so that DRS does not move the VM."""
    cluster = inventory.cluster_of(vm)
    return cluster is not None and cluster.drs_enabled is not False and cluster.drs_of(vm.ref) is not VmDrs.MANUAL


def _after(steps: tuple[Step, ...], inventory: Inventory, catalog: Catalog) -> Inventory:
    for step in steps:
        inventory = project(step, inventory, catalog)
    return inventory
