"""`passthrough on|off`: what changes, what waits for a reboot, and what is refused by which rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.catalog import load
from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, Passthrough, PciAddress, PhysicalGpu
from gpuops.model.vcenter.host import DeviceBinding, Host
from gpuops.model.vcenter.host_settings import DeviceGroup, DeviceGroupMember, HostSettings, PassthroughState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, PowerState, VgpuDevice, Vm
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.steps import ConfigurePassthrough, HostStep, PassthroughChange
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough

ONE, TWO = PciAddress.parse("0000:3b:00.0"), PciAddress.parse("0000:3b:00.1")
KIND = (NVIDIA_VENDOR_ID, 0x2235)
OFF = PassthroughState(ONE, capable=True, enabled=False, active=False, depends_on="0000:3b:00.0")
ON = replace(OFF, enabled=True, active=True, label="ml")


def inventory(state: PassthroughState = OFF, *vms: Vm, beside: bool = False, **facts: Any) -> Inventory:
    """One host with one GPU; `beside`: with another function that goes with it only."""
    passthrough = Passthrough(state.capable, state.enabled, state.active, state.label)
    gpu = PhysicalGpu(
        ONE, "NVIDIA A40", *KIND, passthrough=passthrough, vms=facts.pop("gpu_vms", None if state.active else ())
    )
    states = (state, replace(state, address=TWO)) if beside else (state,)
    settings = HostSettings(passthrough=states, takes_labels=True, rebinds_without_reboot=facts.pop("rebinds", False))
    host = {"connected": True, "gpus": (gpu,), "settings": settings, **facts}
    if beside:
        host["gpus"] = (gpu, replace(gpu, address=TWO))
    return Inventory(
        "vc",
        "8.0.3.0",
        datetime(2026, 11, 2, tzinfo=UTC),
        hosts={"h-1": Host("h-1", "esx-1", **host)},
        vms={vm.ref: replace(vm, host="h-1") for vm in vms},
    )


def plan_passthrough(on: bool, snapshot: Inventory, *device: str, **options: Any) -> Plan[HostStep]:
    request = SetPassthrough(on, device or ("3b:00.0",), **{"host": "esx-1", **options})
    return request.plan(snapshot, Catalog())


@pytest.mark.parametrize(
    ("on", "state", "label", "change"),
    [
        (True, OFF, None, PassthroughChange(ONE, True)),
        (True, OFF, "ml", PassthroughChange(ONE, True, "ml")),
        (False, ON, None, PassthroughChange(ONE, False)),
    ],
)
@pytest.mark.parametrize("rebinds", [True, False, None])
def test_a_switch_waits_for_a_reboot_unless_the_host_says_otherwise(
    on: bool, state: PassthroughState, label: str | None, change: PassthroughChange, rebinds: bool | None
) -> None:
    plan = plan_passthrough(on, inventory(state, rebinds=rebinds), label=label)
    [step] = plan.steps
    assert isinstance(step, ConfigurePassthrough)
    assert step.devices == (change,)
    assert bool(plan.afterwards) is (rebinds is not True)


@pytest.mark.parametrize("label", ["other", ""])
def test_a_label_is_in_force_at_once_and_disturbs_nobody(label: str) -> None:
    desk = Vm("v", "desk", power=PowerState.SUSPENDED, devices=(VgpuDevice(1, "p"),))
    plan = plan_passthrough(True, inventory(ON, desk, bindings=(DeviceBinding(ONE, "v"),)), label=label)
    assert plan.feasible
    assert plan.steps
    assert plan.afterwards == ()


def test_what_is_so_already_is_nothing_to_do() -> None:
    assert plan_passthrough(True, inventory(ON), label="ml").because == (
        "DirectPath I/O of 0000:3b:00.0 is on on esx-1 already",
    )
    pending = plan_passthrough(True, inventory(replace(ON, active=False)))
    assert "a reboot is pending" in pending.because[0]


@pytest.mark.parametrize(
    ("on", "snapshot", "options", "rule"),
    [
        (True, inventory(OFF, gpu_vms=("vm-9",)), {}, "is in use by vm-9"),
        (True, inventory(OFF, gpu_vms=None), {}, "which VMs run on it cannot be read"),
        (True, inventory(replace(OFF, capable=False)), {}, "cannot be passed through"),
        (False, inventory(ON, Vm("v", "ml"), bindings=(DeviceBinding(ONE, "v"),)), {}, "is in use by ml"),
        (False, inventory(ON, Vm("v", "ml", devices=(DirectPathDevice(1, ONE, 0, 0, ""),))), {}, "belongs to ml"),
        (False, inventory(ON, Vm("v", "ml")), {}, "the devices of ml cannot be read"),
        (
            True,
            inventory(OFF, Vm("v", "d", power=PowerState.SUSPENDED, devices=(VgpuDevice(1, "p"),))),
            {},
            "d is susp",
        ),
        (True, inventory(OFF, beside=True), {}, "can only be switched together with its dependent devices"),
        (True, inventory(OFF, connected=None), {}, "is not connected"),
        (True, inventory(OFF, settings=HostSettings(unread=("no",))), {}, "cannot be read: no"),
        (True, inventory(OFF, settings=HostSettings(passthrough=(OFF,))), {"label": "ml"}, "takes no hardware labels"),
        (True, inventory(OFF, settings=HostSettings(passthrough=())), {}, "has no GPU 0000:3b:00.0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_rule(
    on: bool, snapshot: Inventory, options: dict[str, Any], rule: str
) -> None:
    plan = plan_passthrough(on, snapshot, **options)
    assert not plan.steps
    refusals = list(map(str, plan.rejections))
    assert any(rule in refusal for refusal in refusals), refusals


def test_devices_that_go_together_are_named_together() -> None:
    snapshot = inventory(OFF, beside=True)
    assert plan_passthrough(True, snapshot).rejections[0].hint == "add --gpu 0000:3b:00.1"
    assert plan_passthrough(True, snapshot, "3b:00.0", "3b:00.1").feasible


def test_a_vm_that_takes_any_such_gpu_is_warned_of() -> None:
    vm = Vm("v", "ml-04", devices=(DynamicDevice(1, (KIND,), "ml"),))
    plan = plan_passthrough(False, inventory(ON, vm))
    assert plan.warnings == ("ml-04 takes any GPU like esx-1 0000:3b:00.0: there is one fewer for it",)
    assert plan_passthrough(False, inventory(replace(ON, label="other"), vm)).warnings == ()


def test_who_asks_for_the_label_that_goes_is_warned_of() -> None:
    vm = Vm("v", "ml-04", devices=(DynamicDevice(1, (KIND,), "ml"),))
    for label in ("", "other"):
        [warning] = plan_passthrough(True, inventory(ON, vm), label=label).warnings
        assert warning == "ml-04 asks for GPUs labelled ml: esx-1 0000:3b:00.0 loses that label"
    assert plan_passthrough(True, inventory(replace(ON, label=None), vm), label="ml").warnings == ()
    whatever = replace(vm, devices=(DynamicDevice(1, (KIND,), None),))
    assert plan_passthrough(True, inventory(ON, whatever), label="other").warnings == ()


A100 = (NVIDIA_VENDOR_ID, 0x20B5)
PAIR = (PciAddress.parse("0000:86:00.0"), PciAddress.parse("0000:8a:00.0"))
GROUP = DeviceGroup(
    "Nvidia:2@grid_a100d-80c%NVLink",
    tuple(DeviceGroupMember("nvidiaVgpu", number, "grid_a100d-80c") for number in range(2)),
)


def linked_gpus(groups: tuple[DeviceGroup, ...] | None, *, enabled: bool = False) -> Inventory:
    """One host with two A100 80 GB, for DirectPath I/O or for vGPUs."""
    passthrough = Passthrough(True, enabled, enabled)
    gpus = tuple(
        PhysicalGpu(address, "NVIDIA A100", *A100, passthrough=passthrough, vms=None if enabled else ())
        for address in PAIR
    )
    states = tuple(PassthroughState(address, True, enabled, enabled, depends_on=str(address)) for address in PAIR)
    settings = HostSettings(passthrough=states, takes_labels=True, device_groups=groups)
    host = Host("h-1", "esx-1", connected=True, gpus=gpus, settings=settings)
    return Inventory("vc", "8.0.3.0", datetime(2026, 11, 2, tzinfo=UTC), hosts={"h-1": host}, vms={})


@pytest.mark.parametrize(
    ("on", "snapshot", "devices", "expected"),
    [
        (True, linked_gpus((GROUP,)), 1, "esx-1 offers Nvidia:2@grid_a100d-80c%NVLink: a GPU without its NVLink peers"),
        (True, linked_gpus((GROUP,)), 2, None),
        (True, linked_gpus(()), 1, None),
        (
            True,
            linked_gpus(None),
            1,
            "it is unknown whether NVLink joins 0000:8a:00.0, not switched here, to these GPUs",
        ),
        (False, linked_gpus((), enabled=True), 1, "whether NVLink joins 0000:8a:00.0"),
        (False, linked_gpus((), enabled=True), 2, None),
    ],
)
def test_gpus_that_nvlink_joins_are_switched_together_or_warned_of(
    on: bool, snapshot: Inventory, devices: int, expected: str | None
) -> None:
    request = SetPassthrough(on, tuple(map(str, PAIR[:devices])), host="esx-1")
    warnings = request.plan(snapshot, load(boards=("a100d",))).warnings
    assert [str(expected) in warning for warning in warnings] == ([True] if expected else []), warnings


def test_what_means_nothing_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="host passthrough on needs --gpu"):
        SetPassthrough(True, (), host="*").plan(inventory(), Catalog())
    with pytest.raises(UsageError, match="host passthrough off needs --host or --cluster"):
        plan_passthrough(False, inventory(ON), host=None)
