"""What is asked just before a step is sent, on facts read at that moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.model.vcenter.vm import ManagedBy, PowerState, VmDrs
from gpuops.plan.core.step_checks import as_it_is_now, objection
from gpuops.plan.core.steps import (
    CloneVm,
    CloseGate,
    OpenGate,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from tests.execute.small_vcenter import small_world


def test_a_desktop_is_resumed_where_it_is_registered_now() -> None:
    """HA, or a person, may have moved it since the morning was planned: the host of a resume would move it back."""
    snapshot = small_world().snapshot()
    moved = snapshot.with_vm(replace(snapshot.vm("vm-1"), host="host-2"))
    assert as_it_is_now(ResumeVm("vm-1", "host-1"), snapshot) == ResumeVm("vm-1", "host-1")
    assert as_it_is_now(ResumeVm("vm-1", "host-1"), moved) == ResumeVm("vm-1", "host-2")
    unknown = snapshot.with_vm(replace(snapshot.vm("vm-1"), host=None))
    assert as_it_is_now(ResumeVm("vm-1", "host-1"), unknown) == ResumeVm("vm-1", "host-1")
    assert as_it_is_now(ResumeVm("vm-0", "host-1"), snapshot) == ResumeVm("vm-0", "host-1"), "gone: said by `objection`"
    assert as_it_is_now(PowerOnVm("vm-91", "host-2"), snapshot) == PowerOnVm("vm-91", "host-2"), "where it has room"


def test_a_template_that_is_another_one_or_none_any_more_is_not_cloned() -> None:
    snapshot = small_world().snapshot()
    template = replace(snapshot.vm("vm-1"), template=True)
    planned = snapshot.with_vm(template)
    step = CloneVm("new:/dc/vm/new", "new", "vm-1", "host-1", None, None, 2, 2048)
    assert objection(step, planned, planned) is None
    another = planned.with_vm(replace(template, instance_uuid="another"))
    assert "its template is another VM" in (objection(step, planned, another) or "")
    assert objection(step, planned, snapshot) == "its template is not a template any more"
    without_template = replace(planned, vms={ref: vm for ref, vm in planned.vms.items() if ref != "vm-1"})
    assert objection(step, planned, without_template) == "its template is gone from vCenter"


KUBE = ManagedBy("com.vmware.vcenter.wcp", "VirtualMachine")
TAKING: list[Step] = [
    ReconfigureVm("vm-1", VmChange()),
    RelocateVm("vm-1", "host-2"),
    PowerOnVm("vm-1"),
    PowerOffVm("vm-1"),
    PowerOffForRemoval("vm-1", "desktop-01", "made"),
    RemoveVm("vm-1", "desktop-01", "made"),
    ShutDownGuest("vm-1"),
    SuspendVm("vm-1"),
    RunInGuest("vm-1", "/opt/save"),
    SetVmDrs("vm-1", VmDrs.MANUAL),
    SetAttribute("vm-1", "gpuops.rotation", "2026-11-02 desktop"),
    CloseGate("vm-1", "machine"),
]
GIVING_BACK: list[Step] = [
    ResumeVm("vm-1"),
    OpenGate("vm-1", "machine"),
    SetVmDrs("vm-1", VmDrs.FULL),
    SetAttribute("vm-1", "gpuops.rotation", ""),
]


@pytest.mark.parametrize("step", TAKING, ids=lambda step: type(step).__name__)
def test_nothing_is_done_to_a_vm_that_belongs_to_another_product_by_now(step: Step) -> None:
    planned = small_world().snapshot()
    for changed in ({"managed_by": KUBE}, {"unreadable": ("config.managedBy",)}):
        now = planned.with_vm(replace(planned.vm("vm-1"), **changed))
        assert "another product" in (message := objection(step, planned, now) or "") or "Kubernetes" in message


@pytest.mark.parametrize("step", GIVING_BACK, ids=lambda step: type(step).__name__)
def test_what_a_night_did_to_it_before_is_undone(step: Step) -> None:
    planned = small_world().snapshot()
    now = planned.with_vm(replace(planned.vm("vm-1"), managed_by=KUBE, power=PowerState.SUSPENDED))
    assert objection(step, planned, now) is None


def test_a_desktop_that_a_night_has_shut_down_is_powered_on_again() -> None:
    """Its marker says so; a desktop that is off for other reasons is its manager's to start."""
    planned = small_world().snapshot()
    off = replace(planned.vm("vm-1"), managed_by=KUBE, power=PowerState.OFF)
    for role, allowed in (("desktop-off", True), ("desktop", False), ("ml", False)):
        now = planned.with_vm(replace(off, attributes={"gpuops.rotation": f"2026-11-02 {role}"}))
        assert (objection(PowerOnVm("vm-1"), planned, now) is None) is allowed, role
