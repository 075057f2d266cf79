"""`mode set`: what is merged into a host's graphics configuration, and what is refused by which rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.catalog import load
from gpuops.errors import UsageError
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, AssignmentPolicy, GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import GraphicsDevice, GraphicsSettings, HostSettings, SharedType, SizeMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, VgpuDevice, Vm
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import ConfigureGraphics, HostStep
from gpuops.plan.hosts.graphics.mode import SetMode

CATALOG = load(boards=("a40", "m10", "t4"))
ONE, TWO = PciAddress.parse("0000:3b:00.0"), PciAddress.parse("0000:86:00.0")
SHARED, DIRECT = SharedType.SHARED, SharedType.SHARED_DIRECT
SAME, MIXED = SizeMode.SAME_SIZE, SizeMode.MIXED_SIZE
A40, M10, T4 = 0x2235, 0x13BD, 0x1EB8
BEFORE = GraphicsSettings(
    "sharedDirect", "performance", (GraphicsDevice(ONE, "sharedDirect", "sameSize"), GraphicsDevice(TWO, "shared"))
)
TOLD = HostSettings(module_options="", loaded_options="", has_module=True, graphics=BEFORE)


def gpu(**facts: Any) -> PhysicalGpu:
    all_facts = {"graphics_type": GraphicsType.SHARED_DIRECT, "vgpu_mode": VgpuMode.SAME_SIZE, "vms": (), **facts}
    return PhysicalGpu(ONE, "a GPU", NVIDIA_VENDOR_ID, all_facts.pop("device_id", A40), **all_facts)


def inventory(first_gpu: PhysicalGpu | None = None, *vms: Vm, api: str = "8.0.3.0", **host: Any) -> Inventory:
    two = PhysicalGpu(TWO, "another", NVIDIA_VENDOR_ID, A40, graphics_type=GraphicsType.SHARED, vms=())
    facts = {"connected": True, "settings": TOLD, "gpus": (first_gpu or gpu(), two), **host}
    return Inventory(
        "vc",
        api,
        datetime(2026, 11, 2, tzinfo=UTC),
        hosts={"h-1": Host("h-1", "esx-1", **facts)},
        vms={vm.ref: vm for vm in vms},
    )


def plan_mode(snapshot: Inventory, **options: Any) -> Plan[HostStep]:
    return SetMode(**{"host": "*", **options}).plan(snapshot, CATALOG)


def after(plan: Plan[HostStep]) -> GraphicsSettings:
    [step] = plan.steps
    assert isinstance(step, ConfigureGraphics)
    assert step.before == BEFORE
    return step.after


@pytest.mark.parametrize(
    ("options", "expected", "reboots"),
    [
        ({"assignment": AssignmentPolicy.CONSOLIDATION}, replace(BEFORE, assignment_policy="consolidation"), False),
        ({"default_type": SHARED}, replace(BEFORE, default_type="shared"), True),
        (
            {"vgpu_mode": MIXED, "gpu": ("3b:00.0",)},
            replace(BEFORE, devices=(GraphicsDevice(ONE, "sharedDirect", "mixedSize"), BEFORE.devices[1])),
            False,
        ),
        (
            {"type": DIRECT, "assignment": AssignmentPolicy.CONSOLIDATION},
            GraphicsSettings("sharedDirect", "consolidation", (BEFORE.devices[0], GraphicsDevice(TWO, "sharedDirect"))),
            True,
        ),
    ],
)
def test_only_what_is_named_changes(options: dict[str, Any], expected: GraphicsSettings, reboots: bool) -> None:
    plan = plan_mode(inventory(), **options)
    assert after(plan) == expected
    assert bool(plan.afterwards) is reboots


def test_what_is_configured_already_is_nothing_to_do() -> None:
    assert plan_mode(inventory(), default_type=DIRECT).because == ("esx-1 has these settings already",)
    pending = gpu(configured_graphics_type=GraphicsType.SHARED)
    assert "a reboot is pending" in plan_mode(inventory(pending), default_type=DIRECT).because[0]


FIXED = replace(TOLD, module_options="NVreg_RegistryDwords=RmPVMRL=0x11")


@pytest.mark.parametrize(
    ("snapshot", "options", "rule"),
    [
        (inventory(gpu(vms=("v",))), {"type": SHARED}, "while no VM is on the host's GPUs"),
        (inventory(gpu(vms=None)), {"type": SHARED}, "which VMs run on its GPUs cannot be read"),
        (inventory(gpu(vms=("v",))), {"vgpu_mode": MIXED, "gpu": ("3b:00.0",)}, "only while it is empty"),
        (inventory(gpu(vms=None)), {"vgpu_mode": MIXED, "gpu": ("3b:00.0",)}, "cannot be read"),
        (inventory(gpu(vgpu_mode=None)), {"vgpu_mode": MIXED, "gpu": ("3b:00.0",)}, "cannot be read"),
        (inventory(gpu(vgpu_mode=VgpuMode.MULTI_INSTANCE)), {"vgpu_mode": MIXED, "gpu": ("3b:00.0",)}, "in MIG mode"),
        (inventory(gpu(device_id=M10)), {"vgpu_mode": MIXED, "gpu": ("3b:00.0",)}, "has no mixed-size mode"),
        (
            inventory(settings=FIXED),
            {"vgpu_mode": MIXED, "gpu": ("3b:00.0",)},
            "mixed-size GPUs cannot have fixed share",
        ),
        (inventory(api="8.0.2.0"), {"vgpu_mode": MIXED, "gpu": ("3b:00.0",)}, "need vSphere 8.0 Update 3"),
        (inventory(), {"type": SHARED, "gpu": ("af:00.0",)}, "has no GPU 0000:af:00.0"),
        (inventory(connected=None), {"type": SHARED}, "is not connected"),
        (inventory(settings=HostSettings(unread=("no",))), {"type": SHARED}, "cannot be read: no"),
        (
            inventory(None, Vm("v", "desk", host="h-1", power=PowerState.SUSPENDED, devices=(VgpuDevice(1, "p"),))),
            {"type": SHARED},
            "desk is suspended on it",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_rule(snapshot: Inventory, options: dict[str, Any], rule: str) -> None:
    plan = plan_mode(snapshot, **options)
    assert not plan.steps
    [refusal] = map(str, plan.rejections)
    assert rule in refusal


def test_a_gpu_in_passthrough_is_not_in_the_graphics_of_the_host() -> None:
    settings = replace(TOLD, graphics=replace(BEFORE, devices=BEFORE.devices[1:]))
    [rejection] = plan_mode(inventory(settings=settings), type=SHARED, gpu=("3b:00.0",)).rejections
    assert str(rejection) == "esx-1 0000:3b:00.0: is in DirectPath I/O, not in the host's graphics"


def test_an_assignment_policy_disturbs_no_suspended_desktop() -> None:
    desk = Vm("v", "desk", host="h-1", power=PowerState.SUSPENDED)
    assert plan_mode(inventory(None, desk), assignment=AssignmentPolicy.CONSOLIDATION).feasible


def test_what_documents_disagree_about_is_a_warning() -> None:
    plan = plan_mode(inventory(gpu(device_id=T4)), vgpu_mode=MIXED, gpu=("3b:00.0",))
    assert [text for text in plan.warnings if "has a mixed-size mode; the host may refuse it" in text]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has no setting to change"),
        ({"assignment": AssignmentPolicy.CONSOLIDATION, "gpu": ("3b:00.0",)}, "--gpu needs --type or --vgpu-mode"),
        ({"type": SHARED, "host": None}, "needs --host or --cluster"),
        ({"type": SHARED, "gpu": ("one",)}, "is not a PCI address"),
    ],
)
def test_what_means_nothing_is_a_usage_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_mode(inventory(), **options)
