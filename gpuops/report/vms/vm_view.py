"""A VM as Ansible's facts and diffs show it: only what gpuops reads and changes.

Fields that cannot be predicted (device keys, the device assigned to a Dynamic DirectPath device) are left out, so that
the prediction of check mode equals what is read afterwards, field by field.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import NEW_VM
from gpuops.report.device_text import describe_device
from gpuops.report.document import Document
from gpuops.report.step_changes import host_name

_GPUOPS_PREFIXES: Final = ("pciPassthru", "gpuops.")
"""Prefixes of the extraConfig keys that gpuops writes. Others are left out: guestinfo.* may contain secrets."""


def vm_state(vm: Vm, inventory: Inventory) -> Document:
    """Return the state of a VM. None means unknown, never off or zero."""
    return {
        "name": vm.name,
        "moid": None if vm.ref.startswith(NEW_VM) else vm.ref,
        "path": vm.path,
        "instance_uuid": vm.instance_uuid,
        "host": host_name(vm.host, inventory),
        "power": vm.power.value if vm.power else None,
        "vcpus": vm.vcpus,
        "memory_mib": vm.memory_mib,
        "hardware_version": vm.hardware_version,
        "firmware": vm.firmware.value if vm.firmware else None,
        "devices": None if vm.devices is None else [describe_device(device) for device in vm.devices],
        "profiles": None if vm.devices is None else list(vm.profiles),
        "memory_reserved_mib": vm.memory_reservation_mib,
        "all_memory_reserved": vm.memory_locked,
        "cpu_hot_add": vm.cpu_hot_add,
        "cores_per_numa_node": vm.cores_per_numa_node,
        "settings": None if vm.extra_config is None else _settings(vm),
        "attributes": {name: text for name, text in sorted(vm.attributes.items()) if text},
    }


def differences(refs: Iterable[str], before: Inventory, after: Inventory) -> list[Document]:
    """Return Ansible's diff: for each of these VMs that differs, the fields that differ, before and after."""
    diffs = []
    for ref in dict.fromkeys(refs):
        state_before, state_after = (
            vm_state(side.vms[ref], side) if ref in side.vms else {} for side in (before, after)
        )
        changed = [key for key in {**state_before, **state_after} if state_before.get(key) != state_after.get(key)]
        if changed:
            name = str((state_before or state_after)["name"])
            # the keys of Ansible's `diff` result
            diffs.append(
                {
                    "before_header": name,
                    "after_header": name,
                    "before": {key: state_before.get(key) for key in changed},
                    "after": {key: state_after.get(key) for key in changed},
                }
            )
    return diffs


def _settings(vm: Vm) -> dict[str, str]:
    settings = sorted((vm.extra_config or {}).items())
    return {key: setting for key, setting in settings if key.startswith(_GPUOPS_PREFIXES) and setting}
