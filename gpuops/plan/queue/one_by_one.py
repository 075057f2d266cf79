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
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.fleet.site_demand import ShapeCounts, add_counts, count_shapes, subtract_counts
from gpuops.plan.placement.project import take
from gpuops.plan.placement.vm_demand import NOTHING_KEPT, KeepFree, PinPolicy
from gpuops.plan.queue.one_workload import Neighbours, Placed, Refusal, WorkloadQuestion
from gpuops.plan.queue.suggestions import suggest_smaller_request
from gpuops.plan.queue.workload_hosts import choices_of_devices, framebuffer_mib, running, scope_of, vm_of


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
        # by size, the largest first
        by_size = self.with_all(workloads)
        if all(isinstance(answer, Placed) for answer in by_size.answers):
            return by_size
        # The reasons of refusals take long and are of no use until it is known that this order is the answer.
        listed = as_listed(workloads, self.inventory, self.catalog)
        listed_trial = reduce(Queue.after, listed, replace(self, any_reason=False))
        if _sure_by_priority(listed_trial, workloads) <= _sure_by_priority(by_size, workloads):
            return by_size
        return reduce(Queue.after, listed, self)

    def with_all(self, workloads: Iterable[Workload]) -> Queue:
        """Return the queue after all of these, placed in the order of `units`."""
        workloads = tuple(workloads)
        demands: dict[Workload, ShapeCounts] = {}
        for workload in workloads:
            devices = choices_of_devices(workload, self.inventory, self.catalog)[0]
            demands[workload] = {}
            if not isinstance(devices, Rejection):
                demands[workload] = count_shapes((vm_of(workload, devices),), self.catalog)
        # What is still to come counts as demand, so that early VMs do not take the GPUs that only later ones can use.
        coming: ShapeCounts = reduce(add_counts, demands.values(), {})
        queue = self
        for unit in units(workloads, self.inventory, self.catalog):
            coming = reduce(subtract_counts, (demands[workload] for workload in unit), coming)
            queue = replace(queue, coming=coming).after(unit)
        return queue

    def after(self, unit: Sequence[Workload]) -> Queue:
        """Return the queue with one more unit: a workload of its own, or all of one affinity."""
        if len(unit) > 1:
            return self._together(unit)
        question = self.question_for(unit[0])
        answer = question.answer()
        if isinstance(answer, Refusal) and self.any_reason:
            answer = replace(answer, nearest=suggest_smaller_request(question, answer.rejections))
        return self._with_answer(answer)

    def _together(self, unit: Sequence[Workload]) -> Queue:
        """Place the unit on the best host for its largest workload that takes all of them.

        Example: of three workloads the largest fits on esx-01 and esx-02, and esx-01 is better. If one of the others
        finds no room there, esx-01 is excluded and all three are tried again: now the largest goes to esx-02.
        """
        contradicted = contradictions(unit, self.inventory)
        if contradicted:
            return self._refuse_unit(unit, contradicted)
        tried_hosts: frozenset[str] = frozenset()
        reasons: dict[Rejection, None] = {}
        most_placed, best_host = 0, ""
        while True:
            queue = self
            host: str | None = None
            for number, workload in enumerate(unit, 1):
                # The first one chooses the host, and the others must follow it there.
                question = queue.question_for(workload, only=host, without=tried_hosts)
                answer = replace(question, every_reason=False).answer()
                queue = queue._with_answer(answer)
                if isinstance(answer, Refusal):
                    reasons |= dict.fromkeys(answer.rejections)
                    break
                host = answer.placement.host.ref
                if number > most_placed:
                    most_placed, best_host = number, answer.placement.host.name
            else:  # no workload of the unit was refused
                return queue
            if host is None:  # no host is left for the largest workload
                part = f"{most_placed} of these {len(unit)} fit together on {best_host}" if most_placed > 1 else ""
                return self._refuse_unit(unit, (), tuple(reasons), part)
            tried_hosts |= {host}

    def _refuse_unit(
        self,
        unit: Sequence[Workload],
        contradicted: Sequence[Rejection],
        reasons: Sequence[Rejection] = (),
        part: str = "",
    ) -> Queue:
        """Refuse the complete unit: for contradictions, for workloads without any place, or for the hosts' reasons.
        `part` says how many of them a host would take: the suggestion if none fits better."""
        answers_alone = {workload.name: self.question_for(workload).answer() for workload in unit}
        impossible = [name for name, answer in answers_alone.items() if isinstance(answer, Refusal)]
        reasons_for_all = tuple(contradicted)
        if not contradicted and not impossible:
            names = ", ".join(workload.name for workload in unit)
            rule = f"must share a host with all of affinity {unit[0].affinity} ({names}), and no host takes them all"
            reasons_for_all = (Rejection(unit[0].name, rule),)
        queue, alternative = self, self._suggest_separate_hosts(unit) or part
        for workload in unit:
            name, answer_alone = workload.name, answers_alone[workload.name]
            rejections = [replace(reason, subject=name) for reason in reasons_for_all]
            suggestion = alternative
            if isinstance(answer_alone, Refusal):
                rejections += answer_alone.rejections
                if answer_alone.rejections:
                    suggestion = suggest_smaller_request(self.question_for(workload), answer_alone.rejections)
            elif not suggestion:
                host = answer_alone.placement.host.name
                suggestion = f"without affinity {workload.affinity} it fits on {host}"
            for other_name in impossible:
                if other_name != name:
                    rejections.append(Rejection(name, f"{other_name}, of the same affinity, has no place by itself"))
            if not impossible:
                rejections += reasons
            queue = queue._with_answer(Refusal(workload, tuple(dict.fromkeys(rejections)), nearest=suggestion))
        return queue

    def _suggest_separate_hosts(self, unit: Sequence[Workload]) -> str:
        """Return where they would fit if they need not share a host; empty if not even that."""
        queue, places = self, []
        for workload in unit:
            answer = queue.question_for(replace(workload, affinity=None)).answer()
            if isinstance(answer, Refusal):
                return ""
            places.append(f"{workload.name} on {answer.placement.host.name}")
            queue = queue._with_answer(answer)
        return f"without affinity {unit[0].affinity} they fit: {', '.join(places)}"

    def question_for(
        self, workload: Workload, *, only: str | None = None, without: frozenset[str] = frozenset()
    ) -> WorkloadQuestion:
        """Return the question where this workload goes, in the room that the workloads so far leave."""
        context = (self.inventory, self.catalog, self.neighbours, self.explain, self.pin, self.coming)
        question = WorkloadQuestion(workload, *context, only, without, self.keep_free)
        return question if self.any_reason else replace(question, every_reason=False, any_reason=False)

    def with_placed(self, placed: Sequence[Placed], inventory: Inventory) -> Queue:
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
    """Return the units, which are placed together, and their members in the order of placing.

    The order is by priority, then those that name their GPUs, then by size.
    """
    sizes = {workload: _size(workload, inventory, catalog) for workload in workloads}

    def rank(workload: Workload) -> tuple[int, bool, tuple[bool, int, int, int], str]:
        # Workloads that name their GPUs come first, since they can have no others.
        return (-workload.priority, not workload.device, sizes[workload], workload.name)

    # A unit comes where its first member does; the prefix keeps a workload apart from an affinity with its name.
    units_by_key: dict[tuple[str, str], list[Workload]] = {}
    for workload in sorted(sizes, key=rank):
        key = ("workload", workload.name) if workload.affinity is None else ("affinity", workload.affinity)
        units_by_key.setdefault(key, []).append(workload)
    return map(tuple, units_by_key.values())


