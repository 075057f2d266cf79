"""Places workloads one after another, each in the room that the earlier ones leave; `place.py` and `batch` call it.

Requests that no fleet could fulfil, whatever room it has, are refused first, and without a list of hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.plan import Rejection
from gpuops.plan.placement.fleet.site_demand import ShapeCounts, add_counts, count_shapes, subtract_counts
from gpuops.plan.placement.project import take
from gpuops.plan.placement.vm_demand import NOTHING_KEPT, KeepFree, PinPolicy
from gpuops.plan.queue.one_workload import Neighbours, Placed, Refusal, WorkloadQuestion
from gpuops.plan.queue.suggestions import nearest
from gpuops.plan.queue.workload import choices_of_devices, framebuffer_mib, running, scope_of, vm_of


@dataclass(frozen=True, slots=True)
class Queue:
    """The snapshot once the workloads so far run, and the answer for each of them."""

    inventory: Inventory
    catalog: Catalog
    explain: bool
    pin: PinPolicy
    answers: tuple[Placed | Refusal, ...] = ()
    neighbours: Neighbours = field(default_factory=Neighbours)
    coming: ShapeCounts = field(default_factory=dict)
    """The demand of workloads that are placed later. It counts in the site's mix like that of running VMs."""
    keep_free: KeepFree = NOTHING_KEPT
    any_reason: bool = True
    """Whether the reasons of a refusal are needed."""

    def with_best(self, workloads: Iterable[Workload]) -> Queue:
        """Return the queue after all of these: largest first, or as listed if that surely places more GPU memory.

        So one file never places less than the same requests made one by one. Largest first is usually better, but not
        always.
        """
        workloads = tuple(workloads)
        by_size = self.with_all(workloads)
        if all(isinstance(answer, Placed) for answer in by_size.answers):
            return by_size
        listed = as_listed(workloads, self.inventory, self.catalog)
        listed_trial = replace(self, any_reason=False)._in_turn(listed)
        if _sure_by_priority(listed_trial, workloads) <= _sure_by_priority(by_size, workloads):
            return by_size
        return self._in_turn(listed)

    def _in_turn(self, listed: Iterable[Sequence[Workload]]) -> Queue:
        return reduce(Queue.after, listed, self)

    def with_all(self, workloads: Iterable[Workload]) -> Queue:
        """Return the queue after all of these, in the order of placing."""
        workloads = tuple(workloads)
        demands = {workload: self._demand_of(workload) for workload in workloads}
        coming: ShapeCounts = reduce(add_counts, demands.values(), {})
        queue = self
        for unit in units(workloads, self.inventory, self.catalog):
            coming = reduce(subtract_counts, (demands[workload] for workload in unit), coming)
            queue = replace(queue, coming=coming).after(unit)
        return queue

    def _demand_of(self, workload: Workload) -> ShapeCounts:
        devices = choices_of_devices(workload, self.inventory, self.catalog)[0]
        return {} if isinstance(devices, Rejection) else count_shapes((vm_of(workload, devices),), self.catalog)

    def after(self, unit: Sequence[Workload]) -> Queue:
        return self._alone(unit[0]) if len(unit) == 1 else self._together(unit)

    def _alone(self, workload: Workload) -> Queue:
        trial = self.trial(workload)
        answer = trial.answer()
        if isinstance(answer, Refusal) and self.any_reason:
            answer = replace(answer, nearest=nearest(trial, answer.rejections))
        return self._with_answer(answer)

    def _together(self, unit: Sequence[Workload]) -> Queue:
        """Place the unit on the best host for its largest workload that takes all of them."""
        contradicted = contradictions(unit, self.inventory)
        if contradicted:
            return self._none_of(unit, contradicted)
        tried_hosts: frozenset[str] = frozenset()
        reasons: dict[Rejection, None] = {}
        most, at = 0, ""
        while True:
            queue = self
            host: str | None = None
            for number, workload in enumerate(unit):
                answer = replace(queue.trial(workload, only=host, without=tried_hosts), every_reason=False).answer()
                queue = queue._with_answer(answer)
                if isinstance(answer, Refusal):
                    reasons |= dict.fromkeys(answer.rejections)
                    break
                host = answer.placement.host.ref
                if number + 1 > most:
                    most, at = number + 1, answer.placement.host.name
            else:
                return queue
            if host is None:
                part = f"{most} of these {len(unit)} fit together on {at}" if most > 1 else ""
                return self._none_of(unit, (), tuple(reasons), part)
            tried_hosts |= {host}

    def _none_of(
        self,
        unit: Sequence[Workload],
        contradicted: Sequence[Rejection],
        reasons: Sequence[Rejection] = (),
        part: str = "",
    ) -> Queue:
        """Refuse the complete unit: for contradictions, for workloads without any place, or for the hosts' reasons.
        `part` tells how many of them a host would take."""
        alone = {workload.name: self.trial(workload).answer() for workload in unit}
        impossible = [name for name, answer in alone.items() if isinstance(answer, Refusal)]
        about_all = tuple(contradicted)
        if not contradicted and not impossible:
            names = ", ".join(workload.name for workload in unit)
            rule = f"must share a host with all of affinity {unit[0].affinity} ({names}), and no host takes them all"
            about_all = (Rejection(unit[0].name, rule),)
        queue, alternative = self, self._apart(unit) or part
        for workload in unit:
            own_answer = alone[workload.name]
            own_rejections = own_answer.rejections if isinstance(own_answer, Refusal) else ()
            other_names = [name for name in impossible if name != workload.name]
            rejections = (
                *(replace(reason, subject=workload.name) for reason in about_all),
                *own_rejections,
                *(
                    Rejection(workload.name, f"{name}, of the same affinity, has no place by itself")
                    for name in other_names
                ),
                *(() if impossible else reasons),
            )
            suggestion = nearest(self.trial(workload), own_rejections) if own_rejections else alternative
            if isinstance(own_answer, Placed) and not suggestion:
                suggestion = f"without affinity {workload.affinity} it fits on {own_answer.placement.host.name}"
            queue = queue._with_answer(Refusal(workload, tuple(dict.fromkeys(rejections)), nearest=suggestion))
        return queue

    def _apart(self, unit: Sequence[Workload]) -> str:
        """Return where they would fit if they need not share a host; empty if not even that."""
        queue = self
        for workload in unit:
            queue = queue._with_answer(queue.trial(replace(workload, affinity=None)).answer())
        separate_answers = queue.answers[len(self.answers) :]
        if any(isinstance(answer, Refusal) for answer in separate_answers):
            return ""
        hosts = ", ".join(
            f"{answer.workload.name} on {answer.placement.host.name}"
            for answer in separate_answers
            if isinstance(answer, Placed)
        )
        return f"without affinity {unit[0].affinity} they fit: {hosts}"

    def trial(
        self, workload: Workload, *, only: str | None = None, without: frozenset[str] = frozenset()
    ) -> WorkloadQuestion:
        """Return the question where this workload goes, in the room that the workloads so far leave."""
        context = (self.inventory, self.catalog, self.neighbours, self.explain, self.pin, self.coming)
        question = WorkloadQuestion(workload, *context, only, without, self.keep_free)
        return question if self.any_reason else replace(question, every_reason=False, any_reason=False)

    def having(self, placed: Sequence[Placed], inventory: Inventory) -> Queue:
        """Return the queue with these placed too. They depend on no other workload; in `inventory` they run."""
        return replace(self, inventory=inventory, answers=(*self.answers, *placed))

    def _with_answer(self, answer: Placed | Refusal) -> Queue:
        answers = (*self.answers, answer)
        if isinstance(answer, Refusal):
            return replace(self, answers=answers)
        vm = running(answer.vm, answer.placement, answer.workload.numa)
        return replace(
            self,
            inventory=take(vm, self.inventory, self.catalog),
            answers=answers,
            neighbours=self.neighbours.after(answer),
        )


