"""Makes the VMs of a scenario and spreads them over its hosts; those that run are admitted as at a power-on.

A VM that was read from a vCenter is put on the GPUs that it was on, even if the rules of the simulated host would not
admit it there. Only if its GPUs are unknown is it started as any other VM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING, Final

from pyVmomi import vmodl

from gpuops.errors import PolicyError
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress
from gpuops.sim.core.inventory_tree import escaped
from gpuops.sim.inventory.managed_entity import enter, new_moid, new_uuid
from gpuops.sim.objects.folder import Folder
from gpuops.sim.objects.virtual_machine import VirtualMachine, VirtualMachineSnapshot
from gpuops.sim.operations.host_admission import admission
from gpuops.sim.operations.vms import snapshots
from gpuops.sim.render.pci import nic_addresses, offered_groups
from gpuops.sim.scenario.declared import DeviceDeclared, GuestDeclared, VmsDeclared, expand_name, numbers
from gpuops.sim.state.board import board
from gpuops.sim.state.gpu_admission import NotAdmitted, RunningVgpu, WantedVgpu, admit
from gpuops.sim.state.hardware import FIRST_CARD, FIRST_DISK, Disk, Hardware, NetworkCard, StorageController
from gpuops.sim.state.vm_state import (
    FIRST_PCI_KEY,
    FIRST_SRIOV_KEY,
    FIRST_UNIT,
    SRIOV,
    Backing,
    DvxBacking,
    DynamicBacking,
    GuestAccount,
    GuestProgram,
    PastUse,
    PciDevice,
    Power,
    Question,
    SriovBacking,
    StaticBacking,
    Template,
    VgpuBacking,
    VmState,
    pci_slot,
)

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import FolderEntity, VmEntity
    from gpuops.sim.objects.folder import VmfsDatastore
    from gpuops.sim.objects.host_system import HostSystem
    from gpuops.sim.scenario.declared import VmAsRead
    from gpuops.sim.scenario.scenario_hosts import ScenarioSite

VM_AGE: Final = timedelta(days=90)
UPTIME: Final = timedelta(hours=10)
SUSPENDED_FOR: Final = timedelta(hours=2)
SPREAD: Final = 37
"""A step without a common factor with 100: it spreads the VMs that are off or suspended evenly over all VMs."""


def add_vms(site: ScenarioSite) -> None:
    """Add all VMs; those declared first are started first."""
    counts = numbers([vms.count for vms in site.declared.vms], site.parameters)
    for declared, count in zip(site.declared.vms, counts, strict=True):
        hosts = cycle(site.hosts_of(declared.on))
        for index in range(count):
            _add_vm(site, declared, index, next(hosts))


def _add_vm(site: ScenarioSite, declared: VmsDeclared, index: int, host: HostSystem) -> None:
    """Make the VM with this index of its declaration on the host, register it and set its power state."""
    world = site.world
    as_read = declared.as_read
    store = site.datastores[index % len(site.datastores)]
    if as_read is not None and as_read.datastore is not None:
        store = _datastore_read(site, declared, as_read.datastore)
    network = (site.networks[0].moid, site.networks[0].name)
    devices, groups = _devices(declared, host, network)
    reserved = bool(devices) if declared.reserved is None else declared.reserved
    memory_mib = (declared.memory_gib << 10) if declared.memory_mib is None else declared.memory_mib
    state = VmState(
        name=escaped(expand_name(declared.name, declared.first + index)),
        uuid=new_uuid(world),
        instance_uuid=new_uuid(world),
        template=_template(site.guest(declared.guest), store.name),
        host=host.moid,
        pool=None if declared.template else host.compute_resource().pool.moid,
        folder=_folder(site, declared.folder).moid,
        datastore=store.moid,
        cpus=declared.cpus,
        memory_mib=memory_mib,
        created_at=site.declared.start - VM_AGE,
        hardware_version=declared.hardware_version,
        firmware=declared.firmware,
        is_template=declared.template,
        annotation=declared.annotation,
        managed_by=(declared.managed_by.extension, declared.managed_by.type) if declared.managed_by else None,
        memory_reservation_mib=memory_mib if reserved else 0,
        memory_locked=reserved,
        hardware=_hardware(declared.disk_gib, *network),
        devices=devices,
        groups=groups,
        extra_config=_options(tuple(sorted(declared.extra_config.items()))),
        attributes={world.custom_fields.define(name): value for name, value in declared.attributes.items()},
        cpu_usage_mhz=declared.cpu_usage_mhz,
        past=PastUse(declared.office, site.declared.start) if declared.office is not None else None,
        guest_memory_mib=memory_mib // 4,  # every guest uses a quarter of its memory
        console_connections=declared.console_connections,
    )
    if as_read is not None:
        set_as_read(state, as_read)
    vm = enter(VirtualMachine(world, as_read.moid if as_read is not None else new_moid(world, "vm"), state))
    if declared.snapshot:
        snapshots.take(vm, declared.snapshot, "", memory=False, make=VirtualMachineSnapshot)
    if as_read is None or not set_power_as_read(vm, as_read, _power_of(declared, index)):
        _set_power(site, vm, _power_of(declared, index))
    if declared.question:
        question = declared.question
        state.question = Question(question.id, question.text, tuple(question.choices.items()))


@cache
def _template(guest: GuestDeclared, store: str) -> Template:
    """Return the Template of a guest and datastore; equal arguments share one object."""
    login = GuestAccount(guest.login.username, guest.login.password) if guest.login else None
    programs = tuple(
        GuestProgram(program.path, program.takes_s, program.exit_code, program.prints, program.removes)
        for program in guest.programs
    )
    return Template(
        guest.id,
        guest.name,
        store,
        guest.linux,
        guest.tools,
        guest.boot_s,
        login,
        programs,
        guest.clock_ahead_s,
        guest.processes == "real",
    )


@cache
def _hardware(disk_gib: int, network: str, network_name: str) -> Hardware:
    """Return hardware with a disk and a network card, one object for all VMs that are declared alike."""
    scsi = StorageController(1000, "ParaVirtualSCSIController", 0)
    disks = (Disk(FIRST_DISK, scsi.key, 0, disk_gib << 20),) if disk_gib else ()
    return Hardware((scsi,), disks, (NetworkCard(FIRST_CARD, "VirtualVmxnet3", network, network_name),))


@cache
def _options(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return one tuple for all VMs with the same options, which saves memory."""
    return pairs


