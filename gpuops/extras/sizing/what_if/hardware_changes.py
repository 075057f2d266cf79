"""Hosts and GPUs that are added, lost or in another mode, and the VMs that must restart for it.

A GPU's mode changes only while no VM is on it (NVIDIA NVML docs), so the VMs on it restart, as do the VMs of a lost
host or GPU. A lost host is one that vCenter does not reach; its VMs with GPUs restart on other hosts.

A new host is a copy of an existing one: its cores, memory, NUMA nodes, release, cluster and datastores. The copied host
is the named one; otherwise the host with the most GPUs of the requested model (of any model if no host has it), and of
equal hosts the first by name. The new GPUs are spread evenly over its NUMA nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from gpuops.errors import HostNotFound, UsageError
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.fleet_change import AddHosts, ApplyLayout, ChangeGpuMode, GpuServing, LoseGpu, LoseHost
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, is_gpu
from gpuops.plan.capacity.gpu_models import MODES, board_of, find_board, mode_obstacle, offer_profiles
from gpuops.plan.core.scope import Scope, gpu_hosts
from gpuops.plan.core.steps import PowerOffVm
from gpuops.plan.core.versions import version_numbers
from gpuops.plan.hosts.scheduler.scheduler_state import MIXED_SIZE_SINCE
from gpuops.plan.placement.project import project

_FIRST_BUS: Final = 0x10
"""GPUs that do not exist yet are at buses 10, 11, 12 ... (hexadecimal)."""


def new_hosts(change: AddHosts, number: int, inventory: Inventory, catalog: Catalog) -> tuple[tuple[Host, ...], str]:
    """Return the new hosts, and the change in words. `number`: the position of the change, for the hosts' names.

    Raises UsageError for a model that the catalogue lacks, or for a mode that the model lacks; HostNotFound.
    """
    board = find_board(change.model, catalog) if change.model is not None else None
    like = inventory.find_host(change.like) if change.like is not None else _model_host(board, inventory, catalog)
    if board is not None and (why := mode_obstacle(change.mode or GpuServing.SAME_SIZE, board)):
        raise UsageError(why, hint="gpuops help what-if lists the modes of added GPUs")
    gpus = _like(like, change.mode, catalog) if board is None else _new(board, change, like)
    if not gpus:
        raise UsageError(f"{like.name} has no GPU", hint="name the GPUs of the new hosts: --add-hosts 2xL40S:8")
    hosts = tuple(
        _bare(like, gpus, f"what-if-host-{number}-{host_number}", f"new-{number}-{host_number}")
        for host_number in range(1, change.count + 1)
    )
    gpus_text = f"{len(gpus)} x {board.name}" if board is not None else f"the GPUs of {like.name}"
    serving = f" in {change.mode.adjective} mode" if change.mode is not None else ""
    change_text = (
        f"{change.count} more host{'s' if change.count > 1 else ''} with {gpus_text}{serving}, made as {like.name}"
    )
    return tuple(offer_profiles(host, inventory.hosts.values(), catalog) for host in hosts), change_text


def _model_host(board: Board | None, inventory: Inventory, catalog: Catalog) -> Host:
    hosts = gpu_hosts(inventory)
    if not hosts:
        hint = "name a host to copy and the new GPUs: --like HOST --add-hosts 2xL40S:8"
        raise UsageError("no host has a GPU, so gpuops cannot choose a host to copy", hint=hint)

    def gpus(host: Host) -> tuple[int, int]:
        of_model = sum(board_of(gpu, catalog) == board for gpu in host.gpus) if board is not None else 0
        return of_model, len(host.gpus)

    usable = [host for host in hosts if host.connected is True] or list(hosts)
    return max(usable, key=gpus)


def _new(board: Board, change: AddHosts, like: Host) -> tuple[PhysicalGpu, ...]:
    """Return the GPUs of a new host: empty, and spread over the NUMA nodes of the host that it is a copy of."""
    pci = board.pci_ids[0]
    mode = change.mode or GpuServing.SAME_SIZE
    nodes: list[int | None] = [*(node.id for node in like.numa_nodes)] or [None]
    return tuple(
        PhysicalGpu(
            address=PciAddress(0, _FIRST_BUS + number, 0, 0),
            name=board.name,
            vendor_id=pci.vendor_id,
            device_id=pci.device_id,
            subsystem_id=next(iter(pci.subsystem_ids), None),
            memory_mib=board.framebuffer_mib,
            graphics_type=GraphicsType.SHARED_DIRECT,
            configured_graphics_type=GraphicsType.SHARED_DIRECT,
            vgpu_mode=MODES[mode],
            numa_node=nodes[number % len(nodes)],
            passthrough=Passthrough(capable=True, enabled=False, active=False),
            vms=(),
        )
        for number in range(change.gpus or 1)
    )


def _like(like: Host, mode: GpuServing | None, catalog: Catalog) -> tuple[PhysicalGpu, ...]:
    """Return the same GPUs, healthy and empty. Raises UsageError for a mode that one of them lacks."""
    return tuple(_empty(gpu, mode, catalog) for gpu in like.gpus)


def _empty(gpu: PhysicalGpu, mode: GpuServing | None, catalog: Catalog) -> PhysicalGpu:
    board = board_of(gpu, catalog)
    if mode is not None and board is not None and (why := mode_obstacle(mode, board)):
        raise UsageError(why, hint="leave the mode out, or set it for single GPUs in a file (gpuops help what-if)")
    serves = gpu.graphics_type is GraphicsType.SHARED_DIRECT and not gpu.passed_through
    vgpu_mode: VgpuMode | None = MODES[mode] if mode is not None and serves else gpu.vgpu_mode
    vms = () if gpu.vms is not None or serves else None
    return replace(gpu, vms=vms, vgpus=None, vgpu_mode=vgpu_mode, health=None)


def _bare(like: Host, gpus: tuple[PhysicalGpu, ...], ref: str, name: str) -> Host:
    """Return a copy of the host with these GPUs, without VMs and without settings of its own."""
    nodes = tuple(
        replace(node, devices=tuple(gpu.address for gpu in gpus if gpu.numa_node == node.id))
        for node in like.numa_nodes
    )
    return replace(
        like,
        ref=ref,
        name=name,
        uuid=None,
        booted=None,
        connected=True,
        in_maintenance=False,
        memory_used_mib=0,
        numa_nodes=nodes,
        gpus=gpus,
        others=(),
        bindings=(),
        config_target=None,
        settings=None,
        unreadable=(),
    )


HardwareChange = AddHosts | LoseHost | LoseGpu | ChangeGpuMode


@dataclass(frozen=True, slots=True)
class Changed:
    """The snapshot after a change, before any VM has started anew."""

    inventory: Inventory
    done: str
    """The change in words."""
    displaced: tuple[str, ...] = ()
    """Refs of the VMs that ran and have to start anew: they are off in the snapshot."""
    notes: tuple[str, ...] = ()


def with_hardware(change: HardwareChange, number: int, inventory: Inventory, catalog: Catalog) -> Changed:
    """Return the snapshot after one change. `number`: the position of the change, for the names of added hosts.

    Raises UsageError for hosts or GPUs that do not exist, and for a mode that GPUs lack; HostNotFound.
    """
    match change:
        case AddHosts():
            hosts, change_text = new_hosts(change, number, inventory, catalog)
            return Changed(inventory.with_hosts(hosts), change_text)
        case LoseHost(host=name):
            return _without_host(inventory.find_host(name), inventory)
        case LoseGpu(host=name, gpu=address):
            return _without_gpu(inventory.find_host(name), address, inventory, catalog)
        case ChangeGpuMode():
            return _in_mode(change, inventory, catalog)


def _without_host(host: Host, inventory: Inventory) -> Changed:
    if host.connected is False:
        raise UsageError(f"{host.name} is already lost: vCenter cannot reach it", hint="name another host")
    running_vms = [vm for vm in inventory.vms_on(host) if vm.power is PowerState.ON]
    displaced = tuple(vm.ref for vm in running_vms if any(map(is_gpu, vm.devices or ())))
    world = _off((vm.ref for vm in running_vms), inventory)
    dead = replace(world.hosts[host.ref], connected=False)
    return Changed(world.with_hosts([dead]), f"{host.name} is lost", displaced)


def _without_gpu(host: Host, address: PciAddress, inventory: Inventory, catalog: Catalog) -> Changed:
    gpu = host.gpu(address)
    if gpu is None:
        addresses = ", ".join(str(host_gpu.address) for host_gpu in host.gpus) or "none"
        raise UsageError(f"{host.name} has no GPU {address}", hint=f"its GPUs: {addresses}")
    world, displaced = with_gpus_emptied(host, [gpu], inventory)
    changed_host = world.hosts[host.ref]
    changed_host = replace(
        changed_host, gpus=tuple(host_gpu for host_gpu in changed_host.gpus if host_gpu.address != address)
    )
    changed_host = offer_profiles(changed_host, inventory.hosts.values(), catalog)
    return Changed(
        world.with_hosts([changed_host]), f"{host.name} loses GPU {address} ({gpu.name})", displaced, unread_gpus([gpu])
    )


def _in_mode(change: ChangeGpuMode, inventory: Inventory, catalog: Catalog) -> Changed:
    """Return the snapshot with the selected GPUs in another mode, for which their VMs must leave them."""
    requested_gpus = gpus_meant(change, inventory, catalog)
    able, notes = _able(change, requested_gpus, catalog)
    changing = [(host, gpu) for host, gpu in able if gpu.vgpu_mode is not MODES[change.mode]]
    if not changing:
        raise UsageError(
            f"nothing would change: {count_gpus(len(able))} in {change.mode.adjective} mode already",
            hint="leave --vgpu-mode out",
        )
    world = inventory
    displaced: list[str] = []
    for host in {host.ref: host for host, _ in changing}.values():
        gpus = [gpu for changing_host, gpu in changing if changing_host.ref == host.ref]
        world, off = with_gpus_emptied(host, gpus, world)
        displaced += off
        addresses = {gpu.address for gpu in gpus}
        changed_host = world.hosts[host.ref]
        # the GPUs are empty then; which parts of them new vGPUs will have is unknown
        changed = tuple(
            replace(gpu, vgpu_mode=MODES[change.mode], vgpus=None, gpu_instances=None)
            if gpu.address in addresses
            else gpu
            for gpu in changed_host.gpus
        )
        changed_host = offer_profiles(replace(changed_host, gpus=changed), inventory.hosts.values(), catalog)
        world = world.with_hosts([changed_host])
    names = sorted({host.name for host, _ in changing})
    change_text = f"{count_gpus(len(changing))} of {', '.join(names)} in {change.mode.adjective} mode"
    if change.mode is GpuServing.MIXED_SIZE and version_numbers(inventory.api_version) < version_numbers(
        MIXED_SIZE_SINCE
    ):
        notes.append(f"mixed-size mode needs vSphere {MIXED_SIZE_SINCE}, this is {inventory.api_version}")
    return Changed(world, change_text, tuple(displaced), (*notes, *unread_gpus(gpu for _, gpu in changing)))


def gpus_meant(
    change: ChangeGpuMode | ApplyLayout, inventory: Inventory, catalog: Catalog
) -> list[tuple[Host, PhysicalGpu]]:
    """Return the selected GPUs with their hosts. Raises UsageError if none is selected, HostNotFound."""
    hosts = gpu_hosts(inventory)
    if change.host is not None:
        Scope(host=change.host).check(inventory)
        hosts = Scope(host=change.host).hosts(inventory)
        if not hosts:
            raise HostNotFound(change.host, near=[host.name for host in gpu_hosts(inventory)][:3])
    board = find_board(change.model, catalog) if change.model is not None else None
    matching_gpus = [
        (host, gpu)
        for host in hosts
        for gpu in host.gpus
        if (not change.gpu or gpu.address in change.gpu) and (board is None or board_of(gpu, catalog) == board)
    ]
    missing = [address for address in change.gpu if all(gpu.address != address for _, gpu in matching_gpus)]
    if missing or not matching_gpus:
        gpu_text = f"GPU {missing[0]}" if missing else f"{board.name}" if board is not None else "GPU"
        where = f"on {change.host}" if change.host is not None else "here"
        raise UsageError(f"there is no {gpu_text} {where}", hint="gpuops inventory --hosts shows the GPUs")
    return matching_gpus


def _able(
    change: ChangeGpuMode, requested_gpus: Iterable[tuple[Host, PhysicalGpu]], catalog: Catalog
) -> tuple[list[tuple[Host, PhysicalGpu]], list[str]]:
    """Return the GPUs that can be in the mode, and notes on those that cannot, or of which it is not known.

    Raises UsageError if none can be, or if one that was selected by its address cannot.
    """
    able: list[tuple[Host, PhysicalGpu]] = []
    against: list[str] = []
    doubts: list[str] = []
    for host, gpu in requested_gpus:
        board, where = board_of(gpu, catalog), f"{host.name} {gpu.address}"
        if gpu.passed_through or gpu.graphics_type is not GraphicsType.SHARED_DIRECT:
            against.append(f"{where} serves no vGPUs: passthrough, or its graphics type is not shared direct")
        elif board is not None and (why := mode_obstacle(change.mode, board)):
            against.append(f"{where}: {why}")
        else:
            able.append((host, gpu))
            if board is None or (change.mode is GpuServing.MIXED_SIZE and board.mixed_size_mode is None):
                name = board.name if board is not None else gpu.name
                doubts.append(f"{where}: whether {name} has a {change.mode.adjective} mode is not known")
    if against and (change.gpu or not able):
        raise UsageError(against[0], hint="choose GPUs that have the mode: --host, --gpu or --model")
    return able, [*(f"left as it is: {reason}" for reason in against), *doubts]


def with_gpus_emptied(
    host: Host, gpus: Collection[PhysicalGpu], inventory: Inventory
) -> tuple[Inventory, tuple[str, ...]]:
    """Return the snapshot with the VMs off that run on these GPUs, and their refs."""
    addresses = {gpu.address for gpu in gpus}
    refs = {ref for gpu in gpus for ref in gpu.vms or ()}
    refs |= {binding.vm for binding in host.bindings if binding.address in addresses}
    running = sorted(ref for ref in refs if ref in inventory.vms and inventory.vms[ref].power is PowerState.ON)
    return _off(running, inventory), tuple(running)


def _off(refs: Iterable[str], inventory: Inventory) -> Inventory:
    world = inventory
    for ref in refs:
        world = project(PowerOffVm(ref), world)
    return world


def unread_gpus(gpus: Iterable[PhysicalGpu]) -> tuple[str, ...]:
    unread = sum(gpu.vms is None and not gpu.passed_through for gpu in gpus)
    return (f"which VMs run on {count_gpus(unread)} of them cannot be read",) if unread else ()


def count_gpus(number: int) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"