def units(workloads: Iterable[Workload], inventory: Inventory, catalog: Catalog) -> Iterator[tuple[Workload, ...]]:
    """Return the units, which are placed together, and their members in the order of placing."""
    sizes = {workload: _size(workload, inventory, catalog) for workload in workloads}

    def rank(workload: Workload) -> tuple[int, bool, tuple[bool, int, int, int], str]:
        # Workloads that name their GPUs come first, since they can have no others.
        return (-workload.priority, not workload.device, sizes[workload], workload.name)

    units_by_key: dict[tuple[str, str], list[Workload]] = {}
    for workload in sorted(sizes, key=rank):
        alone = workload.affinity is None
        key = ("workload", workload.name) if alone else ("affinity", str(workload.affinity))
        units_by_key.setdefault(key, []).append(workload)
    return (tuple(unit) for unit in units_by_key.values())


def as_listed(
    workloads: Sequence[Workload], inventory: Inventory, catalog: Catalog
) -> tuple[tuple[Workload, ...], ...]:
    """Return the units by priority, and within a priority in the order in which they are listed."""
    place = {workload: number for number, workload in enumerate(workloads)}
    return tuple(
        sorted(
            units(workloads, inventory, catalog),
            key=lambda unit: (-unit[0].priority, min(place[workload] for workload in unit)),
        )
    )


