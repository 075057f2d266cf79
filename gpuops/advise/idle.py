"""Decides whether a desktop is idle, with the figures of the decision; what cannot be read is never called idle."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from gpuops.model.measurement import CPU_MHZ
from gpuops.model.rotation import IdleRule
from gpuops.model.vm import PowerState, Vm

NO_RULE: Final = "is in no pool of a policy: nothing says when it is idle"

NEWEST: Final = timedelta(seconds=60)
"""Samples are 20 s apart, and vCenter shows the newest a while later (from memory, within two more)."""


class Use(StrEnum):
    """Whether somebody works with a VM."""

    IDLE = "idle"
    BUSY = "busy"
    UNKNOWN = "unknown"
    """Nothing shows that it is used, and not everything that would show it can be read."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """The verdict on one VM, with the numbers that it was given by."""

    use: Use
    reason: str
    """Why; a line about the VM that a person can check."""
    cpu_mhz: int | None
    """CPU that the VM uses; None = it cannot be read."""
    cpu_below_mhz: int | None
    """Idle is below this; None = no rule says when the VM is idle."""

    @property
    def objection(self) -> str | None:
        """Why the VM must be left alone; None = it is idle."""
        return None if self.use is Use.IDLE else self.reason


def idleness(vm: Vm, rule: IdleRule | None) -> Idleness:
    """The verdict on a VM, by the rule of its pool; `rule` None = nothing says when it is idle, so it never is.

    CPU counts because a remote-desktop session shows as nothing else. Under a rule with `for_s` it must have been below
    its limit in every sample of that time: a user who reads, or has gone for a coffee, uses none at the moment of a
    look. Sources: vSphere API,
    VirtualMachineRuntimeInfo.numMksConnections (consoles only) and .question; VirtualMachine.recentTask;
    VirtualMachineQuickStats.overallCpuUsage.
    """
    use, reason = _verdict(vm, rule)
    return Idleness(use, reason, vm.cpu_usage_mhz, rule.cpu_below_mhz if rule is not None else None)


def _verdict(vm: Vm, rule: IdleRule | None) -> tuple[Use, str]:
    # a VM that does not run, or is not connected, shows numbers of an earlier time
    out_of_sight = _out_of_sight(vm)
    if out_of_sight is not None:
        return Use.UNKNOWN, out_of_sight
    used = _signs_of_use(vm, rule) or _signs_of_earlier_use(vm, rule)
    if used is not None:
        return Use.BUSY, used
    untold = _untold(vm, rule)
    if untold is not None or rule is None:
        return Use.UNKNOWN, untold or NO_RULE
    while_ago = f" for {_told(rule.for_s)}" if rule.for_s else ""
    below = f"idle is below {rule.cpu_below_mhz}{while_ago}"
    return Use.IDLE, f"uses {vm.cpu_usage_mhz} MHz, {below}; no console, question or task"


def _out_of_sight(vm: Vm) -> str | None:
    if vm.power is not PowerState.ON:
        return f"is not running ({vm.power or 'its power state cannot be read'})"
    return None if vm.connected is True else "is not connected, or does not tell"


def _signs_of_use(vm: Vm, rule: IdleRule | None) -> str | None:
    if vm.console_connections:
        return f"{vm.console_connections} console connection(s) open"
    if vm.question is not None:
        return f"waits for an answer: {vm.question}"
    if vm.tasks:
        return f"a task is {vm.tasks[0].state}: {vm.tasks[0].name}"
    if rule is not None and vm.cpu_usage_mhz is not None and vm.cpu_usage_mhz >= rule.cpu_below_mhz:
        return f"uses {vm.cpu_usage_mhz} MHz, idle is below {rule.cpu_below_mhz}"
    return None


def _signs_of_earlier_use(vm: Vm, rule: IdleRule | None) -> str | None:
    """One sample at or above its limit is enough, whatever others are missing."""
    if rule is None or vm.counters is None:
        return None
    for name, below in rule.limits.items():
        window = vm.counters.get(name)
        if window is not None and window.highest >= below:
            used = f"used {window.highest} MHz" if name == CPU_MHZ else f"{name} was {window.highest}"
            return f"{used} within the last {_told(rule.for_s)}, idle is below {below}"
    return None


def _untold(vm: Vm, rule: IdleRule | None) -> str | None:
    """What would have to be known to call the VM idle, and is not."""
    if vm.unreadable:
        return f"cannot be read whole: {', '.join(vm.unreadable)}"
    if vm.console_connections is None:
        return "its console connections cannot be read"
    if rule is None:
        return NO_RULE
    if vm.cpu_usage_mhz is None:
        return "its CPU usage cannot be read"
    return next((gap for name in rule.limits if (gap := _gap(vm, name, rule.for_s)) is not None), None)


def _gap(vm: Vm, name: str, for_s: int) -> str | None:
    """Why a counter does not tell of all the time that it is asked for; None = it does."""
    window = (vm.counters or {}).get(name)
    if window is None:
        return f"vCenter has no samples of its {name}"
    if window.asked - window.until > NEWEST:
        return f"the newest sample of its {name} is {_told((window.asked - window.until).total_seconds())} old"
    known_s = (window.asked - window.since).total_seconds()
    return None if known_s >= for_s else f"its {name} is known for {_told(known_s)}, and {_told(for_s)} are asked for"


def _told(seconds: float) -> str:
    """`15 min`, `90 s`."""
    return f"{seconds / 60:.0f} min" if seconds % 60 == 0 else f"{seconds:.0f} s"
