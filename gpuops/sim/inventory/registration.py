"""Adds VMs to the inventory and removes them, and draws fresh ids from the world's seed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.world import World


def new_uuid(world: World) -> str:
    """A uuid drawn from the world's seed."""
    return str(UUID(int=world.rng.getrandbits(128), version=4))


def new_moid(world: World, prefix: str) -> str:
    """A managed object id that was not given before: `vm-1042`."""
    return f"{prefix}-{1000 + world.next_number()}"


def enter(vm: VmEntity) -> VmEntity:
    """The VM, registered where its state says: in its folder, on its host, in its pool."""
    world, state = vm.world, vm.state
    world.register(vm)
    vm.host().state.vms[vm.moid] = None
    vm.host().touch("vm")
    world.get(state.folder).add(vm)
    if state.pool is not None:
        world.get(state.pool).add(vm)
    vm.datastore().add(vm)
    vm.networks_changed()
    return vm


def enter_new(vm: VmEntity) -> VmEntity:
    """The same of a VM that was made now: where files of its name are there, vCenter gives its own another one."""
    store, name, number = vm.datastore(), vm.state.name, 0
    used_paths = {f"{vm.state.home}.vmx" for vm in store.vms.values()}
    while f"{vm.state.home}.vmx" in used_paths:
        number += 1
        vm.state.files = f"{name}_{number}"
    return enter(vm)


def leave(vm: VmEntity) -> None:
    """Remove a VM from every list it is in."""
    world, state = vm.world, vm.state
    world.guests.forget(vm.moid)
    vm.host().state.vms.pop(vm.moid, None)
    vm.host().touch("vm")
    vm.host().load_changed()
    world.get(state.folder).remove(vm)
    if state.pool is not None:
        world.get(state.pool).remove(vm)
    vm.datastore().remove(vm)
    vm.datastore().use(-state.suspend_file_mib)
    vm.host().compute_resource().forget(vm.moid)
    for snapshot in state.snapshots:
        world.unregister(world.get(snapshot.moid))
    world.unregister(vm)
    vm.networks_changed()
