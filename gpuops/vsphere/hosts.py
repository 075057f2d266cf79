"""Hosts: the settings that no bulk read shows, asked host by host, several at a time; and the calls that change them.

Sources: vSphere API reference, HostKernelModuleSystem, HostImageConfigManager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuops.errors import GpuopsError, NotConnected
from gpuops.model.host import Host
from gpuops.model.host_settings import HostSettings, SoftwarePackage
from gpuops.plan.steps import ConfigureModule, HostStep
from gpuops.vsphere import managed
from gpuops.vsphere.privileges import lacking_on_hosts
from gpuops.vsphere.targets import AT_A_TIME

if TYPE_CHECKING:
    from gpuops.model.inventory import Inventory
    from gpuops.vsphere.session import Session

Answer = TypeVar("Answer")

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
        with ThreadPoolExecutor(max_workers=min(AT_A_TIME, len(asked)), thread_name_prefix="host-settings") as pool:
            settings = pool.map(lambda host: _Asked(self._session, host).settings(), asked)
            told = [replace(host, settings=found) for host, found in zip(asked, settings, strict=True)]
        return inventory.with_hosts(told)

    def lacking(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """By host, those of the needed privileges that this login does not have."""
        return lacking_on_hosts(self._session, needed)

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> None:
        """Send one step, once. Raises OutcomeUnknown when the reply was lost, or the error of vCenter's fault."""
        host = inventory.hosts[step.host]
        target = managed.host(self._session, step.host)
        match step:
            case ConfigureModule(after=options):
                system = self._session.read(lambda: target.configManager.kernelModuleSystem, subject=host.name)
                self._session.change(system.UpdateModuleOptionString, MODULE, options, subject=host.name, op_id=op_id)


class _Asked:
    """One host that is asked, and why it did not answer."""

    def __init__(self, session: Session, host: Host) -> None:
        self._session = session
        self._host = host
        self._unread: list[str] = []

    def settings(self) -> HostSettings:
        if self._host.connected is not True:
            return HostSettings(unread=("it is not connected",))
        managers = self._answer(lambda: managed.host(self._session, self._host.ref).configManager)
        if managers is None:
            return self._said()
        modules = self._modules(managers.kernelModuleSystem)
        packages = self._packages(managers.imageConfigManager)
        return replace(modules, packages=packages, unread=tuple(dict.fromkeys(self._unread)))

    def _modules(self, system: Any) -> HostSettings:
        loaded = self._answer(lambda: system.QueryModules()) if system is not None else None
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

    def _packages(self, manager: Any) -> tuple[SoftwarePackage, ...] | None:
        told = self._answer(lambda: manager.FetchSoftwarePackages()) if manager is not None else None
        if told is None:
            return None
        return tuple(SoftwarePackage(each.name, each.version or "", each.vendor or "") for each in told)

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
