"""VirtualMachine as clients see it: `render` makes its properties, and `operations` carries out its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import UNSET, ManagedObject, Methods, Properties, SharedValue, method, prop
from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.inventory.managed_entity import EMPTY, custom_values
from gpuops.sim.operations.vms import movement, power, reconfigure, snapshots
from gpuops.sim.render import vm_config, vm_runtime, vm_shape
from gpuops.sim.render.defaults import default
from gpuops.sim.render.devices import devices

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.state.vm_state import VmState
    from gpuops.sim.world import World


class VirtualMachineSnapshot(ManagedObject):
    """A snapshot of `vm`; `state_at_snapshot` is the VM's state at that time."""

    wsdl_name = "VirtualMachineSnapshot"
    world: World

    property_table: ClassVar[Properties] = {
        "vm": lambda self: self.vm,
        "config": lambda self: vm_config.config(self.state_at_snapshot, self.vm.host().state),
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
        self.state_at_snapshot = vm_state

    @method
    def RevertToSnapshot_Task(self, call: Call, host: Any = None, suppressPowerOn: bool | None = None) -> Any:
        quiet = bool(suppressPowerOn)
        return snapshots.revert_to(self.vm, call, call.method, self.moid, suppress_power_on=quiet)


class VirtualMachine(VmEntity):
    """A VM on the wire."""

    wsdl_name = "VirtualMachine"

    # --- properties ---------------------------------------------------------------------------------------------

    def shape(self, path: str) -> SharedValue | None:
        rendered = SHAPES.get(path)
        return rendered(self) if rendered is not None else None

    def runtime_context(self) -> vm_shape.RuntimeContext:
        return vm_shape.RuntimeContext(self.world.clock.now(), self._connection(), self.host().state.model.cpu_mhz)

    property_table: ClassVar[Properties] = {
        "config": lambda self: vm_config.config(self.state, self.host().state),
        "config.changeVersion": lambda self: self.state.change_version,
        "config.name summary.config.name": lambda self: self.state.name,
        "config.uuid summary.config.uuid": lambda self: self.state.uuid,
        "config.instanceUuid summary.config.instanceUuid": lambda self: self.state.instance_uuid,
        "config.template summary.config.template": lambda self: self.state.is_template,
        "config.managedBy summary.config.managedBy": lambda self: vm_config.managed_by(self.state),
        "config.firmware": lambda self: self.state.firmware,
        "config.version": lambda self: vm_config.version(self.state),
        "config.guestId": lambda self: self.state.guest_id or self.state.template.guest_id,
        "config.hardware.numCPU summary.config.numCpu": lambda self: self.state.cpus,
        "config.hardware.numCoresPerSocket": lambda self: self.state.cores_per_socket,
        "config.hardware.memoryMB summary.config.memorySizeMB": lambda self: self.state.memory_mib,
        "config.hardware.device": lambda self: devices(self.state, self.host().state),
        "config.extraConfig": lambda self: vm_config.extra_config(self.state),
        "config.memoryReservationLockedToMax": lambda self: self.state.memory_locked,
        "config.memoryAllocation.reservation summary.config.memoryReservation": lambda self: self.state.reserved_mib,
        "config.cpuAllocation.reservation": lambda self: self.state.cpu_reservation_mhz,
        "config.cpuHotAddEnabled": lambda self: self.state.cpu_hot_add,
        "config.numaInfo.coresPerNumaNode": lambda self: vm_config.cores_per_numa_node(self.state),
        "config.numaInfo.autoCoresPerNumaNode": lambda self: not self.state.cores_per_numa_node,
        "config.numaInfo": lambda self: vm_config.numa(self.state),
        "runtime.host summary.runtime.host": lambda self: self.host(),
        "runtime.powerState summary.runtime.powerState": lambda self: vim.VirtualMachine.PowerState(
            self.state.power.value
        ),
        "runtime.connectionState summary.runtime.connectionState": lambda self: vim.VirtualMachine.ConnectionState(
            self._connection()
        ),
        "runtime.question": lambda self: vm_runtime.question(self.state),
        "runtime.numMksConnections": lambda self: (
            self.state.console_connections if self.state.power == "poweredOn" else 0
        ),
        "summary.quickStats": lambda self: vm_runtime.quick_stats(self.state, self.world.clock.now()),
        "summary.quickStats.overallCpuUsage": lambda self: (
            self.state.cpu_usage_mhz if self.state.power == "poweredOn" else 0
        ),
        "guest": lambda self: vm_runtime.guest(self.state),
        "guest.toolsRunningStatus": lambda self: vm_runtime.tools_running(self.state),
        "guestHeartbeatStatus": lambda self: (
            "green" if vm_runtime.tools_running(self.state) == "guestToolsRunning" else "gray"
        ),
        "capability": lambda self: default("VirtualMachineCapability"),
        "layout": lambda self: vm_runtime.layout(self.state),
        "layoutEx": lambda self: vm_runtime.layout_ex(self.state),
        "storage": lambda self: vm_runtime.storage(self.state),
        "environmentBrowser": lambda self: self.host().compute_resource().browser,
        "resourcePool": lambda self: self.world.get(self.state.pool) if self.state.pool else UNSET,
        "resourceConfig": lambda self: vm_config.resource_config(self.state, self.ref),
        "datastore": lambda self: [self.datastore()],
        "network": lambda self: [
            self.world.get(moid) for moid in dict.fromkeys(card.network for card in self.state.network_cards)
        ],
        "snapshot": lambda self: vm_runtime.snapshot_tree(self.state, self.moid) or UNSET,
        "rootSnapshot": lambda self: [
            self.world.get(snapshot.moid) for snapshot in self.state.snapshots if snapshot.parent is None
        ],
    }

    @prop("runtime")
    def _runtime(self) -> Any:
        host = self.host().state
        return vm_runtime.runtime(
            self.state, now=self.world.clock.now(), connection=self._connection(), host_mhz=host.model.cpu_mhz
        )

    @prop("summary")
    def _summary(self) -> Any:
        custom = custom_values(self.attributes)
        return vm_runtime.summary(self.state, self._runtime(), self.ref, custom, self.world.clock.now())

    @prop("parentVApp")
    def _parent_vapp(self) -> Any:
        pool = self.world.find(self.state.pool) if self.state.pool else None
        return pool if pool is not None and pool.wsdl_name == "VirtualApp" else UNSET

    def _connection(self) -> str:
        if self.connection is not None:
            return self.connection
        return "connected" if self.host().state.connection == "connected" else "disconnected"

    # --- methods ------------------------------------------------------------------------------------------------

    method_table: ClassVar[Methods] = {
        "ReconfigVM_Task": reconfigure.reconfigure,
        "UpgradeVM_Task": lambda self, call, version=None: reconfigure.upgrade(self, call, version),
        "PowerOnVM_Task": lambda self, call, host=None: power.power_on(self, call, host),
        "PowerOffVM_Task": power.power_off,
        "SuspendVM_Task": power.suspend,
        "ResetVM_Task": power.reset,
        "ShutdownGuest": power.shut_down_guest,
        "RebootGuest": power.reboot_guest,
        "StandbyGuest": power.stand_by_guest,
        "TerminateVM": power.terminate,
        "AnswerVM": lambda self, call, questionId, answerChoice: power.answer(self, call, questionId, answerChoice),
        "RelocateVM_Task": lambda self, call, spec, priority=None, **_: movement.relocate(self, call, spec),
        "MigrateVM_Task": lambda self, call, pool=None, host=None, state=None, **_: movement.migrate(
            self, call, pool, host, state
        ),
        "CloneVM_Task": movement.clone,
        "Destroy_Task": movement.destroy,
        "MarkAsTemplate": movement.mark_as_template,
        "MarkAsVirtualMachine": lambda self, call, pool, host=None: movement.mark_as_virtual_machine(
            self, call, pool, host
        ),
        "CreateSnapshot_Task": lambda self, call, name, memory, description=None, **_: snapshots.create(
            self, call, name, description or "", memory=memory, make=VirtualMachineSnapshot
        ),
        "RemoveAllSnapshots_Task": lambda self, call, **_: snapshots.remove_all(self, call),
    }

    @method
    def RevertToCurrentSnapshot_Task(self, call: Call, host: Any = None, suppressPowerOn: bool | None = None) -> Any:
        current, quiet = self.state.current_snapshot, bool(suppressPowerOn)
        return snapshots.revert_to(self, call, call.method, current, suppress_power_on=quiet)


SHAPES: Final[dict[str, Callable[[VirtualMachine], SharedValue]]] = {
    **dict.fromkeys(EMPTY, lambda vm: SharedValue(None, list)),
    "availableField": lambda vm: SharedValue(vm.world.custom_fields.key(), lambda: vm.read("availableField")),
    "capability": lambda vm: SharedValue(None, lambda: default("VirtualMachineCapability")),
    "config": lambda vm: vm_shape.config(vm.state, vm.host().state),
    "config.extraConfig": lambda vm: SharedValue(vm.state.extra_config, lambda: vm_config.extra_config(vm.state)),
    "config.hardware.device": lambda vm: vm_shape.device_list(vm.state, vm.host().state),
    "customValue": lambda vm: SharedValue(tuple(vm.attributes.items()), lambda: custom_values(vm.attributes)),
    "guest": lambda vm: vm_shape.guest(vm.state),
    "layout": lambda vm: vm_shape.layout(vm.state),
    "layoutEx": lambda vm: vm_shape.layout_ex(vm.state),
    "resourceConfig": lambda vm: vm_shape.resource_config(vm.state, vm.moid),
    "runtime": lambda vm: vm_shape.runtime(vm.state, vm.runtime_context()),
    "storage": lambda vm: vm_shape.storage(vm.state),
    "summary": lambda vm: vm_shape.summary(vm.state, vm.runtime_context(), vm.attributes, vm.moid),
    "value": lambda vm: SharedValue(tuple(vm.attributes.items()), lambda: custom_values(vm.attributes)),
}
"""How the shape of a property is made, for the properties whose rendered value many VMs share."""
