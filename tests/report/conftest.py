"""A small fleet as one snapshot shows it, with one of everything a view must show."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from gpuops.model.devices.gpu import GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Cluster, DeviceBinding, Host, NumaNode, OfferedProfile
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    Firmware,
    OtherPassthrough,
    PowerState,
    VgpuDevice,
    Vm,
)
from gpuops.report import layout
from gpuops.report.layout import Shown

A100 = (0x10DE, 0x20F1)
FIRST, SECOND, THIRD = (PciAddress.parse(text) for text in ("0000:3b:00.0", "0000:af:00.0", "0000:d8:00.0"))


def gpu(address: PciAddress, numa_node: int | None, **facts: object) -> PhysicalGpu:
    gpu_facts = {"memory_mib": 40960, "graphics_type": GraphicsType.SHARED_DIRECT, "vms": (), **facts}
    return PhysicalGpu(address, "NVIDIA A100-PCIE-40GB", *A100, numa_node=numa_node, **gpu_facts)  # type: ignore[arg-type]


@pytest.fixture
def inventory() -> Inventory:
    """Two GPU hosts (one with a GPU in passthrough, one in maintenance), one without, and five VMs."""
    first = Host(
        ref="host-1",
        name="esx-01.example.com",
        cluster="domain-c1",
        connected=True,
        version="8.0.3",
        memory_mib=1048576,
        cpu_threads=128,
        numa_nodes=(NumaNode(0, 64, 524288, (FIRST,)), NumaNode(1, 64, 524288, (SECOND, THIRD))),
        gpus=(
            gpu(FIRST, 0, vgpu_mode=VgpuMode.MULTI_INSTANCE, vms=("vm-1",)),
            gpu(SECOND, 1, vgpu_mode=VgpuMode.SAME_SIZE, configured_graphics_type=GraphicsType.SHARED),
            gpu(THIRD, 1, graphics_type=None, vms=None, passthrough=Passthrough(True, True, True)),
        ),
        profiles=(OfferedProfile("grid_a100-3-20c", True, True), OfferedProfile("grid_a100-4c", True, None)),
        bindings=(DeviceBinding(THIRD, "vm-2"),),
    )
    second = Host(
        ref="host-2",
        name="esx-02.example.com",
        connected=True,
        in_maintenance=True,
        gpus=(gpu(FIRST, None, vgpu_mode=None, vms=None),),
        unreadable=("config.graphicsConfig",),
    )
    vms = (
        Vm(
            ref="vm-1",
            name="ml-01",
            path="/lab/vm/ml/ml-01",
            host="host-1",
            power=PowerState.ON,
            vcpus=16,
            memory_mib=65536,
            devices=(VgpuDevice(13000, "grid_a100-3-20c"),),
        ),
        Vm(
            ref="vm-2",
            name="train",
            path="/lab/vm/ml/train",
            host="host-1",
            power=PowerState.ON,
            firmware=Firmware.EFI,
            devices=(DirectPathDevice(13000, THIRD, *A100, system_id="uuid"), OtherPassthrough(13001, "NIC")),
        ),
        Vm(
            ref="vm-3",
            name="evil\x1b[2J\u202e",
            path="/lab/vm/evil\x1b[2J\u202e",
            host="host-1",
            power=PowerState.SUSPENDED,
            vcpus=4,
            memory_mib=8192,
            devices=(VgpuDevice(13000, "grid_a100-4c"), VgpuDevice(13001, "grid_a100-4c")),
        ),
        Vm(
            ref="vm-4",
            name="dynamic",
            path="/lab/vm/dynamic",
            host="host-2",
            power=PowerState.OFF,
            devices=(DynamicDevice(13000, (A100,), label="nvlink"),),
        ),
        Vm(ref="vm-5", name="plain", path="/lab/vm/plain", host="host-3", power=PowerState.ON, devices=()),
    )
    return Inventory(
        vcenter="11111111-2222-3333-4444-555555555555",
        api_version="8.0.3.0",
        taken_at=datetime(2026, 11, 2, 18, 0, tzinfo=UTC),
        hosts={host.ref: host for host in (first, second, Host("host-3", "esx-03.example.com", connected=True))},
        vms={vm.ref: vm for vm in vms},
        clusters={"domain-c1": Cluster("domain-c1", "ml")},
    )


@pytest.fixture
def plain() -> Callable[[Shown], str]:
    """Renders as a pipe would see it."""
    return layout.plain
