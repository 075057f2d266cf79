"""Decides whether a desktop is idle, with the figures of the decision; what cannot be read is never called idle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuops.model.rotation import IdleRule
from gpuops.model.vm import PowerState, Vm


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

    CPU counts because a remote-desktop session shows as nothing else. Sources: vSphere API,
    VirtualMachineRuntimeInfo.numMksConnections (consoles only) and .question; VirtualMachine.recentTask;
    VirtualMachineQuickStats.overallCpuUsage.
    """
    below_mhz = rule.cpu_below_mhz if rule is not None else None
    use, reason = _verdict(vm, below_mhz)
    return Idleness(use, reason, vm.cpu_usage_mhz, below_mhz)


def _verdict(vm: Vm, below_mhz: int | None) -> tuple[Use, str]:
    # a VM that does not run, or is not connected, shows numbers of an earlier time
    out_of_sight = _out_of_sight(vm)
    if out_of_sight is not None:
        return Use.UNKNOWN, out_of_sight
    used = _signs_of_use(vm, below_mhz)
    if used is not None:
        return Use.BUSY, used
    untold = _untold(vm, below_mhz)
    if untold is not None:
        return Use.UNKNOWN, untold
    return Use.IDLE, f"uses {vm.cpu_usage_mhz} MHz, idle is below {below_mhz}; no console, question or task"


def _out_of_sight(vm: Vm) -> str | None:
    if vm.power is not PowerState.ON:
        return f"is not running ({vm.power or 'its power state cannot be read'})"
    return None if vm.connected is True else "is not connected, or does not tell"


def _signs_of_use(vm: Vm, below_mhz: int | None) -> str | None:
    if vm.console_connections:
        return f"{vm.console_connections} console connection(s) open"
    if vm.question is not None:
        return f"waits for an answer: {vm.question}"
    if vm.tasks:
        return f"a task is {vm.tasks[0].state}: {vm.tasks[0].name}"
    if below_mhz is not None and vm.cpu_usage_mhz is not None and vm.cpu_usage_mhz >= below_mhz:
        return f"uses {vm.cpu_usage_mhz} MHz, idle is below {below_mhz}"
    return None


def _untold(vm: Vm, below_mhz: int | None) -> str | None:
    """What would have to be known to call the VM idle, and is not."""
    if vm.unreadable:
        return f"cannot be read whole: {', '.join(vm.unreadable)}"
    if vm.console_connections is None:
        return "its console connections cannot be read"
    if below_mhz is None:
        return "is in no pool of a policy: nothing says when it is idle"
    return "its CPU usage cannot be read" if vm.cpu_usage_mhz is None else None
