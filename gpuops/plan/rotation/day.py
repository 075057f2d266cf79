"""Rotation, the morning: ML VMs that the night started stop, every desktop that it suspended comes back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import MorningOrder, Original, Policy, Role
from gpuops.model.vm import PowerState, Vm, VmDrs
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.plan import Choice, Plan, Rejection, Wave
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, SetAttribute, Step
from gpuops.plan.placement.return_order import resume_or_power_on, return_order
from gpuops.plan.rotation.drs import put_back
from gpuops.plan.rotation.durations import Durations
from gpuops.plan.rotation.elsewhere import hidden, may_still_change, noted, unsure
from gpuops.plan.rotation.keeping import keeping
from gpuops.plan.rotation.ours import (
    RETURN_COMMAND,
    Ours,
    Whereabouts,
    as_before,
    changing,
    once_done,
    ours,
    vms_of,
)
from gpuops.plan.rotation.suspended_state import another_state
from gpuops.plan.rotation.under_lease import kept_apart, left_alone, lock_vms


@dataclass(frozen=True, slots=True)
class RotateDay:
    """Undo whatever nights did and nobody returned: from the journal's originals, vCenter's markers, or both.

    Each VM is returned under the policy of its night, which the original has.
    """

    policy: Policy
    """It speaks for markers that the journal knows nothing of, and for originals that have none."""
    originals: tuple[Original, ...] = ()
    durations: Durations = field(default_factory=Durations)
    """What stopping and resuming took so far: how much time is left for work to be kept."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """By name of a lock VM, who holds its lease on another machine: what is under it is named, and not touched."""

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Let work be kept, stop, resume, clear the markers.

        A VM that cannot be returned is named in `unmet` with one safe command.
        """
        found = ours(self.policy, self.originals, inventory)
        plan = self.undoing(found, inventory, catalog, now)
        return replace(plan, warnings=(*plan.warnings, *in_another_state(found, plan.steps)))

    def lock_vms(self, inventory: Inventory) -> Mapping[str, str | None]:
        """By VM, the name of the lock VM whose lease its return goes under."""
        return lock_vms(ours(self.policy, self.originals, inventory), self.policy)

    def undoing(self, found: Sequence[Ours], inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """The same for what was found to be of nights."""
        found, theirs = kept_apart(found, self.policy, self.elsewhere)
        away = [mine for mine in found if mine.whereabouts is Whereabouts.AWAY]
        ml = [mine for mine in away if mine.original.role is Role.ML]
        desktops = [mine for mine in away if mine.original.role is not Role.ML]
        kept = keeping(ml, [mine.vm for mine in desktops if mine.vm is not None], now, self.durations)
        canaries, seeds, others = _order(desktops, inventory, catalog)
        late = may_still_change(found, inventory)
        unread = () if self.originals else tuple(hidden((*found, *theirs), self.policy, inventory))
        over = [mine for mine in _returnable(found) if mine not in late]
        waves = (
            Wave("let the ML VMs of the night keep their work", kept.hooks),
            Wave("stop the ML VMs of the night", kept.stops),
            Wave("resume one desktop of each host first", _resume(canaries)),
            Wave("resume one desktop for each GPU, the largest profile first", _resume(seeds)),
            Wave("resume the others, the largest profile first", _resume(others)),
            Wave("leave the ML VMs to DRS as before", put_back(over, inventory)),
            Wave("clear the markers", tuple(_unmark(over))),
            Wave("note on markers of other machines when they were seen", noted(late, inventory)),
        )
        return Plan(
            waves=tuple(wave for wave in waves if wave.steps),
            warnings=kept.warnings,
            unmet=(
                *(_unmet(mine) for mine in found if mine.whereabouts in _NAMED),
                *map(unsure, late),
                *unread,
                *left_alone(theirs, self.policy, self.elsewhere),
            ),
            because=() if found or theirs or unread else ("no night has taken anything that is not back",),
            choices=(*map(_choice, found), *(replace(_choice(mine), chosen=False) for mine in theirs)),
            disruptive=bool(ml),
        )


def _order(desktops: Sequence[Ours], inventory: Inventory, catalog: Catalog) -> tuple[list[Vm], list[Vm], list[Vm]]:
    """One of each host where the policy wants that, then one for each GPU to claim, then the rest.

    The first of a host's order is its canary, so that the order in which all of them fit is kept.
    """
    seeds, others = return_order([mine.vm for mine in desktops if mine.vm is not None], inventory, catalog)
    alone = {
        mine.vm.ref for mine in desktops if mine.vm is not None and mine.policy.morning is MorningOrder.CANARY_FIRST
    }
    first: dict[str | None, str] = {}
    for vm in (*seeds, *others):
        if vm.ref in alone:
            first.setdefault(vm.host, vm.ref)
    early = frozenset(first.values())
    canaries = [vm for vm in (*seeds, *others) if vm.ref in early]
    return canaries, _without(seeds, early), _without(others, early)


def _unmark(over: Iterable[Ours]) -> Iterator[SetAttribute]:
    """Each marker that is there; that of a VM which is on its way back, whether or not it can be seen."""
    for mine in over:
        own = mine.policy.marker if mine.whereabouts is Whereabouts.AWAY else None
        vm = mine.vm
        if vm is not None:
            names = (name for name in mine.markers if vm.attributes.get(name) or name == own)
            yield from (SetAttribute(vm.ref, name, "") for name in names)


_NAMED = (Whereabouts.CHANGING, Whereabouts.LOST, Whereabouts.GONE, Whereabouts.FOREIGN, Whereabouts.UNKNOWN)


def in_another_state(found: Iterable[Ours], steps: Iterable[Step]) -> tuple[str, ...]:
    """What is said of each desktop whose user does not find what the night suspended, if these steps resume it, or it
    runs and no return has closed it."""
    resumed = {step.vm for step in steps if isinstance(step, ResumeVm)}
    there = (
        (mine.original, mine.vm)
        for mine in found
        if mine.vm is not None and (mine.vm.ref in resumed or _has_just_come_back(mine))
    )
    told = ((original.name, another_state(original, vm)) for original, vm in there)
    return tuple(f"{name}: {another}" for name, another in told if another)


def _has_just_come_back(mine: Ours) -> bool:
    return mine.whereabouts is Whereabouts.BACK and not mine.original.returned


def _returnable(found: Iterable[Ours]) -> list[Ours]:
    returnable = (Whereabouts.AWAY, Whereabouts.BACK, Whereabouts.UNTOUCHED)
    return [mine for mine in found if mine.whereabouts in returnable]


def _unmet(mine: Ours) -> Rejection:
    return Rejection(mine.original.name, mine.reason, hint=mine.advice)


def _choice(mine: Ours) -> Choice:
    return Choice(mine.original.name, chosen=mine.whereabouts is Whereabouts.AWAY, reason=mine.reason)


def _without(vms: Iterable[Vm], early: Collection[str]) -> list[Vm]:
    return [vm for vm in vms if vm.ref not in early]


def _resume(desktops: Sequence[Vm]) -> tuple[ResumeVm | PowerOnVm, ...]:
    return tuple(resume_or_power_on(vm) for vm in desktops)


def is_returned(original: Original, inventory: Inventory) -> bool:
    """Whether a VM is as it was before the night, so that the journal may close it."""
    vms = vms_of(original, inventory)
    vm = vms[0] if len(vms) == 1 else None
    if vm is None or vm.power is None or changing(vm) is not None:
        return False
    if original.unsure and as_before(original, vm):
        return False
    if original.role is Role.ML:
        if original.drs is not None and inventory.drs_of(vm) in (VmDrs.MANUAL, None):
            return False
        return vm.power is not PowerState.ON or not original.taken
    return vm.power is PowerState.ON or not original.taken


def explained(outcomes: Iterable[Outcome], after: Inventory, *, alone: bool = False) -> tuple[Outcome, ...]:
    """The outcomes, each desktop that did not come back with who is in its way and one safe command.

    `alone`: it was asked for by name, and so it is tried again.
    """
    return tuple(_explained(outcome, after, alone) if _not_back(outcome) else outcome for outcome in outcomes)


def _not_back(outcome: Outcome) -> bool:
    return isinstance(outcome.step, ResumeVm | PowerOnVm) and outcome.verdict in (
        Verdict.FAILED,
        Verdict.UNKNOWN,
        Verdict.SKIPPED,
    )


def _explained(outcome: Outcome, after: Inventory, alone: bool) -> Outcome:
    vm = after.vms.get(outcome.step.vm)
    host = after.host_of(vm) if vm else None
    discarded = isinstance(outcome.step, ResumeVm) and vm is not None and vm.power is PowerState.OFF
    if vm is None or host is None or discarded:
        return replace(outcome, reason=f"{outcome.reason}; look: gpuops rotate status")
    on_gpus = {ref for gpu in host.gpus for ref in gpu.vms or ()}
    holders = sorted(after.vms[ref].name if ref in after.vms else ref for ref in on_gpus)
    held = f"the GPUs of {host.name} are held by {', '.join(holders)}: free one" if holders else "see to that"
    again = command("rotate restore", vm=called(vm)) if alone else RETURN_COMMAND
    return replace(outcome, reason=f"{outcome.reason}; {once_done(held, again)}")
