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
from gpuops.plan.core.rejection import Rejection, Shortage
from gpuops.plan.core.scope import Scope
from gpuops.plan.devices.goal import groups_of, profile_meant
from gpuops.plan.placement.project import project
from gpuops.plan.queue.one_workload import Placed, WorkloadQuestion, without_reasons
from gpuops.plan.queue.workload_hosts import scope_of, unknown_profiles, vm_of

if TYPE_CHECKING:
    from gpuops.plan.moving.defrag import PlannedMove


_MIB_PER_GIB: Final = 1024
_MOST_NAMES: Final = 3
"""How many other profiles or device groups are tried."""


@dataclass(frozen=True, slots=True)
class _SmallerRequest:
    """A smaller request, and the changes that led to it, as parts of a sentence: `with 2 of its 4 vGPUs`."""

    workload: Workload
    changes: tuple[str, ...] = ()

    def with_change(self, change: str, workload: Workload) -> _SmallerRequest:
        return _SmallerRequest(workload, (*self.changes, change))


def suggest_smaller_request(question: WorkloadQuestion, rejections: Sequence[Rejection]) -> str:
    """Return the first smaller request that has a place now, and where; empty if there is no such request.

    `rejections`: why the workload itself has no place.
    """
    requested = _SmallerRequest(question.workload)
    renamed = tuple(_with_similar_profiles(requested, question))
    suggestion = _first_that_fits(renamed, question)
    if suggestion:
        return suggestion
    # If no profile has that name, the other changes are tried with the profile whose name is most similar.
    for base in _cut_to_hosts(renamed[0] if renamed else requested, rejections):
        # The request without any change was refused already.
        changed_base = (base,) if base.changes else ()
        requests = (*changed_base, *_with_one_condition_fewer(base), *_with_other_gpus(base, question))
        suggestion = _first_that_fits(requests, question) or _largest_part(base, question)
        if suggestion:
            return suggestion
    return ""


def _first_that_fits(requests: Iterable[_SmallerRequest], question: WorkloadQuestion) -> str:
    return next((answer for request in requests if (answer := _describe_if_placed(request, question))), "")


def _describe_if_placed(request: _SmallerRequest, question: WorkloadQuestion) -> str:
    """Return `with 8 of its 16 vCPUs and 32 GiB of memory it fits on esx-01`; empty if the request has no place."""
    answer = without_reasons(question, request.workload).answer()
    if not isinstance(answer, Placed):
        return ""
    first_change, *further_changes = request.changes
    change_text = " and ".join((first_change, *(change.removeprefix("with ") for change in further_changes)))
    return f"{change_text} it fits on {answer.placement.host.name}"


def _cut_to_hosts(requested: _SmallerRequest, rejections: Sequence[Rejection]) -> Iterator[_SmallerRequest]:
    """Yield the request unchanged, then cut to the cores and the memory that hosts have according to the refusals."""
    workload = requested.workload
    yield requested
    vcpus = _largest_available(rejections, Shortage.VCPUS, workload.vcpus)
    memory_mib = _largest_available(rejections, Shortage.MEMORY, workload.memory_mib)
    memory_mib -= memory_mib % _MIB_PER_GIB
    cut = requested
    if vcpus:
        cut = requested.with_change(f"with {vcpus} of its {workload.vcpus} vCPUs", replace(workload, vcpus=vcpus))
        yield cut
    if memory_mib:
        change = f"with {memory_mib // _MIB_PER_GIB} GiB of memory"
        yield requested.with_change(change, replace(workload, memory_mib=memory_mib))
        if cut is not requested:
            cut = cut.with_change(change, replace(cut.workload, memory_mib=memory_mib))
            yield cut
    if cut is not requested and workload.numa is NumaPolicy.REQUIRED:
        yield cut.with_change("with numa preferred", replace(cut.workload, numa=NumaPolicy.PREFERRED))


def _largest_available(rejections: Iterable[Rejection], shortage: Shortage, needed: int) -> int:
    """Return the largest available amount in the refusals for this shortage; 0 if they contain no amount."""
    available = (
        rejection.available for rejection in rejections if rejection.short_of is shortage and rejection.needed == needed
    )
    return max((int(amount) for amount in available if isinstance(amount, int | float)), default=0)


