"""Suggestions for a workload that finds no place: a smaller request, or a place after a few vMotions.

One requirement is given up at a time, and the number of GPUs last. Only if that is not enough, the vCPUs and memory are
first cut to what hosts have. vMotions are only searched for in small fleets, where that is fast; in larger ones use
`gpuops defrag`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.vgpu import near, parse
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.plan import Rejection, Shortage
from gpuops.plan.core.scope import Scope
from gpuops.plan.devices.goal import groups_of, profile_meant
from gpuops.plan.placement.project import project
from gpuops.plan.queue.one_workload import Placed, WorkloadQuestion, without_reasons
from gpuops.plan.queue.workload_hosts import scope_of, unknown_profiles, vm_of

if TYPE_CHECKING:
    from gpuops.plan.moving.defrag import PlannedMove


_GIB_MIB: Final = 1024
_FEW: Final = 3


@dataclass(frozen=True, slots=True)
class _Wish:
    """A smaller request, and words for what it still has or gives up."""

    workload: Workload
    words: tuple[str, ...] = ()

    def less(self, words: str, workload: Workload) -> _Wish:
        return _Wish(workload, (*self.words, words))


def nearest(trial: WorkloadQuestion, against: Sequence[Rejection]) -> str:
    """Return the first smaller request that has a place now, and where; empty if there is no such request. `against`:
    why the workload itself has no place."""
    requested = _Wish(trial.workload)
    named = tuple(_named_nearly(requested, trial))
    suggestion = _first_of(named, trial)
    if suggestion:
        return suggestion
    # If no profile has that name, the other changes are tried with the profile whose name is most similar.
    for base in _bases(named[0] if named else requested, against):
        wishes = (*((base,) if base.words else ()), *_elsewhere(base), *_others(base, trial))
        suggestion = _first_of(wishes, trial) or _largest_part(base, trial)
        if suggestion:
            return suggestion
    return ""


def _first_of(wishes: Iterable[_Wish], trial: WorkloadQuestion) -> str:
    return next((answer for wish in wishes if (answer := _fits(wish, trial))), "")


def _fits(wish: _Wish, trial: WorkloadQuestion) -> str:
    answer = without_reasons(trial, wish.workload).answer()
    if not isinstance(answer, Placed):
        return ""
    first, *further_words = wish.words
    words = " and ".join((first, *(words_part.removeprefix("with ") for words_part in further_words)))
    return f"{words} it fits on {answer.placement.host.name}"


def _bases(requested: _Wish, against: Sequence[Rejection]) -> Iterator[_Wish]:
    """Yield the request unchanged, then cut to the cores and the memory that hosts have according to the refusals."""
    workload = requested.workload
    yield requested
    vcpus = _largest_available(against, Shortage.VCPUS, workload.vcpus)
    memory_mib = _largest_available(against, Shortage.MEMORY, workload.memory_mib)
    memory_mib -= memory_mib % _GIB_MIB
    cut = requested
    if vcpus:
        cut = requested.less(f"with {vcpus} of its {workload.vcpus} vCPUs", replace(workload, vcpus=vcpus))
        yield cut
    if memory_mib:
        words = f"with {memory_mib // _GIB_MIB} GiB of memory"
        yield requested.less(words, replace(workload, memory_mib=memory_mib))
        if cut is not requested:
            cut = cut.less(words, replace(cut.workload, memory_mib=memory_mib))
            yield cut
    if cut is not requested and workload.numa is NumaPolicy.REQUIRED:
        yield cut.less("with numa preferred", replace(cut.workload, numa=NumaPolicy.PREFERRED))


def _largest_available(against: Iterable[Rejection], shortage: Shortage, needed: int) -> int:
    """Return the largest available amount in the refusals for this shortage; 0 if they contain no amount."""
    available = (
        rejection.available for rejection in against if rejection.short_of is shortage and rejection.needed == needed
    )
    return max((int(amount) for amount in available if isinstance(amount, int | float)), default=0)


def _named_nearly(requested: _Wish, trial: WorkloadQuestion) -> Iterator[_Wish]:
    """Yield, for an unknown profile, the profiles with similar names, or else the smallest profiles of the fleet."""
    workload, inventory = requested.workload, trial.inventory
    for unknown in unknown_profiles(workload, inventory, trial.catalog)[:1]:
        alike = near(unknown, inventory.offered_profiles)
        for name in alike:
            yield requested.less(f"as {name}", _with_profile(workload, unknown, name))
        if not alike:
            sizes = {name: parsed.framebuffer_mib for name in inventory.offered_profiles if (parsed := parse(name))}
            for name in sorted(sizes, key=lambda name: (sizes[name], name))[:_FEW]:
                yield requested.less(f"as {name}, one of the smallest,", _with_profile(workload, unknown, name))


def _with_profile(workload: Workload, old: str, new: str) -> Workload:
    further_vgpus = tuple(replace(vgpus, profile=new) if vgpus.profile == old else vgpus for vgpus in workload.more)
    return replace(workload, profile=new if workload.profile == old else workload.profile, more=further_vgpus)


def _elsewhere(base: _Wish) -> Iterator[_Wish]:
    """Yield the same VM with one fewer condition on its place."""
    workload = base.workload
    if workload.numa is NumaPolicy.REQUIRED:
        yield base.less("with numa preferred", replace(workload, numa=NumaPolicy.PREFERRED))
    if workload.host is not None:
        yield base.less(f"on a host not named {workload.host}", replace(workload, host=None))
    if workload.tag:
        yield base.less(f"without tag {', '.join(workload.tag)}", replace(workload, tag=()))
    if workload.cluster is not None:
        outside = replace(workload, host=None, cluster=None)
        yield base.less(f"outside of cluster {workload.cluster}", outside)
    if workload.anti_affinity is not None:
        yield base.less(f"without anti-affinity {workload.anti_affinity}", replace(workload, anti_affinity=None))


def _others(base: _Wish, trial: WorkloadQuestion) -> Iterator[_Wish]:
    """Yield the same number of other GPUs, if the workload names its GPUs, a model, a label or a device group."""
    workload = base.workload
    if workload.label is not None:
        yield base.less(f"without label {workload.label}", replace(workload, label=None))
    if workload.model is not None:
        yield base.less(f"with a model other than {workload.model}", replace(workload, model=None))
    if workload.device:
        named = ", ".join(map(str, workload.device))
        yield base.less(f"with devices other than {named}", replace(workload, device=(), gpus=len(workload.device)))
    if workload.device_group is not None:
        hosts = scope_of(workload).hosts(trial.inventory)
        names = {group.name for host in hosts for group in groups_of(host)} - {workload.device_group}
        for name in sorted(names)[:_FEW]:
            yield base.less(f"as device group {name}", replace(workload, device_group=name))


def _largest_part(base: _Wish, trial: WorkloadQuestion) -> str:
    """Suggest as many of its GPUs as find a place, or else the largest smaller profile that does; empty = none."""
    workload = base.workload
    if workload.more:
        counts = [base.less(f"with its vGPUs of {workload.profile} alone", replace(workload, more=()))]
    elif workload.count > 1:
        counts = [
            base.less(f"with {n} of its {workload.count} vGPUs", replace(workload, count=n))
            for n in range(1, workload.count)
        ]
    else:
        counts = [
            base.less(f"with {n} of its {workload.gpus} GPUs", replace(workload, gpus=n))
            for n in range(1, workload.gpus)
        ]
    return _last_that_fits(counts, trial) or _first_of(_smaller_profiles(base, trial), trial)


def _last_that_fits(rising: Sequence[_Wish], trial: WorkloadQuestion) -> str:
    """Return the largest of these rising requests that fits, by bisection: if one fits, all before it fit too."""
    best, low, high = "", 0, len(rising)
    while low < high:
        # The smallest is tried first: if it does not fit, no request does.
        middle = (low + high) // 2 if best else low
        fitting = _fits(rising[middle], trial)
        if fitting:
            best, low = fitting, middle + 1
        elif not best:
            return ""
        else:
            high = middle
    return best


def _smaller_profiles(base: _Wish, trial: WorkloadQuestion) -> Iterator[_Wish]:
    """Yield the request with profiles of the same GPU and series with less memory, the largest first."""
    requested = parse(offered(base.workload, trial))
    if requested is None:
        return
    # prefix, series, whether it is time-sliced, and without the media engines, which one instance of a GPU has
    family = (requested.esxi_prefix, requested.series, requested.slices is None, False)
    smaller: list[tuple[int, str]] = []
    for name in trial.inventory.offered_profiles:
        parsed = parse(name)
        if parsed is None or parsed.framebuffer_mib >= requested.framebuffer_mib:
            continue
        if (parsed.esxi_prefix, parsed.series, parsed.slices is None, parsed.media) == family:
            smaller.append((parsed.framebuffer_mib, name))
    for _, name in sorted(smaller, reverse=True):
        yield base.less(f"as {name}", replace(base.workload, profile=name))


def offered(workload: Workload, trial: WorkloadQuestion) -> str:
    """Return the ESXi name of the workload's profile; empty if it is unknown or if the workload has not exactly one."""
    if workload.profile is None or workload.more or unknown_profiles(workload, trial.inventory, trial.catalog):
        return ""
    return profile_meant(workload.profile, vm_of(workload), None, trial.inventory, trial.catalog)


