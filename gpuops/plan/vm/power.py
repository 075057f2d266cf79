"""Power: what a change that needs a powered-off VM does with a running one, and how the VM is left."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuops.model.vm import PowerState, Vm
from gpuops.plan.core.plan import Rejection, Wave
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ShutDownGuest, Step


class PowerPolicy(StrEnum):
    """What may be done with the VM's power."""

    REFUSE = "refuse"
    """A running VM is left alone: nothing is changed."""
    CYCLE = "cycle"
    """A running VM is stopped for the change and started again; a stopped one stays off."""
    OFF = "off"
    """A running VM is stopped for the change and left off."""
    ON = "on"
    """The VM runs afterwards."""


POWER_HELP: Final = (
    "What a change may do to a running VM. refuse: nothing is changed. cycle: it is stopped and started again. "
    "off: it is stopped. on: the VM runs afterwards, changed or not."
)


class MoveMode(StrEnum):
    """How a VM may be moved to a host that has the GPU."""

    COLD = "cold"


@dataclass(frozen=True, slots=True)
class PowerMoves:
    """The waves before and after a change."""

    before: tuple[Wave, ...] = ()
    after: tuple[Wave, ...] = ()
    warnings: tuple[str, ...] = ()


def power_blockers(vm: Vm, policy: PowerPolicy) -> tuple[Rejection, ...]:
    """Why the VM's power state forbids the change (vSphere API, ReconfigVM_Task: devices change only on a VM off)."""
    match vm.power:
        case PowerState.OFF:
            return ()
        case PowerState.ON if policy is not PowerPolicy.REFUSE:
            return ()
        case PowerState.ON:
            hint = "--power cycle stops it for the change and starts it again, --power off leaves it off"
            return (Rejection(vm.name, "runs; its devices change only while it is off", hint=hint),)
        case PowerState.SUSPENDED:
            hint = "resume it and shut its guest down, then try again"
            rule = "is suspended: its devices cannot change, and a power-off would discard what its guest holds"
            return (Rejection(vm.name, rule, hint=hint),)
        case _:
            return (Rejection(vm.name, "its power state cannot be read"),)


def power_moves(vm: Vm, policy: PowerPolicy, host: str | None) -> PowerMoves:
    """The stop before the change and the start after it, as the policy asks; none where it lets nothing be done."""
    if policy is PowerPolicy.REFUSE:
        return PowerMoves()
    runs = vm.power is PowerState.ON
    starts = policy is PowerPolicy.ON or (policy is PowerPolicy.CYCLE and runs)
    after = (Wave(f"start {vm.name}", (PowerOnVm(vm.ref, host),)),) if starts else ()
    if not runs:
        return PowerMoves(after=after)
    stop, warnings = _stop(vm)
    return PowerMoves((Wave(f"stop {vm.name}", (stop,)),), after, warnings)


def _stop(vm: Vm) -> tuple[Step, tuple[str, ...]]:
    if vm.tools_running is False:
        return PowerOffVm(vm.ref), (f"{vm.name} is powered off hard: no VMware Tools run in its guest",)
    # Not powered off after the grace: a guest that does not shut down may be in the middle of something.
    return ShutDownGuest(vm.ref), ()
