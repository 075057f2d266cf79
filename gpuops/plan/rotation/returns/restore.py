"""The return of named VMs alone, for `rotate restore`: a whole morning's plan, cut down to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Choice, Plan, Rejection, Wave, refuse
from gpuops.plan.core.steps import SetAttribute, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.returns.day import RotateDay, reverted_desktops
from gpuops.plan.rotation.returns.way_free import away_desktops, running_ml, way_free_for
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, TakenVm, Whereabouts, marker_of, taken_vms, vms_of

_AS_IT_WAS = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


@dataclass(frozen=True, slots=True)
class RestoreVms:
    """Return these VMs alone. An ML VM that is not among them runs on, even where a desktop then finds no room: whose
    work is stopped in an emergency is the user's decision, or that of the policy of its night (`user_wins`).

    A VM of which only a marker tells, and that the policy does not cover, is returned after a confirmation.
    """

    day: RotateDay
    names: tuple[str, ...]
    clears: bool = False
    """Whether only their markers are cleared (`gpuops rotate clear-marker`)."""

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def lock_vms(self, inventory: Inventory) -> Mapping[str, str | None]:
        """As `RotateDay.lock_vms`."""
        return self.day.lock_vms(inventory)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """The plan of a morning for them; refused for a name of no VM, or of one that no night took."""
        if self.clears:
            return markers_cleared(self.day, self.names, inventory)
        asked_for = {vm.ref for name in self.names for vm in _vms_called(name, inventory)}
        of_nights = taken_vms(self.day.policy, self.day.originals, inventory, believed=asked_for)
        # Which of the names are of VMs that nights took; any other name must be of a VM that runs anyhow.
        meant = [taken_vm for taken_vm in of_nights if any(_is_called(taken_vm, name) for name in self.names)]
        known = {name for name in self.names if any(_is_called(taken_vm, name) for taken_vm in meant)}
        others = {name: _vms_called(name, inventory) for name in self.names if name not in known}
        not_taken = [_not_taken(name, vms) for name, vms in others.items() if not _all_running(vms)]
        if not_taken:
            return refuse(*not_taken)
        # ML VMs that are in the way of a desktop stop with it where the policy of its night says so.
        users = [each for each in away_desktops(meant) if each.policy.user_wins]
        others_running = [each for each in running_ml(of_nights) if each not in meant]
        way = way_free_for(users, others_running, inventory, catalog, inventory.taken_at)
        stopped_for = [f"{each.original.name}: is stopped for {_named(users)} (user_wins)" for each in way.stops]
        meant += way.stops
        # The order and the limits of a whole morning, of which only the steps of these VMs are kept.
        narrowed = _narrowed(self.day.return_plan(of_nights, inventory, catalog, now), meant)
        doubtful = {vm.ref: f"{vm.name}: {each.doubt}" for each in meant if each.doubt and (vm := each.vm) is not None}
        return replace(
            narrowed,
            warnings=(*narrowed.warnings, *doubtful.values(), *reverted_desktops(meant, narrowed.steps)),
            disruptive=narrowed.disruptive or any(step.vm in doubtful for step in narrowed.steps),
            because=(
                *stopped_for,
                *(f"{each.original.name}: {each.reason}" for each in meant if each.whereabouts in _AS_IT_WAS),
                *(f"{name}: is running, and no night holds it" for name in others),
            ),
        )


def markers_cleared(day: RotateDay, names: Iterable[str], inventory: Inventory) -> Plan:
    """The plan that clears the markers of these VMs and does nothing else to them: copies of VMs of a night, and VMs
    whose marker cannot be read. Refused for a VM that an open night of the journal holds: its return clears it."""
    attributes = sorted({marker_of(day.policy), *(marker_of(original.policy) for original in day.originals)})
    held = {
        vm.ref: original for original in day.originals if not original.returned for vm in vms_of(original, inventory)
    }
    refused, choices, steps = list[Rejection](), list[Choice](), list[SetAttribute]()
    for name in names:
        vms = _vms_called(name, inventory)
        if len(vms) != 1:
            refused.append(_not_one(name, vms))
            continue
        [vm] = vms
        if vm.ref in held:
            night = held[vm.ref].night
            refused.append(
                Rejection(vm.name, f"night {night} holds it: its return clears its marker", hint=RETURN_COMMAND)
            )
            continue
        values = {attribute: vm.attributes.get(attribute, "") for attribute in attributes}
        steps += [SetAttribute(vm.ref, attribute, "") for attribute, value in values.items() if value]
        told = " and ".join(f"{attribute} {value!r}" for attribute, value in values.items() if value)
        choices.append(Choice(vm.name, bool(told), f"carries {told}" if told else "carries no marker"))
    if refused:
        return refuse(*refused)
    return Plan(
        waves=(Wave("clear the markers", tuple(steps)),) if steps else (),
        choices=tuple(choices),
        because=tuple(f"{choice.subject}: {choice.reason}" for choice in choices if not choice.chosen),
        disruptive=bool(steps),
    )


def _not_one(name: str, vms: Collection[Vm]) -> Rejection:
    if not vms:
        return Rejection(name, "no VM is called so", hint="gpuops rotate status lists those that have a marker")
    return Rejection(name, "several VMs are called so", hint="moid:ID names one; gpuops rotate status lists them")


def _named(users: Iterable[TakenVm]) -> str:
    return ", ".join(each.original.name for each in users)


def _narrowed(plan: Plan, meant: Iterable[TakenVm]) -> Plan:
    """What of the plan is about these VMs."""
    refs = {taken_vm.vm.ref for taken_vm in meant if taken_vm.vm is not None}
    names = {taken_vm.original.name for taken_vm in meant}
    waves = (Wave(wave.title, tuple(step for step in wave.steps if step.vm in refs)) for wave in plan.waves)
    kept = tuple(wave for wave in waves if wave.steps)
    return replace(
        plan,
        waves=kept,
        unmet=tuple(left for left in plan.unmet if left.subject in names),
        choices=tuple(choice for choice in plan.choices if choice.subject in names),
        disruptive=any(isinstance(step, ShutDownGuest | SuspendVm) for wave in kept for step in wave.steps),
    )


def _is_called(taken_vm: TakenVm, name: str) -> bool:
    """Whether `--vm` means it: by the name that it had when it was taken, or by what it is called now."""
    was = name in (taken_vm.original.name, f"moid:{taken_vm.original.vm}")
    return was or (taken_vm.vm is not None and taken_vm.vm.is_called(name))


def _vms_called(name: str, inventory: Inventory) -> list[Vm]:
    return [vm for vm in inventory.vms.values() if vm.is_called(name)]


def _all_running(vms: Collection[Vm]) -> bool:
    return bool(vms) and all(vm.power is PowerState.ON for vm in vms)


def _not_taken(name: str, vms: Collection[Vm]) -> Rejection:
    if not vms:
        return Rejection(name, "no VM of a night has this name", hint="gpuops rotate status lists them")
    return Rejection(name, "no night has taken it: not touched", hint="gpuops rotate status lists those that were")
