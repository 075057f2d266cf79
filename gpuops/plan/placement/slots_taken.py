"""Holding: the snapshot with a VM's devices taken from its host, or given back: from power-on to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress
from gpuops.model.host import DeviceBinding, Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import DynamicDevice, VgpuDevice, Vm
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import demands_of, pins_of


def take(vm: Vm, inventory: Inventory, catalog: Catalog) -> Inventory:
    """The snapshot with this VM as it is given, on the GPUs that its host is expected to choose.

    Where the host would refuse it, it is on none: nobody can say what it would hold.
    """
    host = inventory.hosts.get(vm.host or "")
    if host is None or not vm.devices:
        return inventory.with_vm(vm)
    seating = seat(vm, demands_of(vm.devices, pins_of(vm)), host, inventory, catalog)
    seats = seating.seats if seating.complete else {}
    shared = {seats.get(ordinal) for ordinal, device in enumerate(vm.devices) if isinstance(device, VgpuDevice)}
    whole = [
        seats[ordinal]
        for ordinal, device in enumerate(vm.devices)
        if ordinal in seats and not isinstance(device, VgpuDevice)
    ]
    gpus = tuple(
        replace(gpu, vms=(*gpu.vms, vm.ref)) if gpu.address in shared and gpu.vms is not None else gpu
        for gpu in host.gpus
    )
    bindings = (*host.bindings, *(DeviceBinding(address, vm.ref) for address in whole))
    holding = replace(host, gpus=gpus, bindings=bindings)
    return inventory.with_hosts([holding]).with_vm(_assigned(vm, seats))


def release(vm: Vm, inventory: Inventory) -> Inventory:
    """The snapshot with this VM as it is given, on no GPU and with no device assigned."""
    released = inventory.with_vm(_assigned(vm, {}))
    host = inventory.hosts.get(vm.host or "")
    return released if host is None else released.with_hosts([_without(host, vm.ref)])


def _assigned(vm: Vm, seats: Mapping[int, PciAddress]) -> Vm:
    """The VM with these devices for its dynamic ones, by ordinal."""
    if not any(isinstance(device, DynamicDevice) for device in vm.devices or ()):
        return vm
    devices = tuple(
        replace(device, assigned=seats.get(ordinal)) if isinstance(device, DynamicDevice) else device
        for ordinal, device in enumerate(vm.devices or ())
    )
    return replace(vm, devices=devices)


def _without(host: Host, ref: str) -> Host:
    """The host with this VM on none of its GPUs; the very same when it is on none."""
    if not any(ref in (gpu.vms or ()) for gpu in host.gpus) and all(binding.vm != ref for binding in host.bindings):
        return host
    gpus = tuple(
        replace(gpu, vms=tuple(other for other in gpu.vms if other != ref)) if gpu.vms and ref in gpu.vms else gpu
        for gpu in host.gpus
    )
    return replace(host, gpus=gpus, bindings=tuple(binding for binding in host.bindings if binding.vm != ref))
