"""Places a whole queue at once by the solver; `queue/place.py` calls `place_all` for `--optimize`.

Priorities: a higher one is placed before a lower one is looked at, whatever that costs the lower. Within a priority:
the most GPU memory, then beside the GPUs, then on few hosts. Requests that refer to each other (affinity,
anti-affinity, spread) or name devices or device groups are placed one after another, before the others of their
priority. Placing all requests one after another also serves as a second opinion.

The solver only proposes (`propose_vms`). The exact rules of placement then check each VM on its host (`admit_vms`) and
leave out what they refuse or doubt. The host first chooses the GPUs itself; vGPUs are pinned only where its choice
spoils the pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import VgpuDevice
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.passthru_devices import with_passthru_numbers
from gpuops.plan.core.plan import Choice
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.scope import gpu_hosts
from gpuops.plan.placement.host_filters import Headroom
from gpuops.plan.placement.keep_free import kept_counts, reserved_left
from gpuops.plan.placement.multi_node import place_near
from gpuops.plan.placement.project import take
from gpuops.plan.placement.vm_demand import PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.queue.batch import column_generation
from gpuops.plan.queue.batch.batch_model import (
    BatchModel,
    Device,
    HostGpus,
    RequestKind,
    build_model,
    expecting_starts,
    group_requests,
    order_of_starting,
)
from gpuops.plan.queue.batch.integer_program import HostPattern
from gpuops.plan.queue.batch.solve import bound, solve
from gpuops.plan.queue.one_by_one import Queue, placed_by_priority, placed_mib, units
from gpuops.plan.queue.one_workload import Placed, WorkloadQuestion
from gpuops.plan.queue.workload_hosts import choices_of_devices, framebuffer_mib, running


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
    """Return the VMs of the pattern in the order of starting: whole devices first, then vGPUs, in the order of
    `model.devices`."""
    shape = model.problem.shapes[pattern.shape]
    # 1. The GPUs of the host with the slots that the pattern's layouts give them.
    gpus_of_group = [iter(group) for group in host.groups]
    free_gpus: list[_GpuSlots] = []
    for group, number, count in pattern.gpus:
        layout = shape.groups[group].layouts[number]
        for _ in range(count):
            slots = model.slots(layout, host)
            free_gpus.append(_GpuSlots(next(gpus_of_group[group]), model.node(layout, host), slots))
    # 2. Each VM takes its slots, in the order of starting.
    # an element of `pattern.vms` is (number of the kind, option, number of VMs)
    order = sorted(pattern.vms, key=lambda vm_count: (model.devices.index(model.kinds[vm_count[0]].device), vm_count))
    proposals = []
    for kind, option, count in order:
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
    """Return the proposed VMs that the host takes for certain, each beside the earlier ones. `pin_at_once`: an equal
    host already spoilt the same pattern when it was left to choose."""
    host = inventory.hosts[ref]
    # Only the VMs of this host are copied from step to step: a fleet has thousands of others.
    host_only = replace(inventory, hosts={ref: host}, vms={vm.ref: vm for vm in inventory.vms_on(host)})
    admission = _Admission(inventory, catalog, ref, pin)
    # The start offsets on the GPUs are known: the VMs may fit in one order only.
    if pin is not PinPolicy.NEVER and any(gpu.vgpus is not None for gpu in host.gpus):
        kinds, gpus = [proposal.kind for proposal, _ in proposed], [proposal.gpus for proposal, _ in proposed]
        order = order_of_starting(kinds, gpus, host, host_only, catalog)
        if order != sorted(order):
            # They only fit in another order, which the host would undo if it chose the GPUs itself.
            return admission.all_of([proposed[number] for number in order], host_only, pinned=True)
    if pin is not PinPolicy.NEVER and pin_at_once:
        return admission.all_of(proposed, host_only, pinned=True)
    # 1. The host chooses the GPUs: nothing is pinned that need not be.
    unpinned = admission.all_of(proposed, host_only, pinned=False)
    if _as_proposed(unpinned.placed, proposed):
        return unpinned
    # 2. It spoilt the pattern: pin the vGPUs, or where that is forbidden start them in another order.
    if pin is PinPolicy.NEVER:
        second_attempt = admission.all_of(_spread_over_gpus(proposed), host_only, pinned=False)
    else:
        second_attempt = admission.all_of(proposed, host_only, pinned=True)
    # 3. The attempt that admits more VMs; of equals the second, which is nearer to the pattern.
    return second_attempt if len(second_attempt.placed) >= len(unpinned.placed) else unpinned


@dataclass(frozen=True, slots=True)
class _Admission:
    """Admits VMs to one host, one after another."""

    fleet: Inventory
    catalog: Catalog
    ref: str
    pin: PinPolicy

    def all_of(
        self, proposed: Sequence[tuple[ProposedVm, Workload]], host_only: Inventory, *, pinned: bool
    ) -> AdmittedVms:
        """Return those of the VMs that the host admits. `host_only`: the snapshot with this host and its VMs alone."""
        placed = []
        for proposal, workload in proposed:
            placed_vm = self._admit(proposal, workload, host_only, pinned)
            if placed_vm is not None:
                placed.append(placed_vm)
                vm = running(placed_vm.vm, placed_vm.placement, workload.numa)
                host_only = take(vm, host_only, self.catalog)
        return AdmittedVms(tuple(placed), host_only, pinned)

    def _admit(self, proposal: ProposedVm, workload: Workload, host_only: Inventory, pinned: bool) -> Placed | None:
        """Return the VM placed on this host by the exact rules; None = they refuse or doubt it."""
        vm = proposal.kind.vm(workload)
        # 1. HA admission control counts the whole cluster: the fleet with the VMs that this host was given so far.
        host = host_only.hosts[self.ref]
        cluster = self.fleet.clusters.get(host.cluster or "")
        if cluster is not None and cluster.admission is not None:
            fleet_now = replace(self.fleet, vms={**self.fleet.vms, **host_only.vms})
            if Headroom(vm, fleet_now).refusal(host) is not None:
                return None
        # 2. The exact rules of placement, on this host alone. A place with a doubt is not used.
        pins = {}
        if pinned:
            devices_with_gpus = zip(with_passthru_numbers(proposal.kind.devices), proposal.gpus, strict=False)
            pins = {ordinal: gpu for (ordinal, device), gpu in devices_with_gpus if isinstance(device, VgpuDevice)}
        vm_on_host = replace(vm, host=self.ref)  # a pin is an address of the host that the VM is on
        demands = demands_of(proposal.kind.devices, pins)
        needs = Wanted(vm_on_host, demands, (self.ref,), workload.numa, self.pin, explain=False)
        placement = place_near(needs, host_only, self.catalog)
        if not isinstance(placement, Placement) or placement.doubts:
            return None
        placement = replace(placement, pins={**placement.pins, **pins})
        choice = Choice(placement.host.name, chosen=True, reason="the solver's choice for all requests", feasible=True)
        warnings = WorkloadQuestion(workload, host_only, self.catalog).warnings(vm, placement)
        return Placed(workload, vm, placement, warnings, (choice,))


def _spread_over_gpus(proposed: Sequence[tuple[ProposedVm, Workload]]) -> list[tuple[ProposedVm, Workload]]:
    """Return the VMs in an order in which each GPU gets its first vGPU, and with it its size, before any gets a second.
    A host that spreads VMs over GPUs then cannot give a GPU another size than the one proposed for it.

    Example: three VMs for GPU A, then two for GPU B. They are started on A, B, A, B, A.
    """
    vgpus_on: Counter[PciAddress] = Counter()
    # In round 0 each GPU gets its first vGPU, in round 1 its second, and so on.
    round_of_vm = []
    for proposal, _ in proposed:
        round_of_vm.append(max((vgpus_on[gpu] for gpu in proposal.gpus), default=0))
        vgpus_on.update(proposal.gpus)
    return [proposed[index] for index in sorted(range(len(proposed)), key=lambda index: (round_of_vm[index], index))]


def _as_proposed(placed: Sequence[Placed], proposed: Sequence[tuple[ProposedVm, Workload]]) -> bool:
    """Return whether all VMs were placed, each on the NUMA node that was proposed."""
    intended_node = {workload.name: proposal.node for proposal, workload in proposed}
    return len(placed) == len(proposed) and all(
        intended_node[placed_vm.workload.name] in (None, placed_vm.placement.numa_node) for placed_vm in placed
    )


@dataclass(slots=True)
class _GpuSlots:
    """One GPU with the slots that its layout has left."""

    address: PciAddress
    node: int | None
    slots: dict[Device, int]


def _take_gpus(kind: RequestKind, node: int | None, free_gpus: Sequence[_GpuSlots]) -> tuple[PciAddress, ...]:
    """Return a GPU for each device of the VM, on this node if one is given, else node by node; count down the slots."""
    gpus_taken: list[PciAddress] = []
    for gpu in sorted(free_gpus, key=lambda gpu: (str(gpu.node), gpu.address)):
        while len(gpus_taken) < kind.count and gpu.slots.get(kind.device, 0) and node in (None, gpu.node):
            gpu.slots[kind.device] -= 1
            gpus_taken.append(gpu.address)
    return tuple(gpus_taken)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How much of the GPU memory that was asked for is placed, and how much any plan could place."""

    asked_mib: int
    placed_mib: int
    most_mib: int | None
    """No plan can place more; None = not computed."""
    by_solver: int = 0
    """Requests that the solver placed; the others were placed one after another."""
    note: str = ""
    """Why the solver's plan is not the answer; empty = it is."""
    expects_starts: bool = False
    """Whether it counts on where hosts let vGPUs start on GPUs that are empty now."""

    @property
    def placed_percent(self) -> float | None:
        """Share of the requested GPU memory; None if the requested amount is unknown."""
        return _percent(self.placed_mib, self.asked_mib)

    @property
    def most_percent(self) -> float | None:
        return None if self.most_mib is None else _percent(self.most_mib, self.asked_mib)


