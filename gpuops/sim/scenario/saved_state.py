"""Saves how a world differs from its scenario as JSON, and restores it, so that the next run continues there;
`StateFile` keeps that between two runs of a server.

Kept: VMs, and what holds them (changed, made, removed; `saved_inventory`), host and GPU settings, DRS, datastore space,
custom fields, tags, vCenter settings, the ledger, the time and the history of tasks that ended well. Not kept: tasks
under way or failed, events and sessions.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vmodl

from gpuops.errors import StateDamaged, UsageError
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.sim.inventory.registration import enter, leave
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.objects.vm_snapshot import VirtualMachineSnapshot
from gpuops.sim.scenario import saved_inventory, saved_network
from gpuops.sim.scenario.saved_values import adapter, dump
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.direct_path import DirectPathState
from gpuops.sim.state.drs import DrsState
from gpuops.sim.state.gpu_admission import VgpuPolicy
from gpuops.sim.state.vm_state import VmState

if TYPE_CHECKING:
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


def save(world: World, scenario: str, seed: int, afresh: Callable[[], World]) -> dict[str, Any]:
    """How `world` differs from what `afresh` builds, as JSON values."""
    untouched = afresh()
    return {
        "format": FORMAT,
        "scenario": scenario,
        "seed": seed,
        "now": world.clock.now().isoformat(),
        "number": world.next_number(),
        "made": saved_inventory.made(world, untouched),
        "places": _changed_values(saved_inventory.places(world), saved_inventory.places(untouched)),
        "vms": _changed_values(_vms(world), _vms(untouched)),
        "removed": saved_inventory.removed(world, untouched),
        "hosts": _changed_values(_hosts(world), _hosts(untouched)),
        "networks": saved_network.save(world, untouched),
        "clusters": _changed_values(_clusters(world), _clusters(untouched)),
        "datastores": _changed_values(_space(world), _space(untouched)),
        "fields": [asdict(field) for field in world.custom_fields.fields.values()],
        "options": _changed_values(world.options.items(), untouched.options.items()),
        "direct_path": asdict(world.direct_path),
        "tags": world.tags.to_json(),
        "ledger": world.ledger.to_json(),
        "tasks": world.tasks.to_json(),
    }


def restore(world: World, scenario: str, seed: int, saved: dict[str, Any]) -> None:
    """Make a freshly built world what was saved of it. Raises ValueError, KeyError or TypeError for anything else."""
    named = (saved["format"], saved["scenario"], saved["seed"])
    if named != (FORMAT, scenario, seed):
        raise ValueError(f"it is of format {named[0]}, scenario {named[1]!r}, seed {named[2]}")
    world.clock.advance_to(datetime.fromisoformat(saved["now"]))
    while world.next_number() < saved["number"]:  # ids that were given before are not given again
        continue
    world.rng.seed(f"{seed}:{saved['number']}")
    world.custom_fields.load(saved["fields"])
    world.options.update(saved["options"])
    _restore_inventory(world, saved)
    for moid, values in saved["hosts"].items():
        _restore_host(world.get(moid), values)
    saved_network.restore(world, saved["networks"])
    for moid, values in saved["clusters"].items():
        world.get(moid).drs = adapter(DrsState).validate_python(values)
    for moid, free_mib in saved["datastores"].items():
        world.get(moid).free_mib = free_mib
    world.direct_path = adapter(DirectPathState).validate_python(saved["direct_path"])
    world.tags.load(saved["tags"])
    world.ledger.load(saved["ledger"])
    world.tasks.load(saved.get("tasks", ()), world.sessions)  # a state of before has none


def _restore_inventory(world: World, saved: dict[str, Any]) -> None:
    """What was made, then the VMs, then what was moved and removed."""
    for new_vm in saved["made"]:
        saved_inventory.restore_made(world, new_vm)
    for moid in saved["removed"]["vms"]:
        leave(world.get(moid))
    for moid, values in saved["vms"].items():
        _restore_vm(world, moid, adapter(VmState).validate_python(values))
    for moid, place in saved["places"].items():
        saved_inventory.restore_place(world.get(moid), place)
    for moid in saved["removed"]["others"]:
        saved_inventory.restore_removed(world, moid)


def _changed_values(now: Any, before: Any) -> dict[str, Any]:
    earlier = dict(before)
    return {key: value for key, value in now if key not in earlier or earlier[key] != value}


def _vms(world: World) -> Iterator[tuple[str, Any]]:
    for vm in world.by_type("VirtualMachine"):
        yield vm.moid, dump(vm.state)


def _hosts(world: World) -> Iterator[tuple[str, Any]]:
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
        yield cluster.moid, dump(cluster.drs)


def _space(world: World) -> Iterator[tuple[str, Any]]:
    for store in world.by_type("Datastore"):
        yield store.moid, store.free_mib


def _restore_vm(world: World, moid: str, state: VmState) -> None:
    existing = world.find(moid)
    if isinstance(existing, VirtualMachine):
        leave(existing)
    state.guest_boots = state.guest_boots and state.template.boot_s is None  # the others came up meanwhile
    for reference in filter(None, (state.host, state.pool, state.folder, state.datastore)):
        world.get(reference)  # raises for one that is not there
    vm = enter(VirtualMachine(world, moid, state))
    for snapshot in state.snapshots:
        world.register(VirtualMachineSnapshot(world, snapshot.moid, vm, copy.copy(state)))


def _restore_host(host: HostSystem, values: dict[str, Any]) -> None:
    state = host.state
    _set_fields(state, HOST_FIELDS, values)
    host.attributes = {int(key): value for key, value in values["attributes"].items()}
    state.policy, state.boot_time = VgpuPolicy(values["policy"]), datetime.fromisoformat(values["boot_time"])
    for gpu in state.gpus:
        gpu.mode = GpuMode(values["gpus"][gpu.pci_id]["mode"])
        # fields that are newer than the file stay
        _set_fields(gpu, GPU_FIELDS, {**_fields(gpu, GPU_FIELDS), **values["gpus"][gpu.pci_id]})
    for device in state.others:
        _set_fields(device, DEVICE_FIELDS, values["others"][device.pci_id])
    for port in state.ports:
        _set_fields(port, PORT_FIELDS, values["ports"][port.pci_id])
    # in place, for a manager shows them; a state of before has none
    state.options.update(values.get("options", {}))


class StateFile:
    """A JSON file: read at once if it is there, written by `save()`."""

    def __init__(self, path: Path, world: World) -> None:
        """Raises UsageError for a world that cannot be saved, StateDamaged for a file that does not fit it."""
        if world.state_hooks is None:
            raise UsageError("this world has no state to save")
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
            raise self._damage_error(f"it names {error.obj._moId[:80]!r}, which is not there") from error
        except (*NOT_PARSED, AttributeError) as error:  # whatever a state that this world did not save holds
            raise self._damage_error(f"{type(error).__name__}: {error}") from error

    def _damage_error(self, reason: str) -> StateDamaged:
        message = f"{self._path} is not the state of this scenario: {reason}"
        return StateDamaged(message, hint="remove it to begin afresh")
