"""What `gpuops inventory` prints: a tree of hosts, NUMA nodes and GPUs, or a table of VMs; and the JSON document.

The document is the contract for programs. null = unknown, never off, free or zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import assert_never

from gpuops.advise.capacity import Slots
from gpuops.advise.managed_vms import manager_of
from gpuops.model.devices.profile_name import parse
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, OtherPassthrough, VgpuDevice, Vm
from gpuops.report.device import describe
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.gpu_health import GpuHealthRecord
from gpuops.report.layout import Shown, Text, TextTable, Tree
from gpuops.report.monitoring.fleet import POWER_WORDS, Fleet, Free, GpuView, HostView, NodeView, OtherView
from gpuops.report.text import count, size, visible

_NAME_OF_SERIES = re.compile(r".*\d[abcq]")


def fleet_text(fleet: Fleet, limit: int | None = None) -> Iterator[Shown]:
    """The heading, a tree per host with GPUs (of `limit` hosts), and a line for the hosts without."""
    yield heading(fleet.inventory, len(fleet.hosts), sum(len(view.gpus) for view in fleet.hosts))
    shown = (*fleet.hosts, *fleet.device_hosts)
    yield from map(_host_text, shown[:limit])
    yield from _left_out(len(shown), "host", limit)
    yield from without_gpus(fleet)


def without_gpus(fleet: Fleet) -> Iterator[Text]:
    """How many hosts have none."""
    if fleet.hosts_without_gpus:
        given = len(fleet.device_hosts)
        beside = f", {given} of them with other devices for VMs" if given else ""
        yield Text(f"{count(fleet.hosts_without_gpus, 'host')} without GPUs{beside}", "dim")


def heading(inventory: Inventory, hosts: int, gpus: int) -> Text:
    """`vCenter 8.0.3.0: 2 hosts with 8 GPUs, 14 VMs, read 2026-11-21 02:49 UTC`."""
    shown = f"{count(hosts, 'host')} with {count(gpus, 'GPU')}, {count(len(inventory.vms), 'VM')}"
    read_at = f"read {inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    return Text(f"vCenter {visible(inventory.api_version)}: {shown}, {read_at}", "bold")


def vms_text(fleet: Fleet, limit: int | None = None) -> Iterator[Shown]:
    """A table: each VM (`limit` of them), its power, host, size and GPU devices."""
    table = TextTable("VM", "power", "host", "vCPUs", "memory", "GPU devices", "path")
    for vm in fleet.vms_with_devices[:limit]:
        host = fleet.inventory.host_of(vm)
        table.add_row(
            visible(vm.name),
            POWER_WORDS[vm.power],
            visible(host.name if host else "unknown"),
            "unknown" if vm.vcpus is None else str(vm.vcpus),
            size(vm.memory_mib),
            visible(_devices(vm)),
            visible(vm.path),
        )
    yield table
    yield from _left_out(len(fleet.vms_with_devices), "VM", limit)


def _left_out(total: int, noun: str, limit: int | None) -> Iterator[Text]:
    if limit is not None and total > limit:
        yield Text(f"and {count(total - limit, f'more {noun}')} (--limit {limit})", "dim")


def _host_text(view: HostView) -> Tree:
    tree = Tree(_host_label(view.host, view.cluster))
    for node in view.nodes:
        _node_text(tree.add(_node_label(node)), node)
    for other in view.others:
        branch = tree.add(_other_label(other))
        for vm in other.holders:
            branch.add(_vm_label(vm))
    if together := _on_several_gpus(view):
        tree.add(Text("free on this host: ").append(free_figures(together), "green"))
    for vm in view.waiting:
        tree.add(_vm_label(vm))
    return tree


def _host_label(host: Host, cluster: str | None) -> Text:
    label = Text(visible(host.name), "bold")
    facts = [f"cluster {visible(cluster)}" if cluster else "standalone"]
    facts += [f"ESXi {visible(host.version)}"] if host.version else []
    facts += [f"{host.cpu_threads} threads"] if host.cpu_threads is not None else []
    facts += [f"{size(host.memory_mib)} memory"] if host.memory_mib is not None else []
    label.append(f"  {', '.join(facts)}", "dim")
    if host.connected is False:
        label.append("  not connected", "bold red")
    if host.in_maintenance:
        label.append("  in maintenance", "yellow")
    if host.unreadable:
        label.append(f"  cannot read {', '.join(map(visible, host.unreadable))}", "yellow")
    return label


def _node_label(view: NodeView) -> Text:
    if view.node is None:
        return Text("NUMA node unknown", "yellow")
    facts = f"  {view.node.logical_cpus} threads, {size(view.node.memory_mib)}"
    return Text(f"NUMA node {view.node.id}").append(facts, "dim")


def _node_text(tree: Tree, node: NodeView) -> None:
    for view in node.gpus:
        branch = tree.add(_gpu_label(view))
        if view.free and not view.whole:
            branch.add(Text("free: ").append(free_figures(view.free), "green"))
        for vm in view.holders or ():
            branch.add(_vm_label(vm))
        if view.holders is None:
            branch.add(Text("holders unknown", "yellow"))


def _vm_label(vm: Vm) -> Text:
    label = Text(f"{visible(vm.name)}  {POWER_WORDS[vm.power]}  ").append(visible(_devices(vm)), "dim")
    manager = manager_of(vm)
    return label if manager is None else label.append(f"  managed by {visible(manager.name)}", "yellow")


def _gpu_label(view: GpuView) -> Text:
    gpu = view.gpu
    label = Text(f"{gpu.address}  {visible(gpu.name)}  ").append(
        f"{size(gpu.memory_mib)}  " if gpu.memory_mib else "", "dim"
    )
    label.append(view.mode)
    if view.reboot_pending:
        label.append("  host reboot pending", "bold yellow")
    if gpu.health is not None and gpu.health.problems:
        style = "bold red" if gpu.vgpu_obstacle else "bold yellow"
        label.append(f"  {', '.join(map(visible, gpu.health.problems))}", style)
    return label


def _other_label(view: OtherView) -> Text:
    device = view.device
    node = "NUMA node unknown" if device.numa_node is None else f"NUMA node {device.numa_node}"
    memory = f"{size(device.memory_mib)}  " if device.memory_mib else ""
    label = Text(f"{device.address}  {visible(device.name)}  ").append(f"{device.kind}, {node}  {memory}", "dim")
    label.append(view.mode)
    if view.reboot_pending:
        label.append("  host reboot pending", "bold yellow")
    return label


def _on_several_gpus(view: HostView) -> Free:
    """The host's figures that say more than one of its GPUs does."""
    return {
        name: slots
        for name, slots in view.free.items()
        if sum(name in gpu.free and gpu.free[name].possible for gpu in view.gpus) > 1
    }


