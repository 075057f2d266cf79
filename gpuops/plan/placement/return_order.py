"""In which order suspended desktops resume, whether all of them can, and the steps that suspend and resume them.

`plan/rotation` and `plan/hosts/change` call it.

Order decides whether desktops fit. A same-size GPU takes the profile of the first VM on it, and the host may spread VMs
over empty GPUs. So one VM of each profile resumes first for every GPU that the profile needs. When each of these GPUs
has one, the other VMs follow. On a mixed-size or MIG GPU a large profile needs a start offset that small ones could
occupy, so the largest resume first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, ShutDownGuest, SuspendVm
from gpuops.plan.placement.project import project
from gpuops.plan.placement.room import Room, around


def may_return(inventory: Inventory, catalog: Catalog, room: Room) -> Callable[[Sequence[Vm]], tuple[Rejection, ...]]:
    """Return a function that tells why desktops, once suspended, could not come back to their hosts when the ML VMs
    are stopped."""

    def ask(desktops: Sequence[Vm]) -> tuple[Rejection, ...]:
        by_host: dict[str | None, list[Vm]] = defaultdict(list)
        for vm in desktops:
            by_host[vm.host].append(vm)
        refusals_by_host = (refuse_stranded(vms, inventory, catalog, room) for vms in by_host.values())
        return tuple(refusal for refusals in refusals_by_host for refusal in refusals)

    return ask


def refuse_stranded(desktops: Sequence[Vm], inventory: Inventory, catalog: Catalog, room: Room) -> list[Rejection]:
    """Return why desktops of one host could not resume there one after the other, with every other desktop running."""
    host = inventory.host_of(desktops[0])
    if host is None:
        return [Rejection(vm.name, "its host is not known") for vm in desktops]
    world = around(host, inventory)
    for vm in desktops:
        world = project(suspend_or_shut_down(vm), world)
    refusals: list[Rejection] = []
    for vm in [vm for part in return_order(desktops, world, catalog) for vm in part]:
        reasons = room.refusals(world.vm(vm.ref), world.hosts[host.ref], world)
        refusals += reasons
        if not reasons:
            world = project(resume_or_power_on(world.vm(vm.ref)), world, catalog)
    return refusals


def return_order(desktops: Sequence[Vm], inventory: Inventory, catalog: Catalog) -> tuple[list[Vm], list[Vm]]:
    """Return the VMs that claim a GPU each, and those that follow, both by host. `inventory` shows them suspended."""
    by_host: dict[str | None, list[Vm]] = defaultdict(list)
    for vm in desktops:
        by_host[vm.host].append(vm)
    seeds: list[Vm] = []
    later_vms: list[Vm] = []
    for ref in sorted(by_host, key=str):
        vms = sorted(by_host[ref], key=lambda vm: (-size_mib(vm, catalog), vm.profiles, vm.name))
        to_claim = _gpus_to_claim(vms, inventory, catalog)
        for vm in vms:
            (seeds if to_claim[vm.profiles] > 0 else later_vms).append(vm)
            to_claim[vm.profiles] -= 1
    return seeds, later_vms


def _gpus_to_claim(vms: Sequence[Vm], inventory: Inventory, catalog: Catalog) -> Counter[tuple[str, ...]]:
    """Return how many GPUs each set of profiles still has to claim; on mixed-size and MIG hosts one for each VM."""
    counts = Counter(vm.profiles for vm in vms)
    host = inventory.host_of(vms[0])
    if host is None or any(gpu.vgpu_mode in (VgpuMode.MIXED_SIZE, VgpuMode.MULTI_INSTANCE) for gpu in host.gpus):
        return counts
    # A GPU with a running VM of these profiles is already claimed: VMs that share it can resume later.
    running = {vm.ref: vm.profiles for vm in inventory.vms_on(host) if vm.power is PowerState.ON}
    claimed = Counter(
        claiming_profiles
        for gpu in host.gpus
        for claiming_profiles in {running[ref] for ref in gpu.vms or () if ref in running}
    )
    running_counts = Counter(running.values())
    return Counter(
        {
            profiles: -(-(count + running_counts[profiles]) // _per_gpu(profiles, catalog)) - claimed[profiles]
            for profiles, count in counts.items()
        }
    )


def _per_gpu(profiles: tuple[str, ...], catalog: Catalog) -> int:
    known_profiles = [catalog.profile(name) for name in profiles]
    return min((profile.max_per_gpu for profile in known_profiles if profile is not None), default=1)


def size_mib(vm: Vm, catalog: Catalog) -> int:
    """The frame buffers of all its vGPUs."""
    known_profiles = [catalog.profile(name) for name in vm.profiles]
    return sum(profile.framebuffer_mib for profile in known_profiles if profile is not None)


GUEST_GRACE_S: Final = 300
"""How long a desktop's guest has to shut down; it is never powered off."""


def role_of(vm: Vm) -> Role:
    """Return how `rotate night` stops the desktop. A VM with a DirectPath device cannot be suspended (VMware vSphere 8
    documentation)."""
    return Role.SHUT_DOWN if vm.has_passthrough else Role.DESKTOP


def suspend_or_shut_down(vm: Vm) -> SuspendVm | ShutDownGuest:
    """Return the step that makes a running desktop give up its GPUs."""
    if role_of(vm) is Role.DESKTOP:
        return SuspendVm(vm.ref)
    return ShutDownGuest(vm.ref, GUEST_GRACE_S, then_off=False)


def resume_or_power_on(vm: Vm) -> ResumeVm | PowerOnVm:
    """Return the step that brings a desktop back on the host where it is registered now: vSphere HA or an admin may
    have moved it."""
    return ResumeVm(vm.ref, vm.host) if vm.power is PowerState.SUSPENDED else PowerOnVm(vm.ref, vm.host)
