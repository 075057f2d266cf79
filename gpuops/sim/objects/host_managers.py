"""The managers of one host: graphics, passthrough, assignable hardware, kernel modules and installed software."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, method
from gpuops.sim.inventory import faults
from gpuops.sim.operations import device_settings
from gpuops.sim.render import config_target, host_graphics
from gpuops.sim.render.defaults import default, filled
from gpuops.sim.render.pci import group_info, offered_groups

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.world import World


class HostManager(ManagedObject):
    """A managed object under a host's configManager; the ledger names it by its host."""

    wsdl_name = "ManagedObject"
    world: World

    def __init__(self, moid: str, host: HostSystem) -> None:
        super().__init__(host.world, moid)
        self.host = host

    @property
    def display_name(self) -> str:
        return self.host.name

    @property
    def governed_by(self) -> ManagedObject:
        return self.host


class HostGraphicsManager(HostManager):
    """Shows what `HostSystem.config` shows of graphics, and changes it."""

    wsdl_name = "HostGraphicsManager"

    property_table: ClassVar[Properties] = {
        "graphicsInfo": lambda self: self.host.read("config.graphicsInfo"),
        "graphicsConfig": lambda self: self.host.read("config.graphicsConfig"),
        "sharedPassthruGpuTypes": lambda self: self.host.read("config.sharedPassthruGpuTypes"),
        "sharedGpuCapabilities": lambda self: self.host.read("config.sharedGpuCapabilities"),
    }

    method_table: ClassVar[Methods] = {
        "UpdateGraphicsConfig": lambda self, call, config: device_settings.update_graphics(self.host, call, config),
        "RefreshGraphicsManager": lambda self, call: self.host.graphics_changed(),
        "IsSharedGraphicsActive": lambda self, call: any(
            gpu.listed and gpu.graphics_type != "direct" for gpu in self.host.state.gpus
        ),
        "RetrieveVgpuDeviceInfo": lambda self, call: host_graphics.vgpu_devices(self.host.state),
        "RetrieveVgpuProfileInfo": lambda self, call: host_graphics.vgpu_profiles(self.host.state),
    }


class HostPciPassthruSystem(HostManager):
    """Passthrough of the host's devices: configured, and in force."""

    wsdl_name = "HostPciPassthruSystem"

    property_table: ClassVar[Properties] = {"pciPassthruInfo": lambda self: self.host.read("config.pciPassthruInfo")}

    method_table: ClassVar[Methods] = {
        "UpdatePassthruConfig": lambda self, call, config: device_settings.update_passthrough(self.host, call, config),
        "Refresh": lambda self, call: self.host.graphics_changed(),
    }


class HostAssignableHardwareManager(HostManager):
    """Assignable hardware of a host."""

    wsdl_name = "HostAssignableHardwareManager"

    property_table: ClassVar[Properties] = {
        "binding": lambda self: self.host.read("config.assignableHardwareBinding"),
        "config": lambda self: host_graphics.hardware_labels(self.host.state),
    }

    method_table: ClassVar[Methods] = {
        "UpdateAssignableHardwareConfig": lambda self, call, config: device_settings.update_labels(
            self.host, call, config
        ),
        "RetrieveDynamicPassthroughInfo": lambda self, call: config_target.dynamic_devices([self.host.state]),
        "RetrieveVendorDeviceGroupInfo": lambda self, call: [
            group_info(group) for group in offered_groups(self.host.state)
        ],
    }


NVIDIA: Final = "nvidia"


class HostKernelModuleSystem(HostManager):
    """Option strings are for the next boot; what QueryModules shows is loaded now."""

    wsdl_name = "HostKernelModuleSystem"

    @method
    def QueryModules(self, call: Call) -> Any:
        """Return the loaded kernel modules: the vmkernel, and nvidia if the driver is installed."""
        names = [NVIDIA, "vmkernel"] if self._has_driver() else ["vmkernel"]
        return [
            default(
                "KernelModuleInfo",
                id=number,
                name=name,
                version=self.host.state.driver_version if name == NVIDIA else "8.0.3",
                filename=f"/usr/lib/vmware/vmkmod/{name}",
                optionString=self.host.state.loaded_module_options if name == NVIDIA else "",
            )
            for number, name in enumerate(names, start=1)
        ]

    @method
    def QueryConfiguredModuleOptionString(self, call: Call, name: str) -> str:
        self._refuse_unknown(name)
        return self.host.state.module_options

    @method
    def UpdateModuleOptionString(self, call: Call, name: str, options: str) -> None:
        """Replaces the whole string; in force after the next boot."""
        self._refuse_unknown(name)
        before, self.host.state.module_options = self.host.state.module_options, options
        self.host.touch("summary")
        self.world.ledger.record(call, self.host, before={"module_options": before}, after={"module_options": options})

    def _has_driver(self) -> bool:
        return bool(self.host.state.driver_version)

    def _refuse_unknown(self, name: str) -> None:
        if name != NVIDIA or not self._has_driver():
            raise faults.not_found(f"Kernel module {name} is not installed.")


class HostImageConfigManager(HostManager):
    """What is installed."""

    wsdl_name = "HostImageConfigManager"

    @method
    def fetchSoftwarePackages(self, call: Call) -> Any:
        driver = self.host.state.driver_version
        packages = [("esx-base", "8.0.3-0.0.24022510", "VMware")]
        if driver:
            packages.append(("NVD-AIE-800-Driver" if "aie" in driver else "NVD-VGPU-800-Driver", driver, "NVIDIA"))
        return [self._package(*package) for package in packages]

    def _package(self, name: str, version: str, vendor: str) -> Any:
        return filled(
            vim.host.SoftwarePackage,
            name=name,
            version=version,
            type="bootbank",
            vendor=vendor,
            acceptanceLevel="vmware_accepted" if vendor == "NVIDIA" else "vmware_certified",
            summary=f"{name} {version}",
            description=f"{name} {version}",
            creationDate=self.host.state.boot_time,
        )
