"""A tiny inventory for tests of the wire: folders, and machines with a name, a power state and some options."""

from __future__ import annotations

from typing import Any

from pyVmomi import vim

from gpuops.sim.core.call import Call
from gpuops.sim.core.managed_object import UNSET, ManagedObject, method, prop
from gpuops.sim.core.task_object import Task
from gpuops.sim.scenario.build import new_world
from gpuops.sim.world import World


class Entity(ManagedObject):
    """What folders and machines share."""

    wsdl_name = "ManagedEntity"
    world: World

    def __init__(self, world: World, moid: str, name: str, parent: ManagedObject | None = None) -> None:
        super().__init__(world, moid)
        self.name = name
        self.parent = parent
        self.attributes: dict[int, str] = {}
        world.register(self)

    @prop("name")
    def _name(self) -> str:
        return self.name

    @prop("parent")
    def _parent(self) -> Any:
        return self.parent or UNSET

    @prop("recentTask")
    def _recent_task(self) -> list[Task]:
        return self.world.tasks.recent(self)

    def set_attribute(self, key: int, value: str) -> None:
        self.attributes = {**self.attributes, key: value}
        if not value:
            del self.attributes[key]
        self.touch("customValue")

    @prop("customValue")
    def _custom_value(self) -> list[Any]:
        return [vim.CustomFieldsManager.StringValue(key=key, value=text) for key, text in self.attributes.items()]

    @prop("overallStatus")
    def _overall_status(self) -> str:
        return "green"


class Folder(Entity):
    """A folder of anything."""

    wsdl_name = "Folder"

    def __init__(self, world: World, moid: str, name: str, parent: ManagedObject | None = None) -> None:
        super().__init__(world, moid, name, parent)
        self.children: list[ManagedObject] = []

    @prop("childEntity")
    def _child_entity(self) -> list[ManagedObject]:
        return self.children

    def adopt(self, child: ManagedObject) -> None:
        self.children.append(child)
        self.touch("childEntity")

    def lose(self, child: ManagedObject) -> None:
        self.children.remove(child)
        self.world.unregister(child)
        self.touch("childEntity")


class Machine(Entity):
    """A VM with a power state, devices and extraConfig."""

    wsdl_name = "VirtualMachine"

    def __init__(self, world: World, moid: str, name: str, parent: Folder) -> None:
        super().__init__(world, moid, name, parent)
        self.power = "poweredOff"
        self.options = {"a.b": "1", "note": "x<y & z"}
        self.device_keys = [4000, 13000]
        self.reads = 0
        parent.adopt(self)

    @prop("runtime")
    def _runtime(self) -> Any:
        return vim.vm.RuntimeInfo(
            connectionState="connected",
            powerState=self.power,
            faultToleranceState="notConfigured",
            recordReplayState="inactive",
        )

    @prop("runtime.powerState")
    def _power_state(self) -> str:
        return self.power

    @prop("config.hardware.device")
    def _devices(self) -> list[Any]:
        self.reads += 1
        return [_device(key) for key in self.device_keys]

    @prop("config.extraConfig")
    def _extra_config(self) -> list[Any]:
        return [vim.option.OptionValue(key=key, value=value) for key, value in self.options.items()]

    @prop("config.version")
    def _version(self) -> Any:
        raise vim.fault.NoPermission(
            msg="Permission to perform this operation was denied.", object=self.ref, privilegeId="System.Read"
        )

    @prop("guest.toolsStatus")
    def _broken(self) -> str:
        raise ZeroDivisionError("a bug of the object's")

    @method
    def PowerOnVM_Task(self, call: Call, host: Any) -> Task:
        def begin() -> None:
            if self.power == "poweredOn":
                raise vim.fault.InvalidPowerState(
                    msg="The attempted operation cannot be performed in the current state (Powered on).",
                    requestedState="poweredOn",
                    existingState="poweredOn",
                )

        def finish() -> None:
            before, self.power = self.power, "poweredOn"
            self.touch("runtime.powerState")
            self.world.ledger.record(call, self, before={"power": before}, after={"power": self.power})

        return self.world.tasks.start(call, "PowerOnVM_Task", self, 3.0, begin=begin, finish=finish, cancelable=True)

    @method
    def ReconfigVM_Task(self, call: Call, spec: Any) -> Task:
        def finish() -> None:
            before = self.name
            self.name = spec.name
            self.options |= {option.key: option.value for option in spec.extraConfig}
            self.touch("name", "config.extraConfig")
            self.world.ledger.record(call, self, before={"name": before}, after={"name": self.name})

        return self.world.tasks.start(call, "ReconfigVM_Task", self, 1.0, finish=finish)

    @method
    def ResetVM_Task(self, call: Call) -> Task:
        raise KeyError("a bug of the object's")


def _device(key: int) -> Any:
    if key < 13000:
        return vim.vm.device.VirtualVmxnet3(key=key, macAddress="00:50:56:00:00:01", controllerKey=100, unitNumber=7)
    backing = vim.vm.device.VirtualPCIPassthrough.VmiopBackingInfo(vgpu="grid_a100-3-20c")
    return vim.vm.device.VirtualPCIPassthrough(key=key, backing=backing, controllerKey=100, unitNumber=18)


def small_world(machines: int = 3, **options: Any) -> World:
    """A root folder, one folder `machines`, and `machines` VMs vm-1.. named ml-01.. in it."""
    world = new_world(**options)
    root = Folder(world, "group-d1", "Datacenters")
    folder = Folder(world, "group-v3", "machines", root)
    root.adopt(folder)
    for number in range(1, machines + 1):
        Machine(world, f"vm-{number}", f"ml-{number:02}", folder)
    return world
