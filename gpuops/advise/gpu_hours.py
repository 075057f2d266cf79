"""Shares the GPU-hours of past nights among owners, and orders waiting VMs by the recent use of their teams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from math import exp, log
from typing import Final

from gpuops.model.nights.fair_share import WEEK, team_of
from gpuops.model.nights.history import GpuHours, HeldPeriod, PastNight, PastVm, total
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import NOBODY, OwnerKey
from gpuops.model.vcenter.vm import Vm

_HUNDRED_PERCENT: Final = 10_000
"""100.00 % in hundredths of a percent."""


@dataclass(frozen=True, slots=True)
class OwnerShare:
    """The GPU-hours that the VMs of one owner had."""

    owner: str
    vms: int
    hours: GpuHours
    hundredths: int | None
    """The share of all certain hours in hundredths of a percent; None = no owner had any."""

    @property
    def percent(self) -> float | None:
        return None if self.hundredths is None else self.hundredths / 100


@dataclass(frozen=True, slots=True)
class OwnedRun:
    """A period in which an ML VM ran in a night, or the part of it in which the VM had one owner."""

    night: PastNight
    vm: PastVm
    held: HeldPeriod
    owner: str


@dataclass(frozen=True, slots=True)
class Showback:
    """The GPU-hours by owner, the largest first, and the runs that they were added up from."""

    owners: tuple[OwnerShare, ...]
    runs: tuple[OwnedRun, ...]

    @property
    def hours(self) -> GpuHours:
        return total(owner_share.hours for owner_share in self.owners)


def showback(nights: Iterable[PastNight], owner_of: Callable[[PastVm], str]) -> Showback:
    """Return the GPU-hours that the ML VMs of each owner had in these nights, most first, and each owner's share."""
    runs = tuple(
        OwnedRun(night, vm, owned_period, owner)
        for night in nights
        for vm in night.ml
        for period in vm.held
        for owner, owned_period in _split_by_owner(vm, period, owner_of)
    )
    by_owner: dict[str, list[OwnedRun]] = {}
    for run in runs:
        by_owner.setdefault(run.owner, []).append(run)
    sums = [(owner, total(run.held.hours(run.vm.gpus) for run in owner_runs)) for owner, owner_runs in by_owner.items()]
    sums.sort(key=lambda pair: (-pair[1].at_least, pair[0]))
    parts = largest_remainder([hours.at_least for _, hours in sums])
    owners = (
        OwnerShare(owner, len({run.vm.uuid or run.vm.ref for run in by_owner[owner]}), hours, part)
        for (owner, hours), part in zip(sums, parts, strict=True)
    )
    return Showback(tuple(owners), runs)


def _split_by_owner(
    vm: PastVm, period: HeldPeriod, owner_of: Callable[[PastVm], str]
) -> Iterator[tuple[str, HeldPeriod]]:
    """Yield the parts of the period with their owners; successive parts of one owner are joined."""
    parts = ((owner_of(owned_vm), part) for owned_vm, part in vm.parts(period))
    for owner, group in groupby(parts, key=lambda part: part[0]):
        owned_parts = [part for _, part in group]
        yield owner, replace(owned_parts[0], ends=owned_parts[-1].ends)


def largest_remainder(amounts: Sequence[float], whole: int = _HUNDRED_PERCENT) -> list[int | None]:
    """Split `whole` in proportion to the amounts into integers that add up to it; None for each if all are 0.

    Each amount gets its quota rounded down. The remainder goes, one each, to the amounts with the largest fractions
    (Hamilton's method); of equal ones, to the first.

    >>> largest_remainder([1.0, 1.0, 1.0])
    [3334, 3333, 3333]
    """
    total_amount = sum(amounts)
    if total_amount <= 0:
        return [None for _ in amounts]
    quotas = [whole * amount / total_amount for amount in amounts]
    parts = [int(quota) for quota in quotas]
    # largest fraction first: the difference is minus the fraction, and equal ones keep their order
    by_remainder = sorted(range(len(amounts)), key=lambda index: parts[index] - quotas[index])
    for index in by_remainder[: whole - sum(parts)]:
        parts[index] += 1
    return list(parts)


def owner_in(inventory: Inventory, key: OwnerKey) -> Callable[[PastVm], str]:
    """Return a function that finds the owner of a VM of a past night.

    It returns the owner in the journal if that was found by the same key: a VM that was removed or tagged anew keeps
    the owner that it had. Otherwise it returns the owner that vCenter shows now.
    """

    def owner_of(past: PastVm) -> str:
        if past.owner is not None and past.owner.by == str(key):
            return past.owner.owner
        vm = vm_now(past, inventory)
        return key.of(vm) if vm is not None else NOBODY

    return owner_of


