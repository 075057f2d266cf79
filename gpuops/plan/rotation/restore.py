"""Rotation, a restore: of what nights took, the VMs that were named, now. As in a morning, which knows how."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.core.plan import Plan, Rejection, Wave, refuse
from gpuops.plan.core.steps import ShutDownGuest
from gpuops.plan.rotation.day import RotateDay, in_another_state
from gpuops.plan.rotation.ours import Ours, Whereabouts, ours

_AS_IT_WAS = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


@dataclass(frozen=True, slots=True)
class RestoreVms:
    """The morning, for these VMs alone. An ML VM that is not among them runs on, whoever finds no room beside it:
    whose work gives way in an emergency is not for gpuops to decide.

    A VM that only a marker tells of, and that is nowhere where the policy would believe it, is asked about first.
    """

    day: RotateDay
    names: tuple[str, ...]

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def lock_vms(self, inventory: Inventory) -> Mapping[str, str | None]:
        """As `RotateDay.lock_vms`."""
        return self.day.lock_vms(inventory)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """What a morning would do with them; refused for a name that is of no VM, or of one that no night took."""
        asked_for = {vm.ref for name in self.names for vm in _called(name, inventory)}
        found = ours(self.day.policy, self.day.originals, inventory, believed=asked_for)
        meant = [mine for mine in found if any(_is_called(mine, name) for name in self.names)]
        known = {name for name in self.names if any(_is_called(mine, name) for mine in meant)}
        others = {name: _called(name, inventory) for name in self.names if name not in known}
        strangers = [_stranger(name, vms) for name, vms in others.items() if not _run(vms)]
        if strangers:
            return refuse(*strangers)
        narrowed = _narrowed(self.day.undoing(found, inventory, catalog, now), meant)
        doubtful = {vm.ref: f"{vm.name}: {mine.doubt}" for mine in meant if mine.doubt and (vm := mine.vm) is not None}
        return replace(
            narrowed,
            warnings=(*narrowed.warnings, *doubtful.values(), *in_another_state(meant, narrowed.steps)),
            disruptive=narrowed.disruptive or any(step.vm in doubtful for step in narrowed.steps),
            because=(
                *(f"{mine.original.name}: {mine.reason}" for mine in meant if mine.whereabouts in _AS_IT_WAS),
                *(f"{name}: is running, and no night holds it" for name in others),
            ),
        )


def _narrowed(plan: Plan, meant: Iterable[Ours]) -> Plan:
    """The plan without what is not about these VMs."""
    refs = {mine.vm.ref for mine in meant if mine.vm is not None}
    names = {mine.original.name for mine in meant}
    waves = (Wave(wave.title, tuple(step for step in wave.steps if step.vm in refs)) for wave in plan.waves)
    kept = tuple(wave for wave in waves if wave.steps)
    return replace(
        plan,
        waves=kept,
        unmet=tuple(left for left in plan.unmet if left.subject in names),
        choices=tuple(choice for choice in plan.choices if choice.subject in names),
        disruptive=any(isinstance(step, ShutDownGuest) for wave in kept for step in wave.steps),
    )


def _is_called(mine: Ours, name: str) -> bool:
    """Whether `--vm` means it: by the name that it had when it was taken, or by what it is called now."""
    was = name in (mine.original.name, f"moid:{mine.original.vm}")
    return was or (mine.vm is not None and mine.vm.is_called(name))


def _called(name: str, inventory: Inventory) -> list[Vm]:
    return [vm for vm in inventory.vms.values() if vm.is_called(name)]


def _run(vms: Collection[Vm]) -> bool:
    return bool(vms) and all(vm.power is PowerState.ON for vm in vms)


def _stranger(name: str, vms: Collection[Vm]) -> Rejection:
    if not vms:
        return Rejection(name, "no VM of a night has this name", hint="gpuops rotate status lists them")
    return Rejection(name, "no night has taken it: not touched", hint="gpuops rotate status lists those that were")
