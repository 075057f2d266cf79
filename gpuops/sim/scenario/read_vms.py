"""Makes a VM of a scenario what was read of it, and puts it on the GPUs that it was on.

It is not asked whether the rules of the simulated host let it run there: it ran. Only where its GPUs were not told is
it started as any other VM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuops.model.devices.gpu import PciAddress
from gpuops.sim.state.gpu_admission import NotAdmitted, RunningVgpu, WantedVgpu, admit
from gpuops.sim.state.vm_state import FIRST_PCI_KEY, FIRST_UNIT, DynamicBacking, Power, StaticBacking, VgpuBacking

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.scenario.as_read import VmAsRead
    from gpuops.sim.state.vm_state import VmState


def set_as_read(state: VmState, read: VmAsRead) -> None:
    """All that does not depend on where it runs."""
    state.cores_per_socket = read.cores_per_socket
    state.cores_per_numa_node = read.cores_per_numa_node or None
    state.memory_reservation_mib = read.memory_reservation_mib
    state.memory_locked = read.memory_locked
    state.cpu_reservation_mhz = read.cpu_reservation_mhz
    state.cpu_hot_add = read.cpu_hot_add
    state.nested_virtualization = read.nested_virtualization
    if len(read.device_keys) == len(state.devices):
        keys = zip(state.devices, read.device_keys, strict=True)
        state.devices = tuple(replace(device, key=key, unit=FIRST_UNIT + key - FIRST_PCI_KEY) for device, key in keys)
    nodes = (*read.nodes, *(None for _ in state.devices))
    grouped = read.group is not None
    state.groups = ((1, read.group),) if read.group is not None else state.groups
    state.devices = tuple(
        replace(
            device,
            numa_node=node,
            group=(1, number) if grouped and isinstance(device.backing, VgpuBacking) else device.group,
        )
        for number, (device, node) in enumerate(zip(state.devices, nodes, strict=False))
    )


def runs_as_read(vm: VmEntity, read: VmAsRead, word: str) -> bool:
    """Give it the power state that it had; False where its host must say on which GPUs it runs."""
    state = vm.state
    state.suspend_time = read.suspended
    match word:
        case "on":
            seats = _seats(vm, read)
            if seats is None:
                return False
            state.seats = seats
            state.held = _held(state, read)
            state.power, state.boot_time = Power.ON, read.booted
            return True
        case "suspended":
            # its file is there already: it was counted in what is free on the datastore
            state.power = Power.SUSPENDED
            state.suspend_file_mib = state.memory_mib
            return True
        case _:
            state.power = Power.OFF
            return True


def _seats(vm: VmEntity, read: VmAsRead) -> tuple[RunningVgpu, ...] | None:
    """A place for each vGPU on the GPU that it is on; None = that was not told, or the host has no such GPU or type."""
    wanted = vm.state.vgpus
    if len(read.gpus) != len(wanted):
        return None
    seats: list[RunningVgpu] = []
    starts = (*read.starts, *(None for _ in wanted))
    for vgpu, address, start in zip(wanted, read.gpus, starts, strict=False):
        pci_id = str(PciAddress.parse(address))
        load = vm.host().state.for_admission((*vm.host().seats(), *seats))
        gpu = next((each for each in load if each.pci_id == pci_id), None)
        type_ = gpu.board.by_name.get(vgpu.type_name) if gpu is not None else None
        if gpu is None or type_ is None:
            return None
        if start is None:
            found = admit(vm.moid, [WantedVgpu(vgpu.type_name, pci_id)], [gpu], vm.host().state.policy)
            start = None if isinstance(found, NotAdmitted) else found[0].start
        seats.append(RunningVgpu(vm.moid, pci_id, type_, start))
    return tuple(seats)


def _held(state: VmState, read: VmAsRead) -> tuple[tuple[int, str], ...]:
    direct = [device for device in state.devices if isinstance(device.backing, StaticBacking | DynamicBacking)]
    return tuple((device.key, pci_id) for device, pci_id in zip(direct, read.held, strict=False) if pci_id is not None)
