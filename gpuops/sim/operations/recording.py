"""The facts of a VM that the ledger compares, and the record of what an operation changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuops.sim.state.vm_state import (
    DvxBacking,
    DynamicBacking,
    PciDevice,
    SriovBacking,
    StaticBacking,
    VgpuBacking,
    VmState,
)

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity


def facts(vm: VmState) -> dict[str, Any]:
    """Return the values of a VM that the ledger compares before and after an operation, as plain JSON values."""
    return {
        "name": vm.name,
        "host": vm.host,
        "folder": vm.folder,
        "power": vm.power.value,
        "suspend_time": vm.suspend_time.isoformat() if vm.suspend_time else None,
        "template": vm.is_template,
        "cpus": vm.cpus,
        "cores_per_socket": vm.cores_per_socket,
        "memory_mib": vm.memory_mib,
        "memory_reservation_mib": vm.reserved_mib,
        "memory_locked": vm.memory_locked,
        "cpu_reservation_mhz": vm.cpu_reservation_mhz,
        "cpu_hot_add": vm.cpu_hot_add,
        "memory_hot_add": vm.memory_hot_add,
        "cores_per_numa_node": vm.cores_per_numa_node,
        "firmware": vm.firmware,
        "boot": asdict(vm.boot),
        "hardware_version": vm.hardware_version,
        "settings": dict(vm.settings),
        "annotation": vm.annotation,
        "managed_by": vm.managed_by[0] if vm.managed_by else None,
        "latency": vm.latency,
        "devices": [_device_facts(device) for device in vm.devices],
        "hardware": [str(part) for part in vm.hardware.parts()],
        "extra_config": dict(vm.extra_config),
        "gpus": [{"gpu": seat.pci_id, "profile": seat.type.name, "start": seat.start} for seat in vm.seats],
        "direct_path": dict(vm.held),
        "question": vm.question.id if vm.question else None,
        "snapshots": [snapshot.name for snapshot in vm.snapshots],
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (before, after) with only the keys whose values differ."""
    keys = [key for key in after if before.get(key) != after[key]]
    return {key: before.get(key) for key in keys}, {key: after[key] for key in keys}


def _device_facts(device: PciDevice) -> dict[str, Any]:
    """Return the key of a device and the kind and main value of its backing."""
    match device.backing:
        case VgpuBacking(type_name):
            facts: dict[str, Any] = {"vgpu": type_name}
        case StaticBacking(pci_id):
            facts = {"direct_path": pci_id}
        case DynamicBacking(allowed, label):
            facts = {"dynamic": [f"{vendor:04x}:{device_id:04x}" for vendor, device_id in allowed], "label": label}
        case DvxBacking(device_class):
            facts = {"dvx": device_class}
        case SriovBacking(physical_function):
            facts = {"sriov": physical_function}
    return {"key": device.key, **facts}


@contextmanager
def recorded(vm: VmEntity, call: Call) -> Iterator[None]:
    """Record in the ledger what the `with` block changes in the VM's state, unless it raises or changes nothing."""
    before = facts(vm.state)
    yield
    old, new = changed(before, facts(vm.state))
    if new:
        vm.world.ledger.record(call, vm, before=old, after=new)
