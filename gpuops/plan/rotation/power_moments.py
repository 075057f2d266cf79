"""What the moments that vCenter shows say of a VM that a night took: whether a desktop is still suspended in the state
that its night suspended it in, and whether an ML VM was started again since its night started it.

A revert to a snapshot that was taken while the desktop was suspended replaces the memory that its night suspended;
`runtime.suspendTime` shows it (vSphere API reference: it is updated every time the VM is suspended). The desktop is
resumed all the same, since its user needs one, and the return warns of it. Only the journal has the moment of the
night: the marker is set before the suspend, and writing the moment there would be one more change of each VM.

`runtime.bootTime` shows the last start (vSphere API reference: set by a power-on from off, and left alone by a resume).
An ML VM whose work is done may power itself off, and its user start it for something else: that run is the user's. One
that vSphere HA restarted on another host is still the night's. vCenter's task history tells these apart.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from gpuops.model.nights.night_record import Original, Role
from gpuops.model.vcenter.vm import PowerState, Vm

GRAIN: Final = timedelta(seconds=1)
"""Moments that are no further apart may be one, written down twice."""


def another_state(original: Original, vm: Vm) -> str:
    """How a desktop came to another suspended state than that of its night, with both moments; empty = it has not, or
    nobody can tell. One that runs is told of where it was resumed in an older state: a younger one is its user's own.
    A night suspends only desktops of `Role.DESKTOP`: of a desktop that it shut down, `suspended_at` is a moment before
    the shutdown.
    """
    then, now = original.suspended_at, vm.suspended_at
    if original.role is not Role.DESKTOP or then is None or now is None or abs(now - then) <= GRAIN:
        return ""
    if vm.power is PowerState.SUSPENDED:
        state = "its suspended state is"
    elif vm.power is PowerState.ON and now < then:
        state = "it was resumed in a suspended state"
    else:
        return ""
    reverted = "reverted it to a snapshot"
    happened = reverted if now < then else f"resumed and suspended it since, or {reverted}"
    moments = f"of {_shown(now)}, not of {_shown(then)} when its night suspended it"
    return f"{state} {moments}: somebody has {happened}; tell its user"


def gave_way(original: Original, vm: Vm) -> bool:
    """Whether an ML VM is suspended in the state in which it gave way to desktops; False where nobody can tell: what
    somebody else has suspended is not resumed."""
    then, now = original.suspended_at, vm.suspended_at
    suspended = original.role is Role.ML and original.stopped and vm.power is PowerState.SUSPENDED
    return suspended and then is not None and now is not None and abs(now - then) <= GRAIN


def started_anew(original: Original, vm: Vm) -> bool:
    """Whether an ML VM runs by a later start than that of its night; False where nobody can tell."""
    return original.role is Role.ML and runs_anew(original.started_at, vm)


def runs_anew(then: datetime | None, vm: Vm) -> bool:
    """Whether the VM runs by a later start than the one shown `then`; False where nobody can tell."""
    now = vm.started_at
    return vm.power is PowerState.ON and then is not None and now is not None and now - then > GRAIN


def _shown(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S %Z}"
