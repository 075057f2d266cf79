"""Compares the moments that vCenter shows for a VM with those of its night: whether a desktop is still suspended in the
state that its night suspended, and whether an ML VM was started again since its night started it.

A revert to a snapshot that was taken while the desktop was suspended replaces the memory that its night suspended;
`runtime.suspendTime` shows it (vSphere API reference: it is updated every time the VM is suspended). The return
resumes the desktop anyway, because its user needs one, and warns. Only the journal has the moment of the night: the
marker is set before the suspend, and writing the moment there would be another change of each VM.

`runtime.bootTime` shows the last start (vSphere API reference: set by a power-on from off, and left alone by a resume).
An ML VM whose work is done may power itself off, and its user may start it for something else: that run belongs to the
user. An ML VM that vSphere HA restarted on another host still belongs to the night. The task history of vCenter shows
which of the two it is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from gpuops.model.nights.night_record import Original, Role
from gpuops.model.time_text import format_zoned_second
from gpuops.model.vcenter.vm import PowerState, Vm

SAME_MOMENT_TOLERANCE: Final = timedelta(seconds=1)
"""Moments that differ by at most this may be the same one, recorded twice."""


def replaced_state_text(original: Original, vm: Vm) -> str:
    """Return how a desktop got another suspended state than that of its night, with both moments.

    Empty if it has the same state, or if a moment is unknown. A running desktop is only reported if it was resumed in
    an older state: a newer one belongs to its user. Only desktops of `Role.DESKTOP` are compared: if a night shut a
    desktop down, `suspended_at` is a moment before the shutdown.
    """
    night_suspend, last_suspend = original.suspended_at, vm.suspended_at
    if original.role is not Role.DESKTOP or night_suspend is None or last_suspend is None:
        return ""
    if abs(last_suspend - night_suspend) <= SAME_MOMENT_TOLERANCE:
        return ""
    if vm.power is PowerState.SUSPENDED:
        state = "its suspended state was saved"
    elif vm.power is PowerState.ON and last_suspend < night_suspend:
        state = "it was resumed in a state that was saved"
    else:
        return ""
    reverted = "reverted it to a snapshot"
    cause = reverted if last_suspend < night_suspend else f"resumed and suspended it since, or {reverted}"
    moments = f"at {_format_utc(last_suspend)}, not at {_format_utc(night_suspend)} when its night suspended it"
    return f"{state} {moments}: somebody has {cause}; tell its user"


def is_suspended_for_desktops(original: Original, vm: Vm) -> bool:
    """Return whether an ML VM is still suspended in the state that a watch suspended to free GPUs for desktops.

    False if a moment is unknown: gpuops does not resume a VM that another person may have suspended.
    """
    watch_suspend, last_suspend = original.suspended_at, vm.suspended_at
    is_suspended_ml = original.role is Role.ML and original.stopped and vm.power is PowerState.SUSPENDED
    if not is_suspended_ml or watch_suspend is None or last_suspend is None:
        return False
    return abs(last_suspend - watch_suspend) <= SAME_MOMENT_TOLERANCE


def was_restarted_since_night(original: Original, vm: Vm) -> bool:
    """Return whether an ML VM was started again after the start by its night; False if a start time is unknown."""
    return original.role is Role.ML and was_restarted_since(original.started_at, vm)


def was_restarted_since(earlier_start: datetime | None, vm: Vm) -> bool:
    """Return whether the VM was started again after `earlier_start`; False if a start time is unknown."""
    if vm.power is not PowerState.ON or earlier_start is None or vm.started_at is None:
        return False
    return vm.started_at - earlier_start > SAME_MOMENT_TOLERANCE


def _format_utc(moment: datetime) -> str:
    return format_zoned_second(moment.astimezone(UTC))