def _datastore_read(site: ScenarioSite, declared: VmsDeclared, moid: str) -> VmfsDatastore:
    """The datastore that a bundle names by its managed object id. Raises PolicyError if the scenario has none of it."""
    for datastore in site.datastores:
        if datastore.moid == moid:
            return datastore
    raise PolicyError(
        f"VM {declared.name}: there is no datastore {moid!r}", hint="use the `moid` of an entry of `datastores`"
    )


def _folder(site: ScenarioSite, path: str) -> FolderEntity:
    """Return the VM folder at a path such as `ml/team-a`; missing folders are created."""
    folder = site.datacenter.folders["vm"]
    for name in filter(None, path.split("/")):
        child_folder = next(
            (child for child in folder.children.values() if isinstance(child, Folder) and child.name == escaped(name)),
            None,
        )
        if child_folder is None:
            child_folder = Folder(site.world, new_moid(site.world, "group-v"), name, folder.moid, "vm")
            site.world.register(child_folder)
            folder.add(child_folder)
        folder = child_folder
    return folder


def _devices(
    declared: VmsDeclared, host: HostSystem, network: tuple[str, str]
) -> tuple[tuple[PciDevice, ...], tuple[tuple[int, str], ...]]:
    """Return the VM's passthrough devices, and its device groups as (key, name)."""
    backings: list[tuple[Backing, tuple[int, int] | None]] = []  # with (key of the group, place in it)
    groups: list[tuple[int, str]] = []
    for device in declared.devices:
        if device.group is None:
            backings.append((_backing(device, host, network), None))
            continue
        offer = next((offer for offer in offered_groups(host.state) if offer.name == device.group), None)
        if offer is None:
            raise PolicyError(
                f"host {host.name} offers no device group {device.group!r}",
                hint="name a group of its GPUs with NVLink, such as Nvidia:2@grid_a100d-80c%NVLink",
            )
        groups.append((len(groups) + 1, device.group))
        backings += [(VgpuBacking(name), (len(groups), number)) for number, name in enumerate(offer.profiles)]
    return (tuple(_number_devices(backings)), tuple(groups))


