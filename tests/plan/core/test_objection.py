"""What is asked just before a step is sent, on facts read at that moment."""

from __future__ import annotations

from dataclasses import replace

from gpuops.plan.core.step_checks import as_it_is_now
from gpuops.plan.core.steps import PowerOnVm, ResumeVm
from tests.execute.small_vcenter import small_world


def test_a_desktop_is_resumed_where_it_is_registered_now() -> None:
    """HA, or a person, may have moved it since the morning was planned: the host of a resume would move it back."""
    seen = small_world().snapshot()
    moved = seen.with_vm(replace(seen.vm("vm-1"), host="host-2"))
    assert as_it_is_now(ResumeVm("vm-1", "host-1"), seen) == ResumeVm("vm-1", "host-1")
    assert as_it_is_now(ResumeVm("vm-1", "host-1"), moved) == ResumeVm("vm-1", "host-2")
    unknown = seen.with_vm(replace(seen.vm("vm-1"), host=None))
    assert as_it_is_now(ResumeVm("vm-1", "host-1"), unknown) == ResumeVm("vm-1", "host-1")
    assert as_it_is_now(ResumeVm("vm-0", "host-1"), seen) == ResumeVm("vm-0", "host-1"), "gone: said by `objection`"
    assert as_it_is_now(PowerOnVm("vm-91", "host-2"), seen) == PowerOnVm("vm-91", "host-2"), "where it has room"
