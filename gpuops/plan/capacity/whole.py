"""Whole: GPUs of a host that DirectPath I/O can give to a VM now.

Sources: vSphere API, HostPciPassthruInfo (enabled = configured, active = in force).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuops.advise.capacity import Slots, total
from gpuops.model.gpu import PciAddress, PhysicalGpu
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import DirectPathDevice, DynamicDevice
from gpuops.plan.capacity.bars import Bar, behind
from gpuops.plan.capacity.place import Device
from gpuops.plan.placement.gpu_filters import holders


class Holding:
    """Who holds the devices of one host, and who may."""

    def __init__(self, host: Host, inventory: Inventory) -> None:
        self._held = {address: _name(ref, inventory) for address, ref in holders(host, inventory).items()}
        self._may_be_held: dict[PciAddress, str] = {}
        for vm in inventory.vms_on(host):
            if vm.power is None:
                for device in vm.devices or ():
                    address = _address(device)
                    if address is not None:
                        self._may_be_held[address] = vm.name

    def room(self, gpu: PhysicalGpu) -> Slots | None:
        """1 or 0 more VMs, or which of them is not known; None = the GPU is not there to be given whole."""
        state = gpu.passthrough
        if state is None:
            # A GPU that serves graphics is not in passthrough, whatever cannot be read of it.
            return Slots(0, 1, "its passthrough state cannot be read") if gpu.graphics_type is None else None
        if not state.active and not state.enabled:
            return None
        if state.reboot_pending:
            return Slots(0, 0, "its passthrough waits for a reboot of the host")
        if gpu.address in self._held:
            return Slots(0, 0, f"held by {self._held[gpu.address]}")
        if gpu.address in self._may_be_held:
            return Slots(0, 1, f"whether {self._may_be_held[gpu.address]} runs cannot be read")
        return Slots(1, 1)


def rooms(gpus: Iterable[PhysicalGpu], holding: Holding, bars: Iterable[Bar]) -> Mapping[Device, Slots]:
    """Room among these GPUs behind the host's bars, by kind of device."""
    general = [bar for bar in bars if not bar.vgpus_alone]
    found: dict[Device, list[Slots]] = {}
    for gpu in gpus:
        room = holding.room(gpu)
        if room is not None:
            label = (gpu.passthrough.label if gpu.passthrough else None) or ""
            found.setdefault(Device(gpu.name, gpu.vendor_id, gpu.device_id, label), []).append(room)
    return {device: behind(general, total(found[device])) for device in sorted(found)}


def _address(device: object) -> PciAddress | None:
    match device:
        case DirectPathDevice(address=address):
            return address
        case DynamicDevice(assigned=assigned):
            return assigned
        case _:
            return None


def _name(ref: str, inventory: Inventory) -> str:
    return inventory.vms[ref].name if ref in inventory.vms else ref
