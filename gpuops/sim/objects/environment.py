"""What VMs of a cluster can be made of, what can be browsed for files, and trials of starts and moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, method
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.managed_entity import ManagedEntity
from gpuops.sim.operations.vms import move_trials
from gpuops.sim.render import config_target

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import ComputeEntity, HostEntity
    from gpuops.sim.world import World


class HostDatastoreBrowser(ManagedObject):
    """The browser of one entity."""

    wsdl_name = "HostDatastoreBrowser"

    property_table: ClassVar[Properties] = {
        "datastore": lambda self: (
            [self.entity] if self.entity.wsdl_name == "Datastore" else self.entity.read("datastore")
        )
    }

    def __init__(self, entity: ManagedEntity) -> None:
        super().__init__(entity.world, f"datastoreBrowser-{entity.moid}")
        self.entity = entity
        entity.world.register(self)


class EnvironmentBrowser(ManagedObject):
    """The browser of one compute resource; asked with a host it answers for that host alone."""

    wsdl_name = "EnvironmentBrowser"
    world: World

    property_table: ClassVar[Properties] = {
        "datastoreBrowser": lambda self: self.world.get(f"datastoreBrowser-{self.owner.moid}")
    }

    method_table: ClassVar[Methods] = {
        "QueryConfigTarget": lambda self, call, host=None: config_target.config_target(self._hosts(host)),
        "QueryConfigOptionDescriptor": lambda self, call: config_target.descriptors(
            [host.ref for host in self.owner.hosts()]
        ),
    }

    def __init__(self, moid: str, owner: ComputeEntity) -> None:
        super().__init__(owner.world, moid)
        self.owner = owner

    def _hosts(self, host: Any) -> list[HostEntity]:
        if host is None:
            return self.owner.hosts()
        host_entity: HostEntity = self.world.get(host)
        if host_entity.compute_resource() is not self.owner:
            raise faults.wrong_argument("host")
        return [host_entity]

    @method
    def QueryTargetCapabilities(self, call: Call, host: Any = None) -> Any:
        hosts = self._hosts(host)
        return hosts[0].read("capability") if hosts else None

    @method
    def QueryConfigOption(self, call: Call, key: str | None = None, host: Any = None) -> Any:
        self._hosts(host)
        return config_target.config_option(key or config_target.NEWEST)

    @method
    def QueryConfigOptionEx(self, call: Call, spec: Any = None) -> Any:
        self._hosts(spec.host if spec else None)
        key = (spec.key if spec else None) or config_target.NEWEST
        return config_target.config_option(key, frozenset(spec.guestId) if spec else frozenset())


class VirtualMachineCompatibilityChecker(ManagedObject):
    """Trials of power-on and of placement; the task succeeds, what would fail is in its result."""

    wsdl_name = "VirtualMachineCompatibilityChecker"
    world: World

    method_table: ClassVar[Methods] = {
        "CheckPowerOn_Task": lambda self, call, vm, host=None, **_: move_trials.check_power_on(
            self.world.get(vm), call, self.world.get(host) if host else None
        ),
        "CheckCompatibility_Task": lambda self, call, vm, host=None, pool=None, **_: move_trials.check_compatibility(
            self.world.get(vm), call, host, pool
        ),
    }


class VirtualMachineProvisioningChecker(ManagedObject):
    """Trials of moves."""

    wsdl_name = "VirtualMachineProvisioningChecker"
    world: World

    method_table: ClassVar[Methods] = {
        "CheckMigrate_Task": lambda self, call, vm, host=None, pool=None, state=None, **_: move_trials.check_migrate(
            self.world.get(vm), call, host, pool, state
        ),
        "CheckRelocate_Task": lambda self, call, vm, spec, **_: move_trials.check_relocate(
            self.world.get(vm), call, spec
        ),
        "QueryVMotionCompatibilityEx_Task": lambda self, call, vm, host: move_trials.query_vmotion(
            map(self.world.get, vm), call, list(map(self.world.get, host))
        ),
    }