def _with_similar_profiles(requested: _SmallerRequest, question: WorkloadQuestion) -> Iterator[_SmallerRequest]:
    """Yield, for an unknown profile, the profiles with similar names, or else the smallest profiles of the fleet."""
    workload, inventory = requested.workload, question.inventory
    for unknown in unknown_profiles(workload, inventory, question.catalog)[:1]:
        similar_names = near(unknown, inventory.offered_profiles)
        for name in similar_names:
            yield requested.with_change(f"as {name}", _with_profile(workload, unknown, name))
        if not similar_names:
            sizes = {name: parsed.framebuffer_mib for name in inventory.offered_profiles if (parsed := parse(name))}
            for name in sorted(sizes, key=lambda name: (sizes[name], name))[:_MOST_NAMES]:
                yield requested.with_change(f"as {name}, one of the smallest,", _with_profile(workload, unknown, name))


def _with_profile(workload: Workload, old: str, new: str) -> Workload:
    further_vgpus = tuple(replace(vgpus, profile=new) if vgpus.profile == old else vgpus for vgpus in workload.more)
    return replace(workload, profile=new if workload.profile == old else workload.profile, more=further_vgpus)


def _with_one_condition_fewer(base: _SmallerRequest) -> Iterator[_SmallerRequest]:
    """Yield the same VM with one fewer condition on its place."""
    workload = base.workload
    if workload.numa is NumaPolicy.REQUIRED:
        yield base.with_change("with numa preferred", replace(workload, numa=NumaPolicy.PREFERRED))
    if workload.host is not None:
        yield base.with_change(f"on a host not named {workload.host}", replace(workload, host=None))
    if workload.tag:
        yield base.with_change(f"without tag {', '.join(workload.tag)}", replace(workload, tag=()))
    if workload.cluster is not None:
        outside = replace(workload, host=None, cluster=None)
        yield base.with_change(f"outside of cluster {workload.cluster}", outside)
    if workload.anti_affinity is not None:
        yield base.with_change(f"without anti-affinity {workload.anti_affinity}", replace(workload, anti_affinity=None))


def _with_other_gpus(base: _SmallerRequest, question: WorkloadQuestion) -> Iterator[_SmallerRequest]:
    """Yield the same number of other GPUs, if the workload names its GPUs, a model, a label or a device group."""
    workload = base.workload
    if workload.label is not None:
        yield base.with_change(f"without label {workload.label}", replace(workload, label=None))
    if workload.model is not None:
        yield base.with_change(f"with a model other than {workload.model}", replace(workload, model=None))
    if workload.device:
        named = ", ".join(map(str, workload.device))
        yield base.with_change(
            f"with devices other than {named}", replace(workload, device=(), gpus=len(workload.device))
        )
    if workload.device_group is not None:
        hosts = scope_of(workload).hosts(question.inventory)
        names = {group.name for host in hosts for group in groups_of(host)} - {workload.device_group}
        for name in sorted(names)[:_MOST_NAMES]:
            yield base.with_change(f"as device group {name}", replace(workload, device_group=name))


def _largest_part(base: _SmallerRequest, question: WorkloadQuestion) -> str:
    """Suggest as many of its GPUs as find a place, or else the largest smaller profile that does; empty = none."""
    workload = base.workload
    if workload.more:
        parts = [base.with_change(f"with its vGPUs of {workload.profile} alone", replace(workload, more=()))]
    elif workload.count > 1:
        parts = [
            base.with_change(f"with {n} of its {workload.count} vGPUs", replace(workload, count=n))
            for n in range(1, workload.count)
        ]
    else:
        parts = [
            base.with_change(f"with {n} of its {workload.gpus} GPUs", replace(workload, gpus=n))
            for n in range(1, workload.gpus)
        ]
    return _last_that_fits(parts, question) or _first_that_fits(_smaller_profiles(base, question), question)


def _last_that_fits(rising: Sequence[_SmallerRequest], question: WorkloadQuestion) -> str:
    """Return the largest of these rising requests that fits, by bisection: if one fits, all before it fit too."""
    best, low, high = "", 0, len(rising)
    while low < high:
        # The smallest is tried first: if it does not fit, no request does.
        middle = (low + high) // 2 if best else low
        fitting = _describe_if_placed(rising[middle], question)
        if fitting:
            best, low = fitting, middle + 1
        elif not best:
            return ""
        else:
            high = middle
    return best


