"""The objects of the inventory as operations see them: what each holds, how they are linked, and what a change touches.

The types of `objects` derive from these: they add the properties and methods that clients read and call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.inventory import faults
from gpuops.sim.inventory.managed_entity import ManagedEntity
from gpuops.sim.inventory.switches import PortgroupEntity
from gpuops.sim.state.drs import Behavior, DrsState
from gpuops.sim.state.host_state import Boot
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.core.task_object import Task
    from gpuops.sim.state.gpu_admission import RunningVgpu
    from gpuops.sim.state.hardware import NetworkCard
    from gpuops.sim.state.host_state import HostGpu, HostState
    from gpuops.sim.state.vm_state import VmState
    from gpuops.sim.world import World

ENTER_MAINTENANCE_S: Final = 5.0
"""How long a host on which nothing runs takes to enter maintenance mode."""


class DatastoreEntity(ManagedEntity):
    """A VMFS datastore; `free_mib` is what suspended VMs and clones may still take."""

    def __init__(self, world: World, moid: str, name: str, parent: str, capacity_mib: int, free_mib: int) -> None:
        super().__init__(world, moid, name, parent)
        self.capacity_mib = capacity_mib
        self.free_mib = free_mib
        self.accessible = True
        self.vms: dict[str, VmEntity] = {}
        self.host_moids: list[str] = []

    @property
    def url(self) -> str:
        return f"ds:///vmfs/volumes/{self.moid}/"

    def use(self, size_mib: int) -> None:
        """Take that much space, or give it back when negative."""
        if size_mib:
            self.free_mib -= size_mib
            self.touch("summary", "info")

    def add(self, vm: VmEntity) -> None:
        """Hold the files of a VM."""
        self.vms[vm.moid] = vm
        self.touch("vm")

    def remove(self, vm: VmEntity) -> None:
        """Hold the files of a VM no more."""
        self.vms.pop(vm.moid, None)
        self.touch("vm")


class PoolEntity(ManagedEntity):
    """A resource pool without limits of its own. A VM's reservation is checked against its host, not here."""

    def __init__(self, world: World, moid: str, name: str, parent: str, owner: str) -> None:
        super().__init__(world, moid, name, parent)
        self.owner_moid = owner
        self.pools: list[PoolEntity] = []
        self.members: dict[str, VmEntity] = {}

    def owner(self) -> ComputeEntity:
        """The compute resource it shares out."""
        return self.world.get(self.owner_moid)

    def add(self, vm: VmEntity) -> None:
        self.members[vm.moid] = vm
        self.touch("vm", "summary", "runtime")

    def remove(self, vm: VmEntity) -> None:
        self.members.pop(vm.moid, None)
        self.touch("vm", "summary", "runtime")

    def all_members(self) -> list[VmEntity]:
        """The VMs in it, and in the pools below it."""
        return [*self.members.values(), *(vm for pool in self.pools for vm in pool.all_members())]


