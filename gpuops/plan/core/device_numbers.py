"""The VMX numbers of devices that a VM has, and of those that a change will add."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from gpuops.model.vcenter.device_keys import next_device_keys, passthru_number
from gpuops.model.vcenter.vm import GpuDevice
from gpuops.plan.core.steps import NewDevice

_Device = TypeVar("_Device", bound=GpuDevice | NewDevice)


def with_passthru_numbers(devices: Iterable[_Device]) -> Sequence[tuple[int, _Device]]:
    """Return the devices with N of their VMX name `pciPassthruN`; new ones with the N that vCenter will give them."""
    devices = tuple(devices)
    keys: list[int | None] = [getattr(device, "key", None) for device in devices]  # a new device has no key yet
    if None in keys:
        new_keys = next_device_keys(key for key in keys if key is not None)
        keys = [next(new_keys) if key is None else key for key in keys]
    return [(passthru_number(key), device) for key, device in zip(keys, devices, strict=True) if key is not None]
