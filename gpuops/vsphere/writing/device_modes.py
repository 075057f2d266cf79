"""Sets modes of devices with the configure call of vSphere 9.1. It returns a task, whose result is the impacts.

Source: vSphere Automation API 9.1, vcenter.host.hardware.direct_path_devices. There is no call that returns the impacts
of a change without making it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, OutcomeUnknown, ProtocolError, Refused
from gpuops.model.devices.device_mode import ConfigureImpact, Impacts
from gpuops.vsphere.reading.device_modes import MODES, WORDS, devices_of
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.automation_login import automation_login, error_text, vapi_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuops.model.devices.gpu import PciAddress
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.core.steps import ConfigureModes, ModeChange
    from gpuops.vsphere.session import Session

TASK_S: Final = 540.0
"""The longest wait for a task: the login is for ten minutes."""
_PAUSES_S: Final = (0.1, 0.5, 2.0, 5.0)
"""Pauses between reads of a task; the last one repeats."""


def configure_modes(session: Session, step: ConfigureModes, inventory: Inventory, op_id: str) -> Impacts | None:
    """Set the modes of a step's devices that have another mode, each with one call, which is sent once.

    Return the impacts, such as a reboot, before all modes are in effect; None if vCenter does not report them, or a
    device had its mode before. Raises OutcomeUnknown if a reply was lost or a task does not end, Refused,
    NoPermission, NotConnected; the error contains the devices that were set before it.
    """
    host = inventory.hosts[step.host]
    session.refuse_change(host.name)
    states = {state.address: state.mode for state in (host.settings.passthrough if host.settings else None) or ()}
    pending_changes = [
        mode_change for mode_change in step.devices if states.get(mode_change.address) != mode_change.after
    ]
    impacts_by_device: dict[PciAddress, Impacts | None] = {}
    try:
        with automation_login(session.target, MODES) as configuration:
            ids = {device.address: device.id for device in devices_of(configuration, step.host)}
            for change in pending_changes:
                if change.address not in ids:
                    raise Refused(f"{host.name}: vCenter lists no DirectPath device {change.address}")
                call = _ConfigureCall(session, configuration, f"{host.name} {change.address}", op_id)
                impacts_by_device[change.address] = call.result(step.host, ids[change.address], change)
    except (LoginRefused, ProtocolError) as error:  # the main API still works: only this host is not set
        refused = Refused(f"{host.name}: {error.message}", hint=error.hint)
        add_changed_devices(refused, impacts_by_device)
        raise refused from error
    except GpuopsError as error:
        add_changed_devices(error, impacts_by_device)
        raise
    known_impacts = [mode_change for mode_change in impacts_by_device.values() if mode_change is not None]
    return frozenset(chain.from_iterable(known_impacts)) if len(known_impacts) == len(step.devices) else None


def add_changed_devices(error: GpuopsError, impacts_by_device: Mapping[PciAddress, Impacts | None]) -> None:
    """Add to an error the devices that were set before it, with their impacts."""
    if not impacts_by_device:
        return
    words = (
        f"{address} (vCenter: {', '.join(sorted(impacts)) if impacts is not None else 'not told what that takes'})"
        for address, impacts in impacts_by_device.items()
    )
    reboots = any(impacts is None or ConfigureImpact.REBOOT in impacts for impacts in impacts_by_device.values())
    error.after(f"set before that: {', '.join(words)}", reboot_due=reboots)


class _ConfigureCall:
    """One call, from its request to the end of its task."""

    def __init__(self, session: Session, configuration: Any, subject: str, op_id: str) -> None:
        self._session = session
        self._configuration = configuration
        self._subject = subject
        self._op_id = op_id

    def result(self, host: str, device: str, change: ModeChange) -> Impacts | None:
        """Return the impacts. Raises OutcomeUnknown, Refused."""
        from com.vmware.vapi.std.errors_client import Error, Unauthenticated, Unauthorized
        from com.vmware.vcenter.host.hardware_client import DirectPathDevices

        unanswered: tuple[type[Exception], ...] = (*network.LOST_ERRORS, *vapi_errors())
        spec = DirectPathDevices.ConfigureSpec(device=device, new_mode=WORDS[change.after])
        try:
            task = DirectPathDevices(self._configuration).configure_task(host, spec)
        except (Unauthenticated, Unauthorized):
            raise  # nothing was done
        except Error as error:
            raise self._refusal(error) from error
        except unanswered as error:
            raise self._lost_reply_error(type(error).__name__) from error
        try:
            end = self._end(task)
        except unanswered as error:  # the change is under way in any case
            raise self._unfinished_error(f"its task cannot be followed: {type(error).__name__}") from error
        if end is None:
            raise self._unfinished_error(f"its task has not ended after {TASK_S:.0f} s")
        if end.status == "FAILED":
            raise self._refusal(end.error)
        self._session.changes.note_accepted(None, self._op_id)
        return _impacts(task, end)

    def _end(self, task: Any) -> Any:
        """Return the TaskInfo when the task has ended; None if it has not within the time."""
        task_infos = (task.get_info() for _ in clock.rounds(_PAUSES_S, TASK_S))
        return next((task_info for task_info in task_infos if task_info.status in ("SUCCEEDED", "FAILED")), None)

    def _refusal(self, error: Any) -> Refused:
        server_text = error_text(error) or type(error).__name__
        return Refused(f"{self._subject}: vCenter does not set the mode: {server_text}")

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


def _impacts(task: Any, end: Any) -> Impacts | None:
    """Return the impacts of the result. None = missing or unknown impacts, which does not mean no impact."""
    from vmware.vapi.bindings.converter import TypeConverter

    if end.result is None:
        return None
    try:
        impact_words = TypeConverter.convert_to_python(end.result, task.result_type).configure_impacts
    except vapi_errors():  # the change was made all the same
        return None
    if not impact_words or any(str(impact) not in list(ConfigureImpact) for impact in impact_words):
        return None
    return frozenset(ConfigureImpact(str(impact)) for impact in impact_words)
