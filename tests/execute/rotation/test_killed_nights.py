"""A night and a morning, killed at every point: every desktop comes back, and nothing happens twice."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.errors import NotConnected, Refused
from gpuops.execute.rotation.next_night import preview
from gpuops.execute.rotation.rotation import NOTHING_CUT_OFF, rotate
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.execute.steps.step_queue import HUNG_S
from gpuops.model.nights.rotation_policy import LATE
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, SuspendVm
from tests.execute.nights import POLICY, Night, morning_is_good
from tests.execute.small_vcenter import Killed, SmallVcenter


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("then", "stride"),
    [
        pytest.param("resume", 1, marks=pytest.mark.long),
        ("resume", 11),
        pytest.param("resume while tasks still run", 3, marks=pytest.mark.long),
        pytest.param("day at once", 3, marks=pytest.mark.long),
        ("day at once", 10),
    ],
)
def test_a_night_killed_anywhere_ends_with_every_desktop_back(tmp_path: Path, then: str, stride: int) -> None:
    kill_at, ended = 0, False
    while not ended:
        kill_at += stride
        night = Night(tmp_path / str(kill_at))
        ended = not night.killed(RunKind.NIGHT, kill_at)
        if then != "resume while tasks still run":
            night.world.settle()
        if then != "day at once" and not ended:
            sent = len(night.world.requests)
            foreseen = night.resume(apply=False)
            assert (foreseen.applied, len(night.world.requests)) == (False, sent)
            finished = night.resume()
            assert finished.exit_code == 0
            assert foreseen.plan.steps == finished.plan.steps, "the dry run shows what is then done"
            assert night.resume().plan == NOTHING_CUT_OFF, "a second resume has nothing to do"
            if finished.plan != NOTHING_CUT_OFF:
                assert night.powers()["ml-01"] is PowerState.ON
                assert night.powers()["desktop-03"] is PowerState.ON
        assert night.run(RunKind.DAY).exit_code == 0
        morning_is_good(night)
        shutil.rmtree(tmp_path / str(kill_at))
    assert kill_at > 50, "the sweep went over the whole night"


def test_a_night_that_was_cut_off_stays_open_until_its_morning_is_in_the_journal(tmp_path: Path) -> None:
    """`rotate day` is killed at each of its first points: without an open run the next one would not notice."""
    for point in range(1, 8):
        night = Night(tmp_path / f"state-{point}")
        assert night.killed(RunKind.NIGHT, kill_at=20)
        assert night.killed(RunKind.DAY, kill_at=point)
        assert night.open_runs() >= 1


@pytest.mark.long
def test_a_morning_killed_anywhere_ends_with_every_desktop_back(tmp_path: Path) -> None:
    kill_at, ended = 0, False
    while not ended:
        kill_at += 1
        night = Night(tmp_path / str(kill_at))
        night.run(RunKind.NIGHT)
        ended = not night.killed(RunKind.DAY, kill_at)
        if kill_at % 2:
            night.world.settle()
        if not ended:
            foreseen = night.resume(apply=False)
            assert foreseen.plan.steps == night.resume().plan.steps
            assert night.resume().plan == NOTHING_CUT_OFF
            night.run(RunKind.DAY)
        morning_is_good(night)
        shutil.rmtree(tmp_path / str(kill_at))
    assert kill_at > 50, "the sweep went over the whole morning"


@pytest.mark.long
def test_killed_again_and_again_with_lost_replies(tmp_path: Path) -> None:
    @settings(max_examples=100, derandomize=True)
    @given(kills=st.lists(st.integers(1, 120), min_size=1, max_size=5), lost=st.integers(0, 7))
    def check(kills: list[int], lost: int) -> None:
        directory = tmp_path / "state"
        shutil.rmtree(directory, ignore_errors=True)
        night = Night(directory)
        for bit, kind in enumerate((SuspendVm, PowerOnVm, ResumeVm)):
            (night.world.lose_after if lost >> bit & 1 else night.world.lose_before).add(kind)
        alive = not night.killed(RunKind.NIGHT, kills[0])
        for kill_at in kills[1:]:
            alive = alive or not night.killed(None, kill_at)
        night.resume()
        report = night.run(RunKind.DAY)
        assert report.exit_code == 0
        morning_is_good(night)

    check()


@pytest.mark.parametrize("survives", ["journal", "markers"])
def test_either_source_alone_is_enough_to_return(night: Night, survives: str) -> None:
    night.run(RunKind.NIGHT)
    if survives == "markers":
        shutil.rmtree(night.state_dir)
    else:
        for ref in night.world.vms:
            night.world.set(ref, attributes={})
    assert night.run(RunKind.DAY).exit_code == 0
    assert set(night.powers().values()) == {PowerState.ON, PowerState.OFF}
    assert all(night.powers()[f"desktop-{number:02d}"] is PowerState.ON for number in range(1, 6))
    assert night.markers() == set()


def test_a_night_whose_return_has_begun_is_foreseen_as_over(night: Night) -> None:
    """No desktop is back yet, and `rotate night` still takes nothing more in this night."""
    night.run(RunKind.NIGHT)
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    kill_at = 0
    while not _returning(site):
        kill_at += 1
        assert night.killed(RunKind.DAY, kill_at), "the morning ended before a desktop was to be resumed"
    assert preview(POLICY, site, site.clock()).night_plan.is_over
    assert preview(POLICY, site).at > site.clock(), "the next night"


def _returning(site: Site) -> bool:
    with site.journal_to_read("vc-uuid") as journal:
        return journal is not None and bool(journal.ended_nights())


def test_a_vcenter_that_goes_away_leaves_a_night_that_resume_finishes(night: Night) -> None:
    night.world.unreachable_for = PowerOnVm
    with pytest.raises(NotConnected) as lost:
        night.run(RunKind.NIGHT)
    assert lost.value.hint == "then finish what was begun: gpuops rotate resume"
    night.world.unreachable_for = None
    finished = night.resume()
    assert finished is not None
    assert finished.exit_code == 0
    assert night.powers()["ml-01"] is PowerState.ON
    assert night.run(RunKind.DAY).exit_code == 0
    morning_is_good(night)


def test_a_task_that_hangs_since_the_night_was_killed_keeps_no_other_desktop_away(night: Night) -> None:
    """It is waited for as long as it may hold up its host, not until it is given up half an hour later."""
    night.world.hung.add("vm-2")

    def killed(point: str) -> None:
        if point == f"sent, no reply yet: {SuspendVm('vm-2')}":
            raise Killed

    with pytest.raises(Killed):
        rotate(RunKind.NIGHT, POLICY, Site(SmallVcenter(night.world, killed), night.state_dir, night.world.tick),
               apply=True, consent=agreed)  # fmt: skip
    night.world.finish(TaskRef("task-1"))
    began = night.world.now
    report = night.run(RunKind.DAY)
    assert night.world.now - began < timedelta(seconds=HUNG_S + 120)
    assert night.powers()["desktop-01"] is PowerState.ON
    assert [refusal.subject for refusal in report.plan.unmet] == ["desktop-02"]
    assert report.exit_code == 4
    night.world.hung.clear()
    night.world.settle()
    night.world.now += LATE
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.powers()["desktop-02"] is PowerState.ON


def test_a_night_does_not_begin_over_a_morning_that_was_cut_off(night: Night) -> None:
    night.run(RunKind.NIGHT)
    assert night.killed(RunKind.DAY, kill_at=30)
    sent = len(night.world.requests)
    for apply in (False, True):
        with pytest.raises(Refused, match=r"the morning that began at 2026-11-20 .* UTC did not end") as refused:
            night.run(RunKind.NIGHT, apply=apply)
        assert refused.value.hint.startswith("gpuops rotate resume")
    assert len(night.world.requests) == sent
    assert status(Site(SmallVcenter(night.world), night.state_dir, night.world.tick)).cut_off == "rotate day"
    night.resume()
    morning_is_good(night)
