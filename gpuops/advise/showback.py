"""Shares the GPU-hours of past nights among the owners of the ML VMs; the shares add up to 100.00 %.

Hours are those of `PastVm.hours`. They are not certain for a VM that stopped by itself at an unknown moment, or whose
profile is not in the catalogue. Such VMs count with the hours that they had in any case, and the row is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from gpuops.model.nights.history import GpuHours, HeldPeriod, PastNight, PastVm, total
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import NOBODY, OwnerKey
from gpuops.model.vcenter.vm import Vm

_ALL: Final = 10_000
"""100.00 % in hundredths of a percent."""


@dataclass(frozen=True, slots=True)
class OwnerShare:
    """What the VMs of one owner had."""

    owner: str
    vms: int
    hours: GpuHours
    hundredths: int | None
    """Of a percent of all hours that are certain; None = no owner had any."""

    @property
    def percent(self) -> float | None:
        return None if self.hundredths is None else self.hundredths / 100


@dataclass(frozen=True, slots=True)
class OwnedRun:
    """One time that an ML VM ran in a night, or the part of it that was one owner's."""

    night: PastNight
    vm: PastVm
    held: HeldPeriod
    owner: str


@dataclass(frozen=True, slots=True)
class Showback:
    """The owners, the largest first, and each run that they are the sums of."""

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
        for owner, owned_period in _by_owner(vm, period, owner_of)
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


def _by_owner(vm: PastVm, period: HeldPeriod, owner_of: Callable[[PastVm], str]) -> Iterator[tuple[str, HeldPeriod]]:
    """Yield the parts of the period with their owners; successive parts of one owner are joined."""
    parts = ((owner_of(owned_vm), part) for owned_vm, part in vm.parts(period))
    for owner, group in groupby(parts, key=lambda part: part[0]):
        whole = [part for _, part in group]
        yield owner, replace(whole[0], ends=whole[-1].ends)


def largest_remainder(amounts: Sequence[float], whole: int = _ALL) -> list[int | None]:
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
