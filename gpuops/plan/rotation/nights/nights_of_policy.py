"""What the nights of a policy have taken and not yet brought back, as the journal and the markers of VMs tell."""

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
    """A policy, and what the journal knows of the VMs that its nights have taken."""

    policy: Policy
    originals: tuple[Original, ...] = ()
    """What the journal knows of VMs of this night and of earlier ones."""

    def night(self, inventory: Inventory, now: datetime) -> str:
        """The id of this night: tonight's, or without a window the one that is still open."""
        if not self.policy.windows and self.policy.spare is None:
            nights = {taken_vm.original.night for taken_vm in self.away(inventory)}
            if nights:
                return max(nights)
        return self.policy.night(now)

    def is_of(self, night: str, original: Original) -> bool:
        """Whether it was taken by this night; a watch goes on with all that it has taken before."""
        return original.night == night or self.policy.spare is not None

    def goes_on_with(self, night: str, taken_vm: TakenVm) -> bool:
        """Whether what it holds stays taken: not what another policy, or a night, has taken."""
        if self.policy.spare is None:
            return taken_vm.original.night == night
        return taken_vm.policy.name == self.policy.name and taken_vm.policy.spare is not None

    def away(self, inventory: Inventory) -> list[TakenVm]:
        """The VMs of nights that are not back yet, or whose power state is just changing."""
        return [taken_vm for taken_vm in self.taken(inventory) if taken_vm.whereabouts in _NOT_BACK]

    def taken(self, inventory: Inventory) -> list[TakenVm]:
        """The VMs that nights of this policy have taken, and those of other policies that this one selects as well."""
        marked = (vm for vm in inventory.vms.values() if vm.attributes.get(self.policy.marker))
        selected = {vm.ref for vm in marked if self._selects(vm)}
        of_nights = taken_vms(self.policy, self.originals, inventory, believed=selected)
        return [
            taken_vm for taken_vm in of_nights if taken_vm.policy.name == self.policy.name or self._selects(taken_vm.vm)
        ]

    def _selects(self, vm: Vm | None) -> bool:
        """Whether the VM is of a pool or of the queue."""
        return vm is not None and (self.policy.pool_of(vm) is not None or entry_of(self.policy.ml, vm) is not None)

    def suspended(self, night: str, inventory: Inventory) -> list[Vm]:
        """Desktops that tonight has suspended, or is suspending."""
        tonight = (taken_vm for taken_vm in self.away(inventory) if self.is_of(night, taken_vm.original))
        return [
            taken_vm.vm for taken_vm in tonight if taken_vm.vm is not None and taken_vm.original.role is Role.DESKTOP
        ]
