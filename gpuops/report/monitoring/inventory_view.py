"""Text and document of `gpuops inventory`: a summary of clusters, a tree for each host, or a table of VMs.

A tree of a hundred hosts has 1,500 lines: for more than twenty hosts, trees need `--hosts` or a filter, and the summary
is printed instead. In the summary, a GPU is in use if a VM holds it or a part of it now, and free if none does; if the
host does not report its holders, it is neither.

The document is the contract for programs. null means unknown, never off, free or zero.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, Self, assert_never

from msgspec import UNSET, UnsetType

from gpuops.advise.capacity import Slots
from gpuops.advise.managed_vms import manager_of
from gpuops.model.devices.gpu import GraphicsType, PhysicalGpu, VgpuMode
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.devices.vgpu import parse
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    Firmware,
    GpuDevice,
    OtherPassthrough,
    PowerState,
    VgpuDevice,
    Vm,
)
from gpuops.plan.core.rejection import some_names
from gpuops.plan.core.scope import cluster_name
from gpuops.report.device_text import GpuHealthRecord, describe_device
from gpuops.report.document import DocumentRecord, NamedRecord, Ref, SlotsRecord, VersionedSiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, Tree, table_of
from gpuops.report.monitoring.fleet_view import (
    POWER_WORDS,
    Fleet,
    Free,
    GpuView,
    HostView,
    NodeView,
    OtherView,
    holders,
    reboot_pending,
)
from gpuops.report.text import count, count_hosts, optional_figure, size, vcenter_heading

_NAME_OF_SERIES = re.compile(r".*\d[abcq]")


def fleet_text(fleet: Fleet, limit: int | None = None) -> Iterator[Shown]:
    """Yield the heading, a tree for each host with GPUs (at most `limit`), and the number of hosts without."""
    yield heading(fleet.inventory, len(fleet.hosts), sum(len(view.gpus) for view in fleet.hosts))
    views = (*fleet.hosts, *fleet.device_hosts)
    yield from map(_host_tree, views[:limit])
    yield from _left_out(len(views), "host", limit)
    yield from without_gpus(fleet)


def without_gpus(fleet: Fleet) -> Iterator[Text]:
    """Yield the number of hosts without GPUs, if there are any."""
    if fleet.hosts_without_gpus:
        device_host_count = len(fleet.device_hosts)
        device_note = f", {device_host_count} of them with other devices for VMs" if device_host_count else ""
        yield Text(f"{count(fleet.hosts_without_gpus, 'host')} without GPUs{device_note}", "dim")


def heading(inventory: Inventory, hosts: int, gpus: int) -> Text:
    """Return `vCenter 8.0.3.0: 2 hosts with 8 GPUs, 14 VMs, read 2026-11-21 02:49 UTC`."""
    return vcenter_heading(inventory, f"{count_hosts(hosts, gpus)}, {count(len(inventory.vms), 'VM')}")


def vms_text(fleet: Fleet, limit: int | None = None) -> Iterator[Shown]:
    """Yield a table of VMs (at most `limit`): power, host, size and GPU devices."""
    yield table_of(
        fleet.vms_with_devices[:limit],
        Column("VM", lambda vm: vm.name),
        Column("power", lambda vm: POWER_WORDS[vm.power]),
        Column("host", lambda vm: host.name if (host := fleet.inventory.host_of(vm)) else "unknown"),
        Column("vCPUs", lambda vm: optional_figure(vm.vcpus, unknown="unknown")),
        Column("memory", lambda vm: size(vm.memory_mib)),
        Column("GPU devices", _devices_text),
        Column("path", lambda vm: vm.path),
    )
    yield from _left_out(len(fleet.vms_with_devices), "VM", limit)


def _left_out(total: int, noun: str, limit: int | None) -> Iterator[Text]:
    if limit is not None and total > limit:
        yield Text(f"and {count(total - limit, f'more {noun}')} (--limit {limit})", "dim")


def _host_tree(view: HostView) -> Tree:
    tree = Tree(_host_label(view.host, view.cluster))
    for node in view.nodes:
        _add_gpus(tree.add(_node_label(node)), node)
    for device_view in view.others:
        branch = tree.add(_other_label(device_view))
        for vm in device_view.holders:
            branch.add(_vm_label(vm))
    if joint_slots := _on_several_gpus(view):
        tree.add(Text("free on this host: ").append(free_figures(joint_slots), "green"))
    for vm in view.waiting:
        tree.add(_vm_label(vm))
    return tree


def _host_label(host: Host, cluster: str | None) -> Text:
    label = Text(host.name, "bold")
    facts = [f"cluster {cluster}" if cluster else "standalone"]
    facts += [f"ESXi {host.version}"] if host.version else []
    facts += [f"{host.cpu_threads} threads"] if host.cpu_threads is not None else []
    facts += [f"{size(host.memory_mib)} memory"] if host.memory_mib is not None else []
    label.append(f"  {', '.join(facts)}", "dim")
    if host.connected is False:
        label.append("  not connected", "bold red")
    if host.in_maintenance:
        label.append("  in maintenance", "yellow")
    if host.unreadable:
        label.append(f"  cannot read {', '.join(host.unreadable)}", "yellow")
    return label


def _node_label(view: NodeView) -> Text:
    if view.node is None:
        return Text("NUMA node unknown", "yellow")
    facts = f"  {view.node.logical_cpus} threads, {size(view.node.memory_mib)}"
    return Text(f"NUMA node {view.node.id}").append(facts, "dim")


def _add_gpus(tree: Tree, node: NodeView) -> None:
    for view in node.gpus:
        branch = tree.add(_gpu_label(view))
        if view.free and not view.whole:
            branch.add(Text("free: ").append(free_figures(view.free), "green"))
        for vm in view.holders or ():
            branch.add(_vm_label(vm))
        if view.holders is None:
            branch.add(Text("holders unknown", "yellow"))


def _vm_label(vm: Vm) -> Text:
    label = Text(f"{vm.name}  {POWER_WORDS[vm.power]}  ").append(_devices_text(vm), "dim")
    manager = manager_of(vm)
    return label if manager is None else label.append(f"  managed by {manager.name}", "yellow")


def _gpu_label(view: GpuView) -> Text:
    gpu = view.gpu
    label = Text(f"{gpu.address}  {gpu.name}  ").append(f"{size(gpu.memory_mib)}  " if gpu.memory_mib else "", "dim")
    label.append(view.mode)
    if view.reboot_pending:
        label.append("  host reboot pending", "bold yellow")
    if gpu.health is not None and gpu.health.problems:
        style = "bold red" if gpu.vgpu_obstacle else "bold yellow"
        label.append(f"  {', '.join(gpu.health.problems)}", style)
    return label


def _other_label(view: OtherView) -> Text:
    device = view.device
    node = "NUMA node unknown" if device.numa_node is None else f"NUMA node {device.numa_node}"
    memory = f"{size(device.memory_mib)}  " if device.memory_mib else ""
    label = Text(f"{device.address}  {device.name}  ").append(f"{device.kind}, {node}  {memory}", "dim")
    label.append(view.mode)
    if view.reboot_pending:
        label.append("  host reboot pending", "bold yellow")
    return label


def _on_several_gpus(view: HostView) -> Free:
    """Return the profiles that have room on more than one GPU of the host, with the host's total."""
    return {
        name: slots
        for name, slots in view.free.items()
        if sum(name in gpu.free and gpu.free[name].possible for gpu in view.gpus) > 1
    }


