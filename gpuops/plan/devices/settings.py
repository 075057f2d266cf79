"""The reconfigure that gives a VM its devices and the settings they need, and the baseline of earlier settings.

Sources: VMware vSphere docs: full memory reservation for every passthrough device, 64-bit MMIO for large BARs, and
vNUMA only while CPU hot-add is off; `numa.nodeAffinity` of vSphere Resource Management.

Problem: detach must restore exactly what attach changed, perhaps months later and from another machine. Choice: the
earlier values are stored with the VM (the extraConfig key `gpuops.baseline`, JSON) by the same reconfigure that changes
them, so that no value is ever changed without being stored. A stored value is never overwritten: a second attach adds
only what the first did not change. The key is removed together with the last passthrough device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from gpuops.model.devices.catalog import Catalog
from gpuops.model.stored import from_stored, stored_as, to_stored
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.passthru_devices import signatures
from gpuops.plan.core.steps import NewDevice, NewVgpu, VmChange
from gpuops.plan.devices.goal import Goal, find_stale_entries, kept_pins, pin_changes
from gpuops.plan.devices.rules import mmio_for, mmio_keys
from gpuops.plan.placement.host_filters import AFFINITY_KEY, affinity
from gpuops.plan.placement.vm_demand import Placement

KEY: Final = "gpuops.baseline"
_VERSION: Final = 1
_Setting = TypeVar("_Setting", bool, int)
_BOOLEAN, _INTEGER = (bool, type(None)), (int, type(None))


@stored_as("Baseline")
@dataclass(frozen=True, slots=True)
class Baseline:
    """Settings before gpuops changed them; None = not changed, so nothing to restore."""

    memory_locked: bool | None = None
    memory_reservation_mib: int | None = None
    cpu_hot_add: bool | None = None
    cores_per_numa_node: int | None = None
    extra_config: Mapping[str, str] = field(default_factory=dict)
    """An empty string = the key did not exist."""


def read(vm: Vm) -> Baseline | None:
    """Return the earlier settings stored with the VM; None if the key exists, but gpuops did not write its text."""
    text = (vm.extra_config or {}).get(KEY, "")
    if not text:
        return Baseline()
    try:
        fields = json.loads(text)
        version = fields.pop("v")
        baseline = from_stored(Baseline, fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return baseline if version == _VERSION and _has_valid_types(baseline) else None


def write(baseline: Baseline) -> str:
    """Return the text to store under `KEY`. It is equal for equal settings."""
    fields = {name: setting for name, setting in to_stored(baseline).items() if setting is not None}
    return json.dumps({"v": _VERSION, **fields}, sort_keys=True, separators=(",", ":"))


def with_baseline(vm: Vm, change: VmChange) -> VmChange:
    """Return the change, extended so that it also stores the settings it changes. Stored settings stay as they are."""
    old, new = read(vm), _current_settings(vm, change)
    if old is None or new == Baseline():
        # Nothing to keep, or a text that gpuops did not write and must not overwrite.
        return change
    merged = Baseline(
        memory_locked=_stored_or_new(old.memory_locked, new.memory_locked),
        memory_reservation_mib=_stored_or_new(old.memory_reservation_mib, new.memory_reservation_mib),
        cpu_hot_add=_stored_or_new(old.cpu_hot_add, new.cpu_hot_add),
        cores_per_numa_node=_stored_or_new(old.cores_per_numa_node, new.cores_per_numa_node),
        extra_config={**new.extra_config, **old.extra_config},
    )
    return change if merged == old else replace(change, extra_config={**change.extra_config, KEY: write(merged)})


def restore_settings(vm: Vm, *, memory_too: bool) -> VmChange:
    """Return the change that restores the stored settings and removes the key.

    Settings that already have their old value are left out. Without `memory_too` the memory stays fully reserved. The
    change is empty if the stored settings cannot be read.
    """
    baseline = read(vm)
    if baseline is None:
        return VmChange()
    extra_config = vm.extra_config or {}
    # An empty text removes a key. So below, a key that the VM does not have equals an empty text.
    old_config = {**baseline.extra_config, KEY: ""}
    reservation_mib = baseline.memory_reservation_mib
    if reservation_mib is not None and vm.memory_mib is not None:
        # The VM may have been given less memory since: a reservation above its size is refused.
        reservation_mib = min(reservation_mib, vm.memory_mib)
    return VmChange(
        extra_config={key: text for key, text in old_config.items() if extra_config.get(key, "") != text},
        memory_locked=_none_if_equal(baseline.memory_locked, vm.memory_locked) if memory_too else None,
        memory_reservation_mib=_none_if_equal(reservation_mib, vm.memory_reservation_mib) if memory_too else None,
        cpu_hot_add=_none_if_equal(baseline.cpu_hot_add, vm.cpu_hot_add),
        cores_per_numa_node=_none_if_equal(baseline.cores_per_numa_node, vm.cores_per_numa_node),
    )


def _current_settings(vm: Vm, change: VmChange) -> Baseline:
    """Return the current values of the settings that the change would change."""
    extra_config = vm.extra_config or {}
    locking = change.memory_locked is not None
    return Baseline(
        # Unset means off (vSphere API, memoryReservationLockedToMax).
        memory_locked=bool(vm.memory_locked) if locking else None,
        # A locked reservation follows the memory size: the number before would be lost.
        memory_reservation_mib=vm.memory_reservation_mib if locking else None,
        cpu_hot_add=None if change.cpu_hot_add is None else vm.cpu_hot_add,
        cores_per_numa_node=None if change.cores_per_numa_node is None else vm.cores_per_numa_node,
        # an empty text is stored for a key that the VM does not have: it is removed again later
        extra_config={key: extra_config.get(key, "") for key in change.extra_config},
    )


def _stored_or_new(stored: _Setting | None, new: _Setting | None) -> _Setting | None:
    return new if stored is None else stored


def _none_if_equal(before: _Setting | None, now: _Setting | None) -> _Setting | None:
    return None if before == now else before


def _has_valid_types(baseline: Baseline) -> bool:
    return (
        isinstance(baseline.memory_locked, _BOOLEAN)
        and isinstance(baseline.memory_reservation_mib, _INTEGER)
        and isinstance(baseline.cpu_hot_add, _BOOLEAN)
        and isinstance(baseline.cores_per_numa_node, _INTEGER)
        and isinstance(baseline.extra_config, dict)
        and all(isinstance(setting, str) for setting in baseline.extra_config.values())
    )


VNUMA_HARDWARE: Final = 20
"""Oldest virtual hardware with `virtualNuma` and `VirtualDevice.numaNode` (vSphere API 8.0)."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """The input of a change: the VM, its future devices, and the place found for them."""

    vm: Vm
    goal: Goal
    placement: Placement
    numa: NumaPolicy
    catalog: Catalog

    @property
    def moved(self) -> bool:
        return self.placement.host.ref != self.vm.host


def change_of(fitting: Fitting) -> VmChange:
    """Return the complete change, including the old settings to keep; empty if nothing has to change."""
    vm, goal, placement = fitting.vm, fitting.goal, fitting.placement
    extra_config = vm.extra_config or {}
    mmio = mmio_for(goal.devices, placement.host, fitting.catalog)
    new_config = mmio_keys(mmio, extra_config)
    # Bind the VM to the nodes if that is required. If it was bound on its old host, its nodes have other numbers now.
    old_nodes, nodes = extra_config.get(AFFINITY_KEY, ""), affinity(placement.local_nodes)
    if (fitting.numa is NumaPolicy.REQUIRED or (fitting.moved and old_nodes)) and nodes != old_nodes:
        new_config[AFFINITY_KEY] = nodes
    # Do not overwrite a coresPerNumaNode that an admin set.
    sized_by_admin = vm.cores_per_numa_node != 0
    change = VmChange(
        add=tuple(_with_numa_node(ordinal, device, fitting) for ordinal, device in goal.numbered_additions),
        remove=tuple(device.key for device in goal.removed),
        replace_profile=goal.edited,
        device_group=goal.device_group,
        extra_config={**new_config, **_pins(fitting)},
        memory_locked=None if vm.memory_locked else True,
        cpu_hot_add=False if vm.cpu_hot_add else None,
        cores_per_numa_node=None if sized_by_admin else _virtual_cores(vm, placement, fitting.numa),
        devices_after=None if goal.unchanged else signatures(goal.devices),
    )
    return with_baseline(vm, change)


def warnings_of(fitting: Fitting) -> tuple[str, ...]:
    """Return the side effects of the change, one line each."""
    vm, placement = fitting.vm, fitting.placement
    own_host = placement.host if not fitting.moved else None
    replaced = [reason for device, reason in find_stale_entries(vm, own_host) if device in fitting.goal.removed]
    warnings = [f"{vm.name}: {reason}: gpuops replaces the entry" for reason in replaced]
    unknown = mmio_for(fitting.goal.devices, placement.host, fitting.catalog).unknown
    if unknown:
        warnings.append(f"the MMIO space that {', '.join(unknown)} needs is not known: gpuops does not change it")
    if fitting.numa is NumaPolicy.REQUIRED:
        warnings.append(numa_binding_text([vm.name], nodes_of(placement)))
    if placement.numa_nodes:  # the VM is larger than a NUMA node: the warning describes how it is spread over nodes
        warnings.append(numa_spread_text(vm, placement, fitting.numa))
    if fitting.moved and (vm.extra_config or {}).get(AFFINITY_KEY) and fitting.numa is not NumaPolicy.REQUIRED:
        new_place = f"now {nodes_of(placement)}" if placement.local_nodes else "removed"
        warnings.append(f"{AFFINITY_KEY} of {vm.name} was for the old host: it is {new_place}")
    if vm.cpu_hot_add is None and fitting.numa is not NumaPolicy.NONE:
        warnings.append(
            f"CPU hot-add of {vm.name} cannot be read and is left as it is; if it is on, the guest sees no vNUMA"
        )
    return tuple(warnings)


def nodes_of(placement: Placement) -> str:
    """Return the VM's NUMA nodes as text: `NUMA node 0 of esx-01`, `NUMA nodes 0, 1 of esx-01`."""
    nodes = placement.local_nodes
    return f"NUMA node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))} of {placement.host.name}"