def place_all(queue: Queue, workloads: Sequence[Workload]) -> tuple[Queue, BatchResult]:
    """Return the queue after all of the requests, and how good the plan is."""
    inventory, catalog = queue.inventory, queue.catalog
    asked_mib = _memory_mib(workloads, inventory, catalog)
    if not column_generation.installed():
        note = "the solver is not installed (highspy: gpuops help install): placed one after another"
        after = queue.with_best(workloads)
        return after, BatchResult(asked_mib, placed_mib(after), None, note=note)
    # 1. By the solver, and a bound where not all is placed.
    after, by_solver = place_by_solver(queue, workloads)
    too_few = _too_few_kept(queue, after)
    if too_few:
        note = f"the solver's plan leaves {too_few}: all were placed one after another"
        one_after_another = queue.with_best(workloads)
        most_mib = most_placeable_mib(workloads, inventory, catalog)
        return one_after_another, BatchResult(asked_mib, placed_mib(one_after_another), most_mib, note=note)
    done_mib = placed_mib(after)
    most_mib = asked_mib if done_mib == asked_mib else most_placeable_mib(workloads, inventory, catalog)
    batch_result = BatchResult(asked_mib, done_mib, max(most_mib, done_mib), by_solver)
    if done_mib >= most_mib:
        return after, batch_result
    # 2. Below the bound: where vGPUs are expected to start may serve better than what is certain wherever they do.
    expecting = inventory if queue.pin is PinPolicy.NEVER else expecting_starts(inventory, inventory)
    if expecting is not inventory:
        second_plan, by_solver = place_by_solver(replace(queue, inventory=expecting), workloads)
        better = placed_by_priority(second_plan, workloads) > placed_by_priority(after, workloads)
        if better and not _too_few_kept(queue, second_plan):
            done_mib, after = placed_mib(second_plan), second_plan
            batch_result = BatchResult(asked_mib, done_mib, max(most_mib, done_mib), by_solver, expects_starts=True)
    # 3. Or one after another.
    if done_mib < most_mib:
        one_after_another = queue.with_best(workloads)
        if placed_by_priority(one_after_another, workloads) > placed_by_priority(after, workloads):
            note = "placing one after another was better than the solver's plan"
            done_mib = placed_mib(one_after_another)
            return one_after_another, BatchResult(asked_mib, done_mib, max(most_mib, done_mib), note=note)
    return after, batch_result