def free_figures(free: Free) -> str:
    """Return `7 grid_a100-1-5c, 4 nvidia_a40-8a|c|q`: profiles that differ in the series only share a figure.

    Profiles without room are left out, unless no profile has room.
    """
    series: dict[tuple[str, str], list[str]] = {}
    for name in sorted((name for name, slots in free.items() if slots.possible), key=by_size):
        stem = without_series(name)
        series.setdefault((figure(free[name]), stem), []).append(name[len(stem) :])
    texts = [f"{figure} {stem}{'|'.join(letters)}" for (figure, stem), letters in series.items()]
    return ", ".join(texts) or "none"


def without_series(name: str) -> str:
    """Return a profile name without the letter of its series: `nvidia_a40-8`."""
    return name[:-1] if _NAME_OF_SERIES.fullmatch(name) else name


def by_size(name: str) -> tuple[str, int, int, str]:
    """Return the key that sorts profiles of one GPU model by frame buffer."""
    parts = parse(name)
    return (parts.board, parts.size_gb, parts.slices or 0, name) if parts else ("", 0, 0, name)


def figure(slots: Slots) -> str:
    """Return `3`, `3 to 4`, `at least 3` or `?`."""
    if slots.at_most is None:
        return f"at least {slots.at_least}" if slots.at_least else "?"
    return str(slots.at_most) if slots.exact else f"{slots.at_least} to {slots.at_most}"


