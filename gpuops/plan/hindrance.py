"""Hindrance: why a planned step would be wrong now, on facts read just before it is sent.

A plan is minutes old when its last step is sent. `satisfied` asks whether a step is done; this asks whether it still
may be done: that the VM is the one that was planned for, that nobody began to use it, and that the step would not
destroy what a guest holds in a suspended state.
"""

from __future__ import annotations

from gpuops.model.inventory import Inventory
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    SetAttribute,
    ShutDownGuest,
    Step,
    SuspendVm,
)

STATE_LOST = "is powered off: its suspended state was discarded by somebody else; not booted in its place"
STATE_KEPT = "is suspended: {} would discard what its guest holds"


def hindrance(step: Step, planned: Inventory, now: Inventory) -> str | None:
    """Why this step must not be sent now; None = nothing speaks against it."""
    vm = now.vms.get(step.vm)
    if vm is None:
        return "is gone from vCenter"
    before = planned.vms.get(step.vm)
    if before is not None and before.instance_uuid != vm.instance_uuid:
        return "is another VM than the one planned for (its instance uuid changed)"
    match step:
        case SuspendVm():
            return in_use(vm)
        case ResumeVm():
            return STATE_LOST if vm.power is PowerState.OFF else None
        case PowerOnVm():
            return STATE_KEPT.format("a cold boot") if vm.power is PowerState.SUSPENDED else None
        case PowerOffVm() | ShutDownGuest():
            return STATE_KEPT.format("a power-off") if vm.power is PowerState.SUSPENDED else None
        case ReconfigureVm() | RelocateVm() | SetAttribute():
            return None


def in_use(vm: Vm) -> str | None:
    """Why a desktop cannot be called unused, whatever its CPU says; what cannot be read counts as in use.

    Sources: vSphere API, VirtualMachineRuntimeInfo.numMksConnections (consoles only: a remote-desktop protocol does
    not show there) and .question; VirtualMachine.recentTask; VMware vSphere 8 documentation: passthrough devices
    other than vGPU exclude suspend.
    """
    if vm.power is not PowerState.ON:
        return f"is not running ({vm.power or 'power state unknown'})"
    if vm.connected is not True:
        return "is not connected" if vm.connected is False else "its connection state cannot be read"
    if vm.unreadable:
        return f"cannot be read whole: {', '.join(vm.unreadable)}"
    if vm.console_connections is None:
        return "its console connections cannot be read"
    if vm.console_connections > 0:
        return f"{vm.console_connections} console connection{'s' if vm.console_connections > 1 else ''} open"
    if vm.question is not None:
        return f"waits for an answer: {vm.question}"
    if vm.tasks:
        return f"a task is {vm.tasks[0].state}: {vm.tasks[0].name}"
    return None
