"""Hosts: the settings that no bulk read shows, asked host by host, several at a time; and the calls that change them.

Sources: vSphere API reference, HostKernelModuleSystem, HostImageConfigManager, HostGraphicsManager,
HostPciPassthruSystem, HostProfileManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, assert_never

from gpuops.errors import GpuopsError, NotConnected, Refused, UsageError
from gpuops.model.device_group import DeviceGroup
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.host_settings import (
    GraphicsDevice,
    GraphicsSettings,
    HostSettings,
    PassthroughState,
    SoftwarePackage,
)
from gpuops.model.task import TaskRef
from gpuops.plan.core.steps import (
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModule,
    ConfigurePassthrough,
    HostStep,
    HostTask,
)
from gpuops.plan.core.versions import GROUP, version_numbers
from gpuops.vsphere import host_tasks, managed
from gpuops.vsphere.custody import Custodians
from gpuops.vsphere.privileges import held_on_hosts, lacking_on_hosts
from gpuops.vsphere.targets import AT_A_TIME, device_groups

if TYPE_CHECKING:
    from gpuops.model.inventory import Inventory
    from gpuops.vsphere.session import Session

Answer = TypeVar("Answer")
Value = TypeVar("Value")

MODULE: Final = "nvidia"
"""The kernel module of NVIDIA's vGPU manager."""


