"""Makes a VM of a scenario what was read of it, and puts it on the GPUs that it was on.

It is not asked whether the rules of the simulated host let it run there: it ran. Only where its GPUs were not told is
it started as any other VM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpuops.model.devices.gpu import PciAddress
from gpuops.sim.state.gpu_admission import NotAdmitted, RunningVgpu, WantedVgpu, admit
from gpuops.sim.state.vm_state import FIRST_PCI_KEY, FIRST_UNIT, DynamicBacking, Power, StaticBacking, VgpuBacking

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.scenario.as_read import VmAsRead
    from gpuops.sim.state.vm_state import VmState

_SAME: Final = (
    "cores_per_socket", "memory_reservation_mib", "memory_locked", "cpu_reservation_mhz",
    "cpu_hot_add", "nested_virtualization",
)  # fmt: skip
_POWERS: Final = {"on": Power.ON, "suspended": Power.SUSPENDED}


def set_as_read(state: VmState, read: VmAsRead) -> None:
    """All that does not depend on where it runs."""
    for name in _SAME:
        setattr(state, name, getattr(read, name))
    state.cores_per_numa_node = read.cores_per_numa_node or None
    devices, grouped = state.devices, read.group is not None
    if len(read.device_keys) == len(devices):
        keys = zip(devices, read.device_keys, strict=True)
        devices = tuple(replace(device, key=key, unit=FIRST_UNIT + key - FIRST_PCI_KEY) for device, key in keys)
    state.groups = ((1, read.group),) if read.group is not None else state.groups
    state.devices = tuple(
        replace(
            device,
            numa_node=node,
            group=(1, number) if grouped and isinstance(device.backing, VgpuBacking) else device.group,
        )
        for number, (device, node) in enumerate(zip(devices, (*read.nodes, *(None for _ in devices)), strict=False))
    )


def runs_as_read(vm: VmEntity, read: VmAsRead, word: str) -> bool:
    """Give it the power state that it had; False where its host must say on which GPUs it runs."""
    state = vm.state
    state.power, state.suspend_time = _POWERS.get(word, Power.OFF), read.suspended
    if word == "suspended":  # its file is there already: it was counted in what is free on the datastore
        state.suspend_file_mib = state.memory_mib
    if word != "on":
        return True
    seats = _seats(vm, read)
    if seats is None:
        state.power = Power.OFF
        return False
    state.seats, state.held, state.boot_time = seats, _held_devices(state, read), read.booted
    return True


def _seats(vm: VmEntity, read: VmAsRead) -> tuple[RunningVgpu, ...] | None:
    """A place for each vGPU on the GPU that it is on; None = that was not told, or the host has no such GPU or type."""
    vgpus = vm.state.vgpus
    if len(read.gpus) != len(vgpus):
        return None
    seats: list[RunningVgpu] = []
    starts = (*read.starts, *(None for _ in vgpus))
    for vgpu, address, start in zip(vgpus, read.gpus, starts, strict=False):
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


def _held_devices(state: VmState, read: VmAsRead) -> tuple[tuple[int, str], ...]:
    direct = [device for device in state.devices if isinstance(device.backing, StaticBacking | DynamicBacking)]
    return tuple((device.key, pci_id) for device, pci_id in zip(direct, read.held, strict=False) if pci_id is not None)
