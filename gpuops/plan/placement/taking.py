"""The step that makes a desktop give up its GPUs, and the one that brings it back."""

from __future__ import annotations

from typing import Final

from gpuops.model.rotation import Role
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, ShutDownGuest, SuspendVm

GUEST_GRACE_S: Final = 300
"""How long a desktop's guest has to shut down; it is never powered off."""


def role_of(vm: Vm) -> Role:
    """What a night does with the desktop: a DirectPath device excludes suspend (VMware vSphere 8 documentation)."""
    return Role.SHUT_DOWN if vm.has_passthrough else Role.DESKTOP


def taking(vm: Vm) -> SuspendVm | ShutDownGuest:
    """What makes a running desktop give up its GPUs."""
    if role_of(vm) is Role.DESKTOP:
        return SuspendVm(vm.ref)
    return ShutDownGuest(vm.ref, GUEST_GRACE_S, then_off=False)


def bringing_back(vm: Vm) -> ResumeVm | PowerOnVm:
    """What brings a desktop back to the host where it is registered now: HA or a person may have moved it."""
    return ResumeVm(vm.ref, vm.host) if vm.power is PowerState.SUSPENDED else PowerOnVm(vm.ref, vm.host)