def _too_few_kept(before: Queue, after: Queue) -> str:
    """Return what the plan takes although it must stay free or is reserved for others; empty if nothing."""
    for kept in kept_counts(before.keep_free, before.inventory, after.inventory, before.catalog):
        if kept.after < min(kept.before, kept.count):
            return f"{kept.after} of {kept.profile} free in {kept.where}, and --keep-free asks for {kept.count}"
    for remainder in reserved_left(gpu_hosts(before.inventory), before.inventory, after.inventory, before.catalog):
        if remainder.too_few:
            return f"too little of what is reserved ({remainder})"
    return ""


def place_by_solver(queue: Queue, workloads: Sequence[Workload]) -> tuple[Queue, int]:
    """Return the queue after all of the requests, priority by priority; and how many of them the solver placed."""
    count = 0
    by_priority: dict[int, list[Workload]] = {}
    for unit in units(workloads, queue.inventory, queue.catalog):
        by_priority.setdefault(unit[0].priority, []).extend(unit)
    for priority in sorted(by_priority, reverse=True):
        # 1. What the solver cannot model, one after another.
        grouped = group_requests(by_priority[priority], queue.inventory, queue.catalog)
        queue = queue.with_all(grouped.others)
        # 2. The kinds, by the solver.
        if grouped.kinds:
            placed, inventory = _place_kinds(grouped.kinds, queue)
            queue = queue.with_placed(placed, inventory)
            count += len(placed)
        # 3. What the solver left over or a host refused, one after another.
        answered = {answer.workload.name for answer in queue.answers}
        queue = queue.with_all([workload for workload in by_priority[priority] if workload.name not in answered])
    return queue, count