def _number_devices(backings: list[tuple[Backing, tuple[int, int] | None]]) -> Iterator[PciDevice]:
    """Yield a device for each backing, with the next free key and unit of its kind."""
    used_keys: list[int] = []
    for backing, group in backings:
        is_card = isinstance(backing, SriovBacking)
        key, unit = pci_slot(used_keys, sriov=is_card)
        used_keys.append(key)
        if isinstance(backing, SriovBacking):
            backing = replace(backing, card=replace(backing.card, key=key))
        yield PciDevice(key, unit, backing, group=group)


def _backing(device: DeviceDeclared, host: HostSystem, network: tuple[str, str]) -> Backing:
    """Return the backing of a declared device. Raises PolicyError for a device that the host does not have."""
    if device.vgpu is not None:
        return VgpuBacking(device.vgpu)
    if device.dynamic is not None:
        allowed = tuple((NVIDIA_VENDOR_ID, board(key).device_id) for key in device.dynamic.boards)
        return DynamicBacking((*allowed, *device.dynamic.allowed), device.dynamic.label)
    if device.other:
        return DvxBacking("other")
    if device.sriov is not None:
        if device.sriov not in nic_addresses(host.state):
            raise PolicyError(
                f"host {host.name} has no network card at {device.sriov!r}",
                hint=f"use one of: {', '.join(nic_addresses(host.state))}",
            )
        return SriovBacking(device.sriov, NetworkCard(FIRST_SRIOV_KEY, SRIOV, *network))
    host_device = host.state.device(device.direct_path or "")
    if host_device is None:
        known = ", ".join(known_device.pci_id for known_device in host.state.devices) or "none exists"
        raise PolicyError(
            f"host {host.name} has no passthrough device {device.direct_path!r}", hint=f"use one of: {known}"
        )
    device_id = f"{host_device.device_id:x}"
    return StaticBacking(
        host_device.pci_id, device_id, host.state.system_id, host_device.vendor_id, host_device.device_name
    )


def _power_of(declared: VmsDeclared, index: int) -> str:
    """Return the power word of the VM with this index among the VMs of its declaration."""
    if isinstance(declared.power, str):
        return declared.power
    # with {on: 60, off: 40}, the VMs whose percentile is below 60 are on
    percentile, upper_limit = index * SPREAD % 100, 0.0
    for word, percent in declared.power.items():
        upper_limit += percent
        if percentile < upper_limit:
            return word
    return "off"


def _set_power(site: ScenarioSite, vm: VmEntity, word: str) -> None:
    """Set the declared power state.

    If the host refuses to run the VM, one declared "fit" stays off, and one declared "on" raises PolicyError.
    """
    state, start = vm.state, site.declared.start
    if word == "suspended":
        state.power, state.boot_time, state.suspend_time = Power.SUSPENDED, start - UPTIME, start - SUSPENDED_FOR
        sizes = {type_.name: type_.framebuffer_mib for gpu in vm.host().state.gpus for type_ in gpu.board.types}
        state.suspend_file_mib = state.memory_mib + sum(sizes.get(vgpu.type_name, 0) for vgpu in state.vgpus)
        vm.datastore().use(state.suspend_file_mib)
    elif word in ("on", "fit"):
        try:
            admitted = admission(vm, vm.host())
        except vmodl.MethodFault as refusal:
            if word == "fit":
                return
            reasons = "; ".join(reason.message or "" for reason in refusal.faultMessage)
            raise PolicyError(
                f"{vm.name} cannot run on {vm.host().name}: {refusal.msg} {reasons}".strip(),
                hint="use `power: fit` to leave the VMs off that their host refuses",
            ) from refusal
        state.power, state.boot_time = Power.ON, start - UPTIME
        state.guest_boots = state.template.boot_s is None
        state.seats, state.held = admitted.seats, admitted.held


