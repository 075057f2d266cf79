"""Reads the DirectPath devices of hosts from a vCenter 9.1, with their modes and reservations, and sets the modes.

This takes one login, and one list for each host, so it is read on request only. The list has at most 256 devices
(DirectPathDevices.IterationSpec). The bindings of vmware-vcenter 9.1 return no marker for a second page, so of a host
with more devices only 256 are read. The call that sets a mode returns a task, whose result is the impacts, such as a
reboot; no call returns them without making the change.

Source: vSphere Automation API 9.1, vcenter.host.hardware.direct_path_devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, NotConnected, OutcomeUnknown, ProtocolError, Refused
from gpuops.model.devices.device_mode import ConfigureImpact, DeviceMode, HostDevice, Impacts, VmClassReservation
from gpuops.model.vcenter.host_settings import HostSettings
from gpuops.plan.core.versions import version_numbers
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.automation_login import Purpose, automation_login, error_text, vapi_errors
from gpuops.vsphere.transport.messages import pci_address

if TYPE_CHECKING:
    from gpuops.model.devices.gpu import PciAddress
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.core.steps import ConfigureModes, ModeChange
    from gpuops.vsphere.session import Session

SINCE: Final = version_numbers("9.1.0.0")
MOST_HOSTS: Final = 256
"""Hosts in one read, one after another, within the ten minutes of a login."""
_TOO_MANY: Final = (
    f"its DirectPath devices were not read: gpuops reads those of at most {MOST_HOSTS} hosts (use --host)"
)
LOGIN_PURPOSE: Final = Purpose(
    "modes of devices",
    hint_if_refused="ask for read access to the hosts",
    hint_if_unreadable="gpuops inventory --hosts shows the devices that the main API lists",
    hint_without_tls="give the address of the vCenter as https://HOST",
)
MODE_NAMES: Final[Mapping[DeviceMode, str]] = {
    DeviceMode.NONE: "NONE",
    DeviceMode.HOST: "HOST",
    DeviceMode.DIRECT_PATH: "DIRECTPATH",
    DeviceMode.ENHANCED_DIRECT_PATH: "ENHANCED_DIRECTPATH",
    DeviceMode.VGPU_SAME_SIZE: "VGPU_SAME_SIZE",
    DeviceMode.VGPU_MIXED_SIZE: "VGPU_MIXED_SIZE",
    DeviceMode.SYSTEM_SELECT: "SYSTEM_SELECT",
}
"""The names of modes in this API; unknown names are shown unchanged."""
_MODE_OF_NAME: Final = {name: mode.value for mode, name in MODE_NAMES.items()}


def sets_modes(session: Session) -> bool:
    """Return whether modes of devices can be read and set: from 9.1 on, and only over TLS."""
    return version_numbers(session.api_version) >= SINCE and session.target.tls


def with_devices(session: Session, inventory: Inventory, hosts: Collection[str]) -> Inventory:
    """Return the snapshot with the DirectPath devices of these hosts in their settings; before 9.1 as it is.

    If they cannot be read, `settings.unread` has the reason. Raises NotConnected if vCenter cannot be reached.
    """
    requested_hosts = [inventory.hosts[ref] for ref in hosts if ref in inventory.hosts]
    if not requested_hosts or version_numbers(session.api_version) < SINCE:
        return inventory
    # by host (ref): its devices, or the reason why they were not read
    devices_by_host: dict[str, tuple[HostDevice, ...] | str] = {
        host.ref: _TOO_MANY for host in requested_hosts[MOST_HOSTS:]
    }
    try:
        with automation_login(session.target, LOGIN_PURPOSE) as configuration:
            for host in requested_hosts[:MOST_HOSTS]:
                devices_by_host[host.ref] = _read_devices_or_reason(configuration, host.ref)
    except GpuopsError as error:
        # if only the Automation API refuses the login or fails, the snapshot is still useful without devices
        if isinstance(error, NotConnected) and not isinstance(error, LoginRefused | ProtocolError):
            raise
        devices_by_host = {host.ref: error.message for host in requested_hosts}
    updated_hosts = []
    for host in requested_hosts:
        settings, devices = host.settings or HostSettings(), devices_by_host[host.ref]
        if isinstance(devices, str):
            settings = replace(settings, unread=(*settings.unread, devices))
        else:
            settings = replace(settings, devices=devices)
        updated_hosts.append(replace(host, settings=settings))
    return inventory.completed(hosts=updated_hosts)


def devices_of(configuration: Any, host: str) -> tuple[HostDevice, ...]:
    """Return the devices of one host, in the order of their ids. Raises the SDK's errors."""
    from com.vmware.vcenter.host.hardware_client import DirectPathDevices

    service = DirectPathDevices(configuration)
    summaries = service.list(host, list_details=DirectPathDevices.ListDetails(vm_class=True)).items
    return tuple(sorted((_device(summary.device, summary.info) for summary in summaries), key=lambda device: device.id))


