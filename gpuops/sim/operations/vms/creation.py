"""CreateVM_Task and CreateFolder.

A new VM is registered and powered off, without disk or network card, with the settings of its spec. Fields of the spec
that are not simulated, and devices, are refused by name, as in a reconfiguration.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.inventory import faults
from gpuops.sim.inventory.managed_entity import enter_new, leave, new_moid, new_uuid
from gpuops.sim.operations.recording import facts
from gpuops.sim.operations.vms.reconfigure import changed_state, version_number
from gpuops.sim.state.vm_state import Template, VmState

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import DatastoreEntity, FolderEntity, HostEntity, VmEntity
    from gpuops.sim.world import World


MakeVm = Callable[["World", str, VmState], "VmEntity"]

CREATE_S: Final = 1.0
_PATH: Final = re.compile(r"\[(?P<store>[^\]]+)\]\s*(?P<folder>[^/]*)(?:/|/(?P<file>[^/]+)\.vmx)?")
"""A datastore, with the folder or configuration file if the client names them (vSphere API, FileInfo.vmPathName)."""


def create_vm(folder: FolderEntity, call: Call, config: Any, pool: Any, host: Any, *, make: MakeVm) -> Any:
    """Return CreateVM_Task, whose result is the VM. Without `host` the VM is on the cluster's first usable host.

    `make` is the type of the VM object, called with the world, the moid and the state.
    """
    world = folder.world
    pool_object = world.get(pool)
    # CreateVM_Task does not declare this privilege; vCenter requires it (VMware security guide, required privileges)
    world.authority.require(call, pool_object, "Resource.AssignVMToPool")

    def begin() -> None:
        if folder.kind != "vm":
            raise faults.not_supported("Virtual machines can only be made in a folder for virtual machines.")
        if config.name is None:
            raise faults.wrong_argument("config.name")
        folder.checked_name(config.name)

    def finish() -> VmEntity:
        name = folder.checked_name(config.name)
        target_host = usable_host(pool_object, world.get(host) if host else None)
        store = _datastore(target_host, name, config.files)
        world.authority.require(call, store, "Datastore.AllocateSpace")
        vm = enter_new(
            make(world, new_moid(world, "vm"), _empty_state(folder, name, config, pool_object, target_host, store))
        )
        try:
            vm.state = changed_state(vm, _remaining_spec(config))
        except Exception:
            leave(vm)
            raise
        vm.state.change, vm.state.changed_at = 1, None  # applying the rest of the spec does not count as a change
        world.ledger.record(call, vm, before={}, after=facts(vm.state))
        vm.post(call, "VmCreatedEvent")
        return vm

    return world.tasks.start(call, "CreateVM_Task", folder, CREATE_S, begin=begin, finish=finish)


def usable_host(pool: Any, host: HostEntity | None) -> HostEntity:
    """Return `host`, or the first host that can run VMs of the pool. Raises InvalidArgument, NoCompatibleHost."""
    usable = [host for host in pool.owner().hosts() if host.state.usable]
    if host is not None and host not in usable:
        raise faults.wrong_argument("host")
    if not usable:
        raise faults.no_compatible_host([])
    return host or usable[0]


def _datastore(host: HostEntity, name: str, files: Any) -> DatastoreEntity:
    """Return the datastore of a new VM. Raises InvalidArgument without a path, InvalidDatastorePath for an unknown
    datastore, NotSupported for a folder or file name other than the VM's name."""
    path = files.vmPathName if files else None
    if path is None:
        raise faults.wrong_argument("config.files.vmPathName")
    match = _PATH.fullmatch(path)
    stores = [host.world.get(moid) for moid in host.state.datastores]
    store: DatastoreEntity | None = next(
        (candidate for candidate in stores if match and candidate.name == match["store"]), None
    )
    if store is None:
        raise faults.invalid_datastore_path(path)
    if match and any(part not in ("", None, name) for part in (match["folder"], match["file"])):
        raise faults.not_supported("The simulated vCenter always gives the folder and the files of a new VM its name.")
    return store


def _empty_state(
    folder: FolderEntity, name: str, config: Any, pool: Any, host: HostEntity, store: DatastoreEntity
) -> VmState:
    """Return the state of a new VM that has only name, place, guest system and hardware version."""
    guest = config.guestId or "otherGuest"
    new_state = VmState(
        name=name,
        uuid=new_uuid(folder.world),
        instance_uuid=new_uuid(folder.world),
        template=Template(guest, guest, store.name, linux=False, tools=False),
        host=host.moid,
        pool=pool.moid,
        folder=folder.moid,
        datastore=store.moid,
        cpus=1,  # this size stays if the spec names none
        memory_mib=32,
        created_at=folder.world.clock.now(),
        firmware="bios",
    )
    if config.version is not None:
        new_state.hardware_version = version_number(config.version)
    return new_state


def _remaining_spec(config: Any) -> Any:
    """Return a copy of the spec without the fields that `_empty_state` and `_datastore` have used."""
    remaining = copy.copy(config)
    remaining.files = remaining.name = remaining.version = None
    return remaining


def create_folder(parent: FolderEntity, call: Call, name: str) -> FolderEntity:
    """CreateFolder: the new folder, of its parent's kind. Raises DuplicateName, InvalidName."""
    name = parent.checked_name(name)
    folder = type(parent)(
        parent.world, new_moid(parent.world, f"group-{parent.kind[0]}"), name, parent.moid, parent.kind
    )
    parent.world.register(folder)
    parent.add(folder)
    parent.world.ledger.record(call, folder, before={}, after={"name": name, "parent": parent.moid})
    return folder