_FIELDS_AS_READ: Final = (
    "cores_per_socket", "memory_reservation_mib", "memory_locked", "cpu_reservation_mhz",
    "cpu_hot_add", "nested_virtualization",
)  # fmt: skip
_POWERS: Final = {"on": Power.ON, "suspended": Power.SUSPENDED}


def set_as_read(state: VmState, as_read: VmAsRead) -> None:
    """Set all that was read from a real VM except power, GPUs and held devices."""
    for name in _FIELDS_AS_READ:
        setattr(state, name, getattr(as_read, name))
    state.cores_per_numa_node = as_read.cores_per_numa_node or None
    devices, is_grouped = state.devices, as_read.group is not None
    if len(as_read.device_keys) == len(devices):
        keys = zip(devices, as_read.device_keys, strict=True)
        devices = tuple(replace(device, key=key, unit=FIRST_UNIT + key - FIRST_PCI_KEY) for device, key in keys)
    state.groups = ((1, as_read.group),) if as_read.group is not None else state.groups
    # devices without a NUMA node that was read get None
    state.devices = tuple(
        replace(
            device,
            numa_node=node,
            group=(1, number) if is_grouped and isinstance(device.backing, VgpuBacking) else device.group,
        )
        for number, (device, node) in enumerate(zip(devices, (*as_read.nodes, *(None for _ in devices)), strict=False))
    )


def set_power_as_read(vm: VmEntity, as_read: VmAsRead, word: str) -> bool:
    """Set the power state that was read from a real VM and return True.

    Returns False, with the VM off, if it ran but the GPUs that it ran on are not known.
    """
    state = vm.state
    state.power, state.suspend_time = _POWERS.get(word, Power.OFF), as_read.suspended
    if word == "suspended":  # no space is used up: the datastore's free space was read with this file on it
        state.suspend_file_mib = state.memory_mib
    if word != "on":
        return True
    seats = _seats(vm, as_read)
    if seats is None:
        state.power = Power.OFF
        return False
    state.seats, state.held, state.boot_time = seats, _held_devices(state, as_read), as_read.booted
    return True


def _seats(vm: VmEntity, as_read: VmAsRead) -> tuple[RunningVgpu, ...] | None:
    """Return the slot of each vGPU on the GPU that was read for it.

    None = a GPU was not read, or the host does not have the GPU or its type.
    """
    vgpus = vm.state.vgpus
    if len(as_read.gpus) != len(vgpus):
        return None
    seats: list[RunningVgpu] = []
    starts = (*as_read.starts, *(None for _ in vgpus))
    for vgpu, address, start in zip(vgpus, as_read.gpus, starts, strict=False):
        pci_id = str(PciAddress.parse(address))
        load = vm.host().state.for_admission((*vm.host().seats(), *seats))
        gpu = next((candidate for candidate in load if candidate.pci_id == pci_id), None)
        type_ = gpu.board.by_name.get(vgpu.type_name) if gpu is not None else None
        if gpu is None or type_ is None:
            return None
        if start is None:
            admitted = admit(vm.moid, [WantedVgpu(vgpu.type_name, pci_id)], [gpu], vm.host().state.policy)
            start = None if isinstance(admitted, NotAdmitted) else admitted[0].start
        seats.append(RunningVgpu(vm.moid, pci_id, type_, start))
    return tuple(seats)


def _held_devices(state: VmState, as_read: VmAsRead) -> tuple[tuple[int, str], ...]:
    direct_path_devices = [
        device for device in state.devices if isinstance(device.backing, StaticBacking | DynamicBacking)
    ]
    return tuple(
        (device.key, pci_id)
        for device, pci_id in zip(direct_path_devices, as_read.held, strict=False)
        if pci_id is not None
    )
