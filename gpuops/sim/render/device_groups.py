"""Vendor device groups a host offers: vGPUs that come together because NVLink joins their GPUs.

Names and rules: `Nvidia:2@grid_a100d-80c%NVLink`, full-frame-buffer types only, GPUs out of MIG mode (NVIDIA AI
Enterprise docs, "vGPU for Compute"; vSphere API, VirtualMachineVendorDeviceGroupInfo).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyVmomi import vim

from gpuops.sim.render.required_fields import filled
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.host_state import HostState

P = vim.vm.device.VirtualPCIPassthrough


@dataclass(frozen=True, slots=True)
class OfferedGroup:
    """A group by name; `profiles` are its members in order of their sequence ids."""

    name: str
    profiles: tuple[str, ...]


def offered_groups(host: HostState) -> tuple[OfferedGroup, ...]:
    """Every group of all GPUs that one NVLink bridge or switch joins."""
    groups = []
    for joined in host.nvlink_sets().values():
        usable = all(gpu.serves_vgpus and gpu.mode is GpuMode.SAME_SIZE for gpu in joined)
        if usable and len(joined) > 1:
            groups += [
                OfferedGroup(f"Nvidia:{len(joined)}@{name}%NVLink", (name,) * len(joined))
                for name in joined[0].board.nvlink_types
            ]
    return tuple(dict.fromkeys(groups))


def group_info(group: OfferedGroup) -> Any:
    """VirtualMachineVendorDeviceGroupInfo: the group with template devices to copy into a spec."""
    return vim.vm.VendorDeviceGroupInfo(
        name=group.name,
        deviceGroupName=group.name,
        deviceGroupDescription=f"{len(group.profiles)} vGPUs joined by NVLink",
        componentDeviceInfo=[
            filled(
                vim.vm.VendorDeviceGroupInfo.ComponentDeviceInfo,
                type="nvidiaVgpu",
                vendorName="NVIDIA",
                deviceName=profile,
                isConfigurable=False,
                device=P(
                    key=-1 - number,
                    backing=P.VmiopBackingInfo(vgpu=profile),
                    deviceGroupInfo=vim.vm.device.VirtualDevice.DeviceGroupInfo(groupInstanceKey=-1, sequenceId=number),
                ),
            )
            for number, profile in enumerate(group.profiles)
        ],
    )
