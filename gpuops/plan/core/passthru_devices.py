"""Compares existing and requested passthrough devices of VMs, and numbers them as in VMX names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, assert_never

from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    GpuDevice,
    OtherPassthrough,
    VgpuDevice,
    Vm,
    is_gpu,
    next_device_keys,
    passthru_number,
)
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu


def signature(device: GpuDevice | NewDevice) -> str:
    """Return a text that is the same for a device before and after it is added: `vgpu grid_a100-3-20c`."""
    match device:
        case VgpuDevice(profile=profile) | NewVgpu(profile=profile):
            return f"vgpu {profile}"
        case DirectPathDevice(address=address) | NewDirectPath(address=address):
            return f"directpath {address}"
        case DynamicDevice(allowed=allowed, label=label) | NewDynamic(allowed=allowed, label=label):
            return f"dynamic {pci_types(allowed)}" + (f" label {label}" if label else "")
        case OtherPassthrough(key=key):
            return f"other {key}"
        case _:
            assert_never(device)


def signatures(devices: Iterable[GpuDevice | NewDevice]) -> tuple[str, ...]:
    """Return the sorted signatures of these devices."""
    return tuple(sorted(signature(device) for device in devices))


def pci_types(allowed: Iterable[tuple[int, int]]) -> str:
    """Return (vendor id, device id) pairs in the usual notation: `10de:20f1`."""
    return ",".join(f"{vendor:04x}:{device:04x}" for vendor, device in sorted(allowed))


def types_of(device: GpuDevice | NewDevice) -> tuple[tuple[int, int], ...]:
    """Return the (vendor id, device id) pairs that a DirectPath device may have; empty for a vGPU and other devices."""
    match device:
        case DirectPathDevice(vendor_id=vendor, device_id=number) | NewDirectPath(vendor_id=vendor, device_id=number):
            return ((vendor, number),)
        case DynamicDevice(allowed=allowed) | NewDynamic(allowed=allowed):
            return allowed
        case VgpuDevice() | NewVgpu() | OtherPassthrough():
            return ()
        case _:
            assert_never(device)


def is_no_gpu(device: GpuDevice | NewDevice) -> bool:
    """Return whether this is a DirectPath device of another vendor than NVIDIA."""
    types = types_of(device)
    return bool(types) and all(vendor not in (0, NVIDIA_VENDOR_ID) for vendor, _ in types)


def gpu_names(vm: Vm) -> str:
    """Return the GPU devices of the VM for a message; `none` if it has none."""
    return ", ".join(signature(device) for device in vm.devices or () if is_gpu(device)) or "none"


def option_of(device: GpuDevice) -> str:
    """Return the value of `--replace` for this device: a profile, a PCI address or `dynamic`."""
    return "dynamic" if isinstance(device, DynamicDevice) else signature(device).split(" ", 1)[1]


_Device = TypeVar("_Device", bound=GpuDevice | NewDevice)


def with_passthru_numbers(devices: Iterable[_Device]) -> Sequence[tuple[int, _Device]]:
    """Return each device with the N of its VMX name `pciPassthruN`; for a new device, the N that vCenter will use."""
    devices = tuple(devices)
    keys: list[int | None] = [getattr(device, "key", None) for device in devices]  # a new device has no key yet
    if None in keys:
        new_keys = next_device_keys(key for key in keys if key is not None)
        keys = [next(new_keys) if key is None else key for key in keys]
    return [(passthru_number(key), device) for key, device in zip(keys, devices, strict=True) if key is not None]
