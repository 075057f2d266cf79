"""Numbers of leases in the markers of VMs: whose night marked a VM, and under which lease."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.errors import LeaseReverted, Locked, PartlyDone, StepFailed
from gpuops.execute.runs import RunKind
from gpuops.model.nights.night_record import MOST_LEASES
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import Step, SuspendVm
from tests.execute.lease.leased import acts, number, powers, run
from tests.execute.small_vcenter import World

pytestmark = pytest.mark.long


def ml_ref(world: World) -> str:
    return next(vm.ref for vm in world.vms.values() if vm.name == "ml-01")


def test_a_start_that_failed_and_was_made_by_hand_is_not_stopped_in_the_morning(world: World, tmp_path: Path) -> None:
    """The marker that it leaves names a lease of this machine's own journal, which knows that nothing came of it."""
    ref = ml_ref(world)
    world.failing[ref] = StepFailed("ml-01: not enough graphics resources")
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == PartlyDone.exit_code
    assert world.vms[ref].attributes["gpuops.rotation"] == f"2026-11-20 ml lease={number(world)}"
    world.set(ref, power=PowerState.ON)
    report = run(world, RunKind.DAY, tmp_path)
    assert report.exit_code == 0
    assert world.power("ml-01") is PowerState.ON
    assert all("gpuops.rotation" not in vm.attributes for vm in world.vms.values())


@pytest.mark.long
def test_a_start_of_another_machines_night_is_stopped_after_one_of_ours_failed(world: World, tmp_path: Path) -> None:
    """The other one marked the VM anew, under a lease that this journal does not know."""
    ref = ml_ref(world)
    world.failing[ref] = StepFailed("ml-01: not enough graphics resources")
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == PartlyDone.exit_code
    world.failing.clear()
    assert run(world, RunKind.NIGHT, tmp_path / "b").exit_code == 0
    assert (world.power("ml-01"), world.vms[ref].attributes["gpuops.rotation"]) == (
        PowerState.ON,
        f"2026-11-20 ml lease={number(world)}",
    )
    assert run(world, RunKind.DAY, tmp_path / "a").exit_code == 0
    assert world.power("ml-01") is PowerState.OFF


def test_a_marker_of_a_later_lease_stops_who_is_about_to_touch_its_vm(world: World, tmp_path: Path) -> None:
    """The lock VM carries an older lease again, and its holder, who was paused, finds it there."""

    def strike(step: Step) -> None:
        if isinstance(step, SuspendVm):
            world.on_submit = lambda step: None
            for vm in list(world.vms.values()):
                world.set(vm.ref, attributes={"gpuops.rotation": f"2026-11-20 desktop lease={MOST_LEASES}"})

    world.on_submit = strike
    with pytest.raises(Locked, match=rf"a marker names lease number {MOST_LEASES}, ours is \d+"):
        run(world, RunKind.NIGHT, tmp_path)
    assert len(acts(world)) <= 1


@pytest.mark.long
def test_a_lease_number_that_somebody_wrote_by_hand_ends_no_return(world: World, tmp_path: Path) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    vm = next(vm for vm in world.vms.values() if vm.power is PowerState.SUSPENDED)
    world.set(vm.ref, attributes={"gpuops.rotation": f"2026-11-20 desktop lease={MOST_LEASES}"})
    with pytest.raises(LeaseReverted, match=f"the marker of {vm.name} has {MOST_LEASES}"):
        run(world, RunKind.NIGHT, tmp_path / "a")
    report = run(world, RunKind.DAY, tmp_path / "a")
    assert report.exit_code == 0
    assert any("is the highest possible" in text for text in report.plan.warnings)
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
