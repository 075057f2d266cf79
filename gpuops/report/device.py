"""A GPU device of a VM in a few words."""

from __future__ import annotations

from typing import assert_never

from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, OtherPassthrough, VgpuDevice


def describe(device: GpuDevice) -> str:
    """Return a GPU device of a VM in a few words: `vGPU grid_a100-3-20c`."""
    match device:
        case VgpuDevice(profile=profile):
            return f"vGPU {profile}"
        case DirectPathDevice(address=address):
            return f"DirectPath {address}"
        case DynamicDevice(allowed=allowed, label=label):
            return dynamic(allowed, label)
        case OtherPassthrough(label=label, unreadable=True):
            return f"unknown device {label}"
        case OtherPassthrough(label=label):
            return f"other device {label}"
        case _:
            assert_never(device)


def dynamic(allowed: tuple[tuple[int, int], ...], label: str | None) -> str:
    ids = ", ".join(f"{vendor:04x}:{device:04x}" for vendor, device in allowed)
    return f"Dynamic DirectPath {ids}" + (f" label {label}" if label else "")
