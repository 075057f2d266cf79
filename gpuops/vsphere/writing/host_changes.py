"""Reads and changes the settings of hosts, and puts them into maintenance mode or reboots them: `HostConnection`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, assert_never

from gpuops.errors import GpuopsError, Refused
from gpuops.model.vcenter.login import ObjectKind
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.steps import (
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    EnterMaintenance,
    HostStep,
    HostTask,
    LeaveMaintenance,
    RebootHost,
)
from gpuops.vsphere.authorization import held_on, lacking_on_objects
from gpuops.vsphere.faults import is_gone
from gpuops.vsphere.reading.collect import with_all_devices
from gpuops.vsphere.reading.host_reads import MODULE, settings_of
from gpuops.vsphere.transport.messages import pci_address
from gpuops.vsphere.watches import BOOTED

if TYPE_CHECKING:
    from gpuops.model.devices.device_mode import Impacts
    from gpuops.model.vcenter.host_settings import GraphicsSettings
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.vsphere.connection import Connection

DESCRIPTIONS: Final[Mapping[type, str]] = {
    EnterMaintenance: "HostSystem.enterMaintenanceMode",
    LeaveMaintenance: "HostSystem.exitMaintenanceMode",
    RebootHost: "HostSystem.reboot",
}
"""TaskInfo.descriptionId of the task a step makes (vSphere API reference, TaskDescription.methodInfo)."""

LEAVE_LIMIT_S: Final = 600
"""The longest time that vCenter gives a host to leave maintenance mode."""

SoapSetting = ConfigureModule | ConfigureGraphics | ConfigurePassthrough | ConfigureMig
"""Settings that one SOAP call changes; it returns no impacts, such as a reboot."""


class HostConnection:
    """Implements the port `Hosts` of `execute` over one session."""

    def __init__(self, session: Connection) -> None:
        self._session = session

    def with_settings(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """Return the snapshot with the settings of these hosts, and the reasons for what cannot be read.

        Raises NotConnected and its subclasses.
        """
        requested_hosts = [inventory.hosts[ref] for ref in hosts if ref in inventory.hosts]
        if not requested_hosts:
            return inventory
        settings_by_host = zip(requested_hosts, settings_of(self._session, requested_hosts), strict=True)
        return inventory.completed(hosts=[replace(host, settings=settings) for host, settings in settings_by_host])

    def with_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """Return the snapshot with the DirectPath devices of these hosts, if the vCenter lists them (9.1).

        Raises NotConnected and its subclasses.
        """
        from gpuops.vsphere.device_modes import with_devices

        return with_devices(self._session, inventory, hosts)

    def with_other_devices(self, inventory: Inventory, hosts: Collection[str]) -> Inventory:
        """Return the snapshot with all passthrough-capable devices of these hosts.

        Raises NotConnected and its subclasses.
        """
        return with_all_devices(self._session, inventory, hosts)

    def lacking(self, needed: Mapping[str, Collection[str]]) -> Mapping[str, Collection[str]]:
        """Return the needed privileges that this login does not have, by host."""
        return lacking_on_objects(self._session, {ObjectKind.HOST: needed})

    def read_held_privileges(
        self, hosts: Collection[str], privileges: Collection[str]
    ) -> Mapping[str, Collection[str]]:
        """Return the privileges, of those given, that this login has, by host that vCenter answers for."""
        return held_on(self._session, {ObjectKind.HOST: hosts}, {ObjectKind.HOST: frozenset(privileges)})

    def configure(self, step: HostStep, inventory: Inventory, op_id: str) -> Impacts | None:
        """Send one step, exactly once, and return what it needs to take effect, such as a reboot; None = not reported.

        Raises OutcomeUnknown if the reply was lost, or the error of vCenter's fault.
        """
        if not isinstance(step, ConfigureModes):
            self._configure_over_soap(step, inventory, op_id)
            return None
        from gpuops.vsphere.device_modes import add_changed_devices, configure_modes

        impacts = configure_modes(self._session, step, inventory, op_id)
        if step.labels:  # the Automation API has no labels: they need a second call
            try:
                self._configure_over_soap(ConfigurePassthrough(step.host, step.labels), inventory, op_id)
            except GpuopsError as error:
                add_changed_devices(error, {change.address: impacts for change in step.devices})
                raise
        return impacts

    def _configure_over_soap(self, step: SoapSetting, inventory: Inventory, op_id: str) -> None:
        """Change a setting with one call. Raises Refused if vCenter has no manager for this setting of the host."""
        session, name = self._session, inventory.hosts[step.host].name
        managers = session.read(lambda: session.host(step.host).configManager, subject=name)

        def manager_of(manager_name: str) -> Any:
            manager = getattr(managers, manager_name, None)
            if manager is None:
                raise Refused(
                    f"{name}: vCenter offers no {manager_name} for this host, so it is not changed",
                    hint="check in the vSphere Client that the host is connected",
                )
            return manager

        match step:
            case ConfigureModule(after=options):
                call = manager_of("kernelModuleSystem").UpdateModuleOptionString
                session.change(call, MODULE, options, subject=name, op_id=op_id)
            case ConfigureGraphics(after=graphics):
                manager = manager_of("graphicsManager")
                # change the present configuration in place, so that unknown fields are sent back unchanged
                config = session.read(lambda: manager.graphicsConfig, subject=name)
                with session.decoding("graphicsConfig"):
                    _set_graphics(config, graphics)
                session.change(manager.UpdateGraphicsConfig, config, subject=name, op_id=op_id)
            case ConfigurePassthrough():
                call = manager_of("pciPassthruSystem").UpdatePassthruConfig
                session.change(call, _passthrough_config(step), subject=name, op_id=op_id)
            case ConfigureMig():
                raise Refused(
                    f"{name}: vCenter has no call for MIG mode", hint="add --host-shell ssh to set it on the host"
                )
            case _:
                assert_never(step)

    def submit(self, step: HostTask, inventory: Inventory, op_id: str) -> TaskRef:
        """Send one step and return its task. Raises OutcomeUnknown if the reply was lost."""
        from pyVmomi import vim

        target = self._session.host(step.host)
        arguments: list[Any]
        match step:
            case EnterMaintenance(vsan_mode=mode, limit_s=limit_s):
                spec = vim.host.MaintenanceSpec(vsanMode=vim.vsan.host.DecommissionMode(objectAction=mode.value))
                # False: VMs that are off stay on the host, because it comes back
                call, arguments = target.EnterMaintenanceMode_Task, [limit_s, False, spec]
            case LeaveMaintenance():
                call, arguments = target.ExitMaintenanceMode_Task, [LEAVE_LIMIT_S]
            case RebootHost():
                call, arguments = target.RebootHost_Task, [False]  # False: only in maintenance mode
            case _:
                assert_never(step)
        return self._session.start_task(call, *arguments, subject=inventory.hosts[step.host].name, op_id=op_id)

    def find_task(self, step: HostTask) -> TaskRef | None:
        """Return a task of this type on the step's host that has not ended, even if another user started it.

        None = there is no such task, or the host does not exist any more.
        """
        session, target = self._session, self._session.host(step.host)
        try:
            for task in session.read(lambda: target.recentTask, subject=step.host) or ():
                task_info = session.read(lambda task=task: task.info, subject=step.host)
                is_same_type = task_info and task_info.descriptionId == DESCRIPTIONS[type(step)]
                if is_same_type and task_info.state in ("queued", "running"):
                    return TaskRef(str(task._moId))
        except GpuopsError as error:
            if not is_gone(error):
                raise
        return None

    def wait_for_boot(self, since: Mapping[str, datetime | None], timeout_s: float) -> frozenset[str]:
        """Return the hosts that are connected within the time and have a new boot time, and those removed from vCenter.

        RebootHost_Task ends when the reboot has begun; only the boot time of the host shows its end (vSphere API
        reference, HostSystem).
        """
        booted, removed = self._session.states.wait(BOOTED, since, timeout_s)
        return booted | removed


def _set_graphics(config: Any, settings: GraphicsSettings) -> None:
    """Write the settings into a vim.host.GraphicsConfig."""
    config.hostDefaultGraphicsType = settings.default_type
    config.sharedPassthruAssignmentPolicy = settings.assignment_policy
    devices = {device.address: device for device in settings.devices}
    for device_type in config.deviceType or ():
        address = pci_address(device_type.deviceId)
        if address is not None and (device := devices.get(address)) is not None:
            device_type.graphicsType = device.graphics_type
            if device.vgpu_mode is not None:
                device_type.vgpuMode = device.vgpu_mode


def _passthrough_config(step: ConfigurePassthrough) -> list[Any]:
    """Return the configuration of the devices that change. Without `applyNow` it is in effect at once if possible."""
    from pyVmomi import vim

    return [
        vim.host.PciPassthruConfig(id=str(change.address), passthruEnabled=change.enabled, hardwareLabel=change.label)
        for change in step.devices
    ]