def as_listed(
    workloads: Sequence[Workload], inventory: Inventory, catalog: Catalog
) -> tuple[tuple[Workload, ...], ...]:
    """Return the units by priority, and within a priority in the order in which they are listed."""
    position = {workload: number for number, workload in enumerate(workloads)}

    def rank(unit: tuple[Workload, ...]) -> tuple[int, int]:
        return (-unit[0].priority, min(position[workload] for workload in unit))

    return tuple(sorted(units(workloads, inventory, catalog), key=rank))


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
    return tuple(placed_mib(queue, names[priority]) for priority in sorted(names, reverse=True))


def _sure_by_priority(queue: Queue, workloads: Sequence[Workload]) -> tuple[int, ...]:
    """Return the GPU memory that is surely placed, of each priority in MiB, the highest priority first.

    Places with a doubt are not counted: their power-on may be refused.
    """
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
    names_by_anti_affinity: dict[str, list[str]] = {}
    for workload in unit:
        if workload.anti_affinity is not None:
            names_by_anti_affinity.setdefault(workload.anti_affinity, []).append(workload.name)
    for anti_affinity, names in names_by_anti_affinity.items():
        if len(names) > 1:
            rule = f"affinity {affinity} and anti-affinity {anti_affinity} contradict each other for {', '.join(names)}"
            rejections.append(Rejection(names[0], rule, hint="remove the affinity or the anti-affinity from them"))
    # A workload without any host in its scope is refused for that reason elsewhere.
    hosts = [{host.ref for host in scope_of(workload).hosts(inventory)} for workload in unit]
    if all(hosts) and not set.intersection(*hosts):
        all_names = ", ".join(workload.name for workload in unit)
        rule = f"affinity {affinity} needs one host for {all_names}, and no host matches all of their requests"
        rejections.append(Rejection(unit[0].name, rule, hint="request the same cluster, host and tag for all of them"))
    return tuple(rejections)
