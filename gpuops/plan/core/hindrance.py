"""Hindrance: why a planned step would be wrong now, on facts read just before it is sent.

A plan is minutes old when its last step is sent. `satisfied` asks whether a step is done; this asks whether it still
may be done: that the VM is the one that was planned for, that a desktop to be suspended is idle, and that the step
would not destroy what a guest holds in a suspended state.
"""

from __future__ import annotations

from typing import Final

from gpuops.advise.idle import idleness
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import IdleRule
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)

STATE_LOST: Final = "is powered off: its suspended state was discarded by somebody else; not booted in its place"
POWER_UNKNOWN: Final = "its power state cannot be read: a power-off might discard what its guest holds"
STATE_KEPT: Final = "is suspended: {} would discard what its guest holds"


def hindrance(step: Step, planned: Inventory, now: Inventory, idle: IdleRule | None = None) -> str | None:
    """Why this step must not be sent now; None = nothing speaks against it.

    `idle` says when the VM of the step is idle: without such a rule no VM is suspended.
    Source of the power-off rule: vSphere API, VirtualMachine.PowerOffVM_Task (a suspended VM loses its state).
    """
    vm = now.vms.get(step.vm)
    if vm is None:
        return "is gone from vCenter"
    before = planned.vms.get(step.vm)
    if vm.instance_uuid is None:
        return "cannot be told from another VM: its instance uuid cannot be read"
    if before is not None and before.instance_uuid != vm.instance_uuid:
        return "is another VM than the one planned for: its instance uuid changed"
    match step:
        case SuspendVm():
            return idleness(vm, idle).objection
        case ResumeVm():
            return STATE_LOST if vm.power is PowerState.OFF else None
        case PowerOnVm():
            return STATE_KEPT.format("a cold boot") if vm.power is PowerState.SUSPENDED else None
        case PowerOffVm() | ShutDownGuest():
            return _discarded(step, vm)
        case RunInGuest():
            return "is suspended: no program runs in it" if vm.power is PowerState.SUSPENDED else None
        case ReconfigureVm() | RelocateVm() | SetAttribute() | SetVmDrs():
            return None


def _discarded(step: PowerOffVm | ShutDownGuest, vm: Vm) -> str | None:
    if vm.power is None and isinstance(step, PowerOffVm):  # a guest is asked, and asked in vain where none runs
        return POWER_UNKNOWN
    return STATE_KEPT.format("a power-off") if vm.power is PowerState.SUSPENDED else None


def as_it_is_now(step: Step, now: Inventory) -> Step:
    """The step on these facts: a VM is resumed where it is registered, whoever has moved it since the plan was made.

    Source: vSphere API, VirtualMachine.PowerOnVM_Task (a `host` other than the VM's own moves it there).
    """
    vm = now.vms.get(step.vm)
    if isinstance(step, ResumeVm) and step.host is not None and vm is not None and vm.host is not None:
        return ResumeVm(step.vm, vm.host)
    return step