def _read_devices_or_reason(configuration: Any, host: str) -> tuple[HostDevice, ...] | str:
    """Return the devices of one host, or the reason why they cannot be read. Raises errors that affect all hosts."""
    from com.vmware.vapi.std.errors_client import Error, NotFound, OperationNotFound, Unauthenticated

    try:
        return devices_of(configuration, host)
    except (OperationNotFound, Unauthenticated):
        raise
    except (NotFound, Error) as error:
        return f"its DirectPath devices cannot be read: {error_text(error) or type(error).__name__}"


def _device(id_: Any, device_info: Any) -> HostDevice:
    """Return the decoded device. Raises TypeError for a value of a wrong type, because the SDK does not check types."""
    memory = device_info.memory_info
    return HostDevice(
        id=_text(id_),
        address=pci_address(_text(id_)),
        name=_text(device_info.name),
        mode=_mode(device_info.current_mode),
        configurable=_in_order(map(_mode, device_info.configurable_modes)),
        interconnect=_text_or_none(device_info.interconnect_type),
        driver_name=_text_or_none(device_info.driver_name),
        driver_version=_text_or_none(device_info.driver_version),
        used_mib=_number(memory.used_memory) if memory else None,
        total_mib=_number(memory.total_memory) if memory else None,
        reserved_used_mib=_number(memory.reserved_used_memory) if memory else None,
        reserved_mib=_number(memory.total_reserved_memory) if memory else None,
        vms=_texts(device_info.vms),
        vm_classes=None if device_info.vm_classes_info is None else tuple(map(_vm_class, device_info.vm_classes_info)),
        profiles=_texts(device_info.direct_path_profiles),
    )


def _text(field: Any) -> str:
    if not isinstance(field, str):
        raise TypeError(f"a {type(field).__name__} where a text belongs")
    return str(field)


def _text_or_none(field: Any) -> str | None:
    return (_text(field) if field is not None else None) or None


def _texts(field: Any) -> tuple[str, ...] | None:
    return None if field is None else tuple(sorted(map(_text, field)))


def _number(field: Any) -> int | None:
    if field is not None and (not isinstance(field, int) or isinstance(field, bool)):
        raise TypeError(f"a {type(field).__name__} where a number belongs")
    return field


def _mode(name: Any) -> str:
    return _MODE_OF_NAME.get(_text(name), _text(name))


def _in_order(modes: Iterable[str]) -> tuple[str, ...]:
    """Return the modes in the order of `DeviceMode`, then unknown ones."""
    positions = {mode.value: position for position, mode in enumerate(DeviceMode)}
    return tuple(sorted(modes, key=lambda mode: (positions.get(mode, len(positions)), mode)))


def _vm_class(reservation: Any) -> VmClassReservation:
    return VmClassReservation(
        vm_class=_text(reservation.vm_class),
        zone=_text_or_none(reservation.zone_name) or _text_or_none(reservation.zone),
        profile=_text_or_none(reservation.dpp_id),
        in_use=_number(reservation.vm_class_reserved_in_use),
        total=_number(reservation.vm_class_reserved_total),
    )


TASK_S: Final = 540.0
"""The longest wait for a task: the login is for ten minutes."""
_PAUSES_S: Final = (0.1, 0.5, 2.0, 5.0)
"""Pauses between reads of a task; the last one repeats."""


def configure_modes(session: Session, step: ConfigureModes, inventory: Inventory, op_id: str) -> Impacts | None:
    """Set the mode of each device of the step that has another mode: one call for each, sent exactly once.

    Return what is necessary before all modes are in effect, such as a reboot; None if vCenter does not report it for
    every device, or a device already had its mode. Raises OutcomeUnknown if a reply was lost or a task does
    not end, Refused, NoPermission, NotConnected; the error names the devices that were set before it.
    """
    host = inventory.hosts[step.host]
    session.refuse_change(host.name)
    passthrough_states = (host.settings.passthrough if host.settings else None) or ()
    modes_now = {state.address: state.mode for state in passthrough_states}
    pending_changes = [change for change in step.devices if modes_now.get(change.address) != change.after]
    impacts_by_device: dict[PciAddress, Impacts | None] = {}
    try:
        with automation_login(session.target, LOGIN_PURPOSE) as configuration:
            ids = {device.address: device.id for device in devices_of(configuration, step.host)}
            for change in pending_changes:
                if change.address not in ids:
                    raise Refused(
                        f"{host.name}: vCenter lists no DirectPath device {change.address}",
                        hint="gpuops host passthrough show lists the devices that it has",
                    )
                call = _ConfigureCall(session, configuration, f"{host.name} {change.address}", op_id)
                impacts_by_device[change.address] = call.set_mode(step.host, ids[change.address], change)
    except (LoginRefused, ProtocolError) as error:  # the main API still works: only this host is not set
        refused = Refused(f"{host.name}: {error.message}", hint=error.hint)
        add_changed_devices(refused, impacts_by_device)
        raise refused from error
    except GpuopsError as error:
        add_changed_devices(error, impacts_by_device)
        raise
    # a device that already had its mode has no impacts here, so the result is None for it too
    known_impacts = [impacts for impacts in impacts_by_device.values() if impacts is not None]
    return frozenset(chain.from_iterable(known_impacts)) if len(known_impacts) == len(step.devices) else None


