"""A cluster of which one VM does not start: the others stop again, and it does not come in part all night."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gpuops.errors import Locked, StepFailed
from gpuops.execute.rotation import rotation
from gpuops.execute.runs import RunKind
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import MARKER_KEY, ClusterMarker, RdmaKind
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest
from tests.execute.nights import Night, effects, morning_is_good

BOTH_OFF = [PowerState.OFF, PowerState.OFF]


def half_that_fails(state_dir: Path) -> Night:
    """`ml-01` and `ml-02` are the VMs of cluster `ml`, and vCenter does not start the second."""
    new_night = Night(state_dir)
    for rank, ref in enumerate(("vm-91", "vm-92"), 1):
        marker = ClusterMarker("ml", rank, 2, "0a1b2c3d", "0" * 12, 1, RdmaKind.NONE)
        new_night.world.set(ref, extra_config={MARKER_KEY: marker.text})
    new_night.world.failing["vm-92"] = StepFailed("insufficient graphics resources")
    return new_night


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return half_that_fails(tmp_path / "state")


def powers(night: Night) -> list[PowerState | None]:
    return [night.world.power("ml-01"), night.world.power("ml-02")]


def test_what_has_started_of_it_stops_again_and_stays_off(night: Night) -> None:
    evening = night.run(RunKind.NIGHT)
    night.world.settle()
    assert powers(night) == BOTH_OFF
    assert [type(outcome.step) for outcome in evening.outcomes if outcome.verdict is Verdict.FAILED] == [PowerOnVm]
    assert [outcome.step.vm for outcome in evening.outcomes if isinstance(outcome.step, ShutDownGuest)] == ["vm-91"]
    assert evening.exit_code == 4
    assert "cluster ml: ml-02 did not start, so ml-01 cannot work" in evening.plan.warnings
    night.world.failing.clear()
    second_night = night.run(RunKind.NIGHT)
    assert len(effects(night.world, PowerOnVm)) == 1, "no VM of it alone"
    assert {choice.subject for choice in second_night.plan.choices if choice.chosen} == set()
    night.run(RunKind.DAY)
    morning_is_good(night)


@pytest.mark.long
def test_a_night_that_is_killed_and_gone_on_with_leaves_no_half(tmp_path: Path) -> None:
    """Wherever it is killed from its starts on, but in the one moment between its end in the journal and the beginning
    of what stops the half again: there is no open run then."""
    whole = half_that_fails(tmp_path / "whole")
    whole.run(RunKind.NIGHT)
    halves = []
    for kill_at in range(whole.points * 2 // 3, whole.points):
        killed = half_that_fails(tmp_path / str(kill_at))
        assert killed.killed(RunKind.NIGHT, kill_at)
        killed.resume()
        killed.world.settle()
        if powers(killed) != BOTH_OFF:
            halves.append(kill_at)
    assert len(halves) <= 2 and (not halves or halves[-1] - halves[0] < 2), halves


def test_where_they_cannot_be_stopped_the_night_is_told_all_the_same(night: Night, mocker: MockerFixture) -> None:
    mocker.patch.object(rotation, "restore", side_effect=Locked("another run", hint="wait"))
    evening = night.run(RunKind.NIGHT)
    assert evening.outcomes and evening.exit_code == 4
    assert any(
        "these VMs keep running: " in warning and "gpuops rotate restore --vm" in warning
        for warning in evening.plan.warnings
    )


def test_a_dry_run_and_a_cluster_that_starts_whole_stop_nothing(night: Night) -> None:
    night.world.failing.clear()
    assert night.run(RunKind.NIGHT, apply=False).outcomes == ()
    evening = night.run(RunKind.NIGHT)
    assert (evening.exit_code, powers(night)) == (0, [PowerState.ON, PowerState.ON])