_MOST_MOVES: Final = 3
"""vMotions at most: if more are needed, `gpuops defrag` should run first."""
_MOST_GPUS: Final = 64


@dataclass(frozen=True)
class RoomByMoves:
    """Finds room by vMotions. In `world` all VMs with a place or a claim run; `now` is the snapshot as read."""

    world: Inventory
    now: Inventory
    _cached_moves: dict[tuple[str, str | None], tuple[PlannedMove, ...]] = field(default_factory=dict)
    """By profile and cluster: many refused requests are alike."""

    def after_moves(self, trial: WorkloadQuestion) -> str:
        """Return the moves and where the workload then fits; empty if no such moves are known."""
        profile = offered(trial.workload, trial)
        world = self.world
        moves = self._moves(profile, trial.workload.cluster, trial.catalog) if profile else ()
        for number, move in enumerate(moves, 1):
            world = project(move.step, world, trial.catalog)
            answer = replace(without_reasons(trial, trial.workload), inventory=world).answer()
            if isinstance(answer, Placed):
                return f"{_words(moves[:number])} it fits on {answer.placement.host.name}"
        return ""

    def _moves(self, profile: str, cluster: str | None, catalog: Catalog) -> tuple[PlannedMove, ...]:
        key = (profile, cluster)
        if key not in self._cached_moves:
            self._cached_moves[key] = ()
            scope = Scope(cluster)
            if self.now.hot_migrate_enabled and sum(len(host.gpus) for host in scope.hosts(self.world)) <= _MOST_GPUS:
                from gpuops.plan.moving.defrag import Defrag

                request = Defrag(profile, _MOST_MOVES, cluster=cluster)
                self._cached_moves[key] = request.find_moves(self.world, catalog, self._yet_to_run).moves
        return self._cached_moves[key]

    @cached_property
    def _yet_to_run(self) -> dict[str, str]:
        """Return why VMs cannot be moved that run only in `world`, by VM ref."""
        runs = {ref for ref, vm in self.now.vms.items() if vm.power is PowerState.ON}
        planned_refs = (ref for ref, vm in self.world.vms.items() if vm.power is PowerState.ON)
        return {ref: "does not run yet" for ref in planned_refs if ref not in runs}


def _words(moves: Sequence[PlannedMove]) -> str:
    return "after vMotion " + ", then ".join(f"of {move.vm.name} to {move.target.name}" for move in moves)
