"""Counts the GPUs that vGPUs amount to, and how many are free: a vGPU of which four fit on a GPU is 0.25."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuops.advise.occupancy import GpuState, gpu_states
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest, Step, SuspendVm


def gpus_of(profiles: Sequence[str], catalog: Catalog) -> float | None:
    """Return the GPUs that these profiles amount to; None for no profiles, or if the catalogue lacks one of them.

    >>> gpus_of((), Catalog()) is None
    True
    """
    return _sum_of_shares(profiles, catalog) if profiles else None


def gpus_of_vm(vm: Vm, catalog: Catalog) -> float:
    """Return the GPUs that the devices of a VM amount to; profiles that the catalogue lacks do not count."""
    profiles = [catalog.profile(device.profile) for device in vm.vgpus]
    whole = len(vm.devices or ()) - len(profiles)
    return whole + sum(1 / profile.max_per_gpu for profile in profiles if profile is not None)


def free_gpus(steps: Iterable[Step], inventory: Inventory, catalog: Catalog) -> Mapping[str, float | None]:
    """Map each host (ref) of these steps of a night to its free GPUs before the night; None = it is unknown."""
    hosts: dict[str, None] = {}
    for step in steps:
        if isinstance(step, SuspendVm | ShutDownGuest | PowerOnVm):
            host = (step.host if isinstance(step, PowerOnVm) else None) or inventory.vms[step.vm].host
            if host is not None and host in inventory.hosts:
                hosts[host] = None
    free_by_host = {}
    for ref in hosts:
        states = gpu_states(inventory.hosts[ref], inventory, catalog)
        free = [free_of(state, catalog) for state in states if serves_vgpus(state)]
        free_by_host[ref] = None if None in free else sum(share for share in free if share is not None)
    return free_by_host


def serves_vgpus(state: GpuState) -> bool:
    serves = not state.gpu.passed_through and not state.gpu.vgpu_obstacle
    return serves and state.gpu.graphics_type in (GraphicsType.SHARED_DIRECT, None)


def free_of(state: GpuState, catalog: Catalog) -> float | None:
    if state.holders is None or state.gpu.graphics_type is None:
        return None
    used = _sum_of_shares(state.holders, catalog)
    return None if used is None else max(1 - used, 0.0)


def _sum_of_shares(profiles: Sequence[str], catalog: Catalog) -> float | None:
    known_profiles = [catalog.profile(profile) for profile in profiles]
    return (
        None
        if None in known_profiles
        else sum(1 / profile.max_per_gpu for profile in known_profiles if profile is not None)
    )
