"""How many VMs of a pool may share a GPU, under which scheduler, and which of them should not share. Pure.

To find what n VMs on a GPU cost, groups of n VMs are drawn from the pool. In a group the VMs are compared at the same
times, so VMs that are busy at the same hours meet. A VM's slowdown is weighted by how much it used the GPU then, so
idle nights do not make a result look good. Of the slowdowns of all VMs, in all groups, on all days, a tenth is below
the printed range and a tenth above. The allowed slowdown must hold up to the upper end of the range, and for each VM in
the mean of its days.

To find the VMs that should not share, the busiest VM, the two busiest, and so on get a GPU of their own; the variant
with the fewest GPUs is recommended. Groups are drawn from a seed, so that the same history has the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuops.extras.sizing.busy_shares import BusyShares, SharingLimits
from gpuops.extras.sizing.pairs import corrections
from gpuops.extras.sizing.sharing import MOST_SHARERS, slowdowns, staggered_slowdowns
from gpuops.model.devices.scheduler import SchedulerPolicy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SHOWN: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of sharers for which a table has a row."""
_SHOWN_WITHOUT_PROFILE: Final = 24
_DRAWN_GROUPS: Final = 16
_SMALL_POOL: Final = 256
"""In a pool of up to so many VMs, each VM is in a group."""
_TENTH_PERCENT: Final = 10
_ROUNDING_ERROR: Final = 1e-9
"""The rounding error up to which a slowdown still counts as the allowed one."""


@dataclass(frozen=True, slots=True)
class GpuShare:
    """The slowdowns of a number of VMs on one GPU under one scheduler."""

    slowdown: float
    """Mean of the VMs; 1 = as fast as alone, 2 = twice as long."""
    low: float | None
    high: float | None
    """Of the slowdowns of VMs on single days, a tenth is below `low` and a tenth above `high`; None = all are equal."""
    worst: float
    """The slowdown of the VM that suffers most, in the mean of its days."""
    throughput: float
    """The work of all of them together; the work of one VM alone = 1."""

    @property
    def highest_slowdown(self) -> float:
        """Return the slowdown that must not be above the allowed one."""
        return max(self.worst, self.high or 1.0)


@dataclass(frozen=True, slots=True)
class SharersRow:
    """So many VMs on one GPU, under each scheduler."""

    sharers: int
    shares: Mapping[SchedulerPolicy, GpuShare]


@dataclass(frozen=True, slots=True)
class SizedVm:
    """One VM, or workload, of the pool."""

    name: str
    busy: float
    shares: bool
    """False = it should have a GPU of its own."""
    slowdown: Mapping[SchedulerPolicy, float]
    """With as many sharers as `Sizing.vms_at`."""


@dataclass(frozen=True, slots=True)
class SharersAdvice:
    """The most VMs on one GPU that stay within the slowdown that is allowed."""

    sharers: int
    policy: SchedulerPolicy
    share: GpuShare
    gpus: int
    """The GPUs that all VMs need, also those that should not share; 1 if the pool is only a number."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The table of counts, the slowdown of each VM, and the recommendation."""

    rows: tuple[SharersRow, ...]
    vms: tuple[SizedVm, ...] = ()
    vms_at: int = 1
    advice: SharersAdvice | None = None
    limits: SharingLimits = field(default_factory=SharingLimits)


def size_alike_vms(busy: float, sharers: int | None, limits: SharingLimits, overlap: float = 1.0) -> Sizing:
    """Return the answer of `size_pool` for equal VMs with a stated busy share (0 to 1) instead of a history.

    `overlap`: the VMs begin one after another, and each runs next to the following one for this share of its work.
    """

    counts = set(_sharer_counts(limits, sharers, sharers))  # the recommended count is added below
    best: SharersAdvice | None = None
    if limits.at_most is not None:
        for policy in limits.policies:
            for count in range(1, limits.most + 1):
                share = _share_of_alike_vms(policy, busy, count, limits, overlap)
                if share.highest_slowdown > limits.at_most + _ROUNDING_ERROR:
                    break  # more sharers are never faster
                best = _better_advice(best, SharersAdvice(count, policy, share, 1))
        if best is not None:
            counts.add(best.sharers)
    rows = []
    for count in sorted(counts):
        shares = {policy: _share_of_alike_vms(policy, busy, count, limits, overlap) for policy in SchedulerPolicy}
        rows.append(SharersRow(count, shares))
    return Sizing(tuple(rows), advice=best, limits=limits)


