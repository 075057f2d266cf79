"""HostSystem: one ESXi host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.boot import Boot
from gpuops.sim.gpu_admission import Seat
from gpuops.sim.managed_object import Shape, method, prop
from gpuops.sim.objects.managed_entity import ManagedEntity, custom_values
from gpuops.sim.operations import maintenance
from gpuops.sim.render import host_config, host_graphics, host_hardware
from gpuops.sim.render.device_groups import OfferedGroup, offered_groups
from gpuops.sim.render.pci import pci_devices
from gpuops.sim.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.host_state import GpuState, HostState
    from gpuops.sim.objects.compute_resource import ComputeResource
    from gpuops.sim.objects.task import Task
    from gpuops.sim.objects.virtual_machine import VirtualMachine
    from gpuops.sim.world import World


SHARED: Final = frozenset(
    {
        "capability",
        "hardware.cpuInfo",
        "hardware.numaInfo",
        "hardware.pciDevice",
        "config.graphicsConfig",
        "config.sharedGpuCapabilities",
        "config.pciPassthruInfo",
        "config.product",
    }
)
"""Properties that hosts of one model and with the same GPU settings have in common."""


class HostSystem(ManagedEntity):
    """One host; `state` holds all that it is. Its managers have moids made of its own: `graphicsManager-12`."""

    wsdl_name = "HostSystem"

    def __init__(self, world: World, moid: str, state: HostState) -> None:
        self.state = state
        super().__init__(world, moid, state.name, state.parent)
        self.lingering: tuple[Seat, ...] = ()
        """vGPUs that a VM has left and the GPU does not give back yet."""
        self.boot = Boot()
        """How it boots next."""
        self.undriven: tuple[GpuState, ...] = ()
        """GPUs that its driver does not list, since it is not there."""
        self.entering: Task | None = None
        """The task that waits to enter maintenance mode."""

    # --- what it is, for the other objects ----------------------------------------------------------------------

    @property
    def number(self) -> str:
        """The number in its moid."""
        return self.moid.rpartition("-")[2]

    def compute_resource(self) -> ComputeResource:
        """Its cluster, or the compute resource of a host without one."""
        found: ComputeResource = self.world.get(self.state.parent)
        return found

    def vms(self) -> list[VirtualMachine]:
        """The VMs registered on it, in the order they came."""
        find = self.world.registry.get  # asked for more often than anything else here
        return [find(moid) for moid in self.state.vms]

    def running_vms(self) -> list[VirtualMachine]:
        return [vm for vm in self.vms() if vm.state.power is Power.ON]

    def seats(self) -> tuple[Seat, ...]:
        """Every vGPU that runs on it."""
        return (*self.lingering, *(seat for vm in self.vms() for seat in vm.state.seats))

    def device_groups(self) -> tuple[OfferedGroup, ...]:
        """The vendor device groups it offers."""
        return offered_groups(self.state)

    def load_changed(self) -> None:
        """Tell everyone who shows what runs on it."""
        self.touch(
            "config.graphicsInfo", "config.sharedPassthruGpuTypes", "config.assignableHardwareBinding", "summary"
        )
        for manager, paths in (
            ("graphicsManager", ("graphicsInfo", "sharedPassthruGpuTypes")),
            ("assignableHardwareManager", ("binding",)),
        ):
            self._manager(manager).touch(*paths)
        self.compute_resource().load_changed()
        maintenance.go_on_if_empty(self)

    def graphics_changed(self) -> None:
        """Tell everyone who shows what its GPUs are set to."""
        self.touch("config", "summary")
        self._manager("graphicsManager").touch(
            "graphicsInfo", "graphicsConfig", "sharedPassthruGpuTypes", "sharedGpuCapabilities"
        )
        self._manager("pciPassthruSystem").touch("pciPassthruInfo")

    def runtime_changed(self) -> None:
        """Tell everyone who shows whether it is up, in maintenance, or waits for a reboot."""
        self.touch("runtime", "summary", "config")
        self.compute_resource().load_changed()
        for vm in self.vms():
            vm.touch("runtime", "summary")

    def drive(self, *, on: bool) -> None:
        """Its driver comes up, or goes away with all its GPUs."""
        self.state.gpus, self.undriven = (self.undriven, ()) if on else ((), self.state.gpus)
        self.touch("hardware", "config", "summary")
        self.graphics_changed()

    def _manager(self, kind: str) -> Any:
        return self.world.get(f"{kind}-{self.number}")

    # --- properties ---------------------------------------------------------------------------------------------

    def shape(self, path: str) -> Shape | None:
        if path not in SHARED:
            return None
        state = self.state
        set_of_all = (state.policy, state.default_graphics_type, state.no_suspend, state.rebinds_without_reboot)
        key = (state.model, state.gpu_settings, set_of_all)
        return Shape(key, lambda: getattr(self, self.readers[path])())

    @prop("summary")
    def _summary(self) -> Any:
        return host_config.summary(
            self.ref,
            self.state,
            usage=self._usage(),
            now=self.world.clock.now(),
            custom=custom_values(self.attributes),
            release=self.world.api_version,
        )

    @prop("summary.quickStats")
    def _quick_stats(self) -> Any:
        return host_config.quick_stats(self.state, self._usage(), self.world.clock.now())

    def _usage(self) -> tuple[int, int]:
        """(MHz, MiB) its VMs use."""
        running = [vm.state for vm in self.running_vms()]
        memory = sum(vm.reserved_mib or vm.guest_memory_mib for vm in running)
        return sum(vm.cpu_usage_mhz for vm in running), memory

    @prop("runtime")
    @prop("summary.runtime")
    def _runtime(self) -> Any:
        return host_config.runtime(self.state)

    @prop("runtime.connectionState")
    def _connection(self) -> Any:
        return host_config.runtime(self.state).connectionState

    @prop("runtime.inMaintenanceMode")
    def _in_maintenance(self) -> Any:
        return self.state.in_maintenance

    @prop("hardware")
    def _hardware(self) -> Any:
        return host_hardware.hardware(self.state)

    @prop("hardware.cpuInfo")
    def _cpu_info(self) -> Any:
        return host_hardware.cpu_info(self.state)

    @prop("hardware.systemInfo")
    def _system_info(self) -> Any:
        return host_hardware.system(self.state)

    @prop("hardware.numaInfo")
    def _numa(self) -> Any:
        return host_hardware.numa(self.state)

    @prop("hardware.pciDevice")
    def _pci_devices(self) -> Any:
        return pci_devices(self.state)

    @prop("hardware.memorySize")
    def _memory_bytes(self) -> Any:
        return self.state.model.memory_mib << 20

    @prop("capability")
    def _capability(self) -> Any:
        return host_hardware.capability(self.state)

    @prop("config")
    def _config(self) -> Any:
        return host_config.config(self)

    @prop("config.graphicsInfo")
    def _graphics_info(self) -> Any:
        return host_graphics.graphics_info(self.state, self.seats())

    @prop("config.graphicsConfig")
    def _graphics_config(self) -> Any:
        return host_graphics.graphics_config(self.state)

    @prop("config.sharedPassthruGpuTypes")
    def _offered_types(self) -> Any:
        return host_graphics.offered(self.state.for_admission(self.seats()))

    @prop("config.sharedGpuCapabilities")
    def _shared_capabilities(self) -> Any:
        return host_graphics.capabilities(self.state, self.state.for_admission(()))

    @prop("config.pciPassthruInfo")
    def _passthrough_info(self) -> Any:
        return host_graphics.passthrough_info(self.state)

    @prop("config.assignableHardwareBinding")
    def _bindings(self) -> Any:
        return host_graphics.bindings(self)

    @prop("config.product")
    @prop("summary.config.product")
    def _product(self) -> Any:
        return host_config.product(self.world.api_version)

    @prop("configManager")
    def _config_manager(self) -> Any:
        return host_config.config_manager(self.number)

    @prop("vm")
    def _vms(self) -> Any:
        return self.vms()

    @prop("datastore")
    def _datastores(self) -> Any:
        return [self.world.get(moid) for moid in self.state.datastores]

    @prop("network")
    def _networks(self) -> Any:
        return [self.world.get(moid) for moid in self.state.networks]

    @prop("datastoreBrowser")
    def _datastore_browser(self) -> Any:
        return self.world.get(f"datastoreBrowser-{self.moid}")

    @prop("systemResources")
    def _system_resources(self) -> Any:
        from pyVmomi import vim

        return vim.host.SystemResourceInfo(key="host")

    @prop("licensableResource")
    def _licensable(self) -> Any:
        from pyVmomi import vim, vmodl

        packages = vmodl.KeyAnyValue(key="numCpuPackages", value=self.state.model.sockets)
        return vim.LicenseManager.LicensableResourceInfo(resource=[packages])

    # --- methods ------------------------------------------------------------------------------------------------

    @method
    def EnterMaintenanceMode_Task(
        self, call: Call, timeout: int, evacuatePoweredOffVms: bool | None = None, maintenanceSpec: Any = None
    ) -> Any:
        return maintenance.enter(self, call, timeout, maintenanceSpec)

    @method
    def ExitMaintenanceMode_Task(self, call: Call, timeout: int) -> Any:
        return maintenance.leave(self, call)

    @method
    def RebootHost_Task(self, call: Call, force: bool) -> Any:
        return maintenance.reboot(self, call, force=force)

    @method
    def RetrieveManagedMethodExecuter(self, call: Call) -> Any:
        return self._manager("methodExecuter")

    @method
    def RetrieveDynamicTypeManager(self, call: Call) -> Any:
        return self._manager("typeManager")

    @method
    def QueryTpmAttestationReport(self, call: Call) -> Any:
        return None  # these hosts have no TPM, and the report is optional

    @method
    def QueryHostConnectionInfo(self, call: Call) -> Any:
        return host_config.connection_info(self)
