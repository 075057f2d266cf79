"""Hosts that are added: made as one that is there, with GPUs of a model of the catalogue.

Cores, memory, NUMA nodes, release, cluster and datastores are those of the host that they are made as. It is the one
that was named; else the one with the most GPUs of that model, of any model if none has one, and of equals the first by
name. GPUs of a model that was named lie on its NUMA nodes in turn: of eight on two nodes, four are on each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.fleet_change import AddHosts, GpuServing
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.capacity.gpu_models import MODES, board_meant, board_of, lacks, with_offers
from gpuops.plan.core.scope import gpu_hosts

_FIRST_BUS: Final = 0x10
"""GPUs that do not exist yet are at buses 10, 11, 12 ... (hexadecimal)."""


def new_hosts(change: AddHosts, number: int, inventory: Inventory, catalog: Catalog) -> tuple[tuple[Host, ...], str]:
    """Return the hosts, and what was done in words. `number`: which of the changes it is, for their names.

    Raises UsageError for a model that the catalogue lacks, or a mode that it has not; HostNotFound.
    """
    board = board_meant(change.model, catalog) if change.model is not None else None
    like = inventory.find_host(change.like) if change.like is not None else _model_host(board, inventory, catalog)
    if board is not None and (why := lacks(change.mode or GpuServing.SAME_SIZE, board)):
        raise UsageError(why, hint="gpuops help what-if tells the modes that GPUs are added in")
    gpus = _like(like, change.mode, catalog) if board is None else _new(board, change, like)
    if not gpus:
        raise UsageError(f"{like.name} has no GPU", hint="say which: --add-hosts 2xL40S:8")
    hosts = tuple(
        _bare(like, gpus, f"what-if-host-{number}-{host_number}", f"new-{number}-{host_number}")
        for host_number in range(1, change.count + 1)
    )
    gpus_text = f"{len(gpus)} x {board.name}" if board is not None else f"the GPUs of {like.name}"
    serving = f" in {change.mode.adjective} mode" if change.mode is not None else ""
    change_text = (
        f"{change.count} more host{'s' if change.count > 1 else ''} with {gpus_text}{serving}, made as {like.name}"
    )
    return tuple(with_offers(host, inventory.hosts.values(), catalog) for host in hosts), change_text


def _model_host(board: Board | None, inventory: Inventory, catalog: Catalog) -> Host:
    hosts = gpu_hosts(inventory)
    if not hosts:
        raise UsageError("no host here has a GPU to make others as", hint="name one: --like HOST")

    def gpus(host: Host) -> tuple[int, int]:
        of_model = sum(board_of(gpu, catalog) == board for gpu in host.gpus) if board is not None else 0
        return of_model, len(host.gpus)

    usable = [host for host in hosts if host.connected is True] or list(hosts)
    return max(usable, key=gpus)


def _new(board: Board, change: AddHosts, like: Host) -> tuple[PhysicalGpu, ...]:
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
    if mode is not None and board is not None and (why := lacks(mode, board)):
        raise UsageError(why, hint="leave the mode out, or say it of single GPUs in a file (gpuops help what-if)")
    serves = gpu.graphics_type is GraphicsType.SHARED_DIRECT and not gpu.passed_through
    vgpu_mode: VgpuMode | None = MODES[mode] if mode is not None and serves else gpu.vgpu_mode
    vms = () if gpu.vms is not None or serves else None
    return replace(gpu, vms=vms, vgpus=None, vgpu_mode=vgpu_mode, health=None)


def _bare(like: Host, gpus: tuple[PhysicalGpu, ...], ref: str, name: str) -> Host:
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
