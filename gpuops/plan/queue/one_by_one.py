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
from gpuops.plan.placement.wanted import NOTHING_KEPT, KeepFree, PinPolicy
from gpuops.plan.queue.eligible_hosts import scope_of
from gpuops.plan.queue.one_workload import Neighbours, Placed, Refusal, WorkloadQuestion
from gpuops.plan.queue.suggestions import nearest
from gpuops.plan.queue.workload_vm import choices_of_devices, framebuffer_mib, running, vm_of


@dataclass(frozen=True, slots=True)
class Queue:
    """The snapshot as it is once the workloads so far run, and what became of them."""

    inventory: Inventory
    catalog: Catalog
    explain: bool
    pin: PinPolicy
    answers: tuple[Placed | Refusal, ...] = ()
    neighbours: Neighbours = field(default_factory=Neighbours)
    coming: ShapeCounts = field(default_factory=dict)
    """What those ask for whose turn is later: they are as much of the site's mix as what runs."""
    keep_free: KeepFree = NOTHING_KEPT
    any_reason: bool = True
    """Whether anybody looks at the reasons of a refusal."""

    def with_best(self, workloads: Iterable[Workload]) -> Queue:
        """After all of these, as `with_all`, or as they are listed where that surely places more GPU memory.

        So a file never places less than its requests do that are made one after another, each knowing of none that
        comes later. Largest first is the better rule, and loses now and then.
        """
        workloads = tuple(workloads)
        by_size = self.with_all(workloads)
        if all(isinstance(answer, Placed) for answer in by_size.answers):
            return by_size
        listed = as_listed(workloads, self.inventory, self.catalog)
        tried = replace(self, any_reason=False)._in_turn(listed)
        if _sure_by_priority(tried, workloads) <= _sure_by_priority(by_size, workloads):
            return by_size
        return self._in_turn(listed)

    def _in_turn(self, listed: Iterable[Sequence[Workload]]) -> Queue:
        return reduce(Queue.after, listed, self)

    def with_all(self, workloads: Iterable[Workload]) -> Queue:
        """After all of these, in the order of placing."""
        workloads = tuple(workloads)
        asked = {workload: self._asked(workload) for workload in workloads}
        coming: ShapeCounts = reduce(add_counts, asked.values(), {})
        queue = self
        for unit in units(workloads, self.inventory, self.catalog):
            coming = reduce(subtract_counts, (asked[workload] for workload in unit), coming)
            queue = replace(queue, coming=coming).after(unit)
        return queue

    def _asked(self, workload: Workload) -> ShapeCounts:
        devices = choices_of_devices(workload, self.inventory, self.catalog)[0]
        return {} if isinstance(devices, Rejection) else count_shapes((vm_of(workload, devices),), self.catalog)

    def after(self, unit: Sequence[Workload]) -> Queue:
        return self._alone(unit[0]) if len(unit) == 1 else self._together(unit)

    def _alone(self, workload: Workload) -> Queue:
        trial = self.trial(workload)
        answer = trial.answer()
        if isinstance(answer, Refusal) and self.any_reason:
            return self._with(replace(answer, nearest=nearest(trial, answer.rejections)))
        return self._with(answer)

    def _together(self, unit: Sequence[Workload]) -> Queue:
        """The unit on the best host of its largest that takes all of them."""
        against = contradictions(unit, self.inventory)
        if against:
            return self._none_of(unit, against)
        tried: frozenset[str] = frozenset()
        reasons: dict[Rejection, None] = {}
        most, at = 0, ""
        while True:
            queue = self
            host: str | None = None
            for number, workload in enumerate(unit):
                answer = replace(queue.trial(workload, only=host, without=tried), every_reason=False).answer()
                queue = queue._with(answer)
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
            tried |= {host}

    def _none_of(
        self,
        unit: Sequence[Workload],
        contradicted: Sequence[Rejection],
        reasons: Sequence[Rejection] = (),
        part: str = "",
    ) -> Queue:
        """All refused: for what contradicts itself, for what each has against itself, or for the reasons on hosts.

        `part` says how many of them a host would take.
        """
        alone = {workload.name: self.trial(workload).answer() for workload in unit}
        impossible = [name for name, answer in alone.items() if isinstance(answer, Refusal)]
        about_all = contradicted if contradicted or impossible else (self._not_together(unit),)
        queue, instead = self, self._apart(unit) or part
        for workload in unit:
            itself = alone[workload.name]
            own = itself.rejections if isinstance(itself, Refusal) else ()
            others = [name for name in impossible if name != workload.name]
            found = (
                *(replace(reason, subject=workload.name) for reason in about_all),
                *own,
                *(Rejection(workload.name, f"{name}, of the same affinity, has no place by itself") for name in others),
                *(() if impossible else reasons),
            )
            near = nearest(self.trial(workload), own) if own else instead
            if isinstance(itself, Placed) and not near:
                near = f"without affinity {workload.affinity} it fits on {itself.placement.host.name}"
            queue = queue._with(Refusal(workload, tuple(dict.fromkeys(found)), nearest=near))
        return queue

    def _not_together(self, unit: Sequence[Workload]) -> Rejection:
        names = ", ".join(workload.name for workload in unit)
        rule = f"must share a host with all of affinity {unit[0].affinity} ({names}), and no host takes them all"
        return Rejection(unit[0].name, rule)

    def _apart(self, unit: Sequence[Workload]) -> str:
        """Where they would fit each on its own; empty where not even so."""
        queue = self
        for workload in unit:
            queue = queue._with(queue.trial(replace(workload, affinity=None)).answer())
        found = queue.answers[len(self.answers) :]
        if any(isinstance(answer, Refusal) for answer in found):
            return ""
        hosts = ", ".join(
            f"{answer.workload.name} on {answer.placement.host.name}" for answer in found if isinstance(answer, Placed)
        )
        return f"without affinity {unit[0].affinity} they fit: {hosts}"

    def trial(
        self, workload: Workload, *, only: str | None = None, without: frozenset[str] = frozenset()
    ) -> WorkloadQuestion:
        """The question where this one goes, in the room that the workloads so far leave."""
        known = (self.inventory, self.catalog, self.neighbours, self.explain, self.pin, self.coming)
        question = WorkloadQuestion(workload, *known, only, without, self.keep_free)
        return question if self.any_reason else replace(question, every_reason=False, any_reason=False)

    def having(self, placed: Sequence[Placed], inventory: Inventory) -> Queue:
        """With these placed too, who look at no other; `inventory` is the snapshot in which they run."""
        return replace(self, inventory=inventory, answers=(*self.answers, *placed))

    def _with(self, answer: Placed | Refusal) -> Queue:
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
    """What is placed at once, in the order of placing; the members of a unit in theirs."""
    sizes = {workload: _size(workload, inventory, catalog) for workload in workloads}

    def rank(workload: Workload) -> tuple[int, bool, tuple[bool, int, int, int], str]:
        # What names its GPUs, or their model, can have no others: who says less is given some of the rest.
        return (-workload.priority, not workload.device, sizes[workload], workload.name)

    found: dict[tuple[str, str], list[Workload]] = {}
    for workload in sorted(sizes, key=rank):
        alone = workload.affinity is None
        found.setdefault(("workload", workload.name) if alone else ("affinity", str(workload.affinity)), []).append(
            workload
        )
    return (tuple(unit) for unit in found.values())


