"""Reads what bulk reads do not contain about hosts, several hosts at a time: their config targets and settings.

The config target has the DirectPath I/O devices and device groups that a host offers, and vCenter's stun estimates
(EnvironmentBrowser.QueryConfigTarget). It is read for each host that a plan may use.

The settings are NVIDIA's kernel module, graphics, passthrough, packages, and the profiles that manage the host besides
gpuops. `writing.host_changes` reads them for the hosts that a plan changes. Host profiles and vSphere Configuration
Profiles may manage a host (vSphere API reference, HostProfileManager.FindAssociatedProfile, of a host or a cluster,
System.View; ComputeResource.configManagerEnabled, 8.0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuops.errors import GpuopsError, NotConnected, ProtocolError
from gpuops.model.vcenter.host import ConfigTarget, DynamicTarget, Host, PassthroughTarget, StunEstimate
from gpuops.model.vcenter.host_settings import (
    Custody,
    DeviceGroup,
    DeviceGroupMember,
    GraphicsDevice,
    GraphicsSettings,
    HostSettings,
    PassthroughState,
    SoftwarePackage,
)
from gpuops.plan.core.versions import GROUP, version_numbers
from gpuops.vsphere.device_modes import sets_modes
from gpuops.vsphere.session import OptionalRead
from gpuops.vsphere.transport.messages import pci_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.vsphere.session import Session

AT_A_TIME: Final = 4
"""Hosts that are read at the same time; fewer than the connections that pyVmomi keeps open."""


def with_config_targets(session: Session, inventory: Inventory, hosts: Collection[str]) -> Inventory:
    """Return the snapshot with the config targets of these hosts, except hosts that vCenter cannot reach.

    Raises NotConnected and its subclasses, NoPermission.
    """
    requested_hosts = [inventory.hosts[ref] for ref in hosts if ref in inventory.hosts]
    if not requested_hosts:
        return inventory
    with ThreadPoolExecutor(
        max_workers=min(AT_A_TIME, len(requested_hosts)), thread_name_prefix="config-target"
    ) as pool:
        return inventory.completed(hosts=pool.map(lambda host: _with_config_target(session, host), requested_hosts))


def _with_config_target(session: Session, host: Host) -> Host:
    """Return the host with its config target; as it is if vCenter cannot reach it."""
    from pyVmomi import vmodl

    target = session.host(host.ref)
    try:
        browser = session.read(lambda: target.parent.environmentBrowser, subject=host.name)
        offered = session.read(lambda: browser.QueryConfigTarget(target), subject=host.name)
    except NotConnected:
        raise
    except GpuopsError as error:
        if isinstance(error.__cause__, vmodl.fault.HostCommunication):
            return host
        raise
    if offered is None:
        return host
    with session.decoding("QueryConfigTarget"):
        return replace(host, config_target=config_target(offered))


def config_target(offered: Any) -> ConfigTarget:
    """Return a vim.vm.ConfigTarget as a value of the model, without devices that have no PCI address."""
    return ConfigTarget(
        passthrough=tuple(_passthrough(offered.pciPassthrough or ())),
        dynamic=tuple(
            DynamicTarget(device.vendorId, device.deviceId, device.deviceName or "", device.customLabel or None)
            for device in offered.dynamicPassthrough or ()
        ),
        device_groups=device_groups(offered.vendorDeviceGroupInfo or ()),
        stuns=tuple(_stuns(offered.vgpuProfileInfo or ())),
    )


def _stuns(profiles: Iterable[Any]) -> Iterator[StunEstimate]:
    """Yield the stun estimates, without missing or negative ones, which count as unknown."""
    for profile in profiles:
        for estimate in getattr(profile, "stunTimeEstimates", None) or ():
            if estimate.stunTime is not None and estimate.stunTime >= 0 and estimate.migrationBW is not None:
                yield StunEstimate(profile.profileName, estimate.migrationBW, estimate.stunTime)


def device_groups(offered: Iterable[Any]) -> tuple[DeviceGroup, ...]:
    """Return the vim.vm.VendorDeviceGroupInfo objects as values of the model."""
    return tuple(
        DeviceGroup(group.deviceGroupName, tuple(_members(group.componentDeviceInfo or ()))) for group in offered
    )


def _passthrough(offered: Iterable[Any]) -> Iterator[PassthroughTarget]:
    for target in offered:
        device = target.pciDevice
        if (address := pci_address(device.id)) is not None:
            name, system_id = target.name or device.deviceName or "", target.systemId or ""
            # signed 16-bit fields (vSphere API reference, HostPciDevice)
            yield PassthroughTarget(address, name, system_id, device.vendorId & 0xFFFF, device.deviceId & 0xFFFF)


def _members(components: Iterable[Any]) -> Iterator[DeviceGroupMember]:
    """Yield the components in the order of their sequence ids, taken from the template devices they come with."""
    members = [_member(position, component) for position, component in enumerate(components)]
    yield from sorted(members, key=lambda member: member.sequence_id)


def _member(position: int, component: Any) -> DeviceGroupMember:
    group = component.device.deviceGroupInfo
    vendor_id, device_id = _identity(component.device.backing)
    return DeviceGroupMember(
        kind=component.type,
        sequence_id=position if group is None else group.sequenceId,
        profile=getattr(component.device.backing, "vgpu", None) or None,
        vendor_id=vendor_id,
        device_id=device_id,
    )


def _identity(backing: Any) -> tuple[int | None, int | None]:
    """Return the vendor id and device id of a template's backing; (None, None) for a vGPU.

    A dynamic backing may allow several models: the first one is returned.
    """
    from pyVmomi import vim

    backings = vim.vm.device.VirtualPCIPassthrough
    if isinstance(backing, backings.DynamicBackingInfo) and backing.allowedDevice:
        return backing.allowedDevice[0].vendorId, backing.allowedDevice[0].deviceId
    if isinstance(backing, backings.DeviceBackingInfo):
        is_hexadecimal = re.fullmatch("(0x)?[0-9A-Fa-f]+", backing.deviceId) is not None
        return backing.vendorId & 0xFFFF, int(backing.deviceId, 16) if is_hexadecimal else None
    return None, None


Answer = TypeVar("Answer")
Value = TypeVar("Value")

MODULE: Final = "nvidia"
"""The kernel module of NVIDIA's vGPU manager."""

