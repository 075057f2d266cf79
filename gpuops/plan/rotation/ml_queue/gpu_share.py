"""How many whole GPUs the vGPUs of a VM amount to, and how many are free: a vGPU of which four fit is a quarter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest, Step, SuspendVm


def gpus_of(profiles: Sequence[str], catalog: Catalog) -> float | None:
    """The sum over these profiles; None without any, or where the catalogue does not know one of them.

    >>> gpus_of((), Catalog()) is None
    True
    """
    return _sum(profiles, catalog) if profiles else None


def gpus_of_vm(vm: Vm, catalog: Catalog) -> float:
    """The same of a VM's devices, each whole GPU as one; a profile that the catalogue does not know is left out."""
    profiles = [catalog.profile(device.profile) for device in vm.vgpus]
    whole = len(vm.devices or ()) - len(profiles)
    return whole + sum(1 / profile.max_per_gpu for profile in profiles if profile is not None)


def free_gpus(steps: Iterable[Step], inventory: Inventory, catalog: Catalog) -> Mapping[str, float | None]:
    """By host (ref) that these steps of a night take desktops from, or start ML VMs on, the GPUs that are free there
    before it; None = that cannot be told."""
    hosts: dict[str, None] = {}
    for step in steps:
        if isinstance(step, SuspendVm | ShutDownGuest | PowerOnVm):
            host = (step.host if isinstance(step, PowerOnVm) else None) or inventory.vms[step.vm].host
            if host is not None and host in inventory.hosts:
                hosts[host] = None
    found = {}
    for ref in hosts:
        states = gpu_states(inventory.hosts[ref], inventory, catalog)
        free = [free_of(state, catalog) for state in states if serves_vgpus(state)]
        found[ref] = None if None in free else sum(each for each in free if each is not None)
    return found


def serves_vgpus(state: GpuState) -> bool:
    serves = not state.gpu.passed_through and not state.gpu.vgpu_obstacle
    return serves and state.gpu.graphics_type in (GraphicsType.SHARED_DIRECT, None)


def free_of(state: GpuState, catalog: Catalog) -> float | None:
    if state.holders is None or state.gpu.graphics_type is None:
        return None
    taken = _sum(state.holders, catalog)
    return None if taken is None else max(1 - taken, 0.0)


def _sum(profiles: Sequence[str], catalog: Catalog) -> float | None:
    found = [catalog.profile(profile) for profile in profiles]
    return None if None in found else sum(1 / profile.max_per_gpu for profile in found if profile is not None)
