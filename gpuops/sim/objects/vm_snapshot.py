"""VirtualMachineSnapshot: a snapshot of a VM, which can be reverted to, renamed and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, method
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

    property_table: ClassVar[Properties] = {
        "vm": lambda self: self.vm,
        "config": lambda self: vm_config.config(self.taken, self.vm.host().state),
        "childSnapshot": lambda self: [
            self.world.get(snapshot.moid) for snapshot in self.vm.state.snapshots if snapshot.parent == self.moid
        ],
    }

    method_table: ClassVar[Methods] = {
        "RemoveSnapshot_Task": lambda self, call, removeChildren, **_: snapshots.remove_one(
            self.vm, call, self.moid, children=removeChildren
        ),
        "RenameSnapshot": lambda self, call, name=None, description=None: snapshots.rename(
            self.vm, call, self.moid, name, description
        ),
    }

    def __init__(self, world: World, moid: str, vm: VmEntity, vm_state: VmState) -> None:
        super().__init__(world, moid)
        self.vm = vm
        self.taken = vm_state

    @method
    def RevertToSnapshot_Task(self, call: Call, host: Any = None, suppressPowerOn: bool | None = None) -> Any:
        quiet = bool(suppressPowerOn)
        return snapshot_revert.revert_to(self.vm, call, call.method, self.moid, suppress_power_on=quiet)