def _smaller_profiles(base: _SmallerRequest, question: WorkloadQuestion) -> Iterator[_SmallerRequest]:
    """Yield the request with profiles of the same GPU and series with less memory, the largest first."""
    requested = parse(esxi_profile(base.workload, question))
    if requested is None:
        return
    # A profile with media engines is left out (False): only one GPU instance of a GPU has them.
    family = (requested.esxi_prefix, requested.series, requested.slices is None, False)
    smaller: list[tuple[int, str]] = []
    for name in question.inventory.offered_profiles:
        parsed = parse(name)
        if parsed is None or parsed.framebuffer_mib >= requested.framebuffer_mib:
            continue
        if (parsed.esxi_prefix, parsed.series, parsed.slices is None, parsed.media) == family:
            smaller.append((parsed.framebuffer_mib, name))
    for _, name in sorted(smaller, reverse=True):
        yield base.with_change(f"as {name}", replace(base.workload, profile=name))


def esxi_profile(workload: Workload, question: WorkloadQuestion) -> str:
    """Return the ESXi name of the workload's profile; empty if it is unknown or if the workload has not exactly one."""
    if workload.profile is None or workload.more or unknown_profiles(workload, question.inventory, question.catalog):
        return ""
    return profile_meant(workload.profile, vm_of(workload), None, question.inventory, question.catalog)


_MOST_MOVES: Final = 3
"""vMotions at most: if more are needed, `gpuops defrag` should run first."""
_MOST_GPUS: Final = 64
"""With more GPUs in scope, no vMotions are searched for: that would take too long."""


@dataclass(frozen=True)
class RoomByMoves:
    """Finds room by vMotions. In `snapshot` all VMs with a place or a claim run; `now` is the snapshot as read."""

    snapshot: Inventory
    now: Inventory
    _cached_moves: dict[tuple[str, str | None], tuple[PlannedMove, ...]] = field(default_factory=dict)
    """By profile and cluster: many refused requests are alike."""

    def after_moves(self, question: WorkloadQuestion) -> str:
        """Return the moves and where the workload then fits; empty if no such moves are known."""
        profile = esxi_profile(question.workload, question)
        snapshot = self.snapshot
        moves = self._moves(profile, question.workload.cluster, question.catalog) if profile else ()
        for number, move in enumerate(moves, 1):
            snapshot = project(move.step, snapshot, question.catalog)
            answer = replace(without_reasons(question, question.workload), inventory=snapshot).answer()
            if isinstance(answer, Placed):
                return f"{_describe_moves(moves[:number])} it fits on {answer.placement.host.name}"
        return ""

    def _moves(self, profile: str, cluster: str | None, catalog: Catalog) -> tuple[PlannedMove, ...]:
        key = (profile, cluster)
        if key not in self._cached_moves:
            self._cached_moves[key] = ()
            scope = Scope(cluster)
            gpu_count = sum(len(host.gpus) for host in scope.hosts(self.snapshot))
            if self.now.hot_migrate_enabled and gpu_count <= _MOST_GPUS:
                from gpuops.plan.moving.defrag import Defrag

                request = Defrag(profile, _MOST_MOVES, cluster=cluster)
                self._cached_moves[key] = request.find_moves(self.snapshot, catalog, self._yet_to_run).moves
        return self._cached_moves[key]

    @cached_property
    def _yet_to_run(self) -> dict[str, str]:
        """Return why VMs cannot be moved that run only in `snapshot`, by VM ref."""
        runs = {ref for ref, vm in self.now.vms.items() if vm.power is PowerState.ON}
        planned_refs = (ref for ref, vm in self.snapshot.vms.items() if vm.power is PowerState.ON)
        return {ref: "does not run yet" for ref in planned_refs if ref not in runs}


def _describe_moves(moves: Sequence[PlannedMove]) -> str:
    return "after vMotion " + ", then ".join(f"of {move.vm.name} to {move.target.name}" for move in moves)