def vm_now(past: PastVm, inventory: Inventory) -> Vm | None:
    """Return a VM of a past night as vCenter shows it now; None = no VM has its instance uuid, or several have.

    The managed object id changes when a VM is registered again, the instance uuid does not.
    """
    if past.uuid is None:
        return inventory.vms.get(past.ref)
    matching_vms = inventory.vms_with_uuid(past.uuid)
    return matching_vms[0] if len(matching_vms) == 1 else None


_COMPARED_DIGITS: Final = 9
"""Decimals of weighted GPU-hours that are compared, so that sums of the same hours in another order are equal."""


@dataclass(frozen=True, slots=True)
class TeamUse:
    """The GPU-hours that the VMs of one team had."""

    decayed: float = 0.0
    """With older hours counted less, by the half-life."""
    week: float = 0.0
    """In the last 7 days, without decay."""
    unknown: int = 0
    """Runs that could not be counted, because the VM's GPUs or the time of its start are not known."""

    def __add__(self, other: TeamUse) -> TeamUse:
        return TeamUse(self.decayed + other.decayed, self.week + other.week, self.unknown + other.unknown)


NO_USE: Final = TeamUse()


def use_by_team(
    nights: Iterable[PastNight], owner_of: Callable[[PastVm], str], now: datetime, half_life: timedelta
) -> dict[str, TeamUse]:
    """Return the past GPU use of each team in these nights until now; a team without any is left out."""
    use: dict[str, TeamUse] = {}
    for vm in (vm for night in nights for vm in night.ml):
        for held_period in vm.held:
            for past_vm, period in vm.parts(held_period.until(now)):  # one part for each owner that the VM had
                team = team_of(owner_of(past_vm))
                use[team] = use.get(team, NO_USE) + use_of_period(period, vm.gpus, now, half_life)
    return use


def use_of_period(period: HeldPeriod, gpus: float | None, now: datetime, half_life: timedelta) -> TeamUse:
    """Return the use of a VM or a job with so many GPUs in this period, which ends now or earlier."""
    hours = period.hours(gpus).at_most
    if hours is None or gpus is None or period.begins is None or period.ends is None:
        return TeamUse(unknown=1)
    week = period.since(now - WEEK).hours(gpus).at_most or 0.0
    # The integral of 2^(-age / half-life) from the age of the end of the period to the age of its begin.
    rate = log(2) / half_life.total_seconds()
    end_age_s, begin_age_s = ((now - moment).total_seconds() for moment in (period.ends, period.begins))
    decayed_s = max(exp(-rate * end_age_s) - exp(-rate * begin_age_s), 0.0) / rate
    return TeamUse(gpus * decayed_s / 3600, week)


@dataclass(frozen=True, slots=True)
class Wish:
    """A waiting VM or job: its team, and the GPU-hours that it may use once it starts."""

    team: str
    hours: float


def fair_order(wishes: Sequence[Wish], used: Mapping[str, float], weight: Callable[[str], float]) -> list[int]:
    """Return the positions of the wishes in the order in which they are served; wishes of one team keep their order.

    `used`: the GPU-hours that each team had; a team that is not in it had none.

    A team that waits and does not run does not lose its place: all use decays at one rate, and other teams only add to
    theirs. When the use of two teams has decayed to almost nothing, they are equal, and the order of wishes decides.

    >>> fair_order([Wish("a", 10), Wish("a", 10), Wish("b", 10), Wish("a", 10)], {}, {"a": 2.0, "b": 1.0}.__getitem__)
    [0, 2, 1, 3]
    """
    waiting: dict[str, deque[int]] = {}
    for position, wish in enumerate(wishes):
        waiting.setdefault(wish.team, deque()).append(position)
    hours = {team: used.get(team, 0.0) for team in waiting}
    order: list[int] = []
    while waiting:
        # the team with the least use for its weight is next; of equal ones, that with the earliest wish
        team = min(waiting, key=lambda name: (round(hours[name] / weight(name), _COMPARED_DIGITS), waiting[name][0]))
        position = waiting[team].popleft()
        order.append(position)
        hours[team] += wishes[position].hours
        if not waiting[team]:
            del waiting[team]
    return order
