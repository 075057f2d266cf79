"""Hypothetical VMs: a workload as the VM it would be, so that the rules for VMs answer for it too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress, PhysicalGpu
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaPolicy
from gpuops.model.vm import DirectPathDevice, DynamicDevice, Firmware, GpuDevice, PowerState, VgpuDevice, Vm
from gpuops.model.workload import Workload
from gpuops.plan.asked import profile_meant
from gpuops.plan.placement.nodes import AFFINITY_KEY
from gpuops.plan.placement.wanted import Placement, pin_key
from gpuops.plan.plan import Rejection
from gpuops.plan.project import FIRST_DEVICE_KEY

HARDWARE: Final = 21
"""Virtual hardware that a VM made today gets on vSphere 8.0 Update 2 and later."""

Devices = tuple[GpuDevice, ...]


def vm_of(workload: Workload, devices: Devices = ()) -> Vm:
    """The VM that the workload asks for, off and registered nowhere, made as a VM for such devices should be."""
    return Vm(
        ref=f"workload:{workload.name}",
        name=workload.name,
        power=PowerState.OFF,
        connected=True,
        template=False,
        vcpus=workload.vcpus,
        memory_mib=workload.memory_mib,
        memory_reservation_mib=workload.memory_mib,
        memory_locked=True,
        snapshots=0,
        devices=devices,
        extra_config={},
        firmware=Firmware.EFI,
        hardware_version=HARDWARE,
        cpu_hot_add=False,
    )


def running(vm: Vm, placement: Placement, numa: NumaPolicy) -> Vm:
    """The VM as it will run there: pinned where the placement pins, its memory counted on the node it is expected on.

    ESXi keeps a VM that fits beside its GPU there as a rule; only `required` binds it. A plan for many VMs counts both
    alike: a node's memory is not promised twice. Whole devices are the ones it is expected to get.
    """
    devices = tuple(_given(device, placement.seats.get(ordinal)) for ordinal, device in enumerate(vm.devices or ()))
    pins = {pin_key(ordinal): str(address) for ordinal, address in placement.pins.items()}
    local = numa is not NumaPolicy.NONE and placement.numa_node is not None
    node = {AFFINITY_KEY: str(placement.numa_node)} if local else {}
    return replace(vm, host=placement.host.ref, power=PowerState.ON, devices=devices, extra_config={**pins, **node})


def choices_of_devices(
    workload: Workload, inventory: Inventory, catalog: Catalog
) -> tuple[Devices, ...] | tuple[Rejection]:
    """The devices that would serve it, the smallest GPU model first where several would; or why nothing here can."""
    if workload.profile is None:
        return _whole(workload, inventory, catalog)
    try:
        profile = profile_meant(workload.profile, vm_of(workload), None, inventory, catalog)
    except UsageError as error:
        return (Rejection(workload.name, error.message, hint=error.hint),)
    keys = range(FIRST_DEVICE_KEY, FIRST_DEVICE_KEY + workload.count)
    return (tuple(VgpuDevice(key, profile) for key in keys),)


def framebuffer_mib(devices: Devices, catalog: Catalog) -> int:
    """GPU memory that the devices hold, as far as the catalogue knows them."""
    return sum(_memory_mib(device, catalog) for device in devices)


def _given(device: GpuDevice, seat: PciAddress | None) -> GpuDevice:
    """A whole device as the one that was found for it: asked again, the host's order alone would say another."""
    if not isinstance(device, DynamicDevice) or seat is None:
        return device
    return DirectPathDevice(device.key, seat, *device.allowed[0], system_id="")


def _memory_mib(device: GpuDevice, catalog: Catalog) -> int:
    if isinstance(device, VgpuDevice):
        profile = catalog.profile(device.profile)
        return profile.framebuffer_mib if profile else 0
    if isinstance(device, DynamicDevice):
        boards = [catalog.board_by_pci(*kind) for kind in device.allowed]
        return max((board.framebuffer_mib for board in boards if board), default=0)
    return 0


def _whole(workload: Workload, inventory: Inventory, catalog: Catalog) -> tuple[Devices, ...] | tuple[Rejection]:
    """So many devices of one model, for each model that hosts have in passthrough and that is meant."""
    given = [
        gpu
        for host in inventory.hosts.values()
        for gpu in host.gpus
        if gpu.passthrough is not None and gpu.passthrough.active
    ]
    models: dict[str, list[PhysicalGpu]] = {}
    for gpu in given:
        models.setdefault(_model(gpu, catalog), []).append(gpu)
    meant = {name: gpus for name, gpus in models.items() if _is_meant(workload.model, name, gpus, catalog)}
    if not meant:
        what = f"whole GPU of model {workload.model!r}" if workload.model else "whole GPU"
        there = ", ".join(sorted(models)) or "none"
        hint = "a profile of the GPU's full size is a whole GPU too, as a vGPU: --profile a40-48c"
        return (Rejection(workload.name, f"no host has a {what} in passthrough (there: {there})", hint=hint),)
    found = [_devices(workload.gpus, gpus) for _, gpus in sorted(meant.items())]
    return tuple(sorted(found, key=lambda devices: framebuffer_mib(devices, catalog)))


def _devices(count: int, gpus: Iterable[PhysicalGpu]) -> Devices:
    allowed = tuple(sorted({(gpu.vendor_id, gpu.device_id) for gpu in gpus}))
    return tuple(DynamicDevice(key, allowed) for key in range(FIRST_DEVICE_KEY, FIRST_DEVICE_KEY + count))


def _model(gpu: PhysicalGpu, catalog: Catalog) -> str:
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    return board.name if board else gpu.name


def _is_meant(text: str | None, name: str, gpus: Sequence[PhysicalGpu], catalog: Catalog) -> bool:
    """Whether people who write `text` mean this model: its key, its short name, or words of its name."""
    if text is None:
        return True
    board = catalog.board_by_pci(gpus[0].vendor_id, gpus[0].device_id, gpus[0].subsystem_id)
    wanted = text.lower()
    if board is not None and wanted in (board.key.lower(), board.short_name.lower()):
        return True
    return set(wanted.split()) <= set(name.lower().split())