SINCE: Final = version_numbers("8.0.0.0")
"""The first version in which a cluster can manage the configuration of its hosts."""


def settings_of(session: Session, hosts: Sequence[Host]) -> tuple[HostSettings, ...]:
    """Return the settings of these hosts, with the reasons for what cannot be read.

    Raises NotConnected and its subclasses.
    """
    custody_reader = CustodyReader(session, hosts)
    with ThreadPoolExecutor(max_workers=min(AT_A_TIME, len(hosts)), thread_name_prefix="host-settings") as pool:
        return tuple(pool.map(lambda host: _HostReader(session, host, custody_reader).settings(), hosts))


class _HostReader:
    """Reads one host, and collects the reasons for what cannot be read."""

    def __init__(self, session: Session, host: Host, custody_reader: CustodyReader) -> None:
        self._session = session
        self._host = host
        self._custody_reader = custody_reader
        self._unread: list[str] = []

    def settings(self) -> HostSettings:
        """Return the settings; for those that cannot be read, `unread` has the reasons."""
        if self._host.connected is not True:
            return HostSettings(unread=("it is not connected",))
        target = self._session.host(self._host.ref)
        managers = self._read_or_note(lambda: target.configManager)
        if managers is None:
            return HostSettings(unread=tuple(self._unread))
        capability = self._read_or_note(lambda: target.capability)
        graphics = self._read_manager(managers.graphicsManager, lambda manager: manager.graphicsConfig)
        passthrough = self._read_manager(managers.pciPassthruSystem, lambda system: system.pciPassthruInfo)
        packages = self._read_manager(managers.imageConfigManager, lambda manager: manager.FetchSoftwarePackages())
        return replace(
            self._module_settings(managers.kernelModuleSystem),
            packages=self._convert("FetchSoftwarePackages", _packages, packages),
            graphics=self._convert("graphicsConfig", graphics_settings, graphics),
            passthrough=self._convert("pciPassthruInfo", _passthrough_states, passthrough),
            rebinds_without_reboot=capability.deviceRebindWithoutRebootSupported if capability else None,
            takes_labels=capability.assignHwPciConfigSupported if capability else None,
            device_groups=self._device_groups(managers.assignableHardwareManager),
            sets_modes=sets_modes(self._session),
            custody=self._custody_reader.custody_of(self._host),
            unread=tuple(dict.fromkeys(self._unread)),
        )

    def _convert(self, call_name: str, make: Callable[[Any], Value], answer: Any) -> Value | None:
        """Return the answer as a value of the model, or None without an answer."""
        if answer is None:
            return None
        with self._session.decoding(call_name):
            return make(answer)

    def _read_manager(self, manager: Any, read: Callable[[Any], Answer]) -> Answer | None:
        """Return what `read` returns for this manager of the host; None if vCenter has no such manager."""
        return None if manager is None else self._read_or_note(lambda: read(manager))

    def _module_settings(self, system: Any) -> HostSettings:
        """Return the settings of NVIDIA's kernel module only."""
        loaded_modules = self._read_manager(system, lambda system: system.QueryModules())
        if loaded_modules is None:
            return HostSettings(unread=tuple(self._unread))
        nvidia_module = next((module for module in loaded_modules if module.name == MODULE), None)
        if nvidia_module is None:
            return HostSettings(has_module=False)
        return HostSettings(
            module_options=self._read_or_note(lambda: system.QueryConfiguredModuleOptionString(MODULE)),
            # a module that is not loaded has no options in effect
            loaded_options=(nvidia_module.optionString or "") if nvidia_module.loaded else None,
            has_module=True,
        )

    def _device_groups(self, manager: Any) -> tuple[DeviceGroup, ...] | None:
        """Return the device groups; they are needed for a warning only, so a failure is not listed as unread."""
        if version_numbers(self._session.api_version) < version_numbers(GROUP[0]):
            return ()
        if manager is None:
            return None
        with OptionalRead():
            groups = self._session.read(manager.RetrieveVendorDeviceGroupInfo, subject=self._host.name)
            return self._convert("RetrieveVendorDeviceGroupInfo", device_groups, groups or ())
        return None

    def _read_or_note(self, call: Callable[[], Answer]) -> Answer | None:
        """Return the answer of the call. If the call fails, note the reason in `_unread` and return None."""
        try:
            return self._session.read(call, subject=self._host.name)
        except NotConnected:
            raise
        except GpuopsError as error:
            self._unread.append(error.message.removeprefix(f"{self._host.name}: "))
            return None


