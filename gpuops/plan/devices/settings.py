"""The reconfigure that gives a VM its devices and the settings that they need.

Sources: VMware vSphere docs: full memory reservation for every passthrough device, 64-bit MMIO for large BARs, and
vNUMA only while CPU hot-add is off; `numa.nodeAffinity` of vSphere Resource Management.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.passthru_devices import signatures
from gpuops.plan.core.steps import NewDevice, NewVgpu, VmChange
from gpuops.plan.devices.baseline import kept_with
from gpuops.plan.devices.goal import Goal, kept_pins, pin_changes
from gpuops.plan.devices.mmio import mmio_for, mmio_keys
from gpuops.plan.devices.stale_entries import find_stale_entries
from gpuops.plan.placement.numa_nodes import AFFINITY_KEY, affinity
from gpuops.plan.placement.vm_demand import Placement

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
    vm, goal = fitting.vm, fitting.goal
    mmio = mmio_for(goal.devices, fitting.placement.host, fitting.catalog)
    change = VmChange(
        add=tuple(_on_node(ordinal, device, fitting) for ordinal, device in goal.numbered_additions),
        remove=tuple(device.key for device in goal.removed),
        replace_profile=goal.edited,
        device_group=goal.device_group,
        extra_config={**mmio_keys(mmio, vm.extra_config or {}), **_affinity(fitting), **_pins(fitting)},
        memory_locked=None if vm.memory_locked else True,
        cpu_hot_add=False if vm.cpu_hot_add else None,
        cores_per_numa_node=_cores_per_node(fitting),
        devices_after=None if goal.unchanged else signatures(goal.devices),
    )
    return kept_with(vm, change)


def warnings_of(fitting: Fitting) -> tuple[str, ...]:
    """Return the side effects of the change, one line each."""
    vm, placement = fitting.vm, fitting.placement
    own_host = placement.host if not fitting.moved else None
    replaced = [reason for device, reason in find_stale_entries(vm, own_host) if device in fitting.goal.removed]
    warnings = [f"{vm.name}: {reason}: it is replaced" for reason in replaced]
    unknown = mmio_for(fitting.goal.devices, placement.host, fitting.catalog).unknown
    if unknown:
        warnings.append(f"the MMIO space for {', '.join(unknown)} is not known: it is left as it is")
    if fitting.numa is NumaPolicy.REQUIRED:
        warnings.append(trade_off([vm.name], nodes_of(placement)))
    if placement.numa_nodes:
        warnings.append(wider(vm, placement, fitting.numa))
    if fitting.moved and (vm.extra_config or {}).get(AFFINITY_KEY) and fitting.numa is not NumaPolicy.REQUIRED:
        warnings.append(f"{AFFINITY_KEY} was for the old host: it is {_rebound(fitting)}")
    if vm.cpu_hot_add is None and fitting.numa is not NumaPolicy.NONE:
        warnings.append(
            f"CPU hot-add of {vm.name} cannot be read and is left as it is; if it is on, the guest sees no vNUMA"
        )
    return tuple(warnings)


def nodes_of(placement: Placement) -> str:
    """`NUMA node 0 of esx-01`, `NUMA nodes 0, 1 of esx-01`."""
    nodes = placement.bound_to
    return f"NUMA node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))} of {placement.host.name}"


def trade_off(names: Sequence[str], where: str) -> str:
    """Describe what binding VMs to NUMA nodes costs (VMware vSphere Resource Management, NUMA node affinity)."""
    return (
        f"{AFFINITY_KEY} binds {', '.join(names)} to {where}: ESXi no longer balances it over nodes, memory beyond the "
        "node is remote, and the number means another place on another host, which neither DRS nor vMotion looks at"
    )


def wider(vm: Vm, placement: Placement, numa: NumaPolicy) -> str:
    """Describe how a VM that is larger than a NUMA node is spread over nodes."""
    count, gpus = len(placement.numa_nodes), f"its GPUs are on {nodes_of(placement)}"
    cores, wide = _virtual_cores(vm, placement, numa), f"{vm.name} is wider than a NUMA node"
    if cores is not None:
        return f"{wide}: coresPerNumaNode {cores} shows the guest {count} nodes, {gpus}"
    if vm.vcpus is None or vm.vcpus % count:
        return f"{wide}; {vm.vcpus} vCPUs do not divide by {count}: its vNUMA is left to ESXi"
    if not _has_vnuma(vm):
        has = "unknown" if vm.hardware_version is None else f"vmx-{vm.hardware_version}"
        return f"{wide}; coresPerNumaNode needs vmx-{VNUMA_HARDWARE}, it has {has}: its vNUMA is left to ESXi, {gpus}"
    current = "cannot be read" if vm.cores_per_numa_node is None else f"is set to {vm.cores_per_numa_node}"
    return f"{wide}; its coresPerNumaNode {current} and stays, {vm.vcpus // count} would show its {count} nodes; {gpus}"


def _on_node(ordinal: int, device: NewDevice, fitting: Fitting) -> NewDevice:
    """Assign a new vGPU to the virtual NUMA node that is on the physical node of its GPU."""
    cores = _virtual_cores(fitting.vm, fitting.placement, fitting.numa)
    if not isinstance(device, NewVgpu) or cores is None:
        return device
    gpu = fitting.placement.host.gpu(seat) if (seat := fitting.placement.seats.get(ordinal)) else None
    nodes = fitting.placement.bound_to
    number = nodes.index(gpu.numa_node) if gpu and gpu.numa_node in nodes else 0
    return replace(device, numa_node=number)


def _cores_per_node(fitting: Fitting) -> int | None:
    """Return the cores of each virtual NUMA node for a VM next to its GPUs; None if an admin set coresPerNumaNode."""
    sized_by_admin = fitting.vm.cores_per_numa_node != 0
    return None if sized_by_admin else _virtual_cores(fitting.vm, fitting.placement, fitting.numa)


def _virtual_cores(vm: Vm, placement: Placement, numa: NumaPolicy) -> int | None:
    """Return the cores of each virtual node if the VM gets as many virtual as physical nodes; None = ESXi decides."""
    nodes = placement.bound_to
    if numa is NumaPolicy.NONE or not nodes or vm.vcpus is None or vm.vcpus % len(nodes) or not _has_vnuma(vm):
        return None
    cores = vm.vcpus // len(nodes)
    return cores if vm.cores_per_numa_node in (0, cores) else None


def _has_vnuma(vm: Vm) -> bool:
    return vm.hardware_version is not None and vm.hardware_version >= VNUMA_HARDWARE


def _affinity(fitting: Fitting) -> dict[str, str]:
    current_nodes = (fitting.vm.extra_config or {}).get(AFFINITY_KEY, "")
    nodes = affinity(fitting.placement.bound_to)
    if fitting.numa is NumaPolicy.REQUIRED or (fitting.moved and current_nodes):
        return {} if nodes == current_nodes else {AFFINITY_KEY: nodes}
    return {}


def _rebound(fitting: Fitting) -> str:
    return f"now {nodes_of(fitting.placement)}" if fitting.placement.bound_to else "removed"


def _pins(fitting: Fitting) -> dict[str, str]:
    """Return the pin keys to change. A pinned vGPU that moves is pinned to its GPU on the new host."""
    pins = kept_pins(fitting.vm, fitting.goal)
    if fitting.moved:
        pins = {ordinal: seat for ordinal in pins if (seat := fitting.placement.seats.get(ordinal)) is not None}
    return pin_changes(fitting.vm, {**pins, **fitting.placement.pins})
