"""Which modes a change comes to where vSphere 9.1 sets modes, what is refused, and what is left to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.catalog import load
from gpuops.model.devices.device_mode import ConfigureImpact, DeviceMode
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, GraphicsType, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import (
    GraphicsDevice,
    GraphicsSettings,
    HostSettings,
    PassthroughState,
    SharedType,
    SizeMode,
)
from gpuops.model.vcenter.inventory import Inventory, ProfileCapacity, Reservations, UnknownCapacity
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.step_checks import host_objection, host_satisfied
from gpuops.plan.core.steps import ConfigureGraphics, ConfigureModes, ConfigurePassthrough, HostStep, ModeChange
from gpuops.plan.hosts.change.rolling_plan import not_in_force
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.host_plan import describe_impact, remaining_work

CATALOG = load(boards=("a40",))
ONE, TWO = PciAddress.parse("0000:3b:00.0"), PciAddress.parse("0000:86:00.0")
ALL = ("host", "directPath", "vGpuSameSize", "vGpuMixedSize")
NONE, MAINTENANCE, REBOOT = ConfigureImpact.NONE, ConfigureImpact.MAINTENANCE_MODE, ConfigureImpact.REBOOT
TO_MIXED = SetMode(vgpu_mode=SizeMode.MIXED_SIZE, host="*")
ON = SetPassthrough(True, (str(ONE),), None, "*")
OFF = replace(ON, on=False)


def state(
    at: PciAddress = ONE, *, enabled: bool = False, active: bool | None = None, **state_facts: Any
) -> PassthroughState:
    all_facts = {"mode": "directPath" if enabled else "vGpuSameSize", "configurable": ALL, **state_facts}
    return PassthroughState(
        at, capable=True, enabled=enabled, active=enabled if active is None else active, **all_facts
    )


def gpu(at: PciAddress = ONE, **facts: Any) -> PhysicalGpu:
    all_facts = {"graphics_type": GraphicsType.SHARED_DIRECT, "vgpu_mode": VgpuMode.SAME_SIZE, "vms": (), **facts}
    all_facts = {"configured_graphics_type": all_facts["graphics_type"], **all_facts}
    return PhysicalGpu(at, "a GPU", NVIDIA_VENDOR_ID, 0x2235, **all_facts)


def inventory_with(
    *states: PassthroughState,
    gpus: tuple[PhysicalGpu, ...] = (),
    sizes: tuple[str, ...] = ("sameSize",),
    **more_settings: Any,
) -> Inventory:
    """One host of a vCenter 9.1, whose GPUs have these states and these vGPU modes configured."""
    reservations = more_settings.pop("reservations", None)
    default = more_settings.pop("default", SharedType.SHARED_DIRECT)
    devices = tuple(GraphicsDevice(at, "sharedDirect", size) for at, size in zip((ONE, TWO), sizes, strict=False))
    all_settings: dict[str, Any] = {"sets_modes": True, "passthrough": states or (state(),), **more_settings}
    settings = HostSettings(graphics=GraphicsSettings(default, "performance", devices), **all_settings)
    host = Host("h-1", "esx-1", connected=True, gpus=gpus or (gpu(),), settings=settings)
    moment = datetime(2026, 11, 2, tzinfo=UTC)
    return Inventory("vc", "9.1.0.0", moment, hosts={"h-1": host}, reservations=reservations)


def plan_mode(request: Any, inventory: Inventory) -> Plan[HostStep]:
    plan: Plan[HostStep] = request.plan(inventory, CATALOG)
    return plan


def modes(request: Any, inventory: Inventory) -> list[tuple[str, str]]:
    """(before, after) of the only change, which must be one of modes."""
    [step] = plan_mode(request, inventory).steps
    assert isinstance(step, ConfigureModes)
    return [(change.before, change.after) for change in step.devices]


def test_sizes_are_modes_and_only_those_that_change() -> None:
    two = inventory_with(
        state(), state(TWO, mode="vGpuMixedSize"), gpus=(gpu(), gpu(TWO, vgpu_mode=VgpuMode.MIXED_SIZE)),
        sizes=("sameSize", "mixedSize"),
    )  # fmt: skip
    assert modes(TO_MIXED, two) == [("vGpuSameSize", "vGpuMixedSize")]


@pytest.mark.parametrize(
    ("request_", "inventory", "expected"),
    [
        (ON, inventory_with(), ("vGpuSameSize", "directPath")),
        (
            ON,
            inventory_with(state(configurable=("none", "enhancedDirectPath"))),
            ("vGpuSameSize", "enhancedDirectPath"),
        ),
        (OFF, inventory_with(state(enabled=True)), ("directPath", "vGpuSameSize")),
        (OFF, inventory_with(state(enabled=True, mode="enhancedDirectPath")), ("enhancedDirectPath", "vGpuSameSize")),
        (OFF, inventory_with(state(enabled=True), default=SharedType.SHARED), ("directPath", "host")),
        (OFF, inventory_with(state(enabled=True, configurable=("host", "directPath"))), ("directPath", "host")),
    ],
)
def test_directpath_is_a_mode(request_: Any, inventory: Inventory, expected: tuple[str, str]) -> None:
    assert modes(request_, inventory) == [expected]


@pytest.mark.parametrize(
    ("request_", "inventory", "kind"),
    [
        (TO_MIXED, inventory_with(sets_modes=None), ConfigureGraphics),
        (TO_MIXED, inventory_with(sets_modes=False), ConfigureGraphics),
        (TO_MIXED, inventory_with(state(mode=None)), ConfigureGraphics),
        (TO_MIXED, inventory_with(state(TWO)), ConfigureGraphics),
        (TO_MIXED, inventory_with(state(enabled=True, active=False)), ConfigureGraphics),
        (replace(TO_MIXED, default_type=SharedType.SHARED), inventory_with(), ConfigureGraphics),
        (ON, inventory_with(sets_modes=None), ConfigurePassthrough),
        (ON, inventory_with(state(mode=None)), ConfigurePassthrough),
        (replace(ON, label="x"), inventory_with(state(enabled=True), takes_labels=True), ConfigurePassthrough),
    ],
)
def test_what_is_no_mode_goes_by_the_calls_of_8(request_: Any, inventory: Inventory, kind: type) -> None:
    plan = plan_mode(request_, inventory)
    assert [type(step) for step in plan.steps] == [kind], plan.rejections


def test_a_label_goes_with_the_mode_of_its_device() -> None:
    [step] = plan_mode(replace(ON, label="x"), inventory_with(takes_labels=True)).steps
    assert isinstance(step, ConfigureModes)
    assert [(step_label.enabled, step_label.label) for step_label in step.labels] == [(True, "x")]


def test_a_mode_that_is_not_offered_is_refused_with_those_that_are() -> None:
    plan = plan_mode(ON, inventory_with(state(configurable=("host", "vGpuSameSize"))))
    assert [str(rejection) for rejection in plan.rejections] == [
        "esx-1 0000:3b:00.0: vCenter does not offer mode directPath for it; it offers: host, vGpuSameSize"
    ]
    assert "it offers: none" in str(plan_mode(ON, inventory_with(state(configurable=()))).rejections[0])


def test_a_size_that_is_configured_and_not_in_force_is_due() -> None:
    waiting = inventory_with(state(mode="vGpuMixedSize"), sizes=("mixedSize",))
    plan = plan_mode(TO_MIXED, waiting)
    assert plan.due == (ConfigureModes("h-1", (ModeChange(ONE, "vGpuMixedSize", DeviceMode.VGPU_MIXED_SIZE),)),)
    assert plan.because == ("esx-1 has these settings already; a reboot is pending",)
    in_force = inventory_with(
        state(mode="vGpuMixedSize"), sizes=("mixedSize",), gpus=(gpu(vgpu_mode=VgpuMode.MIXED_SIZE),)
    )
    assert (plan_mode(TO_MIXED, in_force).due, plan_mode(TO_MIXED, in_force).steps) == ((), ())
    old = inventory_with(state(mode="vGpuMixedSize"), sizes=("mixedSize",), sets_modes=False)
    assert plan_mode(TO_MIXED, old).due == ()


STEP = ConfigureModes("h-1", (ModeChange(ONE, "vGpuSameSize", DeviceMode.DIRECT_PATH),))


@pytest.mark.parametrize(
    ("passthrough_state", "is_satisfied", "objection"),
    [
        (state(), False, None),
        (state(enabled=True), True, None),
        (state(mode="host"), False, "the mode of a device was changed by somebody else since the plan was made"),
        (state(mode=None), False, "the modes of its devices cannot be read"),
    ],
)
def test_a_step_is_judged_by_what_is_configured(
    passthrough_state: PassthroughState, is_satisfied: bool, objection: str | None
) -> None:
    [host] = inventory_with(passthrough_state).hosts.values()
    assert (host_satisfied(STEP, host), host_objection(STEP, host)) == (is_satisfied, objection)


def objection_to_mixed(**facts: Any) -> str | None:
    step = ConfigureModes("h-1", (ModeChange(ONE, "directPath", DeviceMode.VGPU_MIXED_SIZE),))
    [host] = inventory_with(facts.pop("told", state(mode="vGpuMixedSize")), gpus=(gpu(**facts),)).hosts.values()
    return not_in_force(step, host)


def test_a_mode_is_in_force_when_the_gpu_is_used_so() -> None:
    assert objection_to_mixed(vgpu_mode=VgpuMode.MIXED_SIZE) is None
    assert objection_to_mixed() == f"the vGPU mode of {ONE} is sameSize, not mixedSize"
    assert objection_to_mixed(vgpu_mode=None) == f"the vGPU mode of {ONE} is unknown, not mixedSize"
    assert objection_to_mixed(told=state(enabled=True)) == f"DirectPath I/O of {ONE} is not off"
    [host] = inventory_with(state(enabled=True, active=False)).hosts.values()
    assert not_in_force(STEP, host) == f"DirectPath I/O of {ONE} is not on"


@pytest.mark.parametrize(
    ("impacts", "expected_line"),
    [
        ({"h-1": frozenset({NONE})}, ""),
        ({"h-1": frozenset({NONE, MAINTENANCE})}, "takes effect after maintenance mode of esx-1"),
        ({"h-1": frozenset({MAINTENANCE, REBOOT})}, "takes effect after a reboot of esx-1"),
        ({}, "takes effect after a reboot of esx-1"),
    ],
)
def test_what_is_left_to_do_is_what_vcenter_says(impacts: dict[str, Any], expected_line: str) -> None:
    inventory = inventory_with()
    remaining = remaining_work(plan_mode(ON, inventory), impacts, inventory, "mode")
    assert [line.split(":")[0] for line in remaining] == ([expected_line] if expected_line else [])
    assert [describe_impact(impact) for impact in impacts.values()] == [
        "vCenter: needs a reboot" if REBOOT in impact
        else "vCenter: needs maintenance mode" if MAINTENANCE in impact
        else "vCenter: in effect at once"
        for impact in impacts.values()
    ]  # fmt: skip


RESERVED = ProfileCapacity("nvidia_a40-8q", "h-1", consumed=0, maximum=6, remaining=6, unused_reservation=2)


@pytest.mark.parametrize(
    ("request_", "warned"),
    [
        (ON, True),
        (replace(TO_MIXED, vgpu_mode=None, type=SharedType.SHARED), True),
        (TO_MIXED, False),
    ],
)
@pytest.mark.parametrize("sets_modes", [True, False])
def test_reserved_slots_without_room_are_named(request_: Any, *, warned: bool, sets_modes: bool) -> None:
    inventory = inventory_with(reservations=Reservations((RESERVED,)), sets_modes=sets_modes)
    warnings = plan_mode(request_, inventory).warnings
    assert [
        warning.startswith("esx-1: 2 of nvidia_a40-8q are reserved for other VMs, and only 0 would surely be left")
        for warning in warnings
    ] == ([True] if warned else [])


def test_what_is_reserved_and_not_told_is_named() -> None:
    inventory = inventory_with(reservations=Reservations(unknown=(UnknownCapacity("h-1", "no permission"),)))
    [warning] = plan_mode(ON, inventory).warnings
    assert warning == "esx-1: what is reserved for others is not known: no permission"
