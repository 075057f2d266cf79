"""Reads the settings of hosts: NVIDIA's kernel module, graphics, passthrough, packages, and what else manages them.

`writing.hosts` calls it for the hosts that a plan changes. Host profiles and vSphere Configuration Profiles may manage
a host too (vSphere API reference, HostProfileManager.FindAssociatedProfile, of a host or a cluster, System.View;
ComputeResource.configManagerEnabled, 8.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuops.errors import GpuopsError, NotConnected, ProtocolError
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import (
    Custody,
    DeviceGroup,
    GraphicsDevice,
    GraphicsSettings,
    HostSettings,
    PassthroughState,
    SoftwarePackage,
)
from gpuops.plan.core.versions import GROUP, version_numbers
from gpuops.vsphere.device_modes import sets_modes
from gpuops.vsphere.reading.config_targets import AT_A_TIME, device_groups
from gpuops.vsphere.session import OptionalRead
from gpuops.vsphere.transport.messages import pci_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuops.vsphere.session import Session

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
    custodians = CustodyReader(session, hosts)
    with ThreadPoolExecutor(max_workers=min(AT_A_TIME, len(hosts)), thread_name_prefix="host-settings") as pool:
        return tuple(pool.map(lambda host: _HostReader(session, host, custodians).settings(), hosts))


class _HostReader:
    """Reads one host, and collects the reasons for what cannot be read."""

    def __init__(self, session: Session, host: Host, custodians: CustodyReader) -> None:
        self._session = session
        self._host = host
        self._custodians = custodians
        self._unread: list[str] = []

    def settings(self) -> HostSettings:
        """Return the settings; for those that cannot be read, `unread` has the reasons."""
        if self._host.connected is not True:
            return HostSettings(unread=("it is not connected",))
        target = self._session.host(self._host.ref)
        managers = self._answer(lambda: target.configManager)
        if managers is None:
            return HostSettings(unread=tuple(self._unread))
        capability = self._answer(lambda: target.capability)
        graphics = self._of(managers.graphicsManager, lambda manager: manager.graphicsConfig)
        passthrough = self._of(managers.pciPassthruSystem, lambda system: system.pciPassthruInfo)
        packages = self._of(managers.imageConfigManager, lambda manager: manager.FetchSoftwarePackages())
        return replace(
            self._modules(managers.kernelModuleSystem),
            packages=self._convert("FetchSoftwarePackages", _packages, packages),
            graphics=self._convert("graphicsConfig", graphics_settings, graphics),
            passthrough=self._convert("pciPassthruInfo", _passthrough_states, passthrough),
            rebinds_without_reboot=capability.deviceRebindWithoutRebootSupported if capability else None,
            takes_labels=capability.assignHwPciConfigSupported if capability else None,
            device_groups=self._device_groups(managers.assignableHardwareManager),
            sets_modes=sets_modes(self._session),
            custody=self._custodians.of(self._host),
            unread=tuple(dict.fromkeys(self._unread)),
        )

    def _convert(self, call_name: str, make: Callable[[Any], Value], answer: Any) -> Value | None:
        """Return the answer as a value of the model, or None without an answer."""
        if answer is None:
            return None
        with self._session.decoding(call_name):
            return make(answer)

    def _of(self, manager: Any, ask: Callable[[Any], Answer]) -> Answer | None:
        return None if manager is None else self._answer(lambda: ask(manager))

    def _modules(self, system: Any) -> HostSettings:
        """Return the settings of NVIDIA's kernel module only."""
        loaded = self._of(system, lambda system: system.QueryModules())
        if loaded is None:
            return HostSettings(unread=tuple(self._unread))
        nvidia_module = next((module for module in loaded if module.name == MODULE), None)
        if nvidia_module is None:
            return HostSettings(has_module=False)
        return HostSettings(
            module_options=self._answer(lambda: system.QueryConfiguredModuleOptionString(MODULE)),
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

    def _answer(self, call: Callable[[], Answer]) -> Answer | None:
        """Return the answer, or None if the call fails; then the reason is collected."""
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
        for state in (getattr(device, "directPathState", None),)  # from 9.1 on
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

    def of(self, host: Host) -> Custody:
        """Return the profiles of the host and of its cluster. Raises NotConnected and its subclasses."""
        target = self._session.host(host.ref)
        own_profiles = self._profiles(target)
        if host.cluster is None:
            compute = self._answer(lambda: target.parent)
            return Custody(own_profiles, None if compute is None else self._has_config_manager(compute))
        cluster_custody = self._clusters[host.cluster]
        is_known = own_profiles is not None and cluster_custody.profiles is not None
        profiles = tuple(dict.fromkeys((*(own_profiles or ()), *(cluster_custody.profiles or ()))))
        return Custody(profiles if is_known or profiles else None, cluster_custody.configured)

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
