"""What a workload that finds no place could have instead: a little less, or a place after a few vMotions.

One wish is given up at a time, what is dearest last: fewer GPUs is another VM. Only where that is not enough, the VM is
first made as small as the hosts are. vMotions are looked for in fleets that are searched in a moment; in larger ones
`gpuops defrag` plans moves. `one_by_one.py` and `place.py` call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.profile_name import near, parse
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.plan import Rejection, Shortage
from gpuops.plan.core.scope import Scope
from gpuops.plan.devices.requested import groups_of, profile_meant
from gpuops.plan.placement.project import project
from gpuops.plan.queue.eligible_hosts import scope_of
from gpuops.plan.queue.one_workload import Placed, WorkloadQuestion, relaxed
from gpuops.plan.queue.workload_vm import unknown_profiles, vm_of

if TYPE_CHECKING:
    from gpuops.plan.moving.result import PlannedMove


_GIB_MIB: Final = 1024
_FEW: Final = 3


@dataclass(frozen=True, slots=True)
class _Wish:
    """A smaller wish, and in words what is left of it or was given up."""

    workload: Workload
    words: tuple[str, ...] = ()

    def less(self, words: str, workload: Workload) -> _Wish:
        return _Wish(workload, (*self.words, words))


def nearest(trial: WorkloadQuestion, against: Sequence[Rejection]) -> str:
    """The first smaller wish that has a place now, and where; empty when none has. `against` is why it has none."""
    asked = _Wish(trial.workload)
    named = tuple(_named_nearly(asked, trial))
    found = _first_of(named, trial)
    # Where no profile has that name, the other wishes are tried with the profile whose name is most similar.
    for base in () if found else _bases((*named, asked)[0], against):
        own = (base,) if base.words else ()
        found = _first_of((*own, *_elsewhere(base), *_others(base, trial)), trial) or _fewest_less(base, trial)
        if found:
            break
    return found


def _first_of(wishes: Iterable[_Wish], trial: WorkloadQuestion) -> str:
    return next((answer for wish in wishes if (answer := _fits(wish, trial))), "")


def _fits(wish: _Wish, trial: WorkloadQuestion) -> str:
    answer = relaxed(trial, wish.workload).answer()
    if not isinstance(answer, Placed):
        return ""
    first, *more = wish.words
    words = " and ".join((first, *(each.removeprefix("with ") for each in more)))
    return f"{words} it fits on {answer.placement.host.name}"


def _bases(asked: _Wish, against: Sequence[Rejection]) -> Iterator[_Wish]:
    """The wish as it is, then cut to the cores and the memory that the refusals say are there."""
    workload = asked.workload
    yield asked
    vcpus = _there(workload.vcpus, (each for each in against if each.short_of is Shortage.VCPUS))
    memory_mib = _there(workload.memory_mib, (each for each in against if each.short_of is Shortage.MEMORY))
    memory_mib -= memory_mib % _GIB_MIB
    cut = asked
    if vcpus:
        cut = asked.less(f"with {vcpus} of its {workload.vcpus} vCPUs", replace(workload, vcpus=vcpus))
        yield cut
    if memory_mib:
        words = f"with {memory_mib // _GIB_MIB} GiB of memory"
        yield asked.less(words, replace(workload, memory_mib=memory_mib))
        if cut is not asked:
            cut = cut.less(words, replace(cut.workload, memory_mib=memory_mib))
            yield cut
    if cut is not asked and workload.numa is NumaPolicy.REQUIRED:
        yield cut.less("with numa preferred", replace(cut.workload, numa=NumaPolicy.PREFERRED))


def _there(needed: int, against: Iterable[Rejection]) -> int:
    """The most of it that a refusal says is there; 0 = none says so."""
    found = (each.available for each in against if each.needed == needed)
    return max((int(each) for each in found if isinstance(each, int | float)), default=0)


def _named_nearly(asked: _Wish, trial: WorkloadQuestion) -> Iterator[_Wish]:
    """Profiles whose names are nearly the one asked for, where that one means nothing; of a name that is like none the
    smallest there are."""
    workload, inventory = asked.workload, trial.inventory
    for unknown in unknown_profiles(workload, inventory, trial.catalog)[:1]:
        alike = near(unknown, inventory.offered_profiles)
        for name in alike:
            yield asked.less(f"as {name}", _with_profile(workload, unknown, name))
        for name in () if alike else _smallest(trial)[:_FEW]:
            yield asked.less(f"as {name}, of the smallest there are,", _with_profile(workload, unknown, name))


def _smallest(trial: WorkloadQuestion) -> list[str]:
    sizes = {name: known.framebuffer_mib for name in trial.inventory.offered_profiles if (known := parse(name))}
    return sorted(sizes, key=lambda name: (sizes[name], name))


def _with_profile(workload: Workload, old: str, new: str) -> Workload:
    """The workload with every vGPU of one profile of another instead."""
    more = tuple(replace(each, profile=new) if each.profile == old else each for each in workload.more)
    return replace(workload, profile=new if workload.profile == old else workload.profile, more=more)


def _elsewhere(base: _Wish) -> Iterator[_Wish]:
    """The same VM in another place."""
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
    """As many GPUs of another kind, where the very ones were named."""
    workload = base.workload
    if workload.label is not None:
        yield base.less(f"without label {workload.label}", replace(workload, label=None))
    if workload.model is not None:
        yield base.less(f"with a model other than {workload.model}", replace(workload, model=None))
    if workload.device:
        named = ", ".join(map(str, workload.device))
        yield base.less(f"with others than {named}", replace(workload, device=(), gpus=len(workload.device)))
    if workload.device_group is not None:
        hosts = scope_of(workload).hosts(trial.inventory)
        for name in sorted({group.name for host in hosts for group in groups_of(host)} - {workload.device_group})[
            :_FEW
        ]:
            yield base.less(f"as device group {name}", replace(workload, device_group=name))


def _fewest_less(base: _Wish, trial: WorkloadQuestion) -> str:
    """As many of its GPUs as find a place, else the largest of smaller profiles that does."""
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
    """Of wishes of which each is more than the one before: what fits one, fits all before it."""
    best, low, high = "", 0, len(rising)
    while low < high:
        # The first one is asked first: where it finds nothing, none does.
        middle = (low + high) // 2 if best else low
        found = _fits(rising[middle], trial)
        if found:
            best, low = found, middle + 1
        elif not best:
            return ""
        else:
            high = middle
    return best


def _smaller_profiles(base: _Wish, trial: WorkloadQuestion) -> Iterator[_Wish]:
    """Profiles of the same GPU and series with less memory, the largest first."""
    asked = parse(offered(base.workload, trial))
    if asked is None:
        return
    alike = [(parse(name), name) for name in trial.inventory.offered_profiles]
    less = [
        (known.framebuffer_mib, name)
        for known, name in alike
        if known is not None
        and (known.esxi_prefix, known.series, known.slices is None, known.media)
        == (asked.esxi_prefix, asked.series, asked.slices is None, False)
        and known.framebuffer_mib < asked.framebuffer_mib
    ]
    for _, name in sorted(less, reverse=True):
        yield base.less(f"as {name}", replace(base.workload, profile=name))


def offered(workload: Workload, trial: WorkloadQuestion) -> str:
    """The ESXi name of the one profile it asks for; empty = it asks for none that means anything, or for several."""
    if workload.profile is None or workload.more or unknown_profiles(workload, trial.inventory, trial.catalog):
        return ""
    return profile_meant(workload.profile, vm_of(workload), None, trial.inventory, trial.catalog)


_MOST_MOVES: Final = 3
"""vMotions: who needs more has a fleet to tidy up first."""
_MOST_GPUS: Final = 64


@dataclass(frozen=True)
class RoomByMoves:
    """In the snapshot `world`, in which all run that have a place or are kept one; in `now` those that really run."""

    world: Inventory
    now: Inventory
    _known: dict[tuple[str, str | None], tuple[PlannedMove, ...]] = field(default_factory=dict)
    """By profile and cluster: many refused requests are alike."""

    def after_moves(self, trial: WorkloadQuestion) -> str:
        """The moves and where the workload fits then; empty when no such moves are known."""
        profile = offered(trial.workload, trial)
        world = self.world
        moves = self._moves(profile, trial.workload.cluster, trial.catalog) if profile else ()
        for number, move in enumerate(moves, 1):
            world = project(move.step, world, trial.catalog)
            answer = replace(relaxed(trial, trial.workload), inventory=world).answer()
            if isinstance(answer, Placed):
                return f"{_words(moves[:number])} it fits on {answer.placement.host.name}"
        return ""

    def _moves(self, profile: str, cluster: str | None, catalog: Catalog) -> tuple[PlannedMove, ...]:
        key = (profile, cluster)
        if key not in self._known:
            self._known[key] = ()
            scope = Scope(cluster)
            if self.now.hot_migrate_enabled and sum(len(host.gpus) for host in scope.hosts(self.world)) <= _MOST_GPUS:
                from gpuops.plan.moving.plan import Defrag

                self._known[key] = (
                    Defrag(profile, _MOST_MOVES, cluster=cluster).planned(self.world, catalog, self._yet_to_run).moves
                )
        return self._known[key]

    @cached_property
    def _yet_to_run(self) -> dict[str, str]:
        """VM ref -> why it cannot move: it runs in that world alone."""
        runs = {ref for ref, vm in self.now.vms.items() if vm.power is PowerState.ON}
        there = (ref for ref, vm in self.world.vms.items() if vm.power is PowerState.ON)
        return {ref: "does not run yet" for ref in there if ref not in runs}


def _words(moves: Sequence[PlannedMove]) -> str:
    return "after vMotion " + ", then ".join(f"of {move.vm.name} to {move.target.name}" for move in moves)