def _devices_text(vm: Vm) -> str:
    """Return `2 x vGPU grid_a40-8q, DirectPath 0000:3b:00.0`."""
    if vm.devices is None:
        return "not read"
    texts: dict[str, int] = {}
    for device in vm.devices:
        text = f"vGPU {device.profile}" if isinstance(device, VgpuDevice) else describe_device(device)
        texts[text] = texts.get(text, 0) + 1
    return ", ".join(text if number == 1 else f"{number} x {text}" for text, number in texts.items()) or "none"


class GpuRecord(DocumentRecord, frozen=True):
    """A GPU; null = the host does not report it."""

    address: Annotated[str, "PCI address"]
    name: str
    vendor_id: Annotated[str, "four hexadecimal digits"]
    device_id: Annotated[str, "four hexadecimal digits"]
    subsystem_id: Annotated[str | None, "four hexadecimal digits"]
    memory_mib: int | None
    mode: Annotated[str, "in force, in a few words"]
    graphics_type: GraphicsType | None
    configured_graphics_type: GraphicsType | None
    vgpu_mode: VgpuMode | None
    passthrough_enabled: bool | None
    passthrough_active: bool | None
    reboot_pending: bool
    health: Annotated[
        GpuHealthRecord | None, "with a host shell; null = its host was not asked, or did not answer about it"
    ]
    holders: Annotated[list[NamedRecord] | None, "the VMs on it now"]
    free: Annotated[dict[str, SlotsRecord], "room for more vGPUs, by profile"]

    @classmethod
    def made_of(cls, view: GpuView) -> Self:
        gpu = view.gpu
        free = {name: SlotsRecord.made_of(slots) for name, slots in view.free.items()}
        return cls.from_attributes(gpu, view, **_identifiers(gpu), **_passthrough(gpu), holders=view.holders, free=free)


class NumaNodeRecord(DocumentRecord, frozen=True):
    """The GPUs of one NUMA node; null = the host does not report where they are."""

    id: int | None
    logical_cpus: int | None
    memory_mib: int | None
    gpus: list[GpuRecord]

    @classmethod
    def made_of(cls, view: NodeView) -> Self:
        gpus = list(map(GpuRecord.made_of, view.gpus))
        return cls.from_attributes(view.node, gpus=gpus) if view.node else cls(None, None, None, gpus)


class OtherDeviceRecord(DocumentRecord, frozen=True):
    """A PCI device for VMs that is not an NVIDIA GPU."""

    address: Annotated[str, "PCI address"]
    name: str
    device_kind: Annotated[str, "GPU (of another vendor), FPGA, accelerator, NIC, storage controller, PCI device"]
    vendor_id: Annotated[str, "hexadecimal"]
    device_id: Annotated[str, "hexadecimal"]
    subsystem_id: Annotated[str | None, "hexadecimal"]
    memory_mib: int | None
    numa_node: int | None
    mode: Annotated[str, "in a few words"]
    passthrough_enabled: Annotated[bool | None, "configured"]
    passthrough_active: Annotated[bool | None, "in force"]
    label: Annotated[str | None, "its hardware label"]
    reboot_pending: bool
    holders: Annotated[list[NamedRecord], "the VM that has it now"]

    @classmethod
    def made_of(cls, view: OtherView) -> Self:
        device = view.device
        label = device.passthrough.label if device.passthrough else None
        identifiers, passthrough = _identifiers(device), _passthrough(device)
        return cls.from_attributes(device, view, **identifiers, **passthrough, device_kind=device.kind, label=label)


def _identifiers(device: PhysicalGpu | OtherDevice) -> dict[str, str | None]:
    return {
        "vendor_id": f"{device.vendor_id:04x}",
        "device_id": f"{device.device_id:04x}",
        "subsystem_id": None if device.subsystem_id is None else f"{device.subsystem_id:04x}",
    }


def _passthrough(device: PhysicalGpu | OtherDevice) -> dict[str, bool | None]:
    state = device.passthrough
    return {
        "passthrough_enabled": state.enabled if state else None,
        "passthrough_active": state.active if state else None,
    }


class ProfileRecord(DocumentRecord, frozen=True):
    """A vGPU profile that a host offers; null = the host does not report it."""

    name: str
    free: SlotsRecord | None
    suspend: bool | None
    migrate: bool | None
    disk_snapshot: bool | None
    memory_snapshot: bool | None


