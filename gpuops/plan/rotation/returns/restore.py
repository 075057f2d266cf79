"""The return of named VMs, for `rotate restore`: the plan of a complete morning, limited to these VMs."""

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
from gpuops.plan.rotation.returns.way_free import away_desktops, return_desktops, running_ml
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, TakenVm, Whereabouts, marker_of, taken_vms, vms_of

_AS_IT_WAS = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


@dataclass(frozen=True, slots=True)
class RestoreVms:
    """Return only these VMs.

    Other ML VMs keep running, even if a desktop then finds no room: the user decides whose work is stopped in an
    emergency, or the policy of the night does (`user_wins`).

    A VM that only a marker records and that the policy does not cover is returned after a confirmation.
    """

    day: RotateDay
    names: tuple[str, ...]
    clears: bool = False
    """Whether only the markers are cleared (`gpuops rotate clear-marker`)."""

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def lock_vms(self, inventory: Inventory) -> Mapping[str, str | None]:
        """As `RotateDay.lock_vms`."""
        return self.day.lock_vms(inventory)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Return the plan of a morning for these VMs. It refuses names of no VM, and of VMs that no night took."""
        if self.clears:
            return clear_markers(self.day, self.names, inventory)
        named_refs = {vm.ref for name in self.names for vm in _vms_called(name, inventory)}
        of_nights = taken_vms(self.day.policy, self.day.originals, inventory, believed=named_refs)
        # Names of VMs that no night took are accepted only if the VM is running.
        selected = [taken_vm for taken_vm in of_nights if any(_is_called(taken_vm, name) for name in self.names)]
        known_names = {name for name in self.names if any(_is_called(taken_vm, name) for taken_vm in selected)}
        other_vms = {name: _vms_called(name, inventory) for name in self.names if name not in known_names}
        not_taken = [_not_taken(name, vms) for name, vms in other_vms.items() if not _all_running(vms)]
        if not_taken:
            return refuse(*not_taken)
        # ML VMs that occupy the GPUs of a desktop stop if the policy of its night says `user_wins`.
        users = [desktop for desktop in away_desktops(selected) if desktop.policy.user_wins]
        others_running = [ml_vm for ml_vm in running_ml(of_nights) if ml_vm not in selected]
        desktop_return = return_desktops(users, others_running, inventory, catalog, inventory.taken_at)
        stopped_for = [
            f"{ml_vm.original.name}: is stopped for {_names_of(users)} (user_wins)" for ml_vm in desktop_return.stops
        ]
        selected += desktop_return.stops
        # Plan the complete morning for its order and limits, then keep only the steps of these VMs.
        limited_plan = _limited_to(self.day.return_plan(of_nights, inventory, catalog, now), selected)
        doubtful = {
            vm.ref: f"{vm.name}: {taken_vm.doubt}"
            for taken_vm in selected
            if taken_vm.doubt and (vm := taken_vm.vm) is not None
        }
        return replace(
            limited_plan,
            warnings=(*limited_plan.warnings, *doubtful.values(), *reverted_desktops(selected, limited_plan.steps)),
            disruptive=limited_plan.disruptive or any(step.vm in doubtful for step in limited_plan.steps),
            because=(
                *stopped_for,
                *(
                    f"{taken_vm.original.name}: {taken_vm.reason}"
                    for taken_vm in selected
                    if taken_vm.whereabouts in _AS_IT_WAS
                ),
                *(f"{name}: is running, and no night holds it" for name in other_vms),
            ),
        )


def clear_markers(day: RotateDay, names: Iterable[str], inventory: Inventory) -> Plan:
    """Return the plan that clears the markers of these VMs and changes nothing else.

    This is for copies of VMs of a night, and for VMs whose marker cannot be read. A VM that belongs to an open night of
    the journal is refused: the return of that night clears its marker.
    """
    attributes = sorted({marker_of(day.policy), *(marker_of(original.policy) for original in day.originals)})
    open_originals = {
        vm.ref: original for original in day.originals if not original.returned for vm in vms_of(original, inventory)
    }
    refused, choices, steps = list[Rejection](), list[Choice](), list[SetAttribute]()
    for name in names:
        vms = _vms_called(name, inventory)
        if len(vms) != 1:
            refused.append(_not_one(name, vms))
            continue
        [vm] = vms
        if vm.ref in open_originals:
            night = open_originals[vm.ref].night
            refused.append(
                Rejection(vm.name, f"night {night} holds it: its return clears its marker", hint=RETURN_COMMAND)
            )
            continue
        marker_texts = {attribute: vm.attributes.get(attribute, "") for attribute in attributes}
        steps += [SetAttribute(vm.ref, attribute, "") for attribute, text in marker_texts.items() if text]
        shown_markers = " and ".join(f"{attribute} {text!r}" for attribute, text in marker_texts.items() if text)
        choices.append(
            Choice(vm.name, bool(shown_markers), f"carries {shown_markers}" if shown_markers else "carries no marker")
        )
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


def _names_of(desktops: Iterable[TakenVm]) -> str:
    return ", ".join(user_desktop.original.name for user_desktop in desktops)


def _limited_to(plan: Plan, selected: Iterable[TakenVm]) -> Plan:
    """Return the parts of the plan that concern these VMs."""
    refs = {taken_vm.vm.ref for taken_vm in selected if taken_vm.vm is not None}
    names = {taken_vm.original.name for taken_vm in selected}
    waves = (Wave(wave.title, tuple(step for step in wave.steps if step.vm in refs)) for wave in plan.waves)
    narrowed_waves = tuple(wave for wave in waves if wave.steps)
    return replace(
        plan,
        waves=narrowed_waves,
        unmet=tuple(rejection for rejection in plan.unmet if rejection.subject in names),
        choices=tuple(choice for choice in plan.choices if choice.subject in names),
        disruptive=any(isinstance(step, ShutDownGuest | SuspendVm) for wave in narrowed_waves for step in wave.steps),
    )


def _is_called(taken_vm: TakenVm, name: str) -> bool:
    """Return whether `--vm NAME` selects it: by its name when it was taken, or by its name now."""
    was_called = name in (taken_vm.original.name, f"moid:{taken_vm.original.vm}")
    return was_called or (taken_vm.vm is not None and taken_vm.vm.is_called(name))


def _vms_called(name: str, inventory: Inventory) -> list[Vm]:
    return [vm for vm in inventory.vms.values() if vm.is_called(name)]


def _all_running(vms: Collection[Vm]) -> bool:
    return bool(vms) and all(vm.power is PowerState.ON for vm in vms)


def _not_taken(name: str, vms: Collection[Vm]) -> Rejection:
    if not vms:
        return Rejection(name, "no VM of a night has this name", hint="gpuops rotate status lists them")
    return Rejection(name, "no night has taken it: not touched", hint="gpuops rotate status lists those that were")