def most_placeable_mib(workloads: Sequence[Workload], inventory: Inventory, catalog: Catalog) -> int:
    """Return the GPU memory that no plan can exceed, in MiB. What the model does not cover counts as placed."""
    grouped = group_requests(workloads, inventory, catalog)
    others_mib = _memory_mib(grouped.others, inventory, catalog)
    if not grouped.kinds:
        return others_mib
    return others_mib + int(bound(build_model(grouped.kinds, inventory, catalog, certain=False).problem) + 1e-6)


def _percent(part: int, whole: int) -> float | None:
    """Return the share in percent, rounded down to tenths, so that nearly all is not shown as all.

    >>> _percent(9996, 10000)
    99.9
    """
    return floor(1000 * part / whole) / 10 if whole else None


def _place_kinds(kinds: Sequence[RequestKind], queue: Queue) -> tuple[tuple[Placed, ...], Inventory]:
    """Return the VMs that the solver proposes and their hosts admit, and the snapshot with them."""
    inventory, catalog = queue.inventory, queue.catalog
    model = build_model(kinds, inventory, catalog)
    # kinds are distinguished by the name of their first request
    waiting = {kind.first.name: iter(kind.workloads) for kind in kinds}
    hosts = [iter(shape_hosts) for shape_hosts in model.hosts]
    # Earlier hosts matter only where HA counts the memory of a cluster.
    ha_admits = any(cluster.admission is not None for cluster in inventory.clusters.values())
    placed: list[Placed] = []
    admitted_so_far: list[AdmittedVms] = []
    for pattern, times in solve(model.problem).patterns:
        # Hosts of one shape behave alike: where one spoilt the pattern unpinned, the next ones are pinned at once.
        pin_at_once = False
        for _ in range(times):
            host = next(hosts[pattern.shape])
            proposals = propose_vms(model, pattern, host)
            proposed = [(proposal, next(waiting[proposal.kind.first.name])) for proposal in proposals]
            snapshot = _with_admitted(inventory, admitted_so_far) if ha_admits else inventory
            admitted = admit_vms(proposed, host.ref, snapshot, catalog, queue.pin, pin_at_once=pin_at_once)
            placed += admitted.placed
            admitted_so_far.append(admitted)
            pin_at_once = admitted.pinned
    return tuple(placed), _with_admitted(inventory, admitted_so_far)


def _with_admitted(inventory: Inventory, admitted_so_far: Sequence[AdmittedVms]) -> Inventory:
    hosts, vms = dict(inventory.hosts), dict(inventory.vms)
    for admitted in admitted_so_far:
        hosts |= admitted.inventory.hosts
        vms |= admitted.inventory.vms
    return replace(inventory, hosts=hosts, vms=vms)


def _memory_mib(workloads: Iterable[Workload], inventory: Inventory, catalog: Catalog) -> int:
    """Return the GPU memory that the requests ask for in MiB, as far as their devices are known."""
    total = 0
    for workload in workloads:
        devices = choices_of_devices(workload, inventory, catalog)[0]
        total += 0 if isinstance(devices, Rejection) else framebuffer_mib(devices, catalog)
    return total
