"""UnregisterVM and RegisterVM_Task: a VM leaves the inventory while its files stay, and comes back from them.

What vCenter itself keeps of a VM, its custom values among them, is gone; what its files say is as it was.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.inventory import faults
from gpuops.sim.inventory.registration import enter, leave, new_moid
from gpuops.sim.operations.networks.port_connection import with_own_ports
from gpuops.sim.operations.recording import facts
from gpuops.sim.operations.vms.creation import MakeVm, usable_host
from gpuops.sim.operations.vms.movement import holds_vms
from gpuops.sim.state.vm_state import Power, UnregisteredVm, VmState

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.core.managed_object import ManagedObject
    from gpuops.sim.inventory.entities import DatastoreEntity, HostEntity, VmEntity
    from gpuops.sim.inventory.folder_entity import FolderEntity
    from gpuops.sim.world import World

MakeSnapshot = Callable[["World", str, "VmEntity", VmState], "ManagedObject"]

REGISTER_S: Final = 1.0
_PATH: Final = re.compile(r"\[(?P<store>[^\]]+)\] ?(?P<file>.+)")


def unregister(vm: VmEntity, call: Call) -> None:
    """UnregisterVM. Raises InvalidPowerState for a VM that runs, TaskInProgress for one with a task."""
    if vm.state.power is Power.ON:
        raise faults.wrong_power_state(Power.ON, Power.OFF)
    vm.world.tasks.refuse_if_busy(vm)
    vm.world.ledger.record(call, vm, before=facts(vm.state), after={})
    store, state = vm.datastore(), vm.state
    taken = tuple(copy.copy(vm.world.get(each.moid).taken) for each in state.snapshots)
    leave(vm)
    store.use(state.suspend_file_mib)  # its files stay
    store.unregistered[f"{state.home}.vmx"] = UnregisteredVm(state, taken)


def register(
    folder: FolderEntity,
    call: Call,
    path: str,
    name: str | None,
    pool: Any,
    host: Any,
    *,
    template: bool,
    make: MakeVm,
    make_snapshot: MakeSnapshot,
) -> Any:
    """RegisterVM_Task: its result is the VM. A template is registered on a host, a VM in a resource pool."""
    world = folder.world
    if pool is not None:
        # declared by no method of the API, checked all the same (VMware security guide, required privileges)
        world.authority.require(call, world.get(pool), "Resource.AssignVMToPool")

    def found() -> tuple[HostEntity, DatastoreEntity, UnregisteredVm, str]:
        holds_vms(folder)
        home = _host(world, pool, host, template=template)
        store, file = _file(home, path)
        known = store.unregistered[file]
        return home, store, known, folder.checked_name(name or known.state.name)

    def begin() -> None:
        found()

    def finish() -> VmEntity:
        home, store, known, kept = found()
        state = copy.copy(known.state)
        state.rename(kept)
        state.host, state.folder, state.is_template = home.moid, folder.moid, template
        state.pool = None if template else world.get(pool).moid
        state.datastore, state.template = store.moid, replace(state.template, datastore=store.name)
        state.attributes = {}
        state.set_network_cards(with_own_ports(world, state.network_cards))
        _renumber_snapshots(world, state)
        del store.unregistered[f"{known.state.home}.vmx"]
        vm = enter(make(world, new_moid(world, "vm"), state))
        for shown, taken in zip(state.snapshots, known.taken, strict=True):
            world.register(make_snapshot(world, shown.moid, vm, copy.copy(taken)))
        world.ledger.record(call, vm, before={}, after=facts(state))
        vm.post(call, "VmRegisteredEvent")
        return vm

    return world.tasks.start(call, "RegisterVM_Task", folder, REGISTER_S, begin=begin, finish=finish)


def enter_with_host(vm: VmEntity, call: Call, host: HostEntity, folder: FolderEntity) -> VmEntity:
    """Register a VM again, whatever its power: its host was removed from the inventory and is added as `host`.

    What runs there has run on. It is in the root resource pool then, in `folder`, and under another id.
    """
    world, store, state = vm.world, vm.datastore(), copy.copy(vm.state)
    kept = [world.get(each.moid) for each in state.snapshots]
    leave(vm)
    store.use(state.suspend_file_mib)  # its files stay
    state.host, state.folder, state.attributes = host.moid, folder.moid, {}
    state.pool = None if state.is_template else host.compute_resource().pool.moid
    state.set_network_cards(with_own_ports(world, state.network_cards))
    _renumber_snapshots(world, state)
    moid = new_moid(world, "vm")
    state.seats = tuple(replace(seat, vm=moid) for seat in state.seats)
    entered = type(vm)(world, moid, state)
    entered.ignores_shutdown = vm.ignores_shutdown
    entered.connection = None if store.accessible else "inaccessible"
    enter(entered)
    for shown, snapshot in zip(state.snapshots, kept, strict=True):
        world.register(type(snapshot)(world, shown.moid, entered, snapshot.taken))
    world.ledger.record(call, entered, before={"moid": vm.moid}, after={"moid": moid})
    entered.post(call, "VmRegisteredEvent")
    return entered


def _host(world: World, pool: Any, host: Any, *, template: bool) -> HostEntity:
    """Raises InvalidArgument for what vSphere API, Folder.RegisterVM_Task, says of `pool` and `host`."""
    if not template:
        if pool is None:
            raise faults.wrong_argument("pool")
        return usable_host(world.get(pool), world.get(host) if host else None)
    if pool is not None:
        raise faults.wrong_argument("pool")
    if host is None:
        raise faults.wrong_argument("host")
    found: HostEntity = world.get(host)
    return found


def _file(host: HostEntity, path: str) -> tuple[DatastoreEntity, str]:
    """(datastore, path) of a configuration file. Raises InvalidDatastorePath, AlreadyExists, NotFound."""
    parsed = _PATH.fullmatch(path)
    store = next((each for each in host.datastores() if parsed and each.name == parsed["store"]), None)
    if parsed is None or store is None:
        raise faults.invalid_datastore_path(path)
    file = f"[{store.name}] {parsed['file']}"
    registered = next((vm for vm in store.vms.values() if f"{vm.state.home}.vmx" == file), None)
    if registered is not None:
        raise faults.already_exists(registered.name)
    if file not in store.unregistered:
        raise vim.fault.NotFound(msg=f"File {file} was not found")
    return store, file


def _renumber_snapshots(world: World, state: VmState) -> None:
    """Give its snapshots ids that were not given before."""
    new = {each.moid: new_moid(world, "snapshot") for each in state.snapshots}
    state.snapshots = tuple(
        replace(each, moid=new[each.moid], parent=new[each.parent] if each.parent else None) for each in state.snapshots
    )
    state.current_snapshot = new[state.current_snapshot] if state.current_snapshot else None
