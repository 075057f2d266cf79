"""Saves how a world differs from its scenario as JSON and restores it, so that the next run of a server continues.

Saved: VMs, and what holds them (changed, made, removed), host and GPU settings, DRS, datastore space,
custom fields, tags, vCenter settings, the ledger, the time and the history of tasks that ended well. Not saved: tasks
that run or failed, events and sessions.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vmodl

from gpuops.errors import StateDamaged, UsageError
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.model.stored_json import decode_stored, json_values
from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.inventory.entities import ComputeEntity, FolderEntity, HostEntity
from gpuops.sim.inventory.managed_entity import enter, leave
from gpuops.sim.objects.compute_resource import (
    ClusterComputeResource,
    ComputeResource,
    new_pool,
    register_with_pool_and_browsers,
)
from gpuops.sim.objects.folder import (
    DistributedVirtualPortgroup,
    Folder,
    VmwareDistributedVirtualSwitch,
    new_datacenter,
)
from gpuops.sim.objects.virtual_machine import VirtualMachine, VirtualMachineSnapshot
from gpuops.sim.operations.distributed_switches import drop
from gpuops.sim.operations.inventory_change import rehome, reparent
from gpuops.sim.operations.removal import forget
from gpuops.sim.scenario.scenario_hosts import enter_host
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.direct_path import DirectPathState
from gpuops.sim.state.drs import DrsState
from gpuops.sim.state.gpu_admission import VgpuPolicy
from gpuops.sim.state.host_state import HostNetwork, HostState
from gpuops.sim.state.vm_state import VmState

if TYPE_CHECKING:
    from gpuops.sim.inventory.managed_entity import ManagedEntity
    from gpuops.sim.inventory.switches import DistributedSwitchEntity, PortgroupEntity
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.world import World

FORMAT: Final = 5
LARGEST_FILE: Final = 512 * 1024 * 1024
"""The state of the largest fleet, and of what was done to it."""
DEVICE_FIELDS: Final = ("passthrough_enabled", "passthrough_active", "label", "waits_for_maintenance")
GPU_FIELDS: Final = ("graphics_type", "configured_type", *DEVICE_FIELDS)
PORT_FIELDS: Final = ("functions", "next_functions")
HOST_FIELDS: Final = (
    "connection", "power", "in_maintenance", "default_graphics_type", "module_options", "loaded_module_options"
)  # fmt: skip


def save(world: World, scenario: str, seed: int, build_again: Callable[[], World]) -> dict[str, Any]:
    """Return as JSON values how `world` differs from the new world that `afresh` builds."""
    untouched = build_again()
    return {
        "format": FORMAT,
        "scenario": scenario,
        "seed": seed,
        "now": world.clock.now().isoformat(),
        "number": world.next_number(),
        "made": save_new_entities(world, untouched),
        "places": _changed_values(names_and_parents(world), names_and_parents(untouched)),
        "vms": _changed_values(_vms(world), _vms(untouched)),
        "removed": find_removed_moids(world, untouched),
        "hosts": _changed_values(_hosts(world), _hosts(untouched)),
        "networks": save_network(world, untouched),
        "clusters": _changed_values(_clusters(world), _clusters(untouched)),
        "datastores": _changed_values(_free_space(world), _free_space(untouched)),
        "fields": [asdict(field) for field in world.custom_fields.fields.values()],
        "options": _changed_values(world.options.items(), untouched.options.items()),
        "direct_path": asdict(world.direct_path),
        "tags": world.tags.to_json(),
        "ledger": world.ledger.to_json(),
        "tasks": world.tasks.to_json(),
    }


def restore(world: World, scenario: str, seed: int, saved: dict[str, Any]) -> None:
    """Apply a saved state to a newly built world of the same scenario and seed.

    Raises ValueError, KeyError or TypeError if `saved` is not such a state.
    """
    origin = (saved["format"], saved["scenario"], saved["seed"])
    if origin != (FORMAT, scenario, seed):
        raise ValueError(f"it was saved with format {origin[0]}, scenario {origin[1]!r} and seed {origin[2]}")
    world.clock.advance_to(datetime.fromisoformat(saved["now"]))
    while world.next_number() < saved["number"]:  # no id of the saved run is given a second time
        continue
    world.rng.seed(f"{seed}:{saved['number']}")
    world.custom_fields.load(saved["fields"])
    world.options.update(saved["options"])
    _restore_inventory(world, saved)
    for moid, values in saved["hosts"].items():
        _restore_host(world.get(moid), values)
    restore_network(world, saved["networks"])
    for moid, values in saved["clusters"].items():
        world.get(moid).drs = decode_stored(DrsState, values)
    for moid, free_mib in saved["datastores"].items():
        world.get(moid).free_mib = free_mib
    world.direct_path = decode_stored(DirectPathState, saved["direct_path"])
    world.tags.load(saved["tags"])
    world.ledger.load(saved["ledger"])
    world.tasks.load(saved.get("tasks", ()), world.sessions)  # states of older releases have no tasks


def _restore_inventory(world: World, saved: dict[str, Any]) -> None:
    """Restore the inventory in an order in which each step finds its objects: new objects, VMs, moves, removals."""
    for new_entity in saved["made"]:
        restore_new_entity(world, new_entity)
    for moid in saved["removed"]["vms"]:
        leave(world.get(moid))
    for moid, values in saved["vms"].items():
        _restore_vm(world, moid, decode_stored(VmState, values))
    for moid, place in saved["places"].items():
        restore_name_and_parent(world.get(moid), place)
    for moid in saved["removed"]["others"]:
        restore_removed(world, moid)


def _changed_values(now: Any, before: Any) -> dict[str, Any]:
    """Return the entries of `now` that are not in `before`; both are iterables of (key, value)."""
    earlier = dict(before)
    return {key: value for key, value in now if key not in earlier or earlier[key] != value}


def _vms(world: World) -> Iterator[tuple[str, Any]]:
    for vm in world.by_type("VirtualMachine"):
        yield vm.moid, json_values(vm.state)


def _hosts(world: World) -> Iterator[tuple[str, Any]]:
    """Yield (moid, JSON values) of the settings of each host and its devices."""
    for host in world.by_type("HostSystem"):
        state = host.state
        values = {
            **_fields(state, HOST_FIELDS),
            "attributes": {str(key): value for key, value in host.attributes.items()},
            "policy": state.policy.value,
            "boot_time": state.boot_time.isoformat(),
            "gpus": {gpu.pci_id: {"mode": gpu.mode.value, **_fields(gpu, GPU_FIELDS)} for gpu in state.gpus},
            "others": {device.pci_id: _fields(device, DEVICE_FIELDS) for device in state.others},
            "ports": {port.pci_id: _fields(port, PORT_FIELDS) for port in state.ports},
            "options": dict(state.options),
        }
        yield host.moid, values


def _fields(state: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(state, name) for name in names}


def _set_fields(state: Any, names: tuple[str, ...], values: dict[str, Any]) -> None:
    for name in names:
        setattr(state, name, values[name])


def _clusters(world: World) -> Iterator[tuple[str, Any]]:
    for cluster in world.by_type("ClusterComputeResource"):
        yield cluster.moid, json_values(cluster.drs)


def _free_space(world: World) -> Iterator[tuple[str, Any]]:
    for store in world.by_type("Datastore"):
        yield store.moid, store.free_mib


def _restore_vm(world: World, moid: str, state: VmState) -> None:
    existing = world.find(moid)
    if isinstance(existing, VirtualMachine):
        leave(existing)
    state.guest_boots = state.guest_boots and state.template.boot_s is None  # all other guests have booted meanwhile
    for reference in filter(None, (state.host, state.pool, state.folder, state.datastore)):
        world.get(reference)  # raises ManagedObjectNotFound
    vm = enter(VirtualMachine(world, moid, state))
    for snapshot in state.snapshots:
        world.register(VirtualMachineSnapshot(world, snapshot.moid, vm, copy.copy(state)))


def _restore_host(host: HostSystem, values: dict[str, Any]) -> None:
    """Set the saved settings of a host and its devices."""
    state = host.state
    _set_fields(state, HOST_FIELDS, values)
    host.attributes = {int(key): value for key, value in values["attributes"].items()}
    state.policy, state.boot_time = VgpuPolicy(values["policy"]), datetime.fromisoformat(values["boot_time"])
    for gpu in state.gpus:
        gpu.mode = GpuMode(values["gpus"][gpu.pci_id]["mode"])
        # fields that the saved state does not have, because they are newer, keep their values
        _set_fields(gpu, GPU_FIELDS, {**_fields(gpu, GPU_FIELDS), **values["gpus"][gpu.pci_id]})
    for device in state.others:
        _set_fields(device, DEVICE_FIELDS, values["others"][device.pci_id])
    for port in state.ports:
        _set_fields(port, PORT_FIELDS, values["ports"][port.pci_id])
    # changed in place, because the host's OptionManager has the same dict; states of older releases have no options
    state.options.update(values.get("options", {}))


class StateFile:
    """A JSON file with the saved state of a world: restored at once if it exists, written by `save()`."""

    def __init__(self, path: Path, world: World) -> None:
        """Raises UsageError for a world that cannot be saved, StateDamaged for a file that does not fit it."""
        if world.state_hooks is None:
            raise UsageError(
                f"{path} cannot keep the state of this simulated vCenter: it was not built from a scenario",
                hint="build it with gpuops.sim.scenario.build.build",
            )
        self._path = path
        self._world = world
        self._save, restore = world.state_hooks
        if path.exists():
            with world.lock:
                self._restore(restore)
                world.fragments.clear()

    def save(self) -> None:
        """Write the state in one step: a reader sees the old file or the new one."""
        temporary = self._path.with_name(f".{self._path.name}.new")
        with self._world.lock:
            document = self._save()
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(self._path)

    def _restore(self, restore: Any) -> None:
        raw = read_bytes(self._path, largest=LARGEST_FILE, error=StateDamaged)
        try:
            restore(parse_json(raw))
        except vmodl.fault.ManagedObjectNotFound as error:
            raise self._damage_error(f"it refers to {error.obj._moId[:80]!r}, which does not exist") from error
        except (*NOT_PARSED, AttributeError) as error:  # a file that this world did not save may hold anything
            raise self._damage_error(f"{type(error).__name__}: {error}") from error

    def _damage_error(self, reason: str) -> StateDamaged:
        message = f"{self._path} is not the state of this scenario: {reason}"
        return StateDamaged(message, hint=f"remove {self._path} to start with the scenario as declared")


# --- networking, inventory and objects of the API as JSON values ---------------------------------------------------

TYPE: Final = "_typeName"
REFERENCE: Final = "_reference"


def to_json(value: Any) -> Any:
    """Return a vmomi value as JSON values; a data object is its type name with the fields that are set."""
    match value:
        case VmomiSupport.ManagedObject():
            return {TYPE: VmomiSupport.GetWsdlName(type(value)), REFERENCE: value._moId}
        case VmomiSupport.DataObject():
            fields = {declared.name: getattr(value, declared.name) for declared in value._GetPropertyList()}
            fields_set = {name: to_json(field) for name, field in fields.items() if field is not None and field != []}
            return {TYPE: VmomiSupport.GetWsdlName(type(value)), **fields_set}
        case list():
            return [to_json(element) for element in value]
        case datetime():
            return value.isoformat()
        case bool():
            return value
        case int():
            return int(value)
        case _:
            return str(value)


def from_json(saved: Any, declared_type: Any = None) -> Any:
    """Return the vmomi value of JSON values from `to_json`; `declared_type` is the type of its field."""
    if isinstance(saved, dict):
        kind = VmomiSupport.GetWsdlType("urn:vim25", saved[TYPE])
        if REFERENCE in saved:
            return kind(saved[REFERENCE])
        instance = kind()
        for field in kind._GetPropertyList():
            if field.name in saved:
                setattr(instance, field.name, from_json(saved[field.name], field.type))
        return instance
    if isinstance(saved, list):
        return declared_type([from_json(element, declared_type.Item) for element in saved])
    return datetime.fromisoformat(saved) if declared_type is datetime else saved


def save_network(world: World, untouched: World) -> dict[str, Any]:
    """Return as JSON values all distributed switches, and the changed networking of hosts."""
    hosts_now, hosts_before = (_host_networks(world_state) for world_state in (world, untouched))
    return {
        "switches": _switches(world),
        "hosts": {moid: values for moid, values in hosts_now.items() if hosts_before.get(moid) != values},
    }


def restore_network(world: World, saved: dict[str, Any]) -> None:
    """Replace all distributed switches, and the networking of hosts, by what was saved."""
    for switch in list(world.by_type("DistributedVirtualSwitch")):
        for network_object in (*switch.portgroups(), switch):
            drop(network_object)
    for switch in saved["switches"]:
        _restore_switch(world, switch)
    for moid, values in saved["hosts"].items():
        state = world.get(moid).state
        state.network = decode_stored(HostNetwork, values["network"])
        state.networks = tuple(values["networks"])


def _switches(world: World) -> list[dict[str, Any]]:
    return [
        {
            **_network_to_json(switch),
            "next_port": switch.next_port,
            "portgroups": [
                {**_network_to_json(portgroup), "ports": portgroup.ports} for portgroup in switch.portgroups()
            ],
        }
        for switch in world.by_type("DistributedVirtualSwitch")
    ]


def _network_to_json(entity: DistributedSwitchEntity | PortgroupEntity) -> dict[str, Any]:
    return {
        "moid": entity.moid,
        "name": entity.name,
        "parent": entity.parent,
        "version": entity.version,
        "kept": to_json(entity.stored_config),
        "attributes": {str(key): value for key, value in entity.attributes.items()},
    }


def _restore_switch(world: World, saved: dict[str, Any]) -> None:
    """Make a saved distributed switch and its port groups again, with their old ids."""
    switch = VmwareDistributedVirtualSwitch(
        world, saved["moid"], saved["name"], saved["parent"], from_json(saved["kept"])
    )
    switch.next_port = saved["next_port"]
    switch.portgroup_moids = [portgroup["moid"] for portgroup in saved["portgroups"]]
    _register_saved(switch, saved)
    for portgroup_values in saved["portgroups"]:
        config = from_json(portgroup_values["kept"])
        portgroup = DistributedVirtualPortgroup(
            world, portgroup_values["moid"], portgroup_values["name"], portgroup_values["parent"], switch.moid, config
        )
        portgroup.ports = portgroup_values["ports"]
        _register_saved(portgroup, portgroup_values)


def _register_saved(entity: DistributedSwitchEntity | PortgroupEntity, saved: dict[str, Any]) -> None:
    entity.version = saved["version"]
    entity.attributes = {int(key): value for key, value in saved["attributes"].items()}
    entity.world.register(entity)
    entity.world.get(saved["parent"]).add(entity)


def _host_networks(world: World) -> dict[str, dict[str, Any]]:
    return {
        host.moid: {"network": json_values(host.state.network), "networks": list(host.state.networks)}
        for host in world.by_type("HostSystem")
    }


KINDS: Final = ("Folder", "Datacenter", "ComputeResource", "ClusterComputeResource", "HostSystem", "ResourcePool")


def _entities(world: World) -> Iterator[Any]:
    """Yield all objects of KINDS in the order they were made, without those that vCenter makes with another one."""
    for managed_object in world.registry:
        if managed_object.wsdl_name in KINDS and not _is_part(world, managed_object):
            yield managed_object


def _is_part(world: World, managed_object: Any) -> bool:
    """Whether it is a folder of a datacenter, or the root pool of a compute resource."""
    parent = world.find(managed_object.parent) if managed_object.parent else None
    if managed_object.wsdl_name == "ResourcePool":
        return isinstance(parent, ComputeEntity)
    return managed_object.wsdl_name == "Folder" and not isinstance(parent, FolderEntity)


def save_new_entities(world: World, untouched: World) -> list[dict[str, Any]]:
    """Return the objects that the untouched world does not have, each after its parent.

    Parents come first because an object may have moved into one that was made later.
    """
    new = [entity for entity in _entities(world) if untouched.find(entity.moid) is None]
    return [_entity_to_json(entity) for entity in sorted(new, key=lambda entity: len(list(ancestors(entity))))]


def _entity_to_json(entity: Any) -> dict[str, Any]:
    """Return the values from which `restore_new_entity` makes the object again."""
    fields = {"type": entity.wsdl_name, "moid": entity.moid, "name": entity.name, "parent": entity.parent}
    match entity:
        case FolderEntity():
            return {**fields, "kind": entity.kind}
        case HostEntity():
            return {**fields, "state": {**json_values(entity.state), "vms": {}}}
        case ComputeEntity():
            return {**fields, "pool": entity.pool.moid}
        case _ if entity.wsdl_name == "Datacenter":
            return {**fields, "folders": [folder.moid for folder in entity.folders.values()]}
        case _:
            return fields


def restore_new_entity(world: World, saved: dict[str, Any]) -> None:
    """Make a saved object again with its old ids, and put it in its folder or cluster."""
    moid, name, parent = saved["moid"], saved["name"], saved["parent"]
    match saved["type"]:
        case "Folder":
            folder = Folder(world, moid, name, parent, saved["kind"])
            world.register(folder)
            world.get(parent).add(folder)
        case "Datacenter":
            world.get(parent).add(new_datacenter(world, name, parent, [moid, *saved["folders"]]))
        case "HostSystem":
            enter_host(world, moid, decode_stored(HostState, saved["state"]))
        case "ResourcePool":
            new_pool(world, moid, name, world.get(parent))
        case kind:
            compute = (ClusterComputeResource if kind == "ClusterComputeResource" else ComputeResource)(
                world, moid, name, parent
            )
            register_with_pool_and_browsers(compute, saved["pool"])
            world.get(parent).add(compute)


def names_and_parents(world: World) -> Iterator[tuple[str, list[str | None]]]:
    """Yield (moid, [name, moid of the parent]) of each object of KINDS."""
    for entity in _entities(world):
        yield entity.moid, [entity.name, entity.parent]


def restore_name_and_parent(entity: ManagedEntity, place: list[str]) -> None:
    """Give an object its saved name and parent; `place` is [name, moid of the parent]."""
    name, parent_moid = place
    if entity.name != name:
        entity.rename(name)
    new_parent = entity.world.get(parent_moid) if parent_moid is not None else None
    if entity.parent == parent_moid:
        return
    if isinstance(new_parent, FolderEntity):
        reparent(entity, new_parent)
    elif isinstance(new_parent, ComputeEntity) and isinstance(entity, HostEntity):
        rehome(entity, new_parent)


def find_removed_moids(world: World, untouched: World) -> dict[str, list[str]]:
    """Return the moids of removed VMs, and of other removed objects, those made last first."""
    vms = [vm.moid for vm in untouched.by_type("VirtualMachine") if world.find(vm.moid) is None]
    other_moids = [entity.moid for entity in _entities(untouched) if world.find(entity.moid) is None]
    return {"vms": vms, "others": other_moids[::-1]}


def restore_removed(world: World, moid: str) -> None:
    """Remove an object, unless it was removed with another one."""
    entity = world.find(moid)
    if entity is not None:
        forget(entity)
