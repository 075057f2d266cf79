"""Refuses or stops a night: because of earlier nights, failed steps, clocks that differ, owners who have not agreed,
empty folders, or slots that are reserved for other VMs.

`NightsOfPolicy` holds the VMs that earlier nights of the policy have taken and not yet returned, from the journal and
the markers of VMs.

A start of a night leaves the GPU slots that are reserved for other VMs (vSphere 9.0). The slots of a suspended desktop
go to the VM that starts first. If a reservation has no room yet, it takes these slots, and the desktop finds none in
the morning. A desktop is therefore only taken if the reserved slots have room elsewhere.

The conditions that stop a night: too many of its steps failed, the clocks of vCenter and of this machine differ, or
desktops of a pool come back by themselves. `night.py` checks them when it plans, `guard.py` before each step that takes
something; a return does not check them.

Steps are counted by night, not by run: a run that continues after a killed one continues its counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final

from gpuops.errors import Trouble
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.rejection import Rejection, some_names
from gpuops.plan.core.steps import GateStep, PowerOnVm, RelocateVm
from gpuops.plan.placement.keep_free import reserved_left, reserved_unknown
from gpuops.plan.placement.project import project
from gpuops.plan.placement.suspended_vms import suspend_or_shut_down
from gpuops.plan.rotation.ml_queue.ml_vms import Start
from gpuops.plan.rotation.nights.desktops import Survey
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, TakenVm, Whereabouts, taken_vms

FAILED_ON_HOST: Final = 3
"""This number of failed steps on one host stops a night."""
FAILED_SHARE: Final = 0.10
"""This share of failed steps, of all planned steps of the night, also stops it, if at least `FEWEST_FAILED` failed."""
FEWEST_FAILED: Final = 3
"""Below this number, `FAILED_SHARE` does not count: one failure in a night of five steps is no pattern."""
REFUSED_IN_A_ROW: Final = 2
"""This number of refusals in a row also stops a night: the next step would be refused as well."""

NOT_DONE: Final = (Verdict.FAILED, Verdict.UNKNOWN)


@stored_as("StepCounts")
@dataclass(frozen=True, slots=True)
class StepCounts:
    """The steps of a night so far: how many were planned, ended and failed. `execute` keeps it in the journal."""

    planned: int = 0
    """Steps of its longest plan, including those that had ended before."""
    ended: int = 0
    failed: int = 0
    on_host: Mapping[str, int] = field(default_factory=dict)
    """Host ref -> steps that failed there."""
    refused: int = 0
    """Number of refusals by vCenter in a row at the end."""

    def with_plan(self, steps: int) -> StepCounts:
        """Return the counts after a plan with this number of steps has begun."""
        return replace(self, planned=max(self.planned, self.ended + steps))

    def with_end(self, *, failed: bool, refused: bool, host: str | None) -> StepCounts:
        """Return the counts with one more ended step."""
        on_host = {**self.on_host, host: self.on_host.get(host, 0) + 1} if failed and host else self.on_host
        refused_in_a_row = self.refused + 1 if refused else 0
        return StepCounts(self.planned, self.ended + 1, self.failed + failed, on_host, refused_in_a_row)


NO_STEP_COUNTS: Final = StepCounts()
"""The counts of a night without any step."""


def reason_to_stop(before: StepCounts, ended: Sequence[Outcome], inventory: Inventory) -> str | None:
    """Return why the night takes nothing more; None = it continues. `ended`: outcomes that are not in `before` yet."""
    failed_now = [outcome for outcome in ended if outcome.verdict in NOT_DONE]
    failed = before.failed + len(failed_now)
    # With 40 planned steps the fourth failure stops the night, with 30 or fewer the third.
    if failed >= max(FEWEST_FAILED, FAILED_SHARE * before.planned):
        return f"{failed} of its steps failed"
    failures_by_host = Counter(dict(before.on_host))
    for outcome in failed_now:
        vm = inventory.vms.get(outcome.step.vm)
        if vm is not None and vm.host:
            failures_by_host[vm.host] += 1
    for ref, count in failures_by_host.items():
        if count >= FAILED_ON_HOST:
            host = inventory.hosts.get(ref)
            return f"{count} steps failed on {host.name if host else ref}"
    if _count_refusals(before, ended) >= REFUSED_IN_A_ROW:
        return "vCenter refuses one step after the other"
    return None


def _count_refusals(before: StepCounts, ended: Sequence[Outcome]) -> int:
    """Count the refusals in a row at the end; skipped steps were never sent and do not count."""
    count = 0
    for outcome in reversed(ended):
        if outcome.verdict is Verdict.SKIPPED:
            continue
        if not is_refusal(outcome):
            return count
        count += 1
    return count + before.refused


def is_refusal(outcome: Outcome) -> bool:
    """Return whether vCenter refused the step because a privilege is missing, so that it would refuse the next one too.

    A refusal by a broker does not count, because it may concern only one machine.
    """
    was_sent_to_vcenter = not isinstance(outcome.step, GateStep)
    return was_sent_to_vcenter and outcome.verdict in NOT_DONE and outcome.trouble is Trouble.DENIED


MOST_CLOCK_DIFFERENCE: Final = timedelta(seconds=60)
"""The clocks of two machines that use NTP differ by less."""


def ahead_by(vcenter_time: datetime, requested: datetime, answered: datetime) -> timedelta:
    """Return how far vCenter's clock is at least ahead of this machine's; negative = behind.

    vCenter read its clock at some moment between the request and the answer, so a slow answer is no difference.
    Example: for a request at 20:00:00 and an answer at 20:00:10, the time 20:00:07 is no difference, and 20:01:10 is 60
    s ahead.
    """
    # This machine's clock may have been set back between the two moments.
    first, last = min(requested, answered), max(requested, answered)
    nearest_local_time = min(max(vcenter_time, first), last)
    return vcenter_time - nearest_local_time


def clock_refusals(ahead: timedelta | None) -> list[Rejection]:
    """Return a refusal if vCenter's clock is too far `ahead` of this machine's, or behind it.

    `ahead`: None = the clocks cannot be compared. gpuops cannot find out which of the two is wrong, and a night by a
    wrong clock would end after the morning has begun. A return needs no clock.
    """
    difference = clock_trouble(ahead)
    if difference is None:
        return []
    hint = "set both clocks by NTP; gpuops rotate day runs even if they differ"
    return [Rejection("clocks", difference, hint=hint)]


def clock_trouble(ahead: timedelta | None, consequence: str = "the hours of a night are uncertain") -> str | None:
    """Return how the clocks differ, with the `consequence`; None = they agree, or cannot be compared."""
    if ahead is None or abs(ahead) <= MOST_CLOCK_DIFFERENCE:
        return None
    direction = "ahead of" if ahead > timedelta() else "behind"
    return f"vCenter's is {_format_length(abs(ahead))} {direction} this machine's: {consequence}"


def _format_length(length: timedelta) -> str:
    """Return `1 h 5 min`, or below an hour `5 min 20 s`."""
    minutes, seconds = divmod(round(length.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


BACK_BY_THEMSELVES: Final = 3
"""If this number of desktops of a pool come back by themselves in a night, the pool is left alone."""
POOL_LEFT_ALONE: Final = (
    f"{BACK_BY_THEMSELVES} desktops of its pool came back by themselves tonight: no more of it are taken"
)


def pools_to_leave_alone(running_again: Iterable[Vm], policy: Policy) -> frozenset[str]:
    """Return the names of the pools of which too many desktops that a night took are running again."""
    pools = Counter(pool.name for vm in running_again if (pool := policy.pool_of(vm)) is not None)
    return frozenset(name for name, count in pools.items() if count >= BACK_BY_THEMSELVES)


_CORRECT_FOLDER: Final = "correct the pool's `folder` in the policy, or remove the pool from it"
_AGREE: Final = "set it on the desktops whose owners agree (gpuops help marks), or use `owner: none` to need no mark"


def refuse_open_night(night: str, away_vms: Sequence[TakenVm]) -> Rejection:
    """Return one refusal for an earlier night with VMs that are not back."""
    names = some_names([taken_vm.original.name for taken_vm in away_vms])
    reason = f"is not over: {names} not back yet"
    return Rejection(
        f"night {night}", reason, hint=f"{RETURN_COMMAND} ends it; gpuops rotate status shows all of its VMs"
    )


def refuse_after_failures(night: str, steps: StepCounts, inventory: Inventory) -> list[Rejection]:
    """Return the refusal of a night of which too many steps have failed, also for later runs of it."""
    stop_reason = reason_to_stop(steps, (), inventory)
    hint = f"gpuops rotate status shows what failed; {RETURN_COMMAND} brings back what it took"
    return [] if stop_reason is None else [Rejection(f"night {night}", f"takes nothing more: {stop_reason}", hint=hint)]


def refuse_without_marks(policy: Policy, desktops: Survey) -> list[Rejection]:
    """Return a refusal for each pool if no desktop of any pool has the mark of its owner."""
    disowned = dict(desktops.disowned_pools)
    pools_to_take = [pool for pool in policy.pools if pool.is_taken_tonight and pool.users_kept_away]
    if any(pool.name not in disowned for pool in pools_to_take):
        return []
    return [
        Rejection(f"pool {name}", f"none of its desktops carries {mark}", hint=_AGREE)
        for name, mark in disowned.items()
    ]


def refuse_unknown_folders(policy: Policy, inventory: Inventory) -> list[Rejection]:
    """Return a refusal for each pool whose desktops a night may take and in whose folder this login sees no VM.

    The folder is misspelt, was renamed or cannot be seen. If a pool is empty for another reason, there is only a
    warning.
    """
    if policy.spare is not None and not policy.spare.take_idle:
        return []
    refusals = []
    for pool in policy.pools:
        folder = pool.select.folder
        if folder is None or not pool.users_kept_away:
            continue
        if not any(pool.select.in_folder(vm) for vm in inventory.vms.values()):
            similar = get_close_matches(folder, sorted(set(_folders_like(folder, inventory))), n=3)
            suggestion = f"; did you mean {', '.join(similar)}?" if similar else ""
            reason = f"no VM is in folder {folder}{suggestion}"
            refusals.append(Rejection(f"pool {pool.name}", reason, hint=_CORRECT_FOLDER))
    return refusals


def _folders_like(folder: str, inventory: Inventory) -> Iterator[str]:
    """Yield the folders of VMs in the form of this one: paths from the root, or the same number of consecutive names.

    For `desktops/cad` and a VM `/dc/vm/desktops/cad/desk-01`: `dc/vm`, `vm/desktops` and `desktops/cad`.
    """
    length = folder.strip("/").count("/") + 1
    for vm_folder in {vm.folder.strip("/") for vm in inventory.vms.values()}:
        names = vm_folder.split("/")
        if folder.startswith("/"):
            yield from (f"/{'/'.join(names[:end])}" for end in range(1, len(names) + 1))
        else:
            yield from ("/".join(names[start : start + length]) for start in range(len(names) - length + 1))


_NOT_BACK: Final = (Whereabouts.AWAY, Whereabouts.CHANGING)


@dataclass(frozen=True, slots=True)
class NightsOfPolicy:
    """A policy, and the VMs of its nights that the journal knows."""

    policy: Policy
    originals: tuple[Original, ...] = ()
    """The VMs of this night and of earlier ones, from the journal."""

    def night(self, inventory: Inventory, now: datetime) -> str:
        """Return the id of this night: tonight, or without a window the night that is still open."""
        if not self.policy.windows and self.policy.spare is None:
            nights = {taken_vm.original.night for taken_vm in self.away_vms(inventory)}
            if nights:
                return max(nights)
        return self.policy.night(now)

    def is_of(self, night: str, original: Original) -> bool:
        """Return whether this night took the VM. A watch keeps all VMs that it took before."""
        return original.night == night or self.policy.spare is not None

    def keeps_taken(self, night: str, taken_vm: TakenVm) -> bool:
        """Return whether the VM stays taken: not if another policy or another night took it."""
        if self.policy.spare is None:
            return taken_vm.original.night == night
        return taken_vm.policy.name == self.policy.name and taken_vm.policy.spare is not None

    def away_vms(self, inventory: Inventory) -> list[TakenVm]:
        """Return the VMs of nights that are not back yet, or whose power state is changing."""
        return [taken_vm for taken_vm in self.vms_of_nights(inventory) if taken_vm.whereabouts in _NOT_BACK]

    def vms_of_nights(self, inventory: Inventory) -> list[TakenVm]:
        """Return the VMs that nights of this policy took, and those of other policies that this policy selects as
        well."""
        marked = (vm for vm in inventory.vms.values() if vm.attributes.get(self.policy.marker))
        selected = {vm.ref for vm in marked if self._selects(vm)}
        of_nights = taken_vms(self.policy, self.originals, inventory, trusted_refs=selected)
        return [
            taken_vm for taken_vm in of_nights if taken_vm.policy.name == self.policy.name or self._selects(taken_vm.vm)
        ]

    def _selects(self, vm: Vm | None) -> bool:
        return vm is not None and (self.policy.pool_of(vm) is not None or entry_of(self.policy.ml, vm) is not None)

    def suspended_desktops(self, night: str, inventory: Inventory) -> list[Vm]:
        """Return the desktops that this night has suspended or is suspending."""
        tonight = (taken_vm for taken_vm in self.away_vms(inventory) if self.is_of(night, taken_vm.original))
        return [
            taken_vm.vm for taken_vm in tonight if taken_vm.vm is not None and taken_vm.original.role is Role.DESKTOP
        ]


def reserved_objection(starts: Sequence[Start], inventory: Inventory, catalog: Catalog) -> str:
    """Return why the last of these starts conflicts with a reservation; empty = it does not.

    Either the start would take reserved slots, or a reservation that has no room yet would take the slots of the
    suspended desktops, which could then not return.
    """
    if inventory.reservations is None or not any(start.vm.devices for start in starts):
        return ""
    new_start = starts[-1]
    unknown = reserved_unknown(new_start.host, inventory)
    if unknown is not None:
        return unknown
    after = inventory
    for start in starts:
        for desktop in start.desktops:
            after = project(suspend_or_shut_down(desktop), after)
        if start.moves:
            after = project(RelocateVm(start.vm.ref, start.host.ref), after)
        after = project(PowerOnVm(start.vm.ref, start.host.ref), after, catalog)
    for reservation in reserved_left([new_start.host], inventory, after, catalog):
        if new_start.desktops and reservation.before < reservation.reserved:
            reserved = f"{reservation.where}: {reservation.reserved} of {reservation.profile} are reserved for others"
            return f"{reserved}, and have no room yet: they would take the slots of suspended desktops"
        if reservation.too_few:
            return str(reservation)
    return ""
