"""An inventory as the versioned JSON document: the contract for programs. null = unknown, never off, free or zero."""

from __future__ import annotations

from typing import assert_never

from gpuops.advise.capacity import Slots
from gpuops.model.inventory import Inventory
from gpuops.model.vm import DirectPathDevice, DynamicDevice, GpuDevice, OtherPassthrough, VgpuDevice, Vm
from gpuops.report.fleet import Fleet, GpuView, HostView, NodeView
from gpuops.report.plan_json import SCHEMA_VERSION, Document


def fleet_document(fleet: Fleet) -> Document:
    """Hosts > NUMA nodes > GPUs > free profiles and holders, and the VMs with GPU devices."""
    inventory = fleet.inventory
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "inventory",
        "vcenter": inventory.vcenter,
        "api_version": inventory.api_version,
        "read_at": inventory.taken_at.isoformat(),
        "hosts": [_host(view) for view in fleet.hosts],
        "hosts_without_gpus": fleet.hosts_without_gpus,
        "vms": [_vm(vm, inventory) for vm in fleet.vms],
        "vms_total": len(inventory.vms),
    }


def _host(view: HostView) -> Document:
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
        "numa_nodes": [_node(node) for node in view.nodes],
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


def _node(view: NodeView) -> Document:
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
        "holders": None if view.holders is None else [_named(vm) for vm in view.holders],
        "free": {name: _slots(slots) for name, slots in view.free.items()},
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
        case OtherPassthrough(label=label):
            facts = {"label": label}
        case _:
            assert_never(device)
    return {"kind": device.kind, "key": device.key, **facts}


def _named(vm: Vm) -> Document:
    return {"ref": vm.ref, "name": vm.name}