def free_figures(free: Free) -> str:
    """`7 grid_a100-1-5c, 4 nvidia_a40-8a|c|q`: profiles that differ in the series alone share a figure.

    Profiles without room are left out, unless none has any.
    """
    series: dict[tuple[str, str], list[str]] = {}
    for name in sorted((name for name, slots in free.items() if slots.possible), key=by_size):
        stem = without_series(name)
        series.setdefault((figure(free[name]), stem), []).append(name[len(stem) :])
    some = [f"{figure} {visible(stem)}{'|'.join(letters)}" for (figure, stem), letters in series.items()]
    return ", ".join(some) or "none"


def without_series(name: str) -> str:
    """The name without the letter of its series, where it ends with one: `nvidia_a40-8`."""
    return name[:-1] if _NAME_OF_SERIES.fullmatch(name) else name


def by_size(name: str) -> tuple[str, int, int, str]:
    """The key that sorts profiles of one GPU model by frame buffer."""
    parts = parse(name)
    return (parts.board, parts.size_gb, parts.slices or 0, name) if parts else ("", 0, 0, name)


def figure(slots: Slots) -> str:
    """`3`, `3 to 4`, `at least 3`, `?`."""
    if slots.at_most is None:
        return f"at least {slots.at_least}" if slots.at_least else "?"
    return str(slots.at_most) if slots.exact else f"{slots.at_least} to {slots.at_most}"


def _devices(vm: Vm) -> str:
    """`2 x vGPU grid_a40-8q, DirectPath 0000:3b:00.0`."""
    if vm.devices is None:
        return "not read"
    texts: dict[str, int] = {}
    for device in vm.devices:
        text = f"vGPU {device.profile}" if isinstance(device, VgpuDevice) else describe(device)
        texts[text] = texts.get(text, 0) + 1
    return ", ".join(text if number == 1 else f"{number} x {text}" for text, number in texts.items()) or "none"


def fleet_document(fleet: Fleet, limit: int | None = None) -> Document:
    """Hosts > NUMA nodes > GPUs > free profiles and holders, and the VMs with GPU devices; both made as they are read.

    With a limit there are so many hosts and VMs at most, and two keys say how many more there are.
    """
    inventory = fleet.inventory
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "inventory",
        "vcenter": inventory.vcenter,
        "api_version": inventory.api_version,
        "read_at": inventory.taken_at.isoformat(),
        "hosts": _host_documents(fleet, limit),
        "hosts_without_gpus": fleet.hosts_without_gpus,
        "vms": _vm_documents(fleet, limit),
        "vms_total": len(inventory.vms),
    }
    if limit is not None:
        document["hosts_left_out"] = max(fleet.host_count + len(fleet.device_hosts) - limit, 0)
        document["vms_left_out"] = max(len(fleet.vms_with_devices) - limit, 0)
    return document


def _host_documents(fleet: Fleet, limit: int | None) -> Iterator[Document]:
    yield from map(_host_document, (*fleet.hosts, *fleet.device_hosts)[:limit])


def _vm_documents(fleet: Fleet, limit: int | None) -> Iterator[Document]:
    yield from (_vm(vm, fleet.inventory) for vm in fleet.vms_with_devices[:limit])


