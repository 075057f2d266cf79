"""Rotation, the evening: idle desktops that the policy selects make room for the ML VMs that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import Original, Policy, Role, marker_value
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.plan import Choice, Plan, Rejection, Wave, refuse
from gpuops.plan.rotation.desktops import Survey, survey
from gpuops.plan.rotation.ours import RETURN_COMMAND, Ours, Whereabouts, ours
from gpuops.plan.rotation.queue import Served, serve
from gpuops.plan.rotation.return_order import may_return
from gpuops.plan.rotation.room import Room
from gpuops.plan.rotation.waiting import waiting
from gpuops.plan.steps import PowerOnVm, RelocateVm, SetAttribute, SuspendVm

_NOT_BACK: Final = (Whereabouts.AWAY, Whereabouts.CHANGING)


@dataclass(frozen=True, slots=True)
class RotateNight:
    """Suspend what the policy allows, start what fits. `originals` is what the journal knows of earlier nights."""

    policy: Policy
    originals: tuple[Original, ...] = ()

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return ()

    def night(self, inventory: Inventory, now: datetime) -> str:
        """The night this is: tonight's, or without a window the one that is still open."""
        if not self.policy.windows:
            nights = {mine.original.night for mine in self._away(inventory)}
            if nights:
                return max(nights)
        return self.policy.night(now)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """Mark, suspend, start; refused outside the window, and while an earlier night is not returned."""
        night = self.night(inventory, now)
        refusals = self._refusals(night, inventory, now)
        if refusals:
            return refuse(*refusals)
        if self._is_over(night, inventory):
            return Plan(because=(f"night {night} is over: its desktops are back",))
        found = self.may_take(inventory, catalog, now)
        way_back = may_return(inventory, catalog, Room(catalog, certain=False))
        served = serve(
            waiting(self.policy, inventory), found.free_to_take, inventory, Room(catalog, certain=True), way_back
        )
        return Plan(
            waves=self._waves(night, served, inventory),
            warnings=self._warnings(found, served),
            because=self._because(night, found, served),
            choices=(*served.choices, *_desktop_choices(found, served)),
            disruptive=bool(served.starts),
        )

    def may_take(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Survey:
        """Which desktops this night may suspend, whether or not the queue needs their GPUs."""
        return survey(self.policy, inventory, catalog, self._left_alone(self.night(inventory, now), inventory))

    def saved(self, plan: Plan, inventory: Inventory, now: datetime) -> tuple[Original, ...]:
        """What the morning will need of every VM this plan touches."""
        night = self.night(inventory, now)
        roles = {
            step.vm: Role.DESKTOP if isinstance(step, SuspendVm) else Role.ML
            for step in plan.steps
            if isinstance(step, SuspendVm | PowerOnVm)
        }
        found = [(inventory.vms[ref], role) for ref, role in roles.items()]
        return tuple(
            Original(night, role, vm.ref, vm.instance_uuid, vm.name, vm.host, vm.profiles) for vm, role in found
        )

    def _away(self, inventory: Inventory) -> list[Ours]:
        """What is not back yet: away, or on its way to where nobody knows yet."""
        return [mine for mine in ours(self.policy, self.originals, inventory) if mine.whereabouts in _NOT_BACK]

    def _refusals(self, night: str, inventory: Inventory, now: datetime) -> list[Rejection]:
        closed = self._closed(now)
        if closed:
            return [Rejection(self.policy.name, closed, hint=f"{RETURN_COMMAND} brings back what a night took")]
        return [
            Rejection(
                mine.original.name, f"night {mine.original.night} is not over: {mine.reason}", hint=RETURN_COMMAND
            )
            for mine in self._away(inventory)
            if mine.original.night != night
        ]

    def _closed(self, now: datetime) -> str | None:
        """Why nothing is taken at this hour, whatever the desktops do; None = a window is open, or there is none."""
        night = self.policy.night_at(now)
        if not self.policy.windows or (night is not None and night.takes_at(now)):
            return None
        zone = self.policy.windows[0].zone
        local = f"outside the window: it is {now.astimezone(zone):%Y-%m-%d %H:%M} {zone}"
        if night is not None:
            return f"{local}, and it closed at {night.closes.astimezone(zone):%H:%M}"
        coming = self.policy.next_night(now)
        if coming is None:
            return f"{local}, and no night opens within a year"
        opens, closes = (moment.astimezone(zone) for moment in (coming.opens, coming.closes))
        return f"{local}, the next night is from {opens:%Y-%m-%d %H:%M} to {closes:%H:%M}"

    def _is_over(self, night: str, inventory: Inventory) -> bool:
        """One window is one night: what came back in it is not taken again, whatever cron does."""
        tonight = [original for original in self.originals if original.night == night and original.taken]
        return any(original.returned for original in tonight)

    def _left_alone(self, night: str, inventory: Inventory) -> dict[str, str]:
        """VMs that tonight's history speaks about: suspended by us, or come back by themselves since."""
        told: dict[str, str] = {}
        for mine in ours(self.policy, self.originals, inventory):
            if mine.original.night != night or mine.vm is None or not mine.original.taken:
                continue
            if mine.whereabouts is Whereabouts.AWAY:
                told[mine.vm.ref] = "suspended tonight"
            elif mine.whereabouts is Whereabouts.CHANGING:
                told[mine.vm.ref] = mine.reason
            elif mine.vm.power is PowerState.ON:
                told[mine.vm.ref] = "came back by itself tonight: left alone"
        return told

    def _waves(self, night: str, served: Served, inventory: Inventory) -> tuple[Wave, ...]:
        marks = [(vm, Role.DESKTOP) for vm in served.desktops] + [(start.vm, Role.ML) for start in served.starts]
        waves = (
            Wave("mark what is taken", tuple(self._marks(night, marks))),
            Wave("suspend idle desktops", tuple(SuspendVm(vm.ref) for vm in served.desktops)),
            Wave(
                "move ML VMs to their hosts",
                tuple(RelocateVm(start.vm.ref, start.host.ref) for start in served.starts if start.moves),
            ),
            Wave("start ML VMs", tuple(PowerOnVm(start.vm.ref, start.host.ref) for start in served.starts)),
        )
        return tuple(wave for wave in waves if wave.steps)

    def _marks(self, night: str, taken: Iterable[tuple[Vm, Role]]) -> Iterable[SetAttribute]:
        """One for each VM that a run which was cut off has not marked already."""
        for vm, role in taken:
            value = marker_value(night, role)
            if vm.attributes.get(self.policy.marker) != value:
                yield SetAttribute(vm.ref, self.policy.marker, value)

    def _warnings(self, found: Survey, served: Served) -> tuple[str, ...]:
        """What in the policy is likely not meant so; a night that does less than hoped is seen only in the morning."""
        unparked = (
            f"pool {pool.name}: `parked: false`, so none of its desktops is taken"
            for pool in self.policy.pools
            if not pool.parked
        )
        empty = (f"pool {name}: no VM is in it" for name in found.empty_pools)
        return (*unparked, *empty, *(f"ML queue: {reason}" for reason in served.unknown))

    def _because(self, night: str, found: Survey, served: Served) -> tuple[str, ...]:
        lines = [f"night {night}", f"{found.other_vms} other VMs are in no pool of this policy"]
        if not self.policy.ml:
            lines.append("the ML queue is empty: no desktop is suspended for nothing")
        elif not served.starts:
            lines.append("no VM of the ML queue starts, so no desktop is suspended")
        return tuple(lines)


def _desktop_choices(found: Survey, served: Served) -> Iterable[Choice]:
    room_for = {desktop.ref: start.vm.name for start in served.starts for desktop in start.desktops}
    taken = [
        Choice(vm.name, chosen=vm.ref in room_for, reason=f"makes room for {room_for[vm.ref]}")
        if vm.ref in room_for
        else Choice(vm.name, chosen=False, reason="idle; no VM of the queue needs its GPU")
        for vm in found.free_to_take
    ]
    return sorted((*taken, *found.kept), key=lambda choice: choice.subject)
