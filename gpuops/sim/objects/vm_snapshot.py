"""VirtualMachineSnapshot: a snapshot of a VM, which can be reverted to, renamed and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.core.managed_object import ManagedObject, method, prop
from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.operations.vms import snapshot_revert, snapshots
from gpuops.sim.render import vm_config

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.state.vm_state import VmState
    from gpuops.sim.world import World


class VirtualMachineSnapshot(ManagedObject):
    """A snapshot of `vm`; `taken` is the VM's state at that time."""

    wsdl_name = "VirtualMachineSnapshot"
    world: World

    def __init__(self, world: World, moid: str, vm: VmEntity, taken: VmState) -> None:
        super().__init__(world, moid)
        self.vm = vm
        self.taken = taken

    @prop("vm")
    def _vm(self) -> Any:
        return self.vm

    @prop("config")
    def _config(self) -> Any:
        return vm_config.config(self.taken, self.vm.host().state)

    @prop("childSnapshot")
    def _children(self) -> Any:
        return [self.world.get(taken.moid) for taken in self.vm.state.snapshots if taken.parent == self.moid]

    @method
    def RemoveSnapshot_Task(
        self, call: Call, removeChildren: bool, consolidate: bool | None = None, spec: Any = None
    ) -> Any:
        return snapshots.remove_one(self.vm, call, self.moid, children=removeChildren)

    @method
    def RevertToSnapshot_Task(self, call: Call, host: Any = None, suppressPowerOn: bool | None = None) -> Any:
        quiet = bool(suppressPowerOn)
        return snapshot_revert.revert_to(self.vm, call, call.method, self.moid, suppress_power_on=quiet)

    @method
    def RenameSnapshot(self, call: Call, name: str | None = None, description: str | None = None) -> None:
        snapshots.rename(self.vm, call, self.moid, name, description)