class HostRecord(DocumentRecord, frozen=True):
    """A host with GPUs; null = the host does not report it."""

    ref: Ref
    name: str
    cluster: str | None
    version: str | None
    connected: bool | None
    in_maintenance: bool | None
    memory_mib: int | None
    memory_used_mib: int | None
    cpu_cores: int | None
    cpu_threads: int | None
    assignment_policy: str | None
    numa_nodes: list[NumaNodeRecord]
    other_devices: Annotated[list[OtherDeviceRecord], "none of them counts as a GPU"]
    profiles: list[ProfileRecord] | None
    vms_not_on_a_gpu: Annotated[list[NamedRecord], "VMs that have a GPU device but hold none now"]
    unreadable: list[str]

    @classmethod
    def made_of(cls, view: HostView) -> Self:
        host = view.host
        profiles = host.profiles and [
            ProfileRecord.from_attributes(offered, free=view.free.get(offered.name)) for offered in host.profiles
        ]
        return cls.from_attributes(
            host,
            cluster=view.cluster,
            numa_nodes=view.nodes,
            other_devices=view.others,
            profiles=profiles,
            vms_not_on_a_gpu=view.waiting,
        )


class GpuDeviceRecord(DocumentRecord, frozen=True):
    """A device of a VM; its keys depend on its kind."""

    kind: Annotated[str, "vgpu, directpath, dynamic or other"]
    key: int
    profile: Annotated[str | UnsetType, "of a vgpu"] = UNSET
    numa_node: Annotated[int | UnsetType | None, "of a vgpu, the guest's"] = UNSET
    address: Annotated[str | UnsetType, "of a directpath, the PCI address"] = UNSET
    vendor_id: Annotated[str | UnsetType, "of a directpath"] = UNSET
    device_id: Annotated[str | UnsetType, "of a directpath"] = UNSET
    allowed: Annotated[list[str] | UnsetType, "of a dynamic, vendor and device ids"] = UNSET
    label: Annotated[str | UnsetType | None, "of a dynamic or other"] = UNSET
    assigned: Annotated[str | UnsetType | None, "of a dynamic, the PCI address"] = UNSET
    unreadable: Annotated[bool | UnsetType, "of other, whether its type could not be read"] = UNSET

    @classmethod
    def made_of(cls, device: GpuDevice) -> Self:
        match device:
            case VgpuDevice(profile=profile, numa_node=node):
                return cls(device.kind, device.key, profile=profile, numa_node=node)
            case DirectPathDevice(address=address, vendor_id=vendor, device_id=identifier):
                ids = f"{vendor:04x}", f"{identifier:04x}"
                return cls(device.kind, device.key, address=str(address), vendor_id=ids[0], device_id=ids[1])
            case DynamicDevice(allowed=allowed, label=label, assigned=assigned):
                pairs = [f"{vendor:04x}:{identifier:04x}" for vendor, identifier in allowed]
                where = str(assigned) if assigned else None
                return cls(device.kind, device.key, allowed=pairs, label=label, assigned=where)
            case OtherPassthrough(label=label, unreadable=unreadable):
                return cls(device.kind, device.key, label=label, unreadable=unreadable)
            case _:
                assert_never(device)


class VmRecord(DocumentRecord, frozen=True):
    """A VM with a GPU device; null = not known."""

    ref: Ref
    name: str
    path: Annotated[str | None, "in the inventory"]
    instance_uuid: str | None
    host: str | None
    power: PowerState | None
    vcpus: int | None
    memory_mib: int | None
    firmware: Firmware | None
    hardware_version: int | None
    memory_locked: Annotated[bool | None, "whether all memory is reserved"]
    attributes: Annotated[dict[str, str], "custom attributes"]
    managed_by: Annotated[str | None, "key of the vCenter extension that it belongs to"]
    devices: list[GpuDeviceRecord] | None
    unreadable: list[str]


@printed("inventory", by="gpuops inventory")
class InventoryDocument(VersionedSiteDocument, frozen=True):
    """Hosts with GPUs, who holds them, what is free, and the VMs with GPU devices."""

    hosts: Annotated[Iterable[HostRecord], "those with GPUs, and those that give VMs other complete devices"]
    hosts_without_gpus: int
    vms: Annotated[Iterable[VmRecord], "those with a GPU device"]
    vms_total: Annotated[int, "number of all VMs of the vCenter"]
    hosts_left_out: Annotated[int | UnsetType, "with --limit"] = UNSET
    vms_left_out: Annotated[int | UnsetType, "with --limit"] = UNSET


