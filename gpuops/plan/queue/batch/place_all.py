"""Places a whole queue at once by the solver; `queue/place.py` calls `place_all` for `--optimize`.

Priorities: a higher one is placed before a lower one is looked at, whatever that costs the lower. Within a priority:
the most GPU memory, then beside the GPUs, then on few hosts. Requests that refer to each other (affinity,
anti-affinity, spread) or name devices or device groups are placed one after another, before the others of their
priority. Placing all requests one after another also serves as a second opinion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import gpu_hosts
from gpuops.plan.placement.keep_free import kept_counts
from gpuops.plan.placement.reserved_slots import reserved_left
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.batch import highs
from gpuops.plan.queue.batch.admission import AdmittedVms, admit_vms, propose_vms
from gpuops.plan.queue.batch.model import build_model
from gpuops.plan.queue.batch.request_kinds import RequestKind, expecting_starts, group_requests
from gpuops.plan.queue.batch.solve import bound, solve
from gpuops.plan.queue.one_by_one import Queue, placed_by_priority, placed_mib, units
from gpuops.plan.queue.one_workload import Placed
from gpuops.plan.queue.workload import choices_of_devices, framebuffer_mib


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
    """The queue after all of the requests, and how good the plan is."""
    inventory, catalog = queue.inventory, queue.catalog
    asked_mib = _memory_mib(workloads, inventory, catalog)
    if not highs.installed():
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
    expecting = queue.inventory if queue.pin is PinPolicy.NEVER else expecting_starts(queue.inventory, queue.inventory)
    if expecting is not queue.inventory:
        in_turn, by_solver = place_by_solver(replace(queue, inventory=expecting), workloads)
        better = placed_by_priority(in_turn, workloads) > placed_by_priority(after, workloads)
        if better and not _too_few_kept(queue, in_turn):
            done_mib, after = placed_mib(in_turn), in_turn
            batch_result = BatchResult(asked_mib, done_mib, max(most_mib, done_mib), by_solver, expects_starts=True)
    # 3. Or one after another.
    if done_mib < most_mib:
        one_after_another = queue.with_best(workloads)
        if placed_by_priority(one_after_another, workloads) > placed_by_priority(after, workloads):
            note = "the solver found nothing better than one after another"
            done_mib = placed_mib(one_after_another)
            return one_after_another, BatchResult(asked_mib, done_mib, max(most_mib, done_mib), note=note)
    return after, batch_result


def _too_few_kept(before: Queue, after: Queue) -> str:
    """Return what the plan takes although it must stay free or is reserved for others; empty if nothing."""
    counts_kept = kept_counts(before.keep_free, before.inventory, after.inventory, before.catalog)
    for kept_count in counts_kept:
        if kept_count.after < min(kept_count.before, kept_count.count):
            free = f"{kept_count.after} of {kept_count.profile} free in {kept_count.where}"
            return f"{free}, and --keep-free asks for {kept_count.count}"
    remainders = reserved_left(gpu_hosts(before.inventory), before.inventory, after.inventory, before.catalog)
    return next((f"too little of what is reserved ({remainder})" for remainder in remainders if remainder.too_few), "")


def place_by_solver(queue: Queue, workloads: Sequence[Workload]) -> tuple[Queue, int]:
    """The queue after all of the requests, priority by priority; and how many of them the solver placed."""
    count = 0
    levels: dict[int, list[Workload]] = {}
    for unit in units(workloads, queue.inventory, queue.catalog):
        levels.setdefault(unit[0].priority, []).extend(unit)
    for _, of_priority in sorted(levels.items(), reverse=True):
        # 1. What the solver cannot model, one after another.
        grouped = group_requests(of_priority, queue.inventory, queue.catalog)
        queue = queue.with_all(grouped.others)
        # 2. The kinds, by the solver.
        if grouped.kinds:
            placed, inventory = _place_kinds(grouped.kinds, queue)
            queue = queue.having(placed, inventory)
            count += len(placed)
        # 3. What the solver left over or a host refused, one after another.
        names_answered = {answer.workload.name for answer in queue.answers}
        queue = queue.with_all([workload for workload in of_priority if workload.name not in names_answered])
    return queue, count


def most_placeable_mib(workloads: Sequence[Workload], inventory: Inventory, catalog: Catalog) -> int:
    """GPU memory that no plan can exceed, in MiB. What the model does not cover counts as placed."""
    grouped = group_requests(workloads, inventory, catalog)
    others_mib = _memory_mib(grouped.others, inventory, catalog)
    if not grouped.kinds:
        return others_mib
    return others_mib + int(bound(build_model(grouped.kinds, inventory, catalog, certain=False).problem) + 1e-6)


def _percent(part: int, whole: int) -> float | None:
    """Percent, rounded down to tenths, so that 99.96 is not shown as 100."""
    return floor(1000 * part / whole) / 10 if whole else None


def _place_kinds(kinds: Sequence[RequestKind], queue: Queue) -> tuple[tuple[Placed, ...], Inventory]:
    """The VMs that the solver proposes and their hosts admit, and the snapshot with them."""
    inventory, catalog = queue.inventory, queue.catalog
    model = build_model(kinds, inventory, catalog)
    waiting = {kind.first.name: iter(kind.workloads) for kind in kinds}
    hosts = [iter(shape_hosts) for shape_hosts in model.hosts]
    placed: list[Placed] = []
    admitted_so_far: list[AdmittedVms] = []
    for pattern, times in solve(model.problem).patterns:
        # Hosts of one shape behave alike: where one spoilt the pattern unpinned, the next ones are pinned at once.
        pin_at_once = False
        for _ in range(times):
            host = next(hosts[pattern.shape])
            proposed = [
                (proposal, next(waiting[proposal.kind.first.name])) for proposal in propose_vms(model, pattern, host)
            ]
            snapshot = _snapshot_to_ask(inventory, admitted_so_far)
            admitted = admit_vms(proposed, host.ref, snapshot, catalog, queue.pin, pin_at_once=pin_at_once)
            placed += admitted.placed
            admitted_so_far.append(admitted)
            pin_at_once = admitted.pinned
    return tuple(placed), _with_admitted(inventory, admitted_so_far)


def _snapshot_to_ask(inventory: Inventory, admitted_so_far: Sequence[AdmittedVms]) -> Inventory:
    """The snapshot that a host is asked on: earlier hosts matter only where HA counts the memory of a cluster."""
    counted = any(cluster.admission is not None for cluster in inventory.clusters.values())
    return _with_admitted(inventory, admitted_so_far) if counted else inventory


def _with_admitted(inventory: Inventory, admitted_so_far: Sequence[AdmittedVms]) -> Inventory:
    hosts, vms = dict(inventory.hosts), dict(inventory.vms)
    for admitted in admitted_so_far:
        hosts |= admitted.inventory.hosts
        vms |= admitted.inventory.vms
    return replace(inventory, hosts=hosts, vms=vms)


def _memory_mib(workloads: Iterable[Workload], inventory: Inventory, catalog: Catalog) -> int:
    """GPU memory that the requests ask for in MiB, as far as their devices are known."""
    total = 0
    for workload in workloads:
        devices = choices_of_devices(workload, inventory, catalog)[0]
        total += 0 if isinstance(devices, Rejection) else framebuffer_mib(devices, catalog)
    return total