class ComputeEntity(ManagedEntity):
    """A cluster, or a host without one: hosts behind one root resource pool.

    `drs` is what a cluster does by itself; `pool` and `browser` are set when it is built.
    """

    def __init__(self, world: World, moid: str, name: str, parent: str, drs: DrsState | None = None) -> None:
        super().__init__(world, moid, name, parent)
        self.drs = drs or DrsState(enabled=False)
        self.host_moids: list[str] = []
        self.config_managed = False
        """Whether it keeps the configuration of its hosts (vSphere Configuration Profiles)."""
        self.pool: PoolEntity
        self.browser: ManagedObject

    def hosts(self) -> list[HostEntity]:
        return [self.world.get(moid) for moid in self.host_moids]

    def places(self, vm: str) -> bool:
        """Whether DRS chooses the host when this VM is powered on."""
        return self.drs.behavior_for(vm) in (Behavior.PARTIAL, Behavior.FULL)

    def moves(self, vm: str) -> bool:
        """Whether DRS moves this running VM to another host by itself."""
        return self.drs.behavior_for(vm) is Behavior.FULL

    @property
    def evacuates_vgpus(self) -> bool:
        """Whether VMs with a vGPU leave a host that enters maintenance mode."""
        return self.drs.options.get("VgpuMMAutomationTimeoutSecs") == "-1"

    @property
    def stun_tolerated_s(self) -> int:
        """A vMotion whose estimated stun is longer is refused (VMware KB 313479; 100 s where the option sets no other
        number, VMware vSphere 8.0 docs)."""
        stun_time = self.drs.options.get("VmDevicesStunTimeTolerated", "")
        return int(stun_time) if stun_time.isdecimal() else 100

    def rules_allow(self, vm: str, host: str) -> bool:
        """Whether no binding rule keeps a VM off a host."""
        return self.drs.allows(vm, host)

    def forget(self, vm: str) -> None:
        """Drop the cluster settings of a VM that was removed."""
        self.drs.forget(vm)
        self.touch("configurationEx", "configuration")

    def load_changed(self) -> None:
        """Touch every property that shows the free capacity of its hosts."""
        self.touch("summary")
        self.pool.touch("runtime", "summary")

    def totals(self) -> dict[str, Any]:
        """The numbers of ComputeResourceSummary."""
        hosts = self.hosts()
        usable = [host.state for host in hosts if host.state.usable]
        return {
            "totalCpu": sum(host.state.model.capacity_mhz for host in hosts),
            "totalMemory": sum(host.state.model.memory_mib << 20 for host in hosts),
            "numCpuCores": sum(host.state.model.cores for host in hosts),
            "numCpuThreads": sum(host.state.model.threads for host in hosts),
            "effectiveCpu": sum(state.model.capacity_mhz for state in usable),
            "effectiveMemory": sum(state.model.memory_mib for state in usable),
            "numHosts": len(hosts),
            "numEffectiveHosts": len(usable),
            "overallStatus": "green",
        }