def _packages(packages: Iterable[Any]) -> tuple[SoftwarePackage, ...]:
    return tuple(SoftwarePackage(package.name, package.version or "", package.vendor or "") for package in packages)


def graphics_settings(config: Any) -> GraphicsSettings:
    """Return a vim.host.GraphicsConfig as a value of the model, without devices that have no PCI address."""
    devices = []
    for device_type in config.deviceType or ():
        address = pci_address(device_type.deviceId)
        if address is not None:
            devices.append(
                GraphicsDevice(address, device_type.graphicsType, getattr(device_type, "vgpuMode", None) or None)
            )
    return GraphicsSettings(config.hostDefaultGraphicsType, config.sharedPassthruAssignmentPolicy, tuple(devices))


def _passthrough_states(passthrough_infos: Iterable[Any]) -> tuple[PassthroughState, ...]:
    return tuple(
        PassthroughState(
            address,
            capable=bool(device.passthruCapable),
            enabled=bool(device.passthruEnabled),
            active=bool(device.passthruActive),
            label=getattr(device, "hardwareLabel", None) or None,
            depends_on=device.dependentDevice or None,
            mode=state.mode if state is not None else None,
            configurable=tuple(state.configurableModes or ()) if state is not None else (),
        )
        for device in passthrough_infos
        if (address := pci_address(device.id)) is not None
        for state in (getattr(device, "directPathState", None),)  # one element: names the field, which 9.1 added
    )


class CustodyReader:
    """Reads which host profiles and configuration profiles manage hosts; each cluster is read once."""

    def __init__(self, session: Session, hosts: Iterable[Host]) -> None:
        """Read the clusters of these hosts. Raises NotConnected and its subclasses."""
        self._session = session
        self._manager = self._answer(lambda: session.content.hostProfileManager)
        self._clusters: Mapping[str, Custody] = {
            ref: Custody(self._profiles(compute), self._has_config_manager(compute))
            for ref in sorted({host.cluster for host in hosts if host.cluster})
            for compute in (session.managed_object("ClusterComputeResource", ref),)
        }

    def custody_of(self, host: Host) -> Custody:
        """Return the profiles of the host and of its cluster. Raises NotConnected and its subclasses."""
        target = self._session.host(host.ref)
        own_profiles = self._profiles(target)
        if host.cluster is None:
            compute = self._answer(lambda: target.parent)
            return Custody(own_profiles, None if compute is None else self._has_config_manager(compute))
        cluster_custody = self._clusters[host.cluster]
        is_complete = own_profiles is not None and cluster_custody.profiles is not None
        # profiles that one of the two reads returned count, even if the other read failed
        profiles = tuple(dict.fromkeys((*(own_profiles or ()), *(cluster_custody.profiles or ()))))
        return Custody(profiles if is_complete or profiles else None, cluster_custody.configured)

    def _has_config_manager(self, compute: Any) -> bool | None:
        if version_numbers(self._session.api_version) < SINCE:
            return False
        return self._answer(lambda: compute.configManagerEnabled)

    def _profiles(self, entity: Any) -> tuple[str, ...] | None:
        manager = self._manager
        profiles = None if manager is None else self._answer(lambda: manager.FindAssociatedProfile(entity))
        if profiles is None:
            return None
        # if this login cannot read the name of a profile, its id is used
        return tuple(self._answer(partial(getattr, profile, "name")) or str(profile._moId) for profile in profiles)

    def _answer(self, call: Callable[[], Answer]) -> Answer | None:
        with OptionalRead(), suppress(ProtocolError):  # a vCenter that does not know the call
            return self._session.read(call)
        return None
