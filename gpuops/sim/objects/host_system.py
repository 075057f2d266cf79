"""The HostSystem object: one ESXi host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, SharedValue, method, prop
from gpuops.sim.inventory.entities import HostEntity
from gpuops.sim.inventory.managed_entity import custom_values
from gpuops.sim.operations import inventory_change, maintenance, removal
from gpuops.sim.render import distributed, host_config, host_graphics, host_network
from gpuops.sim.render.host_network import firewall
from gpuops.sim.render.pci import pci_devices

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
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


class HostSystem(HostEntity):
    """A host on the wire."""

    wsdl_name = "HostSystem"

    # --- properties ---------------------------------------------------------------------------------------------

    def shape(self, path: str) -> SharedValue | None:
        if path not in SHARED:
            return None
        state = self.state
        host_settings = (state.policy, state.default_graphics_type, state.no_suspend, state.rebinds_without_reboot)
        key = (state.model, state.gpu_settings, host_settings)
        return SharedValue(key, lambda: self.readers[path](self))

    property_table: ClassVar[Properties] = {
        "summary": lambda self: host_config.summary(
            self.ref,
            self.state,
            usage=self.usage(),
            now=self.world.clock.now(),
            custom=custom_values(self.attributes),
            release=self.world.api_version,
        ),
        "summary.quickStats": lambda self: host_config.quick_stats(self.state, self.usage(), self.world.clock.now()),
        "runtime summary.runtime": lambda self: host_config.runtime(self.state),
        "runtime.connectionState": lambda self: host_config.runtime(self.state).connectionState,
        "runtime.inMaintenanceMode": lambda self: self.state.in_maintenance,
        "hardware": lambda self: host_config.hardware(self.state),
        "hardware.cpuInfo": lambda self: host_config.cpu_info(self.state),
        "hardware.systemInfo": lambda self: host_config.system(self.state),
        "hardware.numaInfo": lambda self: host_config.numa(self.state),
        "hardware.pciDevice": lambda self: pci_devices(self.state),
        "hardware.memorySize": lambda self: self.state.model.memory_mib << 20,
        "capability": lambda self: host_config.capability(self.state),
        "config": host_config.config,
        "config.graphicsInfo": lambda self: host_graphics.graphics_info(self.state, self.seats()),
        "config.graphicsConfig": lambda self: host_graphics.graphics_config(self.state),
        "config.sharedPassthruGpuTypes": lambda self: host_graphics.offered(self.state.for_admission(self.seats())),
        "config.sharedGpuCapabilities": lambda self: host_graphics.capabilities(
            self.state, self.state.for_admission(())
        ),
        "config.pciPassthruInfo": lambda self: host_graphics.passthrough_info(self.state),
        "config.assignableHardwareBinding": host_graphics.bindings,
        "config.option": lambda self: self.manager(host_config.OWN_MOIDS["advancedOption"]).read("setting"),
        "config.firewall": lambda self: firewall(self.state),
        "config.product summary.config.product": lambda self: host_config.product(self.world.api_version),
        "configManager": lambda self: host_config.config_manager(self.number),
        "vm": lambda self: self.vms(),
        "datastore": lambda self: self.datastores(),
        "network": lambda self: [self.world.get(moid) for moid in self.state.networks],
        "datastoreBrowser": lambda self: self.world.get(f"datastoreBrowser-{self.moid}"),
        "systemResources": lambda self: vim.host.SystemResourceInfo(key="host"),
    }

    @prop("config.network")
    def _network_info(self) -> Any:
        network = host_network.info(self.state)
        network.proxySwitch = distributed.proxy_switches(self)
        return network

    @prop("licensableResource")
    def _licensable(self) -> Any:
        packages = vmodl.KeyAnyValue(key="numCpuPackages", value=self.state.model.sockets)
        return vim.LicenseManager.LicensableResourceInfo(resource=[packages])

    # --- methods ------------------------------------------------------------------------------------------------

    method_table: ClassVar[Methods] = {
        "EnterMaintenanceMode_Task": lambda self, call, timeout, maintenanceSpec=None, **_: maintenance.enter(
            self, call, timeout, maintenanceSpec
        ),
        "ExitMaintenanceMode_Task": lambda self, call, **_: maintenance.leave(self, call),
        "DisconnectHost_Task": inventory_change.disconnect,
        "ReconnectHost_Task": lambda self, call, **_: inventory_change.reconnect(self, call),
        "Destroy_Task": removal.destroy,
        "RebootHost_Task": lambda self, call, force: maintenance.reboot(self, call, force=force),
        "RetrieveManagedMethodExecuter": lambda self, call: self.manager("methodExecuter"),
        "RetrieveDynamicTypeManager": lambda self, call: self.manager("typeManager"),
        "QueryHostConnectionInfo": lambda self, call: host_config.connection_info(self),
    }

    @method
    def QueryTpmAttestationReport(self, call: Call) -> Any:
        return None  # these hosts have no TPM, and the report is optional


class HostProfile(ManagedObject):
    """A profile attached to hosts and clusters; its only simulated settings are the options of the module nvidia."""

    wsdl_name = "HostProfile"
    world: World

    property_table: ClassVar[Properties] = {
        "name": lambda self: self.name,
        "entity": lambda self: [self.world.get(moid) for moid in self.entities],
        "createdTime modifiedTime": lambda self: self.made_at,
        "complianceStatus": lambda self: "unknown",
    }

    def __init__(self, world: World, moid: str, name: str, entities: tuple[str, ...], module_options: str) -> None:
        super().__init__(world, moid)
        self.name = name
        self.entities = entities
        """Moids of what it is attached to."""
        self.module_options = module_options
        self.made_at = world.clock.now()

    def holds(self, host: HostSystem) -> bool:
        """Whether it is attached to the host or to its cluster."""
        return host.moid in self.entities or host.state.parent in self.entities


class HostProfileManager(ManagedObject):
    """All host profiles of the vCenter."""

    wsdl_name = "HostProfileManager"
    volatile = True
    world: World

    property_table: ClassVar[Properties] = {"profile": lambda self: list(self.world.by_type("HostProfile"))}

    @method
    def FindAssociatedProfile(self, call: Call, entity: Any) -> Any:
        moid = self.world.get(entity).moid
        return [profile for profile in self.world.by_type("HostProfile") if moid in profile.entities]
