"""Is a desktop idle? What cannot be read counts as in use."""

from __future__ import annotations

from gpuops.model.vm import PowerState, Vm


def in_use(vm: Vm) -> str | None:
    """Why a desktop cannot be called unused, whatever its CPU says; None = nothing shows that it is used.

    Sources: vSphere API, VirtualMachineRuntimeInfo.numMksConnections (consoles only: a remote-desktop session does
    not show there) and .question; VirtualMachine.recentTask.
    """
    reasons = (
        None if vm.power is PowerState.ON else f"is not running ({vm.power or 'its power state cannot be read'})",
        None if vm.connected is True else "is not connected, or does not tell",
        f"cannot be read whole: {', '.join(vm.unreadable)}" if vm.unreadable else None,
        _console(vm.console_connections),
        f"waits for an answer: {vm.question}" if vm.question is not None else None,
        f"a task is {vm.tasks[0].state}: {vm.tasks[0].name}" if vm.tasks else None,
    )
    return next((reason for reason in reasons if reason is not None), None)


def busy(vm: Vm, cpu_below_mhz: int) -> str | None:
    """Why a desktop is not idle: used, or its CPU is at or over the limit; None = idle."""
    reason = in_use(vm)
    if reason is not None:
        return reason
    if vm.cpu_usage_mhz is None:
        return "its CPU usage cannot be read"
    if vm.cpu_usage_mhz >= cpu_below_mhz:
        return f"uses {vm.cpu_usage_mhz} MHz, idle is below {cpu_below_mhz}"
    return None


def _console(connections: int | None) -> str | None:
    if connections is None:
        return "its console connections cannot be read"
    return f"{connections} console connection(s) open" if connections else None