class HostEntity(ManagedEntity):
    """One host; its values are in `state`. The moids of its managers end in its own number: `graphicsManager-12`."""

    def __init__(self, world: World, moid: str, state: HostState) -> None:
        self.state = state
        super().__init__(world, moid, state.name, state.parent)
        self.lingering: tuple[RunningVgpu, ...] = ()
        """vGPUs that a VM has left and the GPU does not give back yet."""
        self.boot = Boot()
        """The deviations of its next boot, such as a late driver."""
        self.undriven: tuple[HostGpu, ...] = ()
        """The host's GPUs while its GPU driver is not loaded, and therefore does not list them."""
        self.managers: dict[str, ManagedObject] = {}
        """The managers of the host that clients have asked for, by moid."""
        self.entering: Task | None = None
        """The task that waits to enter maintenance mode."""

    @property
    def number(self) -> str:
        """The number in its moid."""
        return self.moid.rpartition("-")[2]

    def compute_resource(self) -> ComputeEntity:
        """Its cluster, or the compute resource of a host without one."""
        return self.world.get(self.state.parent)

    def vms(self) -> list[VmEntity]:
        """The VMs registered on it, in the order they came."""
        find = self.world.registry.get  # asked for more often than anything else here
        return [find(moid) for moid in self.state.vms]

    def datastores(self) -> list[DatastoreEntity]:
        return [self.world.get(moid) for moid in self.state.datastores]

    def running_vms(self) -> list[VmEntity]:
        return [vm for vm in self.vms() if vm.state.power is Power.ON]

    def usage(self) -> tuple[int, int]:
        """(MHz, MiB) its VMs use."""
        running = [vm.state for vm in self.running_vms()]
        memory = sum(vm.reserved_mib or vm.guest_memory_mib for vm in running)
        return sum(vm.cpu_usage_mhz for vm in running), memory

    def seats(self) -> tuple[RunningVgpu, ...]:
        """Return the vGPUs in use on the host, and those that its GPUs have not given back yet."""
        return (*self.lingering, *(seat for vm in self.vms() for seat in vm.state.seats))

    def held_pci_ids(self, excluding: VmEntity | None = None) -> set[str]:
        """Return the devices that running VMs hold, without the VM `excluding`."""
        return {pci_id for vm in self.running_vms() if vm is not excluding for _, pci_id in vm.state.held}

    def load_changed(self) -> None:
        """Touch every property that shows what runs on it."""
        self.touch(
            "config.graphicsInfo", "config.sharedPassthruGpuTypes", "config.assignableHardwareBinding", "summary"
        )
        self._touch_manager("graphicsManager", "graphicsInfo", "sharedPassthruGpuTypes")
        self._touch_manager("assignableHardwareManager", "binding")
        self.compute_resource().load_changed()
        self._enter_maintenance_if_empty()

    def _enter_maintenance_if_empty(self) -> None:
        if self.entering is not None and not self.running_vms():
            self.world.tasks.hasten(self.entering, ENTER_MAINTENANCE_S)
            self.entering = None

    def graphics_changed(self) -> None:
        """Touch every property that shows the settings of its GPUs."""
        self.touch("config", "summary")
        self._touch_manager("assignableHardwareManager", "config")
        self._touch_manager(
            "graphicsManager", "graphicsInfo", "graphicsConfig", "sharedPassthruGpuTypes", "sharedGpuCapabilities"
        )
        self._touch_manager("pciPassthruSystem", "pciPassthruInfo")

    def network_changed(self) -> None:
        """Touch every property that shows its networking."""
        self.touch("config")
        self._touch_manager("networkSystem", "networkInfo", "networkConfig")
        self._touch_manager("virtualNicManager", "info")
        self._touch_manager("vmotionSystem", "netConfig")

    def runtime_changed(self) -> None:
        """Touch every property that shows whether it is up, in maintenance, or waits for a reboot."""
        self.touch("runtime", "summary", "config")
        self.compute_resource().load_changed()
        for vm in self.vms():
            vm.touch("runtime", "summary")

    def set_driver_loaded(self, *, loaded: bool) -> None:
        """Load or unload its GPU driver; without a driver the host lists none of its GPUs."""
        self.state.gpus, self.undriven = (self.undriven, ()) if loaded else ((), self.state.gpus)
        self.touch("hardware", "config", "summary")
        self.graphics_changed()

    def _touch_manager(self, kind: str, *paths: str) -> None:
        """Touch these paths of a manager, if a client has asked for it."""
        manager = self.managers.get(f"{kind}-{self.number}")
        if manager is not None:
            manager.touch(*paths)

    def manager(self, kind: str) -> Any:
        """Return its manager of this kind, such as `graphicsManager`; it is made when it is first needed."""
        return self.world.get(f"{kind}-{self.number}")


