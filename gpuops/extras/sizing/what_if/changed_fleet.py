"""Applies all changes of a question to a snapshot: hardware, profiles and layouts; then restarts VMs, and adds VMs.

A layout names the GPU instances of a GPU. ESXi creates GPU instances as vGPUs start, so no host has a layout; the
question is which VMs would find a place if the GPUs were divided like this. VMs on these GPUs restart, as they do after
a change of mode.

Numbers by a seed, the same on every machine and in every release of Python.

VMs with another profile, and more VMs, which are copies of existing ones.

More VMs of a pool are copies of its running VMs, selected at random by the seed, so that a night may suspend the same
share of them. More VMs of a profile are copies of running VMs with that profile. They are placed as `gpuops place`
places requests, and keep folder, marks and use of the original."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Final

from gpuops.advise.gpu_profiles import LayoutVerdict, instances_of, judge_part, part_for
from gpuops.errors import UsageError
from gpuops.extras.sizing.what_if.hardware_changes import (
    Changed,
    count_gpus,
    gpus_meant,
    unread_gpus,
    with_gpus_emptied,
    with_hardware,
)
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, PhysicalGpu, VgpuMode
from gpuops.model.devices.mig import GpuLayout, LayoutForm, LayoutPart
from gpuops.model.devices.vgpu import resolve
from gpuops.model.fleet_change import AddVms, ApplyLayout, ChangeProfile, FleetChange
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import GpuDevice, PowerState, VgpuDevice, Vm
from gpuops.model.workloads.workload import Vgpus, Workload
from gpuops.plan.capacity.gpu_models import board_of, offer_profiles
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm
from gpuops.plan.hosts.readiness import Stranded, find_restarts
from gpuops.plan.placement.host_filters import AFFINITY_KEY
from gpuops.plan.placement.project import project, take
from gpuops.plan.placement.suspended_vms import with_claims
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_by_one import Queue
from gpuops.plan.queue.one_workload import Placed
from gpuops.plan.queue.workload_hosts import running


def drawn(seed: int, of: str, below: int) -> int:
    """A number from 0 up to `below` (excluded), evenly spread over seeds and over what it is drawn of."""
    digest = blake2b(f"{seed}/{of}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below


_BINDINGS: Final = ("gpu-pci-id", AFFINITY_KEY)
"""Settings that bind a VM to a GPU or NUMA node of its host; copies do not keep them."""


def with_profile(change: ChangeProfile, inventory: Inventory, catalog: Catalog, policy: Policy | None) -> Changed:
    """Return the snapshot in which all vGPUs of the selected VMs have the profile of the change.

    Running VMs must restart; suspended VMs are powered off. Raises UsageError if the change selects no VM, if all of
    them have the profile already, or if the profile does not exist.
    """
    profile = _profile(change.profile, inventory, catalog)
    selected_vms = [vm for vm in _vms_selected(change.of, inventory, policy) if vm.vgpus and not vm.template]
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
        devices = tuple(_with_profile_on_vgpu(device, profile) for device in vm.devices or ())
        world = world.with_vm(replace(world.vm(vm.ref), devices=devices))
    return Changed(world, f"{len(changing)} VMs of {change.of} have {profile}", tuple(displaced))


def _with_profile_on_vgpu(device: GpuDevice, profile: str) -> GpuDevice:
    return replace(device, profile=profile) if isinstance(device, VgpuDevice) else device


def _profile(text: str, inventory: Inventory, catalog: Catalog) -> str:
    """Return the profile that hosts offer by that name, or else one of the catalogue. Raises ProfileUnknown."""
    attachable = [profile.name for board in catalog.boards for profile in board.profiles if profile.attachable]
    offered = set(inventory.offered_profiles)
    return resolve(text, sorted(offered | {name for name in attachable if name not in offered}))


def _is_pool(of: str, policy: Policy | None) -> bool:
    return policy is not None and any(pool.name == of for pool in policy.pools)


def _vms_selected(of: str, inventory: Inventory, policy: Policy | None) -> list[Vm]:
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
    models, model_source = _vms_to_copy(change, inventory, catalog, policy)
    chosen = [models[drawn(seed, f"more {number} {vm_number}", len(models))] for vm_number in range(change.count)]
    marker = policy.marker if policy is not None else ""
    clones = [
        _copy_of_vm(vm, f"what-if-vm-{number}-{vm_number}", vm_number, marker) for vm_number, vm in enumerate(chosen, 1)
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


def _vms_to_copy(
    change: AddVms, inventory: Inventory, catalog: Catalog, policy: Policy | None
) -> tuple[Sequence[Vm], str]:
    """Return the VMs to copy, and the pool or profile that they were selected by."""
    if _is_pool(change.of, policy):
        vms = _vms_selected(change.of, inventory, policy)
        model_source = f"pool {change.of}"
    else:
        try:
            profile = _profile(change.of, inventory, catalog)
        except UsageError as error:
            pools = ", ".join(pool.name for pool in policy.pools) if policy is not None else ""
            hint = f"pools of the policy: {pools}" if pools else "to name a pool, add --policy FILE"
            raise type(error)(f"{change.of!r} is neither a pool nor a profile: {error.message}", hint=hint) from error
        vms = [vm for vm in _vms_selected("*", inventory, policy) if set(vm.profiles) == {profile}]
        model_source = profile
    usable = [vm for vm in vms if vm.vgpus and vm.vcpus and vm.memory_mib and not vm.template]
    usable = [vm for vm in usable if len(vm.vgpus) == len(vm.devices or ())]
    if not usable:
        hint = "name a profile or a pool that has VMs, or describe the new VMs in a file: --requests FILE"
        raise UsageError(f"there is no VM of {model_source} to copy", hint=hint)
    return [vm for vm in usable if vm.power is PowerState.ON] or usable, model_source


def _copy_of_vm(model: Vm, ref: str, number: int, marker: str) -> Vm:
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


def with_layout(change: ApplyLayout, inventory: Inventory, catalog: Catalog) -> Changed:
    """Return the snapshot with the layout on the GPUs that the change selects; GPUs that cannot have it stay unchanged.

    Raises UsageError if no GPU can have it, or if a GPU that was named by its address cannot; HostNotFound.
    """
    divided: list[tuple[Host, PhysicalGpu]] = []
    unable: list[str] = []
    not_meant: list[str] = []
    for host, gpu in gpus_meant(change, inventory, catalog):
        if gpu.passed_through:
            not_meant.append(f"{host.name} {gpu.address}: it is in passthrough")
            continue
        part = part_for(change.layout, gpu, host)
        if part is None:
            not_meant.append(f"{host.name} {gpu.address}: the layout has no part for this {gpu.name}")
            continue
        divided_gpu = _divide_gpu(change.layout, part, gpu, catalog)
        if isinstance(divided_gpu, str):
            unable.append(f"{host.name} {gpu.address}: {divided_gpu}")
        else:
            divided.append((host, divided_gpu))
    if not divided or (change.gpu and (unable or not_meant)):
        hint = "choose other GPUs by --host, --model or --gpu, or another layout"
        reason = (*unable, *not_meant)[0]
        raise UsageError(f"the layout {change.layout.name!r} cannot be applied: {reason}", hint=hint)
    world, displaced = _divide_gpus(divided, inventory, catalog)
    names = ", ".join(sorted({host.name for host, _ in divided}))
    gpus = [gpu for _, gpu in divided]
    change_text = (
        f"{count_gpus(len(gpus))} of {names} with the layout {change.layout.name}: {_describe_instances(gpus)}"
    )
    return Changed(world, change_text, displaced, (*(f"left as it is: {text}" for text in unable), *unread_gpus(gpus)))


def _divide_gpus(
    divided: Sequence[tuple[Host, PhysicalGpu]], inventory: Inventory, catalog: Catalog
) -> tuple[Inventory, tuple[str, ...]]:
    """Return the snapshot with these GPUs, and the managed object ids of the VMs that had to be powered off."""
    world = inventory
    displaced: list[str] = []
    for ref in dict.fromkeys(host.ref for host, _ in divided):
        of_host = [gpu for host, gpu in divided if host.ref == ref]
        world, off = _divide_gpus_of_host(world.hosts[ref], of_host, world, catalog)
        displaced += off
    return world, tuple(displaced)


def _divide_gpu(layout: GpuLayout, part: LayoutPart, gpu: PhysicalGpu, catalog: Catalog) -> PhysicalGpu | str:
    """Return the GPU divided as the part requests, or the reason why it cannot be."""
    board = board_of(gpu, catalog)
    if layout.form is LayoutForm.VGPUS and not part.counts:
        return "the part names no vGPUs, so it does not say how to divide the GPU"
    if gpu.graphics_type is not GraphicsType.SHARED_DIRECT:
        return "it serves no vGPUs: its graphics type is not shared direct"
    if board is None:
        return f"{gpu.name} is not in the catalogue"
    judged = judge_part(part, layout.form, board)
    if judged.verdict is not LayoutVerdict.FITS:
        return judged.because
    if judged.mode is None:
        mode = VgpuMode.SAME_SIZE if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE else gpu.vgpu_mode
        return replace(gpu, vgpu_mode=mode, gpu_instances=None)
    if judged.mode is not VgpuMode.MULTI_INSTANCE:
        return "its vGPUs are time-sliced: a layout divides GPUs for MIG-backed vGPUs only"
    return replace(gpu, vgpu_mode=judged.mode, gpu_instances=instances_of(part, layout.form, board))


def _divide_gpus_of_host(
    host: Host, gpus: list[PhysicalGpu], inventory: Inventory, catalog: Catalog
) -> tuple[Inventory, tuple[str, ...]]:
    """Return the snapshot with these GPUs of the host as divided, and the refs of the VMs that must leave them.

    GPUs that are divided like this already stay as they are, with their VMs.
    """
    divided = {gpu.address: gpu for gpu in gpus}
    changing = [
        gpu for gpu in host.gpus if gpu.address in divided and _is_divided_differently(gpu, divided[gpu.address])
    ]
    world, off = with_gpus_emptied(host, changing, inventory)
    emptied_host = world.hosts[host.ref]
    after = tuple(
        replace(gpu, vgpu_mode=new.vgpu_mode, gpu_instances=new.gpu_instances, vgpus=None)
        if (new := divided.get(gpu.address)) is not None and _is_divided_differently(gpu, new)
        else gpu
        for gpu in emptied_host.gpus
    )
    changed_host = offer_profiles(replace(emptied_host, gpus=after), inventory.hosts.values(), catalog)
    return world.with_hosts([changed_host]), off


def _is_divided_differently(gpu: PhysicalGpu, changed_gpu: PhysicalGpu) -> bool:
    return (gpu.vgpu_mode, gpu.gpu_instances) != (changed_gpu.vgpu_mode, changed_gpu.gpu_instances)


def _describe_instances(gpus: Iterable[PhysicalGpu]) -> str:
    """Return each combination of GPU instances once: `2 x 3g.40gb; MIG mode off`."""
    texts = []
    for instances in dict.fromkeys(gpu.gpu_instances for gpu in gpus):
        counts = {name: instances.count(name) for name in dict.fromkeys(instances)} if instances is not None else {}
        listed = ", ".join(f"{number} x {name}" for name, number in counts.items()) or "no GPU instance"
        texts.append("MIG mode off" if instances is None else listed)
    return "; ".join(texts)


@dataclass(frozen=True, slots=True)
class ChangedFleet:
    """A snapshot after changes, or without any."""

    inventory: Inventory
    done: tuple[str, ...] = ()
    """A description of each change."""
    notes: tuple[str, ...] = ()
    restarts: tuple[tuple[Vm, Host], ...] = ()
    """The VMs that restart, with their new hosts."""
    stranded: tuple[Stranded, ...] = ()
    """VMs that ran before the changes and find no place after them."""
    proven: bool = True
    """False = the search was not complete, so there may be a place for the stranded VMs."""
    more_asked: int = 0
    more_placed: int = 0
    """How many of the added VMs run."""

    @property
    def in_words(self) -> tuple[str, ...]:
        """Return what was changed and what follows for the VMs that ran there, one line for each."""
        return (
            *(f"as if: {change}" for change in self.done),
            *self.notes,
            *(f"{vm.name} would start anew on {host.name}" for vm, host in self.restarts),
            *(f"{stranded_vm.vm.name} would find no place: {stranded_vm.reasons[0]}" for stranded_vm in self.stranded),
        )


def changed_fleet(
    changes: Sequence[FleetChange], inventory: Inventory, catalog: Catalog, policy: Policy | None, seed: int
) -> ChangedFleet:
    """Return the snapshot after all of these changes; VMs are added last, on the GPUs that are free then.

    `seed`: for the selection of the VMs that added ones are copies of.
    Raises UsageError, HostNotFound and ProfileUnknown for names that do not exist.
    """
    world = inventory
    change_texts: list[str] = []
    notes: list[str] = []
    displaced: list[str] = []
    for number, change in enumerate(changes, 1):
        if isinstance(change, AddVms):
            continue
        if isinstance(change, ChangeProfile):
            changed = with_profile(change, world, catalog, policy)
        elif isinstance(change, ApplyLayout):
            changed = with_layout(change, world, catalog)
        else:
            changed = with_hardware(change, number, world, catalog)
        world = changed.inventory
        change_texts.append(changed.done)
        notes += changed.notes
        displaced += changed.displaced
    fleet = _restart_displaced(list(dict.fromkeys(displaced)), world, catalog)
    world, asked_count, ran = fleet.inventory, 0, 0
    for number, change in enumerate(changes, 1):
        if isinstance(change, AddVms):
            addition = with_more_vms(change, number, world, catalog, policy, seed)
            world = addition.inventory
            asked_count, ran = asked_count + addition.asked, ran + addition.placed
            change_texts.append(addition.done)
    return ChangedFleet(
        world, tuple(change_texts), tuple(notes), fleet.restarts, fleet.stranded, fleet.proven, asked_count, ran
    )


def _restart_displaced(refs: Sequence[str], inventory: Inventory, catalog: Catalog) -> ChangedFleet:
    """Return the snapshot after a restart of these VMs, each in its cluster and preferably on its own host."""
    # VMs by cluster; VMs of a host without a cluster by that host: they can restart only there
    clusters: dict[str | None, list[Vm]] = {}
    for ref in refs:
        vm = inventory.vms[ref]
        host = inventory.host_of(vm)
        clusters.setdefault(host.cluster or host.ref if host is not None else None, []).append(vm)
    world, proven = inventory, True
    restarts: list[tuple[Vm, Host]] = []
    stranded: list[Stranded] = []
    for cluster_or_host, vms in clusters.items():
        hosts = [host for host in world.hosts.values() if cluster_or_host in (host.cluster, host.ref)]
        cluster = cluster_or_host if cluster_or_host in world.clusters else None
        found_restarts = find_restarts(vms, [host for host in hosts if host.connected is True], cluster, world, catalog)
        for vm, host in found_restarts.places:
            world = project(PowerOnVm(vm.ref, host.ref), world, catalog)
        restarts += found_restarts.places
        stranded += found_restarts.stranded
        proven = proven and found_restarts.proven
    return ChangedFleet(world, restarts=tuple(restarts), stranded=tuple(stranded), proven=proven)