def _share_of_alike_vms(
    policy: SchedulerPolicy, busy: float, count: int, limits: SharingLimits, overlap: float
) -> GpuShare:
    vm_slowdowns = staggered_slowdowns(policy, busy, count, limits.slots or count, overlap)
    low, high = float(vm_slowdowns.min()), float(vm_slowdowns.max())
    same = high - low < _ROUNDING_ERROR
    return GpuShare(
        float(vm_slowdowns.mean()),
        None if same else low,  # no range is shown for equal slowdowns
        None if same else high,
        high,
        float((1.0 / vm_slowdowns).sum()),
    )


def size_pool(shares: BusyShares, sharers: int | None, limits: SharingLimits) -> Sizing:
    """Return the slowdowns for several numbers of VMs on a GPU and for each VM, and the recommendation.

    `sharers`: only this number of VMs on a GPU; None = several numbers. The pool must have at least one VM.
    """
    # what is guaranteed must hold even while all VMs run
    pool_shares = shares.always_running() if limits.guaranteed else shares
    vm_indices = range(len(pool_shares.names))
    advice, members = _advise(pool_shares, limits) if limits.at_most is not None else (None, list(vm_indices))
    sharer_counts = _sharer_counts(limits, sharers, advice.sharers if advice is not None else None)
    rows = []
    for count in sharer_counts:
        share_by_policy = {
            policy: _group_slowdowns(pool_shares, members, policy, count, limits)[0] for policy in SchedulerPolicy
        }
        rows.append(SharersRow(count, share_by_policy))
    # the number of VMs on a GPU for which the slowdown of each VM is returned
    vms_at = sharers or (advice.sharers if advice is not None else min(2, limits.most))
    by_policy = {policy: _slowdowns_of_each(pool_shares, members, policy, vms_at, limits) for policy in SchedulerPolicy}
    sharing_indices, mean = set(members), pool_shares.mean
    vms = tuple(
        SizedVm(
            pool_shares.names[at],
            float(mean[at]),
            at in sharing_indices,
            {policy: float(vm_slowdowns[at]) for policy, vm_slowdowns in by_policy.items()},
        )
        for at in vm_indices
    )
    return Sizing(tuple(rows), vms, vms_at, advice, limits)


def _sharer_counts(limits: SharingLimits, sharers: int | None, also: int | None) -> list[int]:
    if sharers is not None:
        return [sharers]
    most = _SHOWN_WITHOUT_PROFILE if limits.slots is None else limits.slots
    return sorted({count for count in SHOWN if count <= most} | {also or 1, limits.slots or 1})


def _advise(shares: BusyShares, limits: SharingLimits) -> tuple[SharersAdvice | None, list[int]]:
    """Return the recommendation, and the VMs (columns of `shares`) that should share a GPU.

    None = even one VM on a GPU exceeds the allowed slowdown. The other VMs should have a GPU each.
    """
    vm_indices = list(range(len(shares.names)))
    advice_for_all = _most_sharers(shares, vm_indices, limits.policies, limits)
    if advice_for_all is None:
        return None, vm_indices
    best, best_members = advice_for_all, vm_indices
    busiest = sorted(vm_indices, key=lambda at: (-shares.mean[at], shares.names[at]))
    for excluded_count in _excluded_counts(len(vm_indices)):
        members = sorted(busiest[excluded_count:])  # each of the excluded ones needs a GPU
        candidate = _most_sharers(shares, members, limits.policies, limits)
        if candidate is not None and candidate.gpus + excluded_count < best.gpus:
            best = SharersAdvice(candidate.sharers, candidate.policy, candidate.share, candidate.gpus + excluded_count)
            best_members = members
    return best, best_members