class VmEntity(ManagedEntity):
    """One VM; its values are in `state`."""

    def __init__(self, world: World, moid: str, state: VmState) -> None:
        self.state = state
        self.connection: str | None = None
        """Its connection state if that differs from its host's (inaccessible, orphaned); None = the host's."""
        self.ignores_shutdown = False
        """Whether its guest ignores requests to shut down."""
        super().__init__(world, moid, state.name, state.folder, state.attributes)

    @property
    def name(self) -> str:
        return self.state.name

    @name.setter
    def name(self, name: str) -> None:
        self.state.rename(name)

    @property
    def parent(self) -> str | None:
        return self.state.folder

    @parent.setter
    def parent(self, folder: str | None) -> None:
        assert folder is not None, "a VM is always in a folder"
        self.state.folder = folder

    @property
    def attributes(self) -> dict[int, str]:
        return self.state.attributes

    @attributes.setter
    def attributes(self, values: dict[int, str]) -> None:
        self.state.attributes = values

    @property
    def is_registered(self) -> bool:
        return self.world.find(self.moid) is self

    def host(self) -> HostEntity:
        return self.world.get(self.state.host)

    def datastore(self) -> DatastoreEntity:
        """The datastore of its files."""
        return self.world.get(self.state.datastore)

    # --- changes ------------------------------------------------------------------------------------------------

    def power_changed(self) -> None:
        """Touch every property that shows the VM's power or the devices it holds; stop or continue real processes."""
        self.world.guests.power_changed(self.moid, self.state.power, self.state.boot_time)
        self.touch("runtime", "summary", "guest", "guestHeartbeatStatus", "config", "layoutEx", "storage")
        self.host().load_changed()

    def configuration_changed(self, *, renamed: bool = False) -> None:
        """Touch every property that shows the VM's configuration."""
        self.touch(
            "config",
            "summary",
            "resourceConfig",
            "runtime",
            "guest",
            *(("name", "layout", "layoutEx") if renamed else ()),
        )
        self.host().load_changed()

    def networks_changed(self, before: Iterable[NetworkCard] = ()) -> None:
        """Touch every property that shows its networks, those of its earlier network cards `before` included."""
        self.touch("network")
        for moid in {card.network for card in (*before, *self.state.network_cards)}:
            network = self.world.find(moid)
            if isinstance(network, PortgroupEntity):
                network.changed()
                network.switch().touch("config", "summary")
            elif network is not None:
                network.touch("vm")

    def register_on(self, host: str, pool: str | None = None) -> None:
        """Move the registration to another host, and to another resource pool if one is given."""
        old_host = self.host()
        old_host.state.vms.pop(self.moid, None)
        self.state.host = host
        self.host().state.vms[self.moid] = None
        if pool is not None and pool != self.state.pool:
            self.leave_pool()
            self.world.get(pool).add(self)
            self.state.pool = pool
        for host_entity in (old_host, self.host()):  # both hosts have another load and list of VMs now
            host_entity.touch("vm")
            host_entity.load_changed()
        self.touch("runtime", "summary", "resourcePool", "environmentBrowser", "config")

    def leave_pool(self) -> None:
        """Leave its resource pool, as a template does."""
        if self.state.pool is not None:
            self.world.get(self.state.pool).remove(self)
            self.state.pool = None
        self.touch("resourcePool")

    def move_to_folder(self, folder: Any) -> None:
        """Move to another folder. Raises DuplicateName."""
        folder.refuse_duplicate(self.name, self)
        self.world.get(self.state.folder).remove(self)
        self.state.folder = folder.moid
        folder.add(self)
        self.touch("parent")

    def move_files(self, new_datastore: DatastoreEntity) -> None:
        """Move its files, a suspended state among them, to another datastore."""
        old_datastore, size_mib = self.datastore(), self.state.suspend_file_mib
        old_datastore.use(-size_mib)
        new_datastore.use(size_mib)
        old_datastore.remove(self)
        new_datastore.add(self)
        self.state.datastore = new_datastore.moid
        self.state.template = replace(self.state.template, datastore=new_datastore.name)
        self.state.files = ""  # a move renames the files to the VM's name (VMware KB 1029513)
        self.touch("config", "datastore", "layout", "layoutEx", "storage", "summary")

    def refuse_while_question_pending(self) -> None:
        """Raises QuestionPending while a question waits for its answer."""
        if self.state.question is not None:
            raise faults.question_pending(self.state.question)


class FolderEntity(ManagedEntity):
    """A folder of one kind: `root`, `vm`, `host`, `datastore` or `network`."""

    def __init__(self, world: World, moid: str, name: str, parent: str | None, kind: str) -> None:
        super().__init__(world, moid, name, parent)
        self.kind = kind
        self.children: dict[str, ManagedEntity] = {}

    def add(self, child: ManagedEntity) -> None:
        self.children[child.moid] = child
        self.touch("childEntity")

    def remove(self, child: ManagedEntity) -> None:
        self.children.pop(child.moid, None)
        self.touch("childEntity")
