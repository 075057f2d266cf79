"""Applies all changes of a question to a snapshot: hardware, profiles and layouts; then restarts VMs, and adds VMs.

A layout names the GPU instances of a GPU. ESXi creates GPU instances as vGPUs start, so no host has a layout; the
question is which VMs would find a place if the GPUs were divided like this. VMs on these GPUs restart, as they do after
a change of mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuops.advise.gpu_profiles import LayoutVerdict, instances_of, judge_part, part_for
from gpuops.errors import UsageError
from gpuops.extras.sizing.what_if.hardware import (
    Changed,
    count_gpus,
    gpus_meant,
    unread_gpus,
    with_gpus_emptied,
    with_hardware,
)
from gpuops.extras.sizing.what_if.vms import with_more_vms, with_profile
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import GraphicsType, PhysicalGpu, VgpuMode
from gpuops.model.devices.gpu_layout import GpuLayout, LayoutForm, LayoutPart
from gpuops.model.fleet_change import AddVms, ApplyLayout, ChangeProfile, FleetChange
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.capacity.gpu_models import board_of, with_offers
from gpuops.plan.core.steps import PowerOnVm
from gpuops.plan.hosts.readiness.loss import Stranded, find_restarts
from gpuops.plan.placement.project import project


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
    change_text = f"{count_gpus(len(gpus))} of {names} with the layout {change.layout.name}: {_contents(gpus)}"
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
    changing = [gpu for gpu in host.gpus if gpu.address in divided and _differs(gpu, divided[gpu.address])]
    world, off = with_gpus_emptied(host, changing, inventory)
    emptied_host = world.hosts[host.ref]
    after = tuple(
        replace(gpu, vgpu_mode=new.vgpu_mode, gpu_instances=new.gpu_instances, vgpus=None)
        if (new := divided.get(gpu.address)) is not None and _differs(gpu, new)
        else gpu
        for gpu in emptied_host.gpus
    )
    changed_host = with_offers(replace(emptied_host, gpus=after), inventory.hosts.values(), catalog)
    return world.with_hosts([changed_host]), off


def _differs(gpu: PhysicalGpu, changed_gpu: PhysicalGpu) -> bool:
    return (gpu.vgpu_mode, gpu.gpu_instances) != (changed_gpu.vgpu_mode, changed_gpu.gpu_instances)


def _contents(gpus: Iterable[PhysicalGpu]) -> str:
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