def _excluded_counts(count: int) -> Iterable[int]:
    """Yield how many of the busiest VMs to exclude: 1, 2, 3, ... and in larger steps once there are many."""
    tried, step = 1, 1
    while tried < count:
        yield tried
        step = max(1, tried // 4)
        tried += step


def _most_sharers(
    shares: BusyShares, members: Sequence[int], policies: Iterable[SchedulerPolicy], limits: SharingLimits
) -> SharersAdvice | None:
    """Return the most of these VMs that may share a GPU, under the best of the policies.

    None = under each policy one VM on a GPU already exceeds the allowed slowdown.
    """
    best: SharersAdvice | None = None
    for policy in policies:
        low, high, share = 0, min(limits.most, MOST_SHARERS), None  # `low`: the highest count known to be allowed
        while low < high:  # a binary search, because more sharers are never faster
            count = (low + high + 1) // 2
            group_share = _group_slowdowns(shares, members, policy, count, limits)[0]
            if group_share.highest_slowdown <= (limits.at_most or 1.0) + _ROUNDING_ERROR:
                low, share = count, group_share
            else:
                high = count - 1
        if share is not None:
            best = _better_advice(best, SharersAdvice(low, policy, share, ceil(len(members) / low)))
    return best


def _better_advice(best: SharersAdvice | None, candidate: SharersAdvice) -> SharersAdvice:
    if best is None:
        return candidate
    return max(best, candidate, key=lambda advice: (advice.sharers, -advice.share.slowdown))


def _slowdowns_of_each(
    shares: BusyShares, members: Sequence[int], policy: SchedulerPolicy, count: int, limits: SharingLimits
) -> Floats:
    """Return the slowdown of each VM (column): the sharing VMs next to each other, any other next to all VMs."""
    vm_slowdowns = _group_slowdowns(shares, range(len(shares.names)), policy, count, limits, includes_every_vm=True)[1]
    vm_slowdowns[list(members)] = _group_slowdowns(shares, members, policy, count, limits, includes_every_vm=True)[1][
        list(members)
    ]
    return vm_slowdowns


def _group_slowdowns(
    shares: BusyShares,
    members: Sequence[int],
    policy: SchedulerPolicy,
    count: int,
    limits: SharingLimits,
    *,
    includes_every_vm: bool = False,
) -> tuple[GpuShare, Floats]:
    """Return the slowdowns in groups of `count` of these VMs, and the slowdown of each VM (column) in its groups.

    Each slowdown is a mean in which a step counts by how much the VM used the GPU in it. A VM that is in no group has
    the slowdown 1. `includes_every_vm`: put each of the members into some group.
    """
    # the GPU time that each VM would use alone, and the time that this takes next to the others
    work_by_vm, time_by_vm = np.zeros(len(shares.names)), np.zeros(len(shares.names))
    is_at_work, busy_at_work = shares.at_work, shares.working
    slowdowns_by_day, throughputs = [], []
    first_of_day = np.flatnonzero(np.diff(shares.days, prepend=-1))  # steps of a day lie together
    for group in _draw_groups(members, count, includes_every_vm=includes_every_vm):
        busy = shares.busy[:, group]
        step_slowdowns = slowdowns(policy, busy, limits.slots or count)
        if shares.pairs is not None:
            workload_names = [shares.kinds[at] for at in group]
            # what pairs show may correct the model, but no VM is faster than alone
            step_slowdowns = np.maximum(
                1.0,
                step_slowdowns * corrections(shares.pairs, workload_names, is_at_work[:, group], busy_at_work[group]),
            )
        work = np.nan_to_num(busy)
        time = work * np.nan_to_num(step_slowdowns)
        np.add.at(work_by_vm, group, work.sum(axis=0))
        np.add.at(time_by_vm, group, time.sum(axis=0))
        throughputs.append(float((1.0 / _time_per_work(time.sum(axis=0), work.sum(axis=0))).sum()))
        daily_sums = [np.add.reduceat(measure, first_of_day, axis=0) for measure in (time, work)]
        slowdowns_by_day.append(_time_per_work(*daily_sums)[daily_sums[1] > 0])
    slowdown_by_vm = _time_per_work(time_by_vm, work_by_vm)
    # idle VMs and idle days have no slowdown: they would only lower the means
    slowdowns_at_work = slowdown_by_vm[work_by_vm > 0]
    daily_slowdowns = np.concatenate(slowdowns_by_day)
    slowdown = float(slowdowns_at_work.mean()) if len(slowdowns_at_work) else 1.0
    low, high = (
        (float(bound) for bound in np.percentile(daily_slowdowns, (_TENTH_PERCENT, 100 - _TENTH_PERCENT)))
        if len(daily_slowdowns)
        else (1.0, 1.0)
    )
    differs = high - low > _ROUNDING_ERROR
    worst = float(slowdowns_at_work.max(initial=1.0))
    share = GpuShare(
        slowdown, low if differs else None, high if differs else None, worst, sum(throughputs) / len(throughputs)
    )
    return share, slowdown_by_vm


def _time_per_work(time: Floats, work: Floats) -> Floats:
    ratio: Floats = np.divide(time, work, out=np.ones_like(time), where=work > 0)
    return ratio


def _draw_groups(members: Sequence[int], count: int, *, includes_every_vm: bool) -> list[NDArray[np.int64]]:
    """Return random groups of `count` of these VMs; if there are fewer VMs, a group has the same VM several times."""
    among = len(members)
    order = np.random.default_rng([among, count]).permutation(np.asarray(members))
    drawn = min(_DRAWN_GROUPS, among)
    if includes_every_vm or among <= _SMALL_POOL:
        drawn = max(drawn, ceil(among / count))
    return [order[(at * among // drawn + np.arange(count)) % among] for at in range(drawn)]
