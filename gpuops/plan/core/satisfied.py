"""Satisfied: whether a step is already done on this snapshot. Asked before every effect and after it."""

from __future__ import annotations

from collections import Counter
from typing import assert_never

from gpuops.model.inventory import Inventory
from gpuops.model.vm import PowerState, VgpuDevice, Vm
from gpuops.plan.core.device_signature import signature, signatures
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
    VmChange,
)


def satisfied(step: Step, inventory: Inventory) -> bool:
    """Whether the snapshot shows what the step would bring about; what cannot be read is not shown.

    Raises VmNotFound for a VM that the snapshot lacks.
    """
    vm = inventory.vm(step.vm)
    match step:
        case ReconfigureVm(change=change):
            return _devices_done(change, vm) and _settings_done(change, vm)
        case RelocateVm(host=host):
            return vm.host == host
        case PowerOnVm() | ResumeVm():
            # On another host than asked for is done too: vCenter has the last word, and a second start moves nothing.
            return vm.power is PowerState.ON
        case SuspendVm():
            return vm.power is PowerState.SUSPENDED
        case PowerOffVm() | ShutDownGuest():
            return vm.power is PowerState.OFF
        case RunInGuest():
            return vm.power is PowerState.OFF  # a guest that is off has nothing left to keep
        case SetVmDrs(drs=drs):
            return inventory.drs_of(vm) is drs
        case SetAttribute(name=name, value=value):
            return vm.attributes.get(name, "") == value
        case _:
            assert_never(step)


def _devices_done(change: VmChange, vm: Vm) -> bool:
    if not (change.add or change.remove or change.replace_profile):
        return True
    if vm.devices is None:
        return False
    if change.devices_after is not None:
        return signatures(vm.devices) == change.devices_after
    # Without the whole picture: nothing of the old is left, and all of the new is there.
    profiles = {device.key: device.profile for device in vm.devices if isinstance(device, VgpuDevice)}
    missing = Counter(map(signature, change.add)) - Counter(map(signature, vm.devices))
    return (
        not missing
        and not any(device.key in change.remove for device in vm.devices)
        and all(profiles.get(key) == profile for key, profile in change.replace_profile)
    )


def _settings_done(change: VmChange, vm: Vm) -> bool:
    wanted_and_there = (
        (change.memory_locked, vm.memory_locked),
        (change.memory_reservation_mib, vm.memory_reservation_mib),
        (change.cpu_hot_add, vm.cpu_hot_add),
        (change.cores_per_numa_node, vm.cores_per_numa_node),
    )
    if any(wanted is not None and wanted != there for wanted, there in wanted_and_there):
        return False
    if not change.extra_config:
        return True
    if vm.extra_config is None:
        return False
    return all(vm.extra_config.get(key, "") == value for key, value in change.extra_config.items())