def as_listed(
    workloads: Sequence[Workload], inventory: Inventory, catalog: Catalog
) -> tuple[tuple[Workload, ...], ...]:
    """The units in the order in which they are listed, but for priorities, which go first."""
    place = {workload: number for number, workload in enumerate(workloads)}
    return tuple(
        sorted(
            units(workloads, inventory, catalog),
            key=lambda unit: (-unit[0].priority, min(place[workload] for workload in unit)),
        )
    )


def placed_mib(queue: Queue, among: Collection[str] | None = None) -> int:
    """GPU memory of the placed requests, in MiB; with `among` of those with these names only."""
    placed = (answer for answer in queue.answers if isinstance(answer, Placed))
    counted = (each for each in placed if among is None or each.workload.name in among)
    return sum(framebuffer_mib(each.vm.devices or (), queue.catalog) for each in counted)


def placed_by_priority(queue: Queue, workloads: Sequence[Workload]) -> tuple[int, ...]:
    """GPU memory placed of each priority in MiB, the highest priority first."""
    names: dict[int, set[str]] = {}
    for workload in workloads:
        names.setdefault(workload.priority, set()).add(workload.name)
    return tuple(placed_mib(queue, of_priority) for _, of_priority in sorted(names.items(), reverse=True))


def _sure_by_priority(queue: Queue, workloads: Sequence[Workload]) -> tuple[int, ...]:
    """As `placed_by_priority`, without places in doubt: where a power-on may be refused."""
    sure = tuple(each for each in queue.answers if isinstance(each, Placed) and not each.placement.doubts)
    return placed_by_priority(replace(queue, answers=sure), workloads)


def _size(workload: Workload, inventory: Inventory, catalog: Catalog) -> tuple[bool, int, int, int]:
    """Smaller is larger: what sorts first. Whether GPUs of several models would do comes before the size."""
    devices, *others = choices_of_devices(workload, inventory, catalog)
    if isinstance(devices, Rejection):
        return (False, 0, -workload.memory_mib, -workload.vcpus)
    return (bool(others), -framebuffer_mib(devices, catalog), -workload.memory_mib, -workload.vcpus)


def contradictions(unit: Sequence[Workload], inventory: Inventory) -> tuple[Rejection, ...]:
    """What contradicts itself among workloads of one affinity; nothing for one alone."""
    return tuple(_of(unit, inventory)) if len(unit) > 1 else ()


def _of(unit: Sequence[Workload], inventory: Inventory) -> Iterator[Rejection]:
    affinity = unit[0].affinity
    apart: dict[str, list[str]] = {}
    for workload in unit:
        if workload.anti_affinity is not None:
            apart.setdefault(workload.anti_affinity, []).append(workload.name)
    for word, names in apart.items():
        if len(names) > 1:
            rule = f"affinity {affinity} and anti-affinity {word} contradict each other for {', '.join(names)}"
            yield Rejection(names[0], rule, hint="give them one of the two words")
    hosts = [{host.ref for host in scope_of(workload).hosts(inventory)} for workload in unit]
    if all(hosts) and not set.intersection(*hosts):
        everybody = ", ".join(workload.name for workload in unit)
        rule = f"affinity {affinity} wants one host for {everybody}, and no host is meant by all of them"
        yield Rejection(unit[0].name, rule, hint="ask for the same hosts in each of them")
