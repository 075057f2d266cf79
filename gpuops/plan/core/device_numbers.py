"""The VMX numbers of devices that a VM has, and of those that a change will add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from gpuops.model.vcenter.device_keys import next_device_keys, passthru_number
from gpuops.model.vcenter.vm import GpuDevice
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu

_Device = TypeVar("_Device", bound=GpuDevice | NewDevice)


def numbered(devices: Iterable[_Device]) -> Iterator[tuple[int, _Device]]:
    """Yield the devices with N of their VMX name `pciPassthruN`; new ones with the N that vCenter will give them."""
    devices = tuple(devices)
    new_keys = next_device_keys(
        device.key for device in devices if not isinstance(device, NewVgpu | NewDirectPath | NewDynamic)
    )
    for device in devices:
        is_new = isinstance(device, NewVgpu | NewDirectPath | NewDynamic)
        yield passthru_number(next(new_keys) if is_new else device.key), device