def add_changed_devices(error: GpuopsError, impacts_by_device: Mapping[PciAddress, Impacts | None]) -> None:
    """Add to an error the devices that were set before it, with their impacts."""
    if not impacts_by_device:
        return
    devices_with_impacts = (
        f"{address} (vCenter: {', '.join(sorted(impacts)) if impacts is not None else 'impact not reported'})"
        for address, impacts in impacts_by_device.items()
    )
    # unknown impacts may include a reboot
    reboots = any(impacts is None or ConfigureImpact.REBOOT in impacts for impacts in impacts_by_device.values())
    error.after(f"set before that: {', '.join(devices_with_impacts)}", reboot_due=reboots)


class _ConfigureCall:
    """The call that sets the mode of one device, from its request to the end of its task."""

    def __init__(self, session: Session, configuration: Any, subject: str, op_id: str) -> None:
        self._session = session
        self._configuration = configuration
        self._subject = subject
        self._op_id = op_id

    def set_mode(self, host: str, device: str, change: ModeChange) -> Impacts | None:
        """Set the mode, wait for the end of the task and return the impacts; None = not reported.

        Raises Refused by vCenter, and OutcomeUnknown if the reply was lost or the end of the task is not known.
        """
        from com.vmware.vapi.std.errors_client import Error, Unauthenticated, Unauthorized
        from com.vmware.vcenter.host.hardware_client import DirectPathDevices

        lost_reply_errors: tuple[type[Exception], ...] = (*network.LOST_ERRORS, *vapi_errors())
        spec = DirectPathDevices.ConfigureSpec(device=device, new_mode=MODE_NAMES[change.after])
        try:
            task = DirectPathDevices(self._configuration).configure_task(host, spec)
        except (Unauthenticated, Unauthorized):
            raise  # nothing was done
        except Error as error:  # an error reply, which must come before `lost_reply_errors`: they contain it too
            raise self._refusal(error) from error
        except lost_reply_errors as error:
            raise self._lost_reply_error(type(error).__name__) from error
        try:
            task_info = self._wait_for_end(task)
        except lost_reply_errors as error:  # the change is under way in any case
            raise self._unfinished_error(f"its task cannot be followed: {type(error).__name__}") from error
        if task_info is None:
            raise self._unfinished_error(f"its task has not ended after {TASK_S:.0f} s")
        if task_info.status == "FAILED":
            raise self._refusal(task_info.error)
        self._session.changes.note_accepted(None, self._op_id)
        return _impacts(task, task_info)

    def _wait_for_end(self, task: Any) -> Any:
        """Return the TaskInfo when the task has ended; None if it has not ended after `TASK_S` seconds."""
        task_infos = (task.get_info() for _ in clock.rounds(_PAUSES_S, TASK_S))
        return next((task_info for task_info in task_infos if task_info.status in ("SUCCEEDED", "FAILED")), None)

    def _refusal(self, error: Any) -> Refused:
        server_text = error_text(error) or type(error).__name__
        hint = "gpuops host mode show prints the present mode of each device"
        return Refused(f"{self._subject}: vCenter refused to set the mode: {server_text}", hint=hint)

    def _lost_reply_error(self, why: str) -> OutcomeUnknown:
        self._session.changes.note_lost(self._op_id)
        return OutcomeUnknown(
            f"{self._subject}: the reply was lost ({why}); whether it happened is not known yet",
            hint="gpuops reads vCenter before it does anything else",
        )

    def _unfinished_error(self, why: str) -> OutcomeUnknown:
        """Return the error for a change that vCenter accepted, with unknown impacts."""
        lost = self._lost_reply_error(why)
        lost.reboot_due = True
        return lost


def _impacts(task: Any, task_info: Any) -> Impacts | None:
    """Return the impacts of the result; None = missing or unknown, so a reboot may be necessary."""
    from vmware.vapi.bindings.converter import TypeConverter

    if task_info.result is None:
        return None
    try:
        describe_impact = TypeConverter.convert_to_python(task_info.result, task.result_type).configure_impacts
    except vapi_errors():  # the change was made all the same
        return None
    if not describe_impact or any(str(impact) not in list(ConfigureImpact) for impact in describe_impact):
        return None
    return frozenset(ConfigureImpact(str(impact)) for impact in describe_impact)
