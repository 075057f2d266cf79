"""Steps of hosts beside what was predicted of them: done, refused, not shown, and what somebody else did meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.errors import Trouble
from gpuops.model.devices.gpu import GraphicsType, PciAddress, PhysicalGpu
from gpuops.model.prediction import Compared, Predicted
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.host_steps import ConfigureModule, EnterMaintenance, RebootHost
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.hosts.predicted import GONE, compare_host, predict_host

Ended = Outcome[Any]
NOW = datetime(2026, 11, 20, 22, tzinfo=UTC)
SHARED, DIRECT = GraphicsType.SHARED, GraphicsType.SHARED_DIRECT
GPU = PhysicalGpu(
    PciAddress.parse("0000:3b:00.0"),
    "NVIDIA A40",
    0x10DE,
    0x2235,
    graphics_type=SHARED,
    configured_graphics_type=DIRECT,
)
HOST = Host("host-1", "esx-01", connected=True, gpus=(GPU,), settings=HostSettings(module_options="a=1"))
SETTING = ConfigureModule("host-1", "a=1", "a=2")
REBOOT = RebootHost("host-1", NOW)
MAINTENANCE = EnterMaintenance("host-1")


def ended(step: Any, *told: Any, **more: Any) -> Ended:
    return Outcome(step, *told, **more)


def world(host: Host, *vms: Vm) -> Inventory:
    return Inventory("vc-uuid", "8.0.3.0", NOW, {host.ref: host}, {vm.ref: vm for vm in vms}, {}, {})


def compared(outcome: Ended, after: Inventory, before: Inventory | None = None) -> Compared | None:
    before = before or world(HOST)
    return compare_host(outcome.step, predict_host(outcome.step, before), before, after, outcome)


def test_what_is_as_predicted_is_right() -> None:
    booted = replace(HOST, gpus=(replace(GPU, graphics_type=DIRECT),))
    assert compared(ended(REBOOT, Verdict.DONE), world(booted)) == Compared()
    assert compared(ended(SETTING, Verdict.DONE), world(HOST)) == Compared()


def test_a_gpu_that_is_not_for_vgpus_after_the_reboot() -> None:
    found = compared(ended(REBOOT, Verdict.DONE), world(HOST))
    assert found is not None
    [wrong] = found.wrong
    assert (wrong.what, wrong.predicted) == (Predicted.FREE_AFTER, "1 GPUs for vGPUs, 0 GPUs for VMs whole")
    assert wrong.found == "0 GPUs for vGPUs, 0 GPUs for VMs whole"


def test_a_driver_that_is_late_tells_nothing() -> None:
    late = replace(HOST, gpus=(replace(GPU, graphics_type=None),))
    assert compared(ended(REBOOT, Verdict.DONE), world(late)) == Compared()


def test_gpus_that_somebody_configured_anew_meanwhile() -> None:
    other = replace(HOST, gpus=(replace(GPU, configured_graphics_type=SHARED),))
    found = compared(ended(REBOOT, Verdict.DONE), world(other))
    assert found == Compared(cannot_say="its GPUs were configured anew meanwhile")


def test_a_setting_that_is_not_shown_and_one_that_somebody_else_made() -> None:
    unseen: Ended = ended(SETTING, Verdict.UNKNOWN, "the host called it done, and does not show it")
    found = compared(unseen, world(HOST))
    assert found is not None
    assert [each.what for each in found.wrong] == [Predicted.EFFECT]
    others = replace(HOST, settings=HostSettings(module_options="b=1"))
    found = compared(unseen, world(others))
    assert found is not None
    assert (found.wrong, found.cannot_say) == ((), "its module options were changed by somebody else meanwhile")


def test_maintenance_mode_that_is_refused() -> None:
    refused: Ended = ended(MAINTENANCE, Verdict.FAILED, "a VM is in the way", trouble=Trouble.DENIED)
    found = compared(refused, world(HOST))
    assert found is not None
    [wrong] = found.wrong
    assert (wrong.what, wrong.found) == (Predicted.ADMISSION, "refused: a VM is in the way")
    came = Vm("vm-1", "web-1", host="host-1", power=PowerState.ON)
    assert compared(refused, world(HOST, came)) == Compared(cannot_say="another VM came to it meanwhile")


@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        (ended(SETTING, Verdict.FAILED, "not sent"), world(HOST)),
        (ended(SETTING, Verdict.ALREADY), world(HOST)),
        (ended(SETTING, Verdict.SKIPPED, "not begun"), world(HOST)),
    ],
)
def test_what_was_not_asked_is_not_compared(outcome: Ended, after: Inventory) -> None:
    assert compared(outcome, after) is None


def test_what_failed_for_another_reason_or_is_gone_cannot_be_said() -> None:
    busy: Ended = ended(MAINTENANCE, Verdict.FAILED, "busy", trouble=Trouble.BUSY)
    denied: Ended = ended(MAINTENANCE, Verdict.FAILED, "no", trouble=Trouble.DENIED, fault="no-permission")
    why = Compared(cannot_say="it failed for a reason that is none of its host's")
    assert compared(busy, world(HOST)) == compared(denied, world(HOST)) == why
    away = world(replace(HOST, connected=False))
    assert compared(ended(MAINTENANCE, Verdict.DONE), away) == Compared(cannot_say=GONE)