def numa_binding_text(names: Sequence[str], where: str) -> str:
    """Describe what binding VMs to NUMA nodes costs (VMware vSphere Resource Management, NUMA node affinity)."""
    return (
        f"{AFFINITY_KEY} binds {', '.join(names)} to {where}: ESXi no longer balances it over nodes, memory beyond the "
        "node is remote, and DRS and vMotion ignore that the same number is another node on another host"
    )


def numa_spread_text(vm: Vm, placement: Placement, numa: NumaPolicy) -> str:
    """Describe how a VM that is larger than a NUMA node is spread over nodes."""
    node_count, gpu_text = len(placement.numa_nodes), f"its GPUs are on {nodes_of(placement)}"
    cores, size_text = _virtual_cores(vm, placement, numa), f"{vm.name} is wider than a NUMA node"
    if cores is not None:
        return f"{size_text}: coresPerNumaNode {cores} shows the guest {node_count} nodes, {gpu_text}"
    if vm.vcpus is None or vm.vcpus % node_count:
        return f"{size_text}; {vm.vcpus} vCPUs do not divide by {node_count}, so ESXi chooses its vNUMA"
    if not _has_vnuma(vm):
        version = "an unknown version" if vm.hardware_version is None else f"vmx-{vm.hardware_version}"
        needed = f"coresPerNumaNode needs vmx-{VNUMA_HARDWARE}, and it has {version}"
        return f"{size_text}; {needed}, so ESXi chooses its vNUMA; {gpu_text}"
    current = "cannot be read" if vm.cores_per_numa_node is None else f"is set to {vm.cores_per_numa_node}"
    node_text = f"{vm.vcpus // node_count} would show its {node_count} nodes"
    return f"{size_text}; its coresPerNumaNode {current} and is not changed, {node_text}; {gpu_text}"


