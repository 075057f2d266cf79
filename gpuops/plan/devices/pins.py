"""Pins: `pciPassthru<N>.cfg.gpu-pci-id`, which binds a VM's N-th passthrough device to a physical GPU.

N counts the devices as they are after a change, so a pin moves with its device when one before it is removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuops.model.gpu import PciAddress
from gpuops.model.vm import Vm
from gpuops.plan.devices.goal import Goal
from gpuops.plan.placement.wanted import pin_key, pins_of


def kept_pins(vm: Vm, goal: Goal) -> dict[int, PciAddress]:
    """The pins of the devices that stay, by their ordinal after the change."""
    pins = pins_of(vm)
    before = {device.key: ordinal for ordinal, device in enumerate(vm.devices or ())}
    return {ordinal: pins[was] for ordinal, device in enumerate(goal.kept) if (was := before[device.key]) in pins}


def pin_changes(vm: Vm, wanted: Mapping[int, PciAddress]) -> dict[str, str]:
    """The extraConfig entries that leave the VM's devices with exactly these pins; an empty value removes one."""
    there = pins_of(vm)
    removed = {pin_key(n): "" for n in there if n not in wanted and n < len(vm.devices or ())}
    return {**removed, **{pin_key(n): str(gpu) for n, gpu in wanted.items() if there.get(n) != gpu}}