def _host_document(view: HostView) -> Document:
    host = view.host
    return {
        "ref": host.ref,
        "name": host.name,
        "cluster": view.cluster,
        "version": host.version,
        "connected": host.connected,
        "in_maintenance": host.in_maintenance,
        "memory_mib": host.memory_mib,
        "memory_used_mib": host.memory_used_mib,
        "cpu_cores": host.cpu_cores,
        "cpu_threads": host.cpu_threads,
        "assignment_policy": host.assignment_policy,
        "numa_nodes": [_node_document(node) for node in view.nodes],
        "other_devices": [_other(other) for other in view.others],
        "profiles": _profiles(view),
        "vms_not_on_a_gpu": [_named(vm) for vm in view.waiting],
        "unreadable": list(host.unreadable),
    }


def _profiles(view: HostView) -> list[Document] | None:
    if view.host.profiles is None:
        return None
    return [
        {
            "name": offered.name,
            "free": _slots(view.free[offered.name]) if offered.name in view.free else None,
            "suspend": offered.suspend,
            "migrate": offered.migrate,
            "disk_snapshot": offered.disk_snapshot,
            "memory_snapshot": offered.memory_snapshot,
        }
        for offered in view.host.profiles
    ]


def _node_document(view: NodeView) -> Document:
    return {
        "id": view.node.id if view.node else None,
        "logical_cpus": view.node.logical_cpus if view.node else None,
        "memory_mib": view.node.memory_mib if view.node else None,
        "gpus": [_gpu(gpu) for gpu in view.gpus],
    }


def _gpu(view: GpuView) -> Document:
    gpu = view.gpu
    return {
        "address": str(gpu.address),
        "name": gpu.name,
        "vendor_id": f"{gpu.vendor_id:04x}",
        "device_id": f"{gpu.device_id:04x}",
        "subsystem_id": None if gpu.subsystem_id is None else f"{gpu.subsystem_id:04x}",
        "memory_mib": gpu.memory_mib,
        "mode": view.mode,
        "graphics_type": gpu.graphics_type,
        "configured_graphics_type": gpu.configured_graphics_type,
        "vgpu_mode": gpu.vgpu_mode,
        "passthrough_enabled": gpu.passthrough.enabled if gpu.passthrough else None,
        "passthrough_active": gpu.passthrough.active if gpu.passthrough else None,
        "reboot_pending": view.reboot_pending,
        "health": GpuHealthRecord.made_of(gpu.health) if gpu.health is not None else None,
        "holders": None if view.holders is None else [_named(vm) for vm in view.holders],
        "free": {name: _slots(slots) for name, slots in view.free.items()},
    }


def _other(view: OtherView) -> Document:
    device, state = view.device, view.device.passthrough
    return {
        "address": str(device.address),
        "name": device.name,
        "device_kind": device.kind,
        "vendor_id": f"{device.vendor_id:04x}",
        "device_id": f"{device.device_id:04x}",
        "subsystem_id": None if device.subsystem_id is None else f"{device.subsystem_id:04x}",
        "memory_mib": device.memory_mib,
        "numa_node": device.numa_node,
        "mode": view.mode,
        "passthrough_enabled": state.enabled if state else None,
        "passthrough_active": state.active if state else None,
        "label": state.label if state else None,
        "reboot_pending": view.reboot_pending,
        "holders": [_named(vm) for vm in view.holders],
    }


def _slots(slots: Slots) -> Document:
    return {"at_least": slots.at_least, "at_most": slots.at_most, "because": slots.because}


def _vm(vm: Vm, inventory: Inventory) -> Document:
    host = inventory.host_of(vm)
    return {
        "ref": vm.ref,
        "name": vm.name,
        "path": vm.path,
        "instance_uuid": vm.instance_uuid,
        "host": host.name if host else None,
        "power": vm.power,
        "vcpus": vm.vcpus,
        "memory_mib": vm.memory_mib,
        "firmware": vm.firmware,
        "hardware_version": vm.hardware_version,
        "memory_locked": vm.memory_locked,
        "attributes": dict(vm.attributes),
        "managed_by": None if vm.managed_by is None else vm.managed_by.extension,
        "devices": None if vm.devices is None else [_device(device) for device in vm.devices],
        "unreadable": list(vm.unreadable),
    }


def _device(device: GpuDevice) -> Document:
    match device:
        case VgpuDevice(profile=profile, numa_node=node):
            facts: Document = {"profile": profile, "numa_node": node}
        case DirectPathDevice(address=address, vendor_id=vendor, device_id=identifier):
            facts = {"address": str(address), "vendor_id": f"{vendor:04x}", "device_id": f"{identifier:04x}"}
        case DynamicDevice(allowed=allowed, label=label, assigned=assigned):
            facts = {"allowed": [f"{vendor:04x}:{identifier:04x}" for vendor, identifier in allowed], "label": label}
            facts["assigned"] = str(assigned) if assigned else None
        case OtherPassthrough(label=label, unreadable=unreadable):
            facts = {"label": label, "unreadable": unreadable}
        case _:
            assert_never(device)
    return {"kind": device.kind, "key": device.key, **facts}


def _named(vm: Vm) -> Document:
    return {"ref": vm.ref, "name": vm.name}