def fleet_document(fleet: Fleet, limit: int | None = None) -> InventoryDocument:
    """Return hosts > NUMA nodes > GPUs > free profiles and holders, and the VMs with GPU devices.

    Records of hosts and VMs are made while the document is written. With `limit` there are at most that many hosts and
    that many VMs; `hosts_left_out` and `vms_left_out` count the others.
    """
    inventory = fleet.inventory
    vms = (
        VmRecord.from_attributes(
            vm,
            host=host.name if (host := inventory.host_of(vm)) else None,
            managed_by=None if vm.managed_by is None else vm.managed_by.extension,
            attributes=dict(vm.attributes),
        )
        for vm in fleet.vms_with_devices[:limit]
    )
    left_out = {}
    if limit is not None:
        left_out["hosts_left_out"] = max(fleet.host_count + len(fleet.device_hosts) - limit, 0)
        left_out["vms_left_out"] = max(len(fleet.vms_with_devices) - limit, 0)
    return InventoryDocument.from_attributes(
        inventory,
        read_at=inventory.taken_at,
        hosts=map(HostRecord.made_of, (*fleet.hosts, *fleet.device_hosts)[:limit]),
        hosts_without_gpus=fleet.hosts_without_gpus,
        vms=vms,
        vms_total=len(inventory.vms),
        **left_out,
    )


MOST_HOSTS: Final = 20
"""Up to so many hosts with GPUs, each has a tree by default."""


def summary_text(fleet: Fleet) -> Iterator[Shown]:
    """Yield the heading, a table of clusters, a line for each problem of a cluster, and the options that show more."""
    yield heading(fleet.inventory, len(fleet.gpu_hosts), sum(len(host.gpus) for host in fleet.gpu_hosts))
    clusters: dict[str, list[Host]] = {}
    for host in fleet.gpu_hosts:
        clusters.setdefault(cluster_name(host, fleet.inventory) or "standalone", []).append(host)
    rows = (row for name, hosts in sorted(clusters.items()) for row in _cluster_rows(name, hosts, fleet.inventory))
    yield TextTable("cluster", "hosts", "GPU", "GPUs", "in use", "free", right=(1, 3, 4, 5), rows=rows)
    for name, hosts in sorted(clusters.items()):
        for text in _host_problems(hosts, fleet.inventory):
            yield Text(f"{name}: {text}", "yellow")
    yield from without_gpus(fleet)
    yield Text("--hosts shows each host; --cluster, --host, --profile, --holder, --free, --limit show some", "dim")


def _cluster_rows(name: str, hosts: Sequence[Host], inventory: Inventory) -> Iterator[tuple[str, ...]]:
    """Yield a row for each GPU model; the first one also has the cluster and its number of hosts."""
    gpus, used, free = Counter[str](), Counter[str](), Counter[str]()
    for host, gpu in _gpus(hosts):
        vms = holders(gpu, host, inventory)
        gpus[gpu.name] += 1
        # None: the holders are unknown, so the GPU counts neither as used nor as free
        used[gpu.name] += bool(vms)
        free[gpu.name] += vms == ()
    cluster_cells = (name, str(len(hosts)))
    for model in sorted(gpus):
        yield (*cluster_cells, model, str(gpus[model]), str(used[model]), str(free[model]))
        cluster_cells = ("", "")


def _gpus(hosts: Iterable[Host]) -> Iterator[tuple[Host, PhysicalGpu]]:
    return ((host, gpu) for host in hosts for gpu in host.gpus)


def _host_problems(hosts: Sequence[Host], inventory: Inventory) -> Iterator[str]:
    """Yield each problem with the hosts that have it."""
    hosts_by_problem = {
        "not connected": [host for host in hosts if host.connected is False],
        "in maintenance": [host for host in hosts if host.in_maintenance],
        "not read completely": [host for host in hosts if host.unreadable],
        "with a reboot pending for a GPU": [host for host in hosts if any(map(reboot_pending, host.gpus))],
        "with GPUs whose holders are unknown": [
            host for host in hosts if any(holders(gpu, host, inventory) is None for gpu in host.gpus)
        ],
    }
    for problem, affected_hosts in hosts_by_problem.items():
        if affected_hosts:
            names = some_names([host.name for host in affected_hosts])
            yield f"{count(len(affected_hosts), 'host')} {problem}: {names}"
