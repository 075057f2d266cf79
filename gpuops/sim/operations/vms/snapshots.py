"""Takes, lists, reverts to and removes snapshots of a VM.

A revert restores the power state, the guest and the configuration of the snapshot. What vCenter itself stores about the
VM (name, folder, custom values) stays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vmodl

from gpuops.sim.inventory import faults
from gpuops.sim.operations.distributed_switches import with_own_ports
from gpuops.sim.operations.host_admission import place
from gpuops.sim.operations.recording import recorded
from gpuops.sim.operations.vms import power
from gpuops.sim.state.vm_state import Power, SnapshotState, VmState

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.world import World

MakeSnapshot = Callable[["World", str, "VmEntity", VmState], "ManagedObject"]

SNAPSHOT_S: Final = 3.0


def create(vm: VmEntity, call: Call, name: str, description: str, *, memory: bool, make: MakeSnapshot) -> Any:
    """Return CreateSnapshot_Task, whose result is the snapshot. `make` is the type of its managed object."""

    def begin() -> None:
        vm.refuse_while_question_pending()  # a VM whose question waits for an answer gets no snapshot
        if not name:
            raise faults.invalid_name(name)
        _check_snapshot_allowed(vm, memory=memory)

    def finish() -> Any:
        with recorded(vm, call):
            return take(vm, name, description, memory=memory, make=make)

    return vm.world.tasks.start(call, "CreateSnapshot_Task", vm, SNAPSHOT_S, begin=begin, finish=finish)


def take(vm: VmEntity, name: str, description: str, *, memory: bool, make: MakeSnapshot) -> Any:
    """Take a snapshot, make it the current one and return its managed object."""
    state = vm.state
    number = max((snapshot.id for snapshot in state.snapshots), default=0) + 1
    snapshot_state = SnapshotState(
        moid=f"snapshot-{vm.moid.removeprefix('vm-')}-{number}",
        id=number,
        name=name,
        description=description,
        created_at=vm.world.clock.now(),
        power=state.power if memory else Power.OFF,
        memory=memory,
        parent=state.current_snapshot,
    )
    snapshot = make(vm.world, snapshot_state.moid, vm, copy.copy(state))
    vm.world.register(snapshot)
    state.snapshots = (*state.snapshots, snapshot_state)
    state.current_snapshot = snapshot_state.moid
    vm.touch("snapshot", "rootSnapshot", "layoutEx", "summary")
    return snapshot


def remove_all(vm: VmEntity, call: Call) -> Any:
    """RemoveAllSnapshots_Task."""
    return vm.world.tasks.start(
        call,
        "RemoveAllSnapshots_Task",
        vm,
        SNAPSHOT_S,
        finish=lambda: _remove(vm, call, {snapshot.moid for snapshot in vm.state.snapshots}),
    )


def remove_one(vm: VmEntity, call: Call, moid: str, *, children: bool) -> Any:
    """RemoveSnapshot_Task: remove a snapshot, with `children` also those below it; else these move to its parent."""

    def finish() -> None:
        removed_moids = {moid}
        if children:
            for snapshot in vm.state.snapshots:  # in order of time, so parents come first
                removed_moids |= {snapshot.moid} if snapshot.parent in removed_moids else set()
        _remove(vm, call, removed_moids)

    return vm.world.tasks.start(call, "RemoveSnapshot_Task", vm, SNAPSHOT_S, finish=finish)


def rename(vm: VmEntity, call: Call, moid: str, name: str | None, description: str | None) -> None:
    """RenameSnapshot; None leaves name or description unchanged. Raises InvalidName for an empty name."""
    if name == "":
        raise faults.invalid_name(name)
    vm.world.tasks.refuse_if_busy(vm)
    changes: dict[str, Any] = {
        key: text for key, text in (("name", name), ("description", description)) if text is not None
    }
    with recorded(vm, call):
        vm.state.snapshots = tuple(
            replace(snapshot, **changes) if snapshot.moid == moid else snapshot for snapshot in vm.state.snapshots
        )
    vm.touch("snapshot")


def _remove(vm: VmEntity, call: Call, removed_moids: set[str]) -> None:
    """Remove snapshots. Their children, and the current mark, move to the nearest ancestor that remains."""
    state = vm.state
    parents = {snapshot.moid: snapshot.parent for snapshot in state.snapshots}

    def nearest_remaining(moid: str | None) -> str | None:
        while moid in removed_moids:
            moid = parents[moid]
        return moid

    with recorded(vm, call):
        state.snapshots = tuple(
            _with_parent(snapshot, nearest_remaining(snapshot.parent))
            for snapshot in state.snapshots
            if snapshot.moid not in removed_moids
        )
        state.current_snapshot = nearest_remaining(state.current_snapshot)
        vm.touch("snapshot", "rootSnapshot", "layoutEx", "summary")
    for moid in removed_moids:
        vm.world.unregister(vm.world.get(moid))


def _with_parent(snapshot: SnapshotState, parent: str | None) -> SnapshotState:
    return snapshot if snapshot.parent == parent else replace(snapshot, parent=parent)


def _check_snapshot_allowed(vm: VmEntity, *, memory: bool) -> None:
    # DirectPath devices exclude snapshots with memory; a running VM that has them cannot be snapshotted at all
    # (VMware vSphere 8.0 docs). For vGPUs the host's memorySnapshotSupported decides.
    running = vm.state.power is Power.ON
    if running and vm.state.has_fixed_devices:
        raise faults.not_supported("A running virtual machine with a passthrough device cannot be snapshotted.")
    refused_types = [vgpu.type_name for vgpu in vm.state.vgpus if vgpu.type_name in vm.host().state.no_suspend]
    if running and memory and refused_types:
        raise faults.not_supported(f"Memory snapshots are not supported for vGPU profile {refused_types[0]}.")


REVERT_S: Final = 3.0
SNAPSHOT_AGE: Final = timedelta(days=7)
"""The age of the snapshot to which another client reverts a VM."""


REVERTED_FIELDS: Final = (
    "cpus",
    "cores_per_socket",
    "memory_mib",
    "hardware_version",
    "firmware",
    "boot",
    "annotation",
    "guest_id",
    "cpu_reservation_mhz",
    "memory_reservation_mib",
    "memory_locked",
    "cpu_hot_add",
    "memory_hot_add",
    "nested_virtualization",
    "cores_per_numa_node",
    "vnuma_on_hot_add",
    "passthrough_hot_plug",
    "latency",
    "hardware",
    "devices",
    "groups",
    "extra_config",
)
"""The fields of VmState that a revert sets to their values in the snapshot."""


def revert_to(vm: VmEntity, call: Call, method: str, moid: str | None, *, suppress_power_on: bool) -> Any:
    """Return the task that reverts to the snapshot `moid`. Raises NotFound if the VM does not have it.

    `method` is RevertToSnapshot_Task or RevertToCurrentSnapshot_Task.
    """
    snapshot = next((candidate for candidate in vm.state.snapshots if candidate.moid == moid), None)
    if snapshot is None:
        raise faults.not_found("The virtual machine has no current snapshot.")

    def finish() -> None:
        old_state = vm.world.get(snapshot.moid).state_at_snapshot
        if vm.state.power is not Power.OFF:
            power.stop(vm, call, clean=False)
        cards = vm.state.network_cards
        with recorded(vm, call):
            for name in REVERTED_FIELDS:
                setattr(vm.state, name, getattr(old_state, name))
            vm.state.set_network_cards(with_own_ports(vm.world, vm.state.network_cards, excluding=vm.moid))
            vm.state.change, vm.state.changed_at = vm.state.change + 1, vm.world.clock.now()
            vm.state.current_snapshot = snapshot.moid
            if snapshot.power is not Power.OFF:
                power.restore_checkpoint(vm, snapshot.created_at)
            if snapshot.power is Power.ON and not suppress_power_on:
                _finish_resume(vm)
        vm.configuration_changed()
        vm.touch("snapshot", "layout", "layoutEx", "storage")
        vm.networks_changed(cards)

    return vm.world.tasks.start(call, method, vm, REVERT_S, begin=vm.refuse_while_question_pending, finish=finish)


def revert(vm: VmEntity, call: Call, power_before: Power) -> None:
    """Set the VM at once to the power state `power_before` of a snapshot, as after another client's revert to it.

    If that is on, the VM resumes from the snapshot's memory, and stays suspended if no GPU is free for it (from
    memory). A VM with a running task is not reverted.
    """
    if vm.world.tasks.running(vm) is not None:
        return
    if power_before is Power.OFF:
        if vm.state.power is not Power.OFF:
            power.stop(vm, call, clean=False)
        return
    with recorded(vm, call):
        power.restore_checkpoint(vm, vm.world.clock.now() - SNAPSHOT_AGE)
        if power_before is Power.ON:
            _finish_resume(vm)


def _finish_resume(vm: VmEntity) -> None:
    """Resume the suspended VM on its host; it stays suspended if the host refuses it."""
    try:
        host, admitted = place(vm, vm.host())
    except vmodl.MethodFault:
        return
    power.start(vm, host.moid, admitted.seats, admitted.held)
