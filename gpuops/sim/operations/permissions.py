"""Checks the privileges that a call needs in addition to those in the API's tables.

Sources: vSphere API reference, ReconfigVM_Task and ConfigSpec (by field), RelocateVM_Task and MigrateVM_Task,
ReconfigureComputeResource_Task; VMware security guide, required privileges for common tasks (cloning).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.inventory.managed_entity import ManagedEntity

_CONFIG: Final = "VirtualMachine.Config."
FIELD_PRIVILEGES: Final = {
    "name": "Rename",
    "annotation": "Annotation",
    "managedBy": "ManagedBy",
    "guestId": "Settings",
    "uuid": "Settings",
    "instanceUuid": "Settings",
    "alternateGuestName": "Settings",
    "flags": "Settings",
    "tools": "Settings",
    "swapPlacement": "SwapPlacement",
    "vPMCEnabled": "Settings",  # from memory
    "cpuHotRemoveEnabled": "CPUCount",
    "firmware": "Settings",
    "bootOptions": "Settings",
    "fixedPassthruHotPlugEnabled": "Settings",  # from memory
    "numCPUs": "CPUCount",
    "numCoresPerSocket": "CPUCount",  # from memory, and so `virtualNuma`
    "cpuHotAddEnabled": "CPUCount",
    "nestedHVEnabled": "Settings",  # from memory
    "virtualNuma": "CPUCount",
    "memoryMB": "Memory",
    "memoryHotAddEnabled": "Memory",
    "memoryAllocation": "Resource",
    "memoryReservationLockedToMax": "Resource",  # from memory: it is an allocation
    "cpuAllocation": "Resource",
    "latencySensitivity": "Resource",
    "extraConfig": "AdvancedConfig",
}
"""The privilege below `VirtualMachine.Config.` that each field of ConfigSpec needs."""


def require_to_reconfigure(vm: VmEntity, call: Call, spec: Any) -> None:
    """Raises NoPermission for the first privilege that this ConfigSpec needs and the caller does not have."""
    for privilege in _privileges_of_spec(spec):
        _require(call, vm, _CONFIG + privilege)
    _require_to_join_networks(vm, call, spec)


def require_to_move(vm: VmEntity, call: Call, pool: str | None, store: Any, folder: Any) -> None:
    """Raises NoPermission for a privilege that a move needs in addition to those declared for its method."""
    if vm.state.power is Power.ON:
        _require(call, vm, "Resource.HotMigrate")
    if pool is not None and pool != vm.state.pool:
        _require(call, vm.world.get(pool), "Resource.AssignVMToPool")
    if store is not None and store is not vm.datastore():
        _require(call, store, "Datastore.AllocateSpace")
    if folder is not None and folder.moid != vm.state.folder:
        _require(call, vm, "VirtualMachine.Inventory.Move")


def require_to_clone(vm: VmEntity, call: Call, folder: Any, pool: str | None, spec: Any) -> None:
    """Raises NoPermission without the privileges to clone a VM or template into a folder, pool and datastore."""
    to_template, from_template = bool(spec.template), vm.state.is_template
    privileges = {  # by (from a template, to a template)
        (True, False): "DeployTemplate",
        (True, True): "CloneTemplate",
        (False, True): "CreateTemplateFromVM",
        (False, False): "Clone",
    }
    _require(call, vm, f"VirtualMachine.Provisioning.{privileges[from_template, to_template]}")
    _require(call, folder, "VirtualMachine.Inventory.CreateFromExisting")
    if pool is not None and not to_template:
        _require(call, vm.world.get(pool), "Resource.AssignVMToPool")
    store = vm.world.get(spec.location.datastore) if spec.location.datastore else vm.datastore()
    _require(call, store, "Datastore.AllocateSpace")
    if spec.config is not None:
        require_to_reconfigure(vm, call, spec.config)


def require_to_edit_cluster(cluster: ManagedEntity, call: Call) -> None:
    """Raises NoPermission if the caller may not change settings, overrides and rules of a cluster."""
    _require(call, cluster, "Host.Inventory.EditCluster")


def _require_to_join_networks(vm: VmEntity, call: Call, spec: Any) -> None:
    """Raise NoPermission for the first network that this ConfigSpec puts a card on, where the caller may not."""
    current_networks = {card.key: card.network for card in vm.state.network_cards}
    for change in spec.deviceChange or ():
        network = _network_of(vm, getattr(change.device, "backing", None))
        if change.operation != "remove" and network not in (None, current_networks.get(change.device.key)):
            _require(call, vm.world.get(network), "Network.Assign")


def _network_of(vm: VmEntity, backing: Any) -> str | None:
    """Return the managed object id of the network that a card's backing names; None = no such network exists."""
    ethernet, moid = vim.vm.device.VirtualEthernetCard, None
    if isinstance(backing, ethernet.DistributedVirtualPortBackingInfo):
        moid = backing.port.portgroupKey
    elif isinstance(backing, ethernet.NetworkBackingInfo):
        matching_moids = (moid for moid in vm.host().state.networks if vm.world.get(moid).name == backing.deviceName)
        moid = backing.network._moId if backing.network else next(matching_moids, None)
    return moid if moid and vm.world.find(moid) is not None else None


def _privileges_of_spec(spec: Any) -> Iterator[str]:
    for change in spec.deviceChange or ():
        yield _privilege_of_device_change(change)
    for field, privilege in FIELD_PRIVILEGES.items():
        if getattr(spec, field) not in (None, []):
            yield privilege


def _privilege_of_device_change(change: Any) -> str:
    is_disk = isinstance(change.device, vim.vm.device.VirtualDisk)
    match change.operation:
        case "add":
            return ("AddNewDisk" if change.fileOperation else "AddExistingDisk") if is_disk else "AddRemoveDevice"
        case "remove":
            return "RemoveDisk" if is_disk else "AddRemoveDevice"
        case _:
            return "EditDevice"


def _require(call: Call, entity: ManagedEntity, privilege: str) -> None:
    entity.world.authority.require(call, entity, privilege)