class HostConnection:
    """Implements `Hosts` over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def with_settings(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """The same snapshot with the settings of these hosts; what cannot be read is said in them.

        Raises NotConnected in its kinds.
        """
        asked = [inventory.hosts[ref] for ref in hosts if ref in inventory.hosts]
        if not asked:
            return inventory
        custodians = Custodians(self._session, asked)
        with ThreadPoolExecutor(max_workers=min(AT_A_TIME, len(asked)), thread_name_prefix="host-settings") as pool:
            settings = pool.map(lambda host: _Asked(self._session, host, custodians).settings(), asked)
            told = [replace(host, settings=found) for host, found in zip(asked, settings, strict=True)]
        return inventory.with_hosts(told)

    def lacking(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """By host, those of the needed privileges that this login does not have."""
        return lacking_on_hosts(self._session, needed)

    def held(self, hosts: Collection[str], asked: Collection[str]) -> Mapping[str, Collection[str]]:
        """By host that vCenter told of, those of the privileges that this login has."""
        return held_on_hosts(self._session, hosts, asked)

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> None:
        """Send one step, once. Raises OutcomeUnknown when the reply was lost, or the error of vCenter's fault."""
        name = inventory.hosts[step.host].name
        managers = self._session.read(lambda: managed.host(self._session, step.host).configManager, subject=name)
        match step:
            case ConfigureModule(after=options):
                system = self._manager(managers, "kernelModuleSystem", name)
                self._change(system.UpdateModuleOptionString, name, op_id, MODULE, options)
            case ConfigureGraphics(after=graphics):
                manager = self._manager(managers, "graphicsManager", name)
                # what is there, changed in place: fields that this version does not know go back as they came
                config = self._session.read(lambda: manager.graphicsConfig, subject=name)
                with self._session.decoding("graphicsConfig"):
                    wanted = _graphics_config(config, graphics)
                self._change(manager.UpdateGraphicsConfig, name, op_id, wanted)
            case ConfigurePassthrough():
                system = self._manager(managers, "pciPassthruSystem", name)
                self._change(system.UpdatePassthruConfig, name, op_id, _passthrough_config(step))
            case ConfigureMig():
                raise Refused(f"{name}: vCenter has no call for MIG mode", hint="--host-shell ssh asks the host itself")
            case _:
                assert_never(step)

    def _manager(self, managers: Any, which: str, name: str) -> Any:
        """One of the host's managers. Raises Refused where it has none: nothing was sent."""
        found = getattr(managers, which, None)
        if found is None:
            raise Refused(f"{name}: vCenter names no {which} of this host, so it is not changed")
        return found

    def submit(self, step: HostTask, inventory: Inventory, op_id: str) -> TaskRef:
        """Send one step that vCenter makes a task of. Raises OutcomeUnknown when the reply was lost."""
        return host_tasks.submit(self._session, step, inventory.hosts[step.host].name, op_id)

    def adopt(self, step: HostTask) -> TaskRef | None:
        """A task of this kind that runs on the step's host now; None = there is none."""
        return host_tasks.adopt(self._session, step)

    def wait_for_boot(self, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
        """Those of these hosts that are connected and have booted since, within the time."""
        return host_tasks.wait_for_boot(self._session, since, timeout_s)

    def _change(self, call: Callable[..., Any], name: str, op_id: str, *arguments: Any) -> None:
        self._session.change(call, *arguments, subject=name, op_id=op_id)


class _Asked:
    """One host that is asked, and why it did not answer."""

    def __init__(self, session: Session, host: Host, custodians: Custodians) -> None:
        self._session = session
        self._host = host
        self._custodians = custodians
        self._unread: list[str] = []

    def settings(self) -> HostSettings:
        if self._host.connected is not True:
            return HostSettings(unread=("it is not connected",))
        target = managed.host(self._session, self._host.ref)
        managers = self._answer(lambda: target.configManager)
        if managers is None:
            return self._said()
        capability = self._answer(lambda: target.capability)
        graphics = self._of(managers.graphicsManager, lambda manager: manager.graphicsConfig)
        passthrough = self._of(managers.pciPassthruSystem, lambda system: system.pciPassthruInfo)
        return replace(
            self._modules(managers.kernelModuleSystem),
            packages=self._packages(managers.imageConfigManager),
            graphics=self._made("graphicsConfig", graphics_settings, graphics),
            passthrough=self._made("pciPassthruInfo", _passthrough_states, passthrough),
            rebinds_without_reboot=capability.deviceRebindWithoutRebootSupported if capability else None,
            takes_labels=capability.assignHwPciConfigSupported if capability else None,
            device_groups=self._device_groups(managers.assignableHardwareManager),
            custody=self._custodians.of(self._host),
            unread=tuple(dict.fromkeys(self._unread)),
        )

    def _made(self, what: str, make: Callable[[Any], Value], told: Any) -> Value | None:
        """A value of ours of what it told; None where it told nothing."""
        if told is None:
            return None
        with self._session.decoding(what):
            return make(told)

    def _of(self, manager: Any, ask: Callable[[Any], Answer]) -> Answer | None:
        return None if manager is None else self._answer(lambda: ask(manager))

    def _modules(self, system: Any) -> HostSettings:
        loaded = self._of(system, lambda system: system.QueryModules())
        if loaded is None:
            return self._said()
        ours = next((module for module in loaded if module.name == MODULE), None)
        if ours is None:
            return HostSettings(has_module=False)
        return HostSettings(
            module_options=self._answer(lambda: system.QueryConfiguredModuleOptionString(MODULE)),
            # what the module would be given is not what it was given while it is not loaded
            loaded_options=(ours.optionString or "") if ours.loaded else None,
            has_module=True,
        )

    def _device_groups(self, manager: Any) -> tuple[DeviceGroup, ...] | None:
        """It is asked for a warning alone: that it does not tell is no reason to say so of all settings."""
        if version_numbers(self._session.api_version) < version_numbers(GROUP[0]):
            return ()
        if manager is None:
            return None
        try:
            told = self._session.read(manager.RetrieveVendorDeviceGroupInfo, subject=self._host.name)
        except NotConnected:
            raise
        except GpuopsError:
            return None
        return self._made("RetrieveVendorDeviceGroupInfo", device_groups, told or ())

    def _packages(self, manager: Any) -> tuple[SoftwarePackage, ...] | None:
        told = self._of(manager, lambda manager: manager.FetchSoftwarePackages())
        return self._made("FetchSoftwarePackages", _packages, told)

    def _answer(self, call: Callable[[], Answer]) -> Answer | None:
        """What it answers; None, and the reason kept, where it does not or may not."""
        try:
            return self._session.read(call, subject=self._host.name)
        except NotConnected:
            raise
        except GpuopsError as error:
            self._unread.append(error.message.removeprefix(f"{self._host.name}: "))
            return None

    def _said(self) -> HostSettings:
        return HostSettings(unread=tuple(self._unread))


def _packages(told: Iterable[Any]) -> tuple[SoftwarePackage, ...]:
    return tuple(SoftwarePackage(each.name, each.version or "", each.vendor or "") for each in told)


def graphics_settings(config: Any) -> GraphicsSettings:
    """A vim.host.GraphicsConfig as the model has it; a device that is not named as PCI names devices is left out."""
    devices = []
    for each in config.deviceType or ():
        address = _address(each.deviceId)
        if address is not None:
            devices.append(GraphicsDevice(address, each.graphicsType, getattr(each, "vgpuMode", None) or None))
    return GraphicsSettings(config.hostDefaultGraphicsType, config.sharedPassthruAssignmentPolicy, tuple(devices))


def _graphics_config(config: Any, wanted: GraphicsSettings) -> Any:
    """The configuration with what differs set."""
    config.hostDefaultGraphicsType = wanted.default_type
    config.sharedPassthruAssignmentPolicy = wanted.assignment_policy
    devices = {device.address: device for device in wanted.devices}
    for each in config.deviceType or ():
        address = _address(each.deviceId)
        if address is not None and (device := devices.get(address)) is not None:
            each.graphicsType = device.graphics_type
            if device.vgpu_mode is not None:
                each.vgpuMode = device.vgpu_mode
    return config


def _passthrough_states(told: Iterable[Any]) -> tuple[PassthroughState, ...]:
    return tuple(
        PassthroughState(
            address,
            capable=bool(each.passthruCapable),
            enabled=bool(each.passthruEnabled),
            active=bool(each.passthruActive),
            label=getattr(each, "hardwareLabel", None) or None,
            depends_on=each.dependentDevice or None,
        )
        for each in told
        if (address := _address(each.id)) is not None
    )


def _passthrough_config(step: ConfigurePassthrough) -> list[Any]:
    """Only the devices that change. Without `applyNow` it is in force at once where the host can do that."""
    from pyVmomi import vim

    return [
        vim.host.PciPassthruConfig(id=str(each.address), passthruEnabled=each.enabled, hardwareLabel=each.label)
        for each in step.devices
    ]


def _address(text: str) -> PciAddress | None:
    try:
        return PciAddress.parse(text)
    except UsageError:
        return None