def _with_numa_node(ordinal: int, device: NewDevice, fitting: Fitting) -> NewDevice:
    """Assign a new vGPU to the virtual NUMA node that is on the physical node of its GPU."""
    cores = _virtual_cores(fitting.vm, fitting.placement, fitting.numa)
    if not isinstance(device, NewVgpu) or cores is None:
        return device
    gpu = fitting.placement.host.gpu(seat) if (seat := fitting.placement.seats.get(ordinal)) else None
    nodes = fitting.placement.local_nodes
    number = nodes.index(gpu.numa_node) if gpu and gpu.numa_node in nodes else 0
    return replace(device, numa_node=number)


def _virtual_cores(vm: Vm, placement: Placement, numa: NumaPolicy) -> int | None:
    """Return the cores of each virtual node if the VM gets as many virtual as physical nodes; None = ESXi decides."""
    nodes = placement.local_nodes
    if numa is NumaPolicy.NONE or not nodes or vm.vcpus is None or vm.vcpus % len(nodes) or not _has_vnuma(vm):
        return None
    cores = vm.vcpus // len(nodes)
    return cores if vm.cores_per_numa_node in (0, cores) else None


def _has_vnuma(vm: Vm) -> bool:
    return vm.hardware_version is not None and vm.hardware_version >= VNUMA_HARDWARE


def _pins(fitting: Fitting) -> dict[str, str]:
    """Return the pin keys to change. A pinned vGPU that moves is pinned to its GPU on the new host."""
    pins = kept_pins(fitting.vm, fitting.goal)
    if fitting.moved:
        pins = {ordinal: seat for ordinal in pins if (seat := fitting.placement.seats.get(ordinal)) is not None}
    return pin_changes(fitting.vm, {**pins, **fitting.placement.pins})
