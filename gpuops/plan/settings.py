"""Settings: the one reconfigure that brings a VM its devices and all that must go with them.

Sources: VMware vSphere docs: full memory reservation for every passthrough device, 64-bit MMIO for large BARs, and
vNUMA only while CPU hot-add is off; `numa.nodeAffinity` of vSphere Resource Management.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gpuops.model.catalog import Catalog
from gpuops.model.numa import NumaPolicy
from gpuops.model.vm import Vm
from gpuops.plan.baseline import kept_with
from gpuops.plan.devices import signatures
from gpuops.plan.goal import Goal
from gpuops.plan.mmio import mmio_for, mmio_keys
from gpuops.plan.pins import kept_pins, pin_changes
from gpuops.plan.placement.nodes import AFFINITY_KEY
from gpuops.plan.placement.wanted import Placement
from gpuops.plan.steps import NewDevice, NewVgpu, VmChange

VNUMA_HARDWARE: Final = 20
"""Oldest virtual hardware with `virtualNuma` and `VirtualDevice.numaNode` (vSphere API 8.0)."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """What a change is made of: the VM, the devices it is to have, and the place found for them."""

    vm: Vm
    goal: Goal
    placement: Placement
    numa: NumaPolicy
    catalog: Catalog

    @property
    def moved(self) -> bool:
        return self.placement.host.ref != self.vm.host


def change_of(fitting: Fitting) -> VmChange:
    """The whole change, with the values before it kept beside; empty when the VM is as it should be."""
    vm, goal = fitting.vm, fitting.goal
    mmio = mmio_for(goal.devices, fitting.placement.host, fitting.catalog)
    change = VmChange(
        add=tuple(_on_node(device, fitting) for device in goal.add),
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
    """What the change means beyond its purpose, one line each."""
    vm, placement = fitting.vm, fitting.placement
    found = []
    unknown = mmio_for(fitting.goal.devices, placement.host, fitting.catalog).unknown
    if unknown:
        found.append(f"the MMIO space for {', '.join(unknown)} is not known: it is left as it is")
    if fitting.numa is NumaPolicy.REQUIRED:
        found.append(
            f"{AFFINITY_KEY} binds {vm.name} to NUMA node {placement.numa_node} of {placement.host.name}: "
            "ESXi no longer balances it over nodes, and the number means another place on another host"
        )
    if fitting.moved and (vm.extra_config or {}).get(AFFINITY_KEY) and fitting.numa is not NumaPolicy.REQUIRED:
        found.append(f"{AFFINITY_KEY} was for the old host: it is {_rebound(fitting)}")
    if vm.cpu_hot_add is None and fitting.numa is not NumaPolicy.NONE:
        found.append(
            f"CPU hot-add of {vm.name} cannot be read and is left as it is; if it is on, the guest sees no vNUMA"
        )
    return tuple(found)


def _on_node(device: NewDevice, fitting: Fitting) -> NewDevice:
    """A new vGPU shown to the guest on its only virtual node, where the VM has one and the GPU is beside it."""
    if isinstance(device, NewVgpu) and _one_virtual_node(fitting):
        return replace(device, numa_node=0)
    return device


def _cores_per_node(fitting: Fitting) -> int | None:
    """All vCPUs on one virtual node, for a VM that fits beside its GPU and whose nodes nobody has sized by hand."""
    vm = fitting.vm
    return vm.vcpus if _one_virtual_node(fitting) and vm.cores_per_numa_node == 0 else None


def _one_virtual_node(fitting: Fitting) -> bool:
    vm = fitting.vm
    if fitting.numa is NumaPolicy.NONE or fitting.placement.numa_node is None or vm.vcpus is None:
        return False
    sized = vm.cores_per_numa_node in (0, vm.vcpus)
    return sized and vm.hardware_version is not None and vm.hardware_version >= VNUMA_HARDWARE


def _affinity(fitting: Fitting) -> dict[str, str]:
    there = (fitting.vm.extra_config or {}).get(AFFINITY_KEY, "")
    node = fitting.placement.numa_node
    if fitting.numa is NumaPolicy.REQUIRED:
        wanted = str(node)
    elif fitting.moved and there:
        wanted = "" if node is None else str(node)
    else:
        return {}
    return {} if wanted == there else {AFFINITY_KEY: wanted}


def _rebound(fitting: Fitting) -> str:
    node = fitting.placement.numa_node
    return "removed" if node is None else f"now node {node} of {fitting.placement.host.name}"


def _pins(fitting: Fitting) -> dict[str, str]:
    """Pin entries that differ from what they must be. A pinned vGPU that moves is pinned to its GPU on the new host."""
    kept = kept_pins(fitting.vm, fitting.goal)
    if fitting.moved:
        kept = {ordinal: seat for ordinal in kept if (seat := fitting.placement.seats.get(ordinal)) is not None}
    return pin_changes(fitting.vm, {**kept, **fitting.placement.pins})
