"""VirtualMachine: properties, rendered from its state, and methods, done by `operations`.

Longer than other files because the API's type is: one short reader or method each, and no decisions here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.core.managed_object import UNSET, SharedValue, method, prop
from gpuops.sim.inventory.entities import VmEntity
from gpuops.sim.inventory.managed_entity import EMPTY, custom_values
from gpuops.sim.objects.vm_snapshot import VirtualMachineSnapshot
from gpuops.sim.operations.vms import (
    hardware_upgrade,
    instant_clone,
    movement,
    power,
    question,
    reconfigure,
    registering,
    snapshot_revert,
    snapshots,
)
from gpuops.sim.render import vm_config, vm_runtime, vm_shape
from gpuops.sim.render.defaults import default
from gpuops.sim.render.devices import devices

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity


class VirtualMachine(VmEntity):
    """A VM on the wire."""

    wsdl_name = "VirtualMachine"

    # --- properties ---------------------------------------------------------------------------------------------

    def shape(self, path: str) -> SharedValue | None:
        made = SHAPES.get(path)
        return made(self) if made is not None else None

    def company(self) -> vm_shape.Company:
        return vm_shape.Company(self.world.clock.now(), self._connection(), self.host().state.model.cpu_mhz)

    @prop("config")
    def _config(self) -> Any:
        return vm_config.config(self.state, self.host().state)

    @prop("config.changeVersion")
    def _change_version(self) -> Any:
        return self.state.change_version

    @prop("config.name")
    @prop("summary.config.name")
    def _config_name(self) -> Any:
        return self.state.name

    @prop("config.uuid")
    @prop("summary.config.uuid")
    def _uuid(self) -> Any:
        return self.state.uuid

    @prop("config.instanceUuid")
    @prop("summary.config.instanceUuid")
    def _instance_uuid(self) -> Any:
        return self.state.instance_uuid

    @prop("config.template")
    @prop("summary.config.template")
    def _is_template(self) -> Any:
        return self.state.is_template

    @prop("config.managedBy")
    @prop("summary.config.managedBy")
    def _managed_by(self) -> Any:
        return vm_config.managed_by(self.state)

    @prop("config.firmware")
    def _firmware(self) -> Any:
        return self.state.firmware

    @prop("config.version")
    def _version(self) -> Any:
        return vm_config.version(self.state)

    @prop("config.guestId")
    def _guest_id(self) -> Any:
        return self.state.guest_id or self.state.template.guest_id

    @prop("config.hardware.numCPU")
    @prop("summary.config.numCpu")
    def _cpus(self) -> Any:
        return self.state.cpus

    @prop("config.hardware.numCoresPerSocket")
    def _cores_per_socket(self) -> Any:
        return self.state.cores_per_socket

    @prop("config.hardware.memoryMB")
    @prop("summary.config.memorySizeMB")
    def _memory_mib(self) -> Any:
        return self.state.memory_mib

    @prop("config.hardware.device")
    def _devices(self) -> Any:
        return devices(self.state, self.host().state)

    @prop("config.extraConfig")
    def _extra_config(self) -> Any:
        return vm_config.extra_config(self.state)

    @prop("config.memoryReservationLockedToMax")
    def _memory_locked(self) -> Any:
        return self.state.memory_locked

    @prop("config.memoryAllocation.reservation")
    @prop("summary.config.memoryReservation")
    def _memory_reservation(self) -> Any:
        return self.state.reserved_mib

    @prop("config.cpuAllocation.reservation")
    def _cpu_reservation(self) -> Any:
        return self.state.cpu_reservation_mhz

    @prop("config.cpuHotAddEnabled")
    def _cpu_hot_add(self) -> Any:
        return self.state.cpu_hot_add

    @prop("config.numaInfo.coresPerNumaNode")
    def _cores_per_numa_node(self) -> Any:
        return vm_config.cores_per_numa_node(self.state)

    @prop("config.numaInfo.autoCoresPerNumaNode")
    def _auto_cores_per_numa_node(self) -> Any:
        return not self.state.cores_per_numa_node

    @prop("config.numaInfo")
    def _numa_info(self) -> Any:
        return vm_config.numa(self.state)

    @prop("runtime")
    def _runtime(self) -> Any:
        host = self.host().state
        return vm_runtime.runtime(
            self.state, now=self.world.clock.now(), connection=self._connection(), host_mhz=host.model.cpu_mhz
        )

    @prop("runtime.host")
    @prop("summary.runtime.host")
    def _runtime_host(self) -> Any:
        return self.host()

    @prop("runtime.powerState")
    @prop("summary.runtime.powerState")
    def _power_state(self) -> Any:
        from pyVmomi import vim

        return vim.VirtualMachine.PowerState(self.state.power.value)

    @prop("runtime.connectionState")
    @prop("summary.runtime.connectionState")
    def _connection_state(self) -> Any:
        from pyVmomi import vim

        return vim.VirtualMachine.ConnectionState(self._connection())

    @prop("runtime.question")
    def _question(self) -> Any:
        return vm_runtime.question(self.state)

    @prop("runtime.numMksConnections")
    def _console_connections(self) -> Any:
        return self.state.console_connections if self.state.power == "poweredOn" else 0

    @prop("summary")
    def _summary(self) -> Any:
        custom = custom_values(self.attributes)
        return vm_runtime.summary(self.state, self._runtime(), self.ref, custom, self.world.clock.now())

    @prop("summary.quickStats")
    def _quick_stats(self) -> Any:
        return vm_runtime.quick_stats(self.state, self.world.clock.now())

    @prop("summary.quickStats.overallCpuUsage")
    def _cpu_usage(self) -> Any:
        return self.state.cpu_usage_mhz if self.state.power == "poweredOn" else 0

    @prop("guest")
    def _guest(self) -> Any:
        return vm_runtime.guest(self.state)

    @prop("guest.toolsRunningStatus")
    def _tools_running(self) -> Any:
        return vm_runtime.tools_running(self.state)

    @prop("guestHeartbeatStatus")
    def _heartbeat(self) -> Any:
        return "green" if vm_runtime.tools_running(self.state) == "guestToolsRunning" else "gray"

    @prop("capability")
    def _capability(self) -> Any:
        return default("VirtualMachineCapability")

    @prop("layout")
    def _layout(self) -> Any:
        return vm_runtime.layout(self.state)

    @prop("layoutEx")
    def _layout_ex(self) -> Any:
        return vm_runtime.layout_ex(self.state)

    @prop("storage")
    def _storage(self) -> Any:
        return vm_runtime.storage(self.state)

    @prop("environmentBrowser")
    def _environment_browser(self) -> Any:
        return self.host().compute_resource().browser

    @prop("resourcePool")
    def _resource_pool(self) -> Any:
        return self.world.get(self.state.pool) if self.state.pool else UNSET

    @prop("parentVApp")
    def _parent_vapp(self) -> Any:
        pool = self.world.find(self.state.pool) if self.state.pool else None
        return pool if pool is not None and pool.wsdl_name == "VirtualApp" else UNSET

    @prop("resourceConfig")
    def _resource_config(self) -> Any:
        return vm_config.resource_config(self.state, self.ref)

    @prop("datastore")
    def _datastores(self) -> Any:
        return [self.datastore()]

    @prop("network")
    def _networks(self) -> Any:
        return [self.world.get(moid) for moid in dict.fromkeys(card.network for card in self.state.network_cards)]

    @prop("snapshot")
    def _snapshot(self) -> Any:
        return vm_runtime.snapshot_tree(self.state, self.moid) or UNSET

    @prop("rootSnapshot")
    def _root_snapshots(self) -> Any:
        return [self.world.get(taken.moid) for taken in self.state.snapshots if taken.parent is None]

    def _connection(self) -> str:
        if self.connection is not None:
            return self.connection
        return "connected" if self.host().state.connection == "connected" else "disconnected"

    # --- methods ------------------------------------------------------------------------------------------------

    @method
    def ReconfigVM_Task(self, call: Call, spec: Any) -> Any:
        return reconfigure.reconfigure(self, call, spec)

    @method
    def UpgradeVM_Task(self, call: Call, version: str | None = None) -> Any:
        return hardware_upgrade.upgrade(self, call, version)

    @method
    def PowerOnVM_Task(self, call: Call, host: Any = None) -> Any:
        return power.power_on(self, call, host)

    @method
    def PowerOffVM_Task(self, call: Call) -> Any:
        return power.power_off(self, call)

    @method
    def SuspendVM_Task(self, call: Call) -> Any:
        return power.suspend(self, call)

    @method
    def ResetVM_Task(self, call: Call) -> Any:
        return power.reset(self, call)

    @method
    def ShutdownGuest(self, call: Call) -> None:
        power.shut_down_guest(self, call)

    @method
    def RebootGuest(self, call: Call) -> None:
        power.reboot_guest(self, call)

    @method
    def StandbyGuest(self, call: Call) -> None:
        power.stand_by_guest(self, call)

    @method
    def TerminateVM(self, call: Call) -> None:
        power.terminate(self, call)

    @method
    def AnswerVM(self, call: Call, questionId: str, answerChoice: str) -> None:
        question.answer(self, call, questionId, answerChoice)

    @method
    def RelocateVM_Task(self, call: Call, spec: Any, priority: Any = None) -> Any:
        return movement.relocate(self, call, spec)

    @method
    def MigrateVM_Task(self, call: Call, priority: Any, pool: Any = None, host: Any = None, state: Any = None) -> Any:
        return movement.migrate(self, call, pool, host, state)

    @method
    def CloneVM_Task(self, call: Call, folder: Any, name: str, spec: Any) -> Any:
        return movement.clone(self, call, folder, name, spec)

    @method
    def InstantClone_Task(self, call: Call, spec: Any) -> Any:
        return instant_clone.instant_clone(self, call, spec)

    @method
    def Destroy_Task(self, call: Call) -> Any:
        return movement.destroy(self, call)

    @method
    def UnregisterVM(self, call: Call) -> None:
        registering.unregister(self, call)

    @method
    def MarkAsTemplate(self, call: Call) -> None:
        movement.mark_as_template(self, call)

    @method
    def MarkAsVirtualMachine(self, call: Call, pool: Any, host: Any = None) -> None:
        movement.mark_as_virtual_machine(self, call, pool, host)

    @method
    def CreateSnapshot_Task(
        self, call: Call, name: str, memory: bool, quiesce: bool, description: str | None = None
    ) -> Any:
        return snapshots.create(self, call, name, description or "", memory=memory, make=VirtualMachineSnapshot)

    @method
    def RevertToCurrentSnapshot_Task(self, call: Call, host: Any = None, suppressPowerOn: bool | None = None) -> Any:
        current, quiet = self.state.current_snapshot, bool(suppressPowerOn)
        return snapshot_revert.revert_to(self, call, call.method, current, suppress_power_on=quiet)

    @method
    def RemoveAllSnapshots_Task(self, call: Call, consolidate: bool | None = None, spec: Any = None) -> Any:
        return snapshots.remove_all(self, call)

    @method
    def QueryConnections(self, call: Call) -> Any:
        return question.console_connections(self)


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
    "runtime": lambda vm: vm_shape.runtime(vm.state, vm.company()),
    "storage": lambda vm: vm_shape.storage(vm.state),
    "summary": lambda vm: vm_shape.summary(vm.state, vm.company(), vm.attributes, vm.moid),
    "value": lambda vm: SharedValue(tuple(vm.attributes.items()), lambda: custom_values(vm.attributes)),
}
"""The properties that many VMs have in common."""
