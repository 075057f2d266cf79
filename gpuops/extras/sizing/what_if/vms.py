"""VMs with another profile, and more VMs, which are copies of existing ones.

More VMs of a pool are copies of its running VMs, selected at random by the seed, so that a night may suspend the same
share of them. More VMs of a profile are copies of running VMs with that profile. They are placed as `gpuops place`
places requests, and keep folder, marks and use of the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from gpuops.errors import UsageError
from gpuops.extras.sizing.what_if.hardware import Changed
from gpuops.extras.sizing.what_if.seeded import drawn
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.vgpu import resolve
from gpuops.model.fleet_change import AddVms, ChangeProfile
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import GpuDevice, PowerState, VgpuDevice, Vm
from gpuops.model.workloads.workload import Vgpus, Workload
from gpuops.plan.core.steps import PowerOffVm
from gpuops.plan.placement.host_filters import AFFINITY_KEY
from gpuops.plan.placement.project import project, take
from gpuops.plan.placement.suspended_vms import with_claims
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_by_one import Queue
from gpuops.plan.queue.one_workload import Placed
from gpuops.plan.queue.workload import running

_BINDINGS: Final = ("gpu-pci-id", AFFINITY_KEY)
"""Settings that bind a VM to a GPU or NUMA node of its host; copies do not keep them."""


def with_profile(change: ChangeProfile, inventory: Inventory, catalog: Catalog, policy: Policy | None) -> Changed:
    """Return the snapshot in which all vGPUs of the selected VMs have the profile of the change.

    Running VMs must restart; suspended VMs are powered off. Raises UsageError if the change selects no VM, if all of
    them have the profile already, or if the profile does not exist.
    """
    profile = _profile(change.profile, inventory, catalog)
    selected_vms = [vm for vm in _vms(change.of, inventory, policy) if vm.vgpus and not vm.template]
    if not selected_vms:
        reason = "VM with a vGPU in the pool" if _is_pool(change.of, policy) else "VM with a vGPU named"
        raise UsageError(f"there is no {reason} {change.of}", hint="gpuops inventory --vms shows the VMs")
    changing = [vm for vm in selected_vms if any(vgpu_profile != profile for vgpu_profile in vm.profiles)]
    if not changing:
        raise UsageError(
            f"nothing would change: {len(selected_vms)} VMs have {profile} already", hint="leave --change-profile out"
        )
    world = inventory
    displaced: list[str] = []
    for vm in changing:
        if vm.power is not PowerState.OFF:
            world = project(PowerOffVm(vm.ref), world)
        displaced += [vm.ref] if vm.power is PowerState.ON else []
        devices = tuple(_with(device, profile) for device in vm.devices or ())
        world = world.with_vm(replace(world.vm(vm.ref), devices=devices))
    return Changed(world, f"{len(changing)} VMs of {change.of} have {profile}", tuple(displaced))


def _with(device: GpuDevice, profile: str) -> GpuDevice:
    return replace(device, profile=profile) if isinstance(device, VgpuDevice) else device


def _profile(text: str, inventory: Inventory, catalog: Catalog) -> str:
    """Return the profile that hosts offer by that name, or else one of the catalogue. Raises ProfileUnknown."""
    attachable = [profile.name for board in catalog.boards for profile in board.profiles if profile.attachable]
    offered = set(inventory.offered_profiles)
    return resolve(text, sorted(offered | {name for name in attachable if name not in offered}))


def _is_pool(of: str, policy: Policy | None) -> bool:
    return policy is not None and any(pool.name == of for pool in policy.pools)


def _vms(of: str, inventory: Inventory, policy: Policy | None) -> list[Vm]:
    vms = sorted(inventory.vms.values(), key=lambda vm: (vm.name, vm.ref))
    if policy is not None and _is_pool(of, policy):
        return [vm for vm in vms if (pool := policy.pool_of(vm)) is not None and pool.name == of]
    return [vm for vm in vms if fnmatchcase(vm.name, of)]


@dataclass(frozen=True, slots=True)
class MoreVms:
    """The snapshot with the added VMs, and how many of them found a place."""

    inventory: Inventory
    placed: int
    asked: int
    profiles: tuple[str, ...]
    """The profiles of VMs without a place, one entry for each VM."""
    done: str


def with_more_vms(
    change: AddVms, number: int, inventory: Inventory, catalog: Catalog, policy: Policy | None, seed: int
) -> MoreVms:
    """Return the snapshot with as many more VMs as find a place. Raises UsageError if there is no VM to copy.

    `number`: the position of the change in the question; it is part of the names of the VMs.
    """
    models, model_source = _models(change, inventory, catalog, policy)
    chosen = [models[drawn(seed, f"more {number} {vm_number}", len(models))] for vm_number in range(change.count)]
    marker = policy.marker if policy is not None else ""
    clones = [
        _clone(vm, f"what-if-vm-{number}-{vm_number}", vm_number, marker) for vm_number, vm in enumerate(chosen, 1)
    ]
    by_name = {_request(clone).name: clone for clone in clones}
    claimed, _ = with_claims(inventory, catalog)
    queue = Queue(claimed, catalog, explain=False, pin=PinPolicy.AUTO, any_reason=False)
    queue = queue.with_all([_request(clone) for clone in clones])
    world = inventory
    for placed in queue.answers:
        if isinstance(placed, Placed):
            placed_vm = running(placed.vm, placed.placement, placed.workload.numa)
            clone = by_name[placed.workload.name]
            settings = {**(clone.extra_config or {}), **(placed_vm.extra_config or {})}
            world = take(replace(clone, host=placed_vm.host, extra_config=settings), world, catalog)
    waiting = [answer.workload.profile or "" for answer in queue.answers if not isinstance(answer, Placed)]
    change_text = f"{change.count} more VMs of {model_source}"
    return MoreVms(world, len(clones) - len(waiting), len(clones), tuple(waiting), change_text)


def _models(change: AddVms, inventory: Inventory, catalog: Catalog, policy: Policy | None) -> tuple[Sequence[Vm], str]:
    """Return the VMs to copy, and the pool or profile that they were selected by."""
    if _is_pool(change.of, policy):
        vms = _vms(change.of, inventory, policy)
        model_source = f"pool {change.of}"
    else:
        try:
            profile = _profile(change.of, inventory, catalog)
        except UsageError as error:
            pools = ", ".join(pool.name for pool in policy.pools) if policy is not None else ""
            hint = f"pools of the policy: {pools}" if pools else "to name a pool, add --policy FILE"
            raise type(error)(f"{change.of!r} is neither a pool nor a profile: {error.message}", hint=hint) from error
        vms = [vm for vm in _vms("*", inventory, policy) if set(vm.profiles) == {profile}]
        model_source = profile
    usable = [vm for vm in vms if vm.vgpus and vm.vcpus and vm.memory_mib and not vm.template]
    usable = [vm for vm in usable if len(vm.vgpus) == len(vm.devices or ())]
    if not usable:
        hint = "name a profile or a pool that has VMs, or describe the new VMs in a file: --requests FILE"
        raise UsageError(f"there is no VM of {model_source} to copy", hint=hint)
    return [vm for vm in usable if vm.power is PowerState.ON] or usable, model_source


def _clone(model: Vm, ref: str, number: int, marker: str) -> Vm:
    """Return a running copy of the VM, without the marker of a night, tasks or questions."""
    name = f"{model.name}-more-{number}"
    settings = {key: text for key, text in (model.extra_config or {}).items() if not key.endswith(_BINDINGS)}
    return replace(
        model,
        ref=ref,
        name=name,
        path=f"{model.folder}/{name}",
        instance_uuid=ref,
        host=None,
        power=PowerState.ON,
        suspended_at=None,
        extra_config=settings,
        attributes={key: text for key, text in model.attributes.items() if key != marker},
        tasks=(),
        question=None,
    )


def _request(clone: Vm) -> Workload:
    counts: dict[str, int] = {}
    for profile in clone.profiles:
        counts[profile] = counts.get(profile, 0) + 1
    (first, number), *further = counts.items()
    assert clone.vcpus is not None, "only such VMs are models"
    assert clone.memory_mib is not None, "only such VMs are models"
    further_vgpus = tuple(Vgpus(name, times) for name, times in further)
    return Workload(clone.ref, clone.vcpus, clone.memory_mib, profile=first, count=number, more=further_vgpus)
