"""Whole: a queue placed at once by a solver, with the rule (one after another) for the rest and as a second opinion.

Order: a higher priority is placed before a lower one is looked at, so it comes first whatever it costs the lower.
Within one: the most GPU memory, then beside the GPUs, then on few hosts. Requests that look at each other (affinity,
anti-affinity, spread) or name devices or device groups are placed by the rule, before the others of their priority.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Final

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.workload import Workload
from gpuops.plan.batch import highs
from gpuops.plan.batch.bound import bound
from gpuops.plan.batch.kinds import Kind, sorted_out
from gpuops.plan.batch.seats import Seated, seated, seats
from gpuops.plan.batch.solve import solve
from gpuops.plan.batch.world import world_of
from gpuops.plan.hypothetical import choices_of_devices, framebuffer_mib
from gpuops.plan.plan import Rejection
from gpuops.plan.queue import Queue, units
from gpuops.plan.trial import Placed

_NEAR: Final = 0.01
_FEW: Final = 50_000
"""Requests times hosts: so many the rule answers in a second or two, so it is always asked."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """How much of the GPU memory that was asked for has a place, and how much might have at the most."""

    asked_mib: int
    placed_mib: int
    most_mib: int | None
    """No plan can place more; None = not worked out."""
    by_solver: int = 0
    """Requests that the solver placed; the rule placed the others."""
    note: str = ""
    """Why the solver's plan is not the answer; empty = it is."""

    @property
    def placed_percent(self) -> float | None:
        """Of what was asked for; None = nobody knows how much that is."""
        return _percent(self.placed_mib, self.asked_mib)

    @property
    def most_percent(self) -> float | None:
        return None if self.most_mib is None else _percent(self.most_mib, self.asked_mib)


def place_whole(queue: Queue, workloads: Sequence[Workload]) -> tuple[Queue, Optimum]:
    """The queue after all of them, by the solver where it serves and by the rule elsewhere."""
    inventory, catalog = queue.inventory, queue.catalog
    asked_mib = _memory_mib(workloads, inventory, catalog)
    if not highs.installed():
        note = "the solver is not installed (pip install 'gpuops[optimize]'): placed one after another"
        after = queue.with_all(workloads)
        return after, Optimum(asked_mib, placed_mib(after, catalog), None, note=note)
    after, count = by_solver(queue, workloads)
    done_mib = placed_mib(after, catalog)
    most_mib = asked_mib if done_mib == asked_mib else most(workloads, inventory, catalog)
    many = len(workloads) * len(inventory.hosts) > _FEW
    if done_mib < most_mib * (1 - _NEAR) or (done_mib < most_mib and not many):
        rule = queue.with_all(workloads)
        if _by_priority(rule, workloads, catalog) > _by_priority(after, workloads, catalog):
            note = "the solver found nothing better than one after another"
            return rule, Optimum(asked_mib, placed_mib(rule, catalog), most_mib, note=note)
    return after, Optimum(asked_mib, done_mib, max(most_mib, done_mib), count)


def by_solver(queue: Queue, workloads: Sequence[Workload]) -> tuple[Queue, int]:
    """Priority by priority; and how many requests the solver placed."""
    count = 0
    levels: dict[int, list[Workload]] = {}
    for unit in units(workloads, queue.inventory, queue.catalog):
        levels.setdefault(unit[0].priority, []).extend(unit)
    for _, these in sorted(levels.items(), reverse=True):
        known = sorted_out(these, queue.inventory, queue.catalog)
        queue = queue.with_all(known.others)
        if known.kinds:
            placed, inventory = _solved(known.kinds, queue)
            queue = queue.having(placed, inventory)
            count += len(placed)
        there = {answer.workload.name for answer in queue.answers}
        queue = queue.with_all([each for each in these if each.name not in there])
    return queue, count


def most(workloads: Sequence[Workload], inventory: Inventory, catalog: Catalog) -> int:
    """GPU memory that no plan can place more of, in MiB. What the model does not cover counts as placed."""
    known = sorted_out(workloads, inventory, catalog)
    others_mib = _memory_mib(known.others, inventory, catalog)
    if not known.kinds:
        return others_mib
    return others_mib + int(bound(world_of(known.kinds, inventory, catalog, certain=False).problem) + 1e-6)


def placed_mib(queue: Queue, catalog: Catalog, among: Collection[str] | None = None) -> int:
    """GPU memory of what has a place, of all or of those named."""
    placed = (answer for answer in queue.answers if isinstance(answer, Placed))
    counted = (each for each in placed if among is None or each.workload.name in among)
    return sum(framebuffer_mib(each.vm.devices or (), catalog) for each in counted)


def _percent(part: int, whole: int) -> float | None:
    """Rounded down to tenths: nothing is all that is not."""
    return floor(1000 * part / whole) / 10 if whole else None


def _solved(kinds: Sequence[Kind], queue: Queue) -> tuple[tuple[Placed, ...], Inventory]:
    """What the solver proposes, as far as the hosts take it; and the snapshot with it."""
    inventory, catalog = queue.inventory, queue.catalog
    world = world_of(kinds, inventory, catalog)
    waiting = {kind.first.name: iter(kind.workloads) for kind in kinds}
    hosts = [iter(there) for there in world.hosts]
    placed: list[Placed] = []
    changed: list[Seated] = []
    for pattern, times in solve(world.problem).patterns:
        spoilt = False
        for _ in range(times):
            host = next(hosts[pattern.shape])
            proposed = [(seat, next(waiting[seat.kind.first.name])) for seat in seats(world, pattern, host)]
            now = _with(inventory, changed)
            done = seated(proposed, host.ref, now, catalog, queue.pin, pin_at_once=spoilt)
            placed += done.placed
            changed.append(done)
            spoilt = done.pinned
    return tuple(placed), _merged(inventory, changed)


def _with(inventory: Inventory, changed: Sequence[Seated]) -> Inventory:
    """The snapshot that a host is asked on: the others matter only where HA counts a cluster's memory."""
    counted = any(cluster.admission is not None for cluster in inventory.clusters.values())
    return _merged(inventory, changed) if counted else inventory


def _merged(inventory: Inventory, changed: Sequence[Seated]) -> Inventory:
    hosts, vms = dict(inventory.hosts), dict(inventory.vms)
    for each in changed:
        hosts |= each.inventory.hosts
        vms |= each.inventory.vms
    return replace(inventory, hosts=hosts, vms=vms)


def _memory_mib(workloads: Iterable[Workload], inventory: Inventory, catalog: Catalog) -> int:
    """GPU memory that they ask for, as far as it is known what they mean."""
    total = 0
    for workload in workloads:
        devices = choices_of_devices(workload, inventory, catalog)[0]
        total += 0 if isinstance(devices, Rejection) else framebuffer_mib(devices, catalog)
    return total


def _by_priority(queue: Queue, workloads: Sequence[Workload], catalog: Catalog) -> tuple[int, ...]:
    """GPU memory placed of each priority, the highest first."""
    names: dict[int, set[str]] = {}
    for workload in workloads:
        names.setdefault(workload.priority, set()).add(workload.name)
    return tuple(placed_mib(queue, catalog, those) for _, those in sorted(names.items(), reverse=True))
