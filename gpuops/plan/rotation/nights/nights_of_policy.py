"""The VMs that the nights of a policy have taken and not yet returned, from the journal and the markers of VMs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts, taken_vms

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
        of_nights = taken_vms(self.policy, self.originals, inventory, believed=selected)
        return [
            taken_vm for taken_vm in of_nights if taken_vm.policy.name == self.policy.name or self._selects(taken_vm.vm)
        ]

    def _selects(self, vm: Vm | None) -> bool:
        """Return whether the VM is in a pool or in the queue of the policy."""
        return vm is not None and (self.policy.pool_of(vm) is not None or entry_of(self.policy.ml, vm) is not None)

    def suspended_desktops(self, night: str, inventory: Inventory) -> list[Vm]:
        """Return the desktops that this night has suspended or is suspending."""
        tonight = (taken_vm for taken_vm in self.away_vms(inventory) if self.is_of(night, taken_vm.original))
        return [
            taken_vm.vm for taken_vm in tonight if taken_vm.vm is not None and taken_vm.original.role is Role.DESKTOP
        ]