def placed_mib(queue: Queue, among: Collection[str] | None = None) -> int:
    """Return the GPU memory of the placed requests, in MiB; with `among` only of requests with these names."""
    placed = (answer for answer in queue.answers if isinstance(answer, Placed))
    counted = (answer for answer in placed if among is None or answer.workload.name in among)
    return sum(framebuffer_mib(answer.vm.devices or (), queue.catalog) for answer in counted)


def placed_by_priority(queue: Queue, workloads: Sequence[Workload]) -> tuple[int, ...]:
    """Return the placed GPU memory of each priority in MiB, the highest priority first."""
    names: dict[int, set[str]] = {}
    for workload in workloads:
        names.setdefault(workload.priority, set()).add(workload.name)
    return tuple(placed_mib(queue, of_priority) for _, of_priority in sorted(names.items(), reverse=True))


def _sure_by_priority(queue: Queue, workloads: Sequence[Workload]) -> tuple[int, ...]:
    """As `placed_by_priority`, without places in doubt: where a power-on may be refused."""
    sure = tuple(answer for answer in queue.answers if isinstance(answer, Placed) and not answer.placement.doubts)
    return placed_by_priority(replace(queue, answers=sure), workloads)


def _size(workload: Workload, inventory: Inventory, catalog: Catalog) -> tuple[bool, int, int, int]:
    """Return the sort key, larger workloads first. Workloads that can use only one GPU model come before all others."""
    devices, *other_choices = choices_of_devices(workload, inventory, catalog)
    if isinstance(devices, Rejection):
        return (False, 0, -workload.memory_mib, -workload.vcpus)
    return (bool(other_choices), -framebuffer_mib(devices, catalog), -workload.memory_mib, -workload.vcpus)


def contradictions(unit: Sequence[Workload], inventory: Inventory) -> tuple[Rejection, ...]:
    """Return the contradictions among workloads of one affinity; empty for a single workload."""
    if len(unit) == 1:
        return ()
    rejections: list[Rejection] = []
    affinity = unit[0].affinity
    apart: dict[str, list[str]] = {}
    for workload in unit:
        if workload.anti_affinity is not None:
            apart.setdefault(workload.anti_affinity, []).append(workload.name)
    for word, names in apart.items():
        if len(names) > 1:
            rule = f"affinity {affinity} and anti-affinity {word} contradict each other for {', '.join(names)}"
            rejections.append(Rejection(names[0], rule, hint="remove the affinity or the anti-affinity from them"))
    hosts = [{host.ref for host in scope_of(workload).hosts(inventory)} for workload in unit]
    if all(hosts) and not set.intersection(*hosts):
        everybody = ", ".join(workload.name for workload in unit)
        rule = f"affinity {affinity} needs one host for {everybody}, and no host matches all of their requests"
        rejections.append(Rejection(unit[0].name, rule, hint="request the same cluster, host and tag for all of them"))
    return tuple(rejections)
