"""Puts the VMs of a pattern on a host of its shape, one by one, as far as the exact rules of placement admit them.

`place_all.py` calls `propose_vms` and then `admit_vms`. What the solver counted is only a proposal: each VM is asked
for with its host, and what is refused or in doubt is left out. The host is first left to choose the GPUs itself; only
where that spoils the pattern are vGPUs pinned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import VgpuDevice
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.passthru_devices import with_passthru_numbers
from gpuops.plan.core.plan import Choice
from gpuops.plan.placement.ha_headroom import Headroom
from gpuops.plan.placement.multi_node import place_near
from gpuops.plan.placement.project import take
from gpuops.plan.placement.vm_demand import PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.queue.batch.model import BatchModel, HostGpus
from gpuops.plan.queue.batch.problem import HostPattern
from gpuops.plan.queue.batch.request_kinds import Device, RequestKind, order_of_starting
from gpuops.plan.queue.one_workload import Placed, WorkloadQuestion
from gpuops.plan.queue.workload import running


@dataclass(frozen=True, slots=True)
class ProposedVm:
    """One VM of a kind on the host: the NUMA node it is meant to be on (None = any), and a GPU for each device."""

    kind: RequestKind
    node: int | None
    gpus: tuple[PciAddress, ...]


@dataclass(frozen=True, slots=True)
class AdmittedVms:
    """The VMs that were admitted, the snapshot of the host with them, and whether their vGPUs are pinned."""

    placed: tuple[Placed, ...]
    inventory: Inventory
    pinned: bool


def propose_vms(model: BatchModel, pattern: HostPattern, host: HostGpus) -> tuple[ProposedVm, ...]:
    """The VMs of the pattern in the order of starting: whole devices, then vGPUs, hardest first as in the layouts."""
    shape = model.problem.shapes[pattern.shape]
    free_gpus = list(_gpus_with_slots(model, pattern, host))
    ordered = sorted(
        pattern.vms,
        key=lambda vms_of_option: (model.devices.index(model.kinds[vms_of_option[0]].device), vms_of_option),
    )
    proposals = []
    for kind, option, count in ordered:
        node = model.node(shape.options[kind][option].uses, host)
        for _ in range(count):
            gpus = _take_gpus(model.kinds[kind], node, free_gpus)
            proposals.append(ProposedVm(model.kinds[kind], node, gpus))
    return tuple(proposals)


def admit_vms(
    proposed: Sequence[tuple[ProposedVm, Workload]],
    ref: str,
    inventory: Inventory,
    catalog: Catalog,
    pin: PinPolicy,
    *,
    pin_at_once: bool = False,
) -> AdmittedVms:
    """The proposed VMs that the host takes for certain, each beside the earlier ones.

    `pin_at_once`: an equal host already spoilt the same pattern when it was left to choose.
    """
    host = inventory.hosts[ref]
    # Only the VMs of this host are copied from step to step: a fleet has thousands of others.
    alone = replace(inventory, hosts={ref: host}, vms={vm.ref: vm for vm in inventory.vms_on(host)})
    admits = _Admission(inventory, catalog, ref, pin)
    if pin is not PinPolicy.NEVER and any(gpu.vgpus is not None for gpu in host.gpus):
        kinds, gpus = [proposal.kind for proposal, _ in proposed], [proposal.gpus for proposal, _ in proposed]
        order = order_of_starting(kinds, gpus, host, alone, catalog)
        if order != sorted(order):
            return admits.all_of([proposed[number] for number in order], alone, pinned=True)
    if pin is not PinPolicy.NEVER and pin_at_once:
        return admits.all_of(proposed, alone, pinned=True)
    # 1. The host chooses the GPUs: nothing is pinned that need not be.
    unpinned = admits.all_of(proposed, alone, pinned=False)
    if _as_proposed(unpinned.placed, proposed):
        return unpinned
    # 2. It spoilt the pattern: pin the vGPUs, or where that is forbidden start them in another order.
    if pin is PinPolicy.NEVER:
        second_attempt = admits.all_of(_spread_over_gpus(proposed), alone, pinned=False)
    else:
        second_attempt = admits.all_of(proposed, alone, pinned=True)
    # 3. The attempt that admits more VMs; of equals the second, which is nearer to the pattern.
    return second_attempt if len(second_attempt.placed) >= len(unpinned.placed) else unpinned


@dataclass(frozen=True, slots=True)
class _Admission:
    """Admits VMs to one host, one after another."""

    fleet: Inventory
    catalog: Catalog
    ref: str
    pin: PinPolicy

    def all_of(self, proposed: Sequence[tuple[ProposedVm, Workload]], alone: Inventory, *, pinned: bool) -> AdmittedVms:
        placed = []
        for proposal, workload in proposed:
            placed_vm = self._admit(proposal, workload, alone, pinned)
            if placed_vm is not None:
                placed.append(placed_vm)
                alone = take(running(placed_vm.vm, placed_vm.placement, workload.numa), alone, self.catalog)
        return AdmittedVms(tuple(placed), alone, pinned)

    def _admit(self, proposal: ProposedVm, workload: Workload, alone: Inventory, pinned: bool) -> Placed | None:
        vm = proposal.kind.vm(workload)
        if self._kept_free(proposal, workload, alone):
            return None
        pins = {}
        if pinned:
            devices_with_gpus = zip(with_passthru_numbers(proposal.kind.devices), proposal.gpus, strict=False)
            pins = {ordinal: gpu for (ordinal, device), gpu in devices_with_gpus if isinstance(device, VgpuDevice)}
        vm_there = replace(vm, host=self.ref)  # a pin is an address of the host that the VM is on
        needs = Wanted(
            vm_there, demands_of(proposal.kind.devices, pins), (self.ref,), workload.numa, self.pin, explain=False
        )
        placement_found = place_near(needs, alone, self.catalog)
        if not isinstance(placement_found, Placement) or placement_found.doubts:
            return None
        placement = replace(placement_found, pins={**placement_found.pins, **pins})
        choice = Choice(placement.host.name, chosen=True, reason="the solver's choice for all requests", feasible=True)
        warnings = WorkloadQuestion(workload, alone, self.catalog).warnings(vm, placement)
        return Placed(workload, vm, placement, warnings, (choice,))

    def _kept_free(self, proposal: ProposedVm, workload: Workload, alone: Inventory) -> bool:
        """Whether HA of the cluster would refuse it, beside all that this host has been given so far."""
        host = alone.hosts[self.ref]
        cluster = self.fleet.clusters.get(host.cluster or "")
        if cluster is None or cluster.admission is None:
            return False
        now = replace(self.fleet, vms={**self.fleet.vms, **alone.vms})
        return Headroom(proposal.kind.vm(workload), now).refusal(host) is not None


def _spread_over_gpus(proposed: Sequence[tuple[ProposedVm, Workload]]) -> list[tuple[ProposedVm, Workload]]:
    """The VMs in an order in which each GPU gets its first vGPU, and with it its size, before any gets a second.

    A host that spreads VMs over GPUs then cannot give a GPU another size than the pattern has.
    """
    vgpus_on: dict[PciAddress, int] = {}
    turns = []
    for proposal, _ in proposed:
        turns.append(max(vgpus_on.get(gpu, 0) for gpu in proposal.gpus) if proposal.gpus else 0)
        for gpu in proposal.gpus:
            vgpus_on[gpu] = vgpus_on.get(gpu, 0) + 1
    order = sorted(range(len(proposed)), key=lambda index: (turns[index], index))
    return [proposed[index] for index in order]


def _as_proposed(placed: Sequence[Placed], proposed: Sequence[tuple[ProposedVm, Workload]]) -> bool:
    """Whether all VMs were placed, each beside the node that was meant."""
    node_meant = {workload.name: proposal.node for proposal, workload in proposed}
    return len(placed) == len(proposed) and all(
        node_meant[placed_vm.workload.name] in (None, placed_vm.placement.numa_node) for placed_vm in placed
    )


@dataclass(slots=True)
class _GpuSlots:
    """One GPU with the slots that its layout has left."""

    address: PciAddress
    node: int | None
    slots: dict[Device, int]


def _gpus_with_slots(model: BatchModel, pattern: HostPattern, host: HostGpus) -> Iterator[_GpuSlots]:
    shape = model.problem.shapes[pattern.shape]
    gpus = [iter(group) for group in host.groups]
    for group, number, count in pattern.gpus:
        layout = shape.groups[group].layouts[number]
        for _ in range(count):
            yield _GpuSlots(next(gpus[group]), model.node(layout, host), model.slots(layout, host))


def _take_gpus(kind: RequestKind, node: int | None, free_gpus: Sequence[_GpuSlots]) -> tuple[PciAddress, ...]:
    """A GPU for each device of the VM: of this node where one is given, else node by node. Their slots are counted
    down."""
    gpus_taken: list[PciAddress] = []
    for gpu in sorted(free_gpus, key=lambda gpu: (str(gpu.node), gpu.address)):
        while len(gpus_taken) < kind.count and gpu.slots.get(kind.device, 0) and node in (None, gpu.node):
            gpu.slots[kind.device] -= 1
            gpus_taken.append(gpu.address)
    return tuple(gpus_taken)
