"""Recipe: how the VM of a placed workload is made, so that its place comes true: as attach would make it."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from gpuops.model.catalog import Catalog
from gpuops.model.vm import DirectPathDevice, DynamicDevice, GpuDevice, OtherPassthrough, VgpuDevice
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu, VmChange
from gpuops.plan.devices.baseline import KEY
from gpuops.plan.devices.goal import Goal
from gpuops.plan.devices.settings import Fitting, change_of
from gpuops.plan.queue.one_workload import Placed
from gpuops.plan.queue.workload_vm import vm_of


def recipe(placed: Placed, catalog: Catalog) -> VmChange:
    """The devices and settings that a new VM is to have beside its vCPUs and memory; all memory is reserved."""
    made = vm_of(placed.workload, version=placed.placement.host.version)
    bare = replace(made, memory_locked=None, memory_reservation_mib=None)
    goal = Goal(kept=(), add=tuple(map(_new, placed.vm.devices or ())), device_group=placed.workload.device_group)
    change = change_of(Fitting(bare, goal, placed.placement, placed.workload.numa, catalog))
    return replace(change, extra_config={key: value for key, value in change.extra_config.items() if key != KEY})


def _new(device: GpuDevice) -> NewDevice:
    match device:
        case VgpuDevice(profile=profile):
            return NewVgpu(profile)
        case DirectPathDevice(address=address):
            return NewDirectPath(address, "", "", device.vendor_id, device.device_id)
        case DynamicDevice(allowed=allowed, label=label):
            return NewDynamic(allowed, label)
        case OtherPassthrough():
            raise AssertionError("no workload asks for one")
        case _:
            assert_never(device)
