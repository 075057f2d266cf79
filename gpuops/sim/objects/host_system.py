"""The HostSystem object: one ESXi host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.core.managed_object import SharedValue, method, prop
from gpuops.sim.inventory.entities import HostEntity
from gpuops.sim.inventory.managed_entity import custom_values
from gpuops.sim.operations import inventory_change, removal
from gpuops.sim.operations.hosts import maintenance
from gpuops.sim.render import distributed, host_config, host_graphics, host_hardware, host_network
from gpuops.sim.render.host_network import firewall
from gpuops.sim.render.pci import pci_devices

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call


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
        set_of_all = (state.policy, state.default_graphics_type, state.no_suspend, state.rebinds_without_reboot)
        key = (state.model, state.gpu_settings, set_of_all)
        return SharedValue(key, lambda: getattr(self, self.readers[path])())

    @prop("summary")
    def _summary(self) -> Any:
        return host_config.summary(
            self.ref,
            self.state,
            usage=self.usage(),
            now=self.world.clock.now(),
            custom=custom_values(self.attributes),
            release=self.world.api_version,
        )

    @prop("summary.quickStats")
    def _quick_stats(self) -> Any:
        return host_config.quick_stats(self.state, self.usage(), self.world.clock.now())

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

    @prop("config.network")
    def _network_info(self) -> Any:
        shown = host_network.info(self.state)
        shown.proxySwitch = distributed.proxy_switches(self)
        return shown

    @prop("config.option")
    def _options(self) -> Any:
        return self.manager(host_config.OWN_MOIDS["advancedOption"]).read("setting")

    @prop("config.firewall")
    def _firewall(self) -> Any:
        return firewall(self.state)

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
        return self.datastores()

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
    def DisconnectHost_Task(self, call: Call) -> Any:
        return inventory_change.disconnect(self, call)

    @method
    def ReconnectHost_Task(self, call: Call, cnxSpec: Any = None, reconnectSpec: Any = None) -> Any:
        return inventory_change.reconnect(self, call)

    @method
    def Destroy_Task(self, call: Call) -> Any:
        return removal.destroy(self, call)

    @method
    def RebootHost_Task(self, call: Call, force: bool) -> Any:
        return maintenance.reboot(self, call, force=force)

    @method
    def RetrieveManagedMethodExecuter(self, call: Call) -> Any:
        return self.manager("methodExecuter")

    @method
    def RetrieveDynamicTypeManager(self, call: Call) -> Any:
        return self.manager("typeManager")

    @method
    def QueryTpmAttestationReport(self, call: Call) -> Any:
        return None  # these hosts have no TPM, and the report is optional

    @method
    def QueryHostConnectionInfo(self, call: Call) -> Any:
        return host_config.connection_info(self)
