"""A night and a morning, killed at every point: every desktop comes back, and nothing happens twice."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_mock import MockerFixture

from gpuops.config.policy import parse_policy
from gpuops.errors import (
    Locked,
    NoPermission,
    NotConnected,
    PartlyDone,
    Refused,
    StateDamaged,
    StepFailed,
    UsageError,
)
from gpuops.execute.rotation.next_night import preview
from gpuops.execute.rotation.rotation import NOTHING_CUT_OFF, rotate
from gpuops.execute.rotation.status import status
from gpuops.execute.runs.run_kind import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.execute.state.lock import locked
from gpuops.execute.steps.step_queue import HUNG_S
from gpuops.model.nights.rotation import LATE
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.outcome import Report, Verdict
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, SetAttribute, ShutDownGuest, Step, SuspendVm
from gpuops.plan.rotation.taken_vms import Whereabouts
from tests.execute.nights import POLICY, POLICY_TEXT, Night, effects, morning_is_good
from tests.execute.small_vcenter import Killed, SmallVcenter


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path / "state")


def test_a_night_and_a_morning(night: Night) -> None:
    evening = night.run(RunKind.NIGHT)
    assert evening.exit_code == 0
    assert {effect.step.vm for effect in effects(night.world, SuspendVm)} == {"vm-1", "vm-2"}
    assert (night.world.power("ml-01"), night.world.power("ml-02")) == (PowerState.ON, PowerState.ON)
    assert night.markers() == {"desktop-01", "desktop-02", "ml-01", "ml-02"}
    morning = night.run(RunKind.DAY)
    assert morning.exit_code == 0
    assert effects(night.world, PowerOffVm) == [], "the guests shut down by themselves"
    morning_is_good(night)


def test_an_ml_vm_that_the_policy_calls_by_its_id_is_stopped_in_the_morning(night: Night) -> None:
    policy = parse_policy(POLICY_TEXT.replace("{vm: ml-01}", "{vm: 'moid:vm-91'}"), "by id")
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    assert rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed).exit_code == 0
    assert night.world.power("ml-01") is PowerState.ON
    assert rotate(RunKind.DAY, None, site, apply=True, consent=agreed).exit_code == 0
    morning_is_good(night)


def test_a_night_without_a_window_has_one_name_however_long_it_takes(night: Night) -> None:
    policy = parse_policy(POLICY_TEXT.replace("window:", "# window:"), "by hand")
    night.world.now = night.world.now.replace(second=58)
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed)
    marked = {vm.attributes["gpuops.rotation"].split()[0] for vm in night.world.vms.values() if vm.attributes}
    assert {mine.original.night for mine in status(site).away} == marked
    assert len(marked) == 1


def test_one_half_is_one_bulk_read(night: Night) -> None:
    night.run(RunKind.NIGHT)
    night.run(RunKind.DAY)
    assert night.world.reads == 2


def test_tags_are_asked_for_where_the_policy_speaks_of_them(night: Night) -> None:
    night.world.tags["vm-1"] = ("gpu:keep",)
    policy = parse_policy(POLICY_TEXT + "opt_out: {tag: 'gpu:keep'}\n", "tagged")
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    report = rotate(RunKind.NIGHT, policy, site, apply=False, consent=agreed)
    assert {choice.subject: choice.reason for choice in report.plan.choices}["desktop-01"] == "opted out (tag gpu:keep)"
    assert SuspendVm("vm-3") in report.plan.steps


@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_a_second_run_changes_nothing_and_says_so(night: Night, kind: RunKind) -> None:
    night.run(RunKind.NIGHT)
    if kind is RunKind.DAY:
        night.run(RunKind.DAY)
    before = list(night.world.ledger)
    again = night.run(kind)
    assert night.world.ledger == before
    assert not again.changed
    assert again.exit_code == 0
    assert again.plan.because


def test_a_dry_run_writes_nothing_anywhere(night: Night) -> None:
    report = night.run(RunKind.NIGHT, apply=False)
    assert report.plan.steps
    assert not report.applied
    assert night.world.requests == []
    assert not night.state_dir.exists()


def test_what_is_not_agreed_to_is_not_done(night: Night) -> None:
    def no(report: Report) -> None:
        raise Refused("not confirmed")

    with pytest.raises(Refused):
        rotate(RunKind.NIGHT, POLICY, Site(SmallVcenter(night.world), night.state_dir, night.world.tick),
               apply=True, consent=no)  # fmt: skip
    assert night.world.requests == []
    assert night.open_runs() == 0


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


@pytest.mark.parametrize("examples", [15, pytest.param(100, marks=pytest.mark.long)])
def test_killed_again_and_again_with_lost_replies(tmp_path: Path, examples: int) -> None:
    @settings(max_examples=examples, derandomize=True)
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


def test_a_full_disk_stops_before_the_first_effect(night: Night, mocker: MockerFixture) -> None:
    mocker.patch("gpuops.execute.journal.Journal.intend", side_effect=StateDamaged("database or disk is full"))
    with pytest.raises(StateDamaged):
        night.run(RunKind.NIGHT)
    assert night.world.requests == []


def test_a_desktop_whose_resume_fails_is_named_and_the_others_come_back(night: Night) -> None:
    night.run(RunKind.NIGHT)
    night.world.failing["vm-2"] = StepFailed("not enough graphics resources")
    report = night.run(RunKind.DAY)
    assert report.exit_code == 4
    [failed] = [outcome for outcome in report.outcomes if outcome.verdict is Verdict.FAILED]
    assert failed.step == ResumeVm("vm-2", "host-1")
    assert failed.reason == (
        "not enough graphics resources; "
        "the GPUs of esx-01 are held by desktop-01, desktop-03, desktop-04, desktop-05: free one, "
        "then gpuops rotate day"
    )
    assert night.powers()["desktop-01"] is PowerState.ON
    assert night.markers() == {"desktop-02"}
    night.world.failing.clear()
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.powers()["desktop-02"] is PowerState.ON
    assert night.markers() == set()


def test_a_night_whose_return_has_begun_is_foreseen_as_over(night: Night) -> None:
    """Nobody is back yet, and `rotate night` takes nothing more in it all the same."""
    night.run(RunKind.NIGHT)
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    kill_at = 0
    while not _returning(site):
        kill_at += 1
        assert night.killed(RunKind.DAY, kill_at), "the morning ended before a desktop was to be resumed"
    assert preview(POLICY, site, None).night_plan.over


def _returning(site: Site) -> bool:
    with site.journal_to_read("vc-uuid") as journal:
        return journal is not None and bool(journal.over())


def test_a_foreign_vm_on_the_gpu_is_named_as_the_blocker(night: Night) -> None:
    night.run(RunKind.NIGHT)
    night.world._set_power("vm-91", PowerState.OFF)
    night.world.set("vm-91", name="somebodys-vm", instance_uuid="50other")
    night.world._set_power("vm-91", PowerState.ON)
    report = night.run(RunKind.DAY)
    assert report.exit_code == 4
    failed = next(outcome for outcome in report.outcomes if outcome.verdict is Verdict.FAILED)
    assert "the GPUs of esx-01 are held by desktop-03, desktop-04, desktop-05, somebodys-vm" in failed.reason
    assert night.powers()["somebodys-vm"] is PowerState.ON, "never touched"


def test_a_failed_suspend_keeps_the_ml_vm_off_and_the_desktop_on(night: Night) -> None:
    night.world.failing["vm-1"] = StepFailed("no space left on ssd")
    report = night.run(RunKind.NIGHT)
    assert report.exit_code == 4
    assert night.powers()["ml-01"] is PowerState.OFF
    assert night.powers()["ml-02"] is PowerState.ON
    night.world.failing.clear()
    assert night.run(RunKind.DAY).exit_code == 0
    morning_is_good(night)


def test_a_user_who_comes_while_the_night_begins_keeps_the_desktop(night: Night) -> None:
    def arrive(step: object) -> None:
        if isinstance(step, SetAttribute) and step.vm == "vm-1":
            night.world.set("vm-2", console_connections=1)

    night.world.on_submit = arrive
    report = night.run(RunKind.NIGHT)
    kept = next(outcome for outcome in report.outcomes if outcome.step == SuspendVm("vm-2"))
    assert (kept.verdict, kept.reason) == (Verdict.SKIPPED, "1 console connection(s) open")
    assert night.powers()["desktop-02"] is PowerState.ON
    assert night.run(RunKind.DAY).exit_code == 0
    morning_is_good(night)


def test_where_an_ml_vm_is_left_running_the_other_desktops_return(night: Night) -> None:
    """What templates/policy.yaml says of `leave-running`: every desktop is tried, those without room are named."""
    policy = parse_policy(POLICY_TEXT.replace("power-off", "leave-running"), "gentle")
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed)
    night.world.stubborn.add("vm-91")
    report = rotate(RunKind.DAY, None, site, apply=True, consent=agreed)
    tried = [outcome for outcome in report.outcomes if isinstance(outcome.step, ResumeVm)]
    assert {outcome.step.vm for outcome in tried} == {"vm-1", "vm-2"}
    assert {outcome.verdict for outcome in tried} == {Verdict.FAILED}, "the GPU of both is the one that is kept"
    assert all("held by desktop-03, desktop-04, desktop-05, ml-01" in outcome.reason for outcome in tried)
    assert (report.exit_code, night.world.power("ml-01"), night.world.power("ml-02")) == (
        4,
        PowerState.ON,
        PowerState.OFF,
    )
    night.world._set_power("vm-91", PowerState.OFF)
    assert rotate(RunKind.DAY, None, site, apply=True, consent=agreed).exit_code == 0
    morning_is_good(night)


def test_stubborn_ml_guests_are_powered_off_so_that_desktops_return(night: Night) -> None:
    night.run(RunKind.NIGHT)
    night.world.stubborn.add("vm-91")
    assert night.run(RunKind.DAY).exit_code == 0
    assert [effect.step.vm for effect in effects(night.world, PowerOffVm)] == ["vm-91"]
    morning_is_good(night)


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
    assert [each.subject for each in report.plan.unmet] == ["desktop-02"]
    assert report.exit_code == 4
    night.world.hung.clear()
    night.world.settle()
    night.world.now += LATE
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.powers()["desktop-02"] is PowerState.ON


def test_a_suspend_that_came_late_and_was_undone_is_not_waited_for_again(night: Night) -> None:
    """The resume that was seen done shows that the suspend had happened: a second morning has nothing to name."""
    night.world.hung.add("vm-2")
    assert night.run(RunKind.NIGHT).exit_code == 4
    night.world.hung.clear()
    night.world.settle()
    given_up = night.world.now
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.run(RunKind.DAY).exit_code == 0
    assert night.world.now - given_up < LATE
    morning_is_good(night)


def test_an_ml_vm_in_an_unknown_state_is_not_powered_off(night: Night) -> None:
    """Somebody may have suspended it: a power-off would discard what it holds."""
    night.run(RunKind.NIGHT)
    night.world.stubborn |= {"vm-91"}
    asked = night.world.on_submit

    def unread(step: Step) -> None:
        if step == ShutDownGuest("vm-91", 60, then_off=True):
            night.world.set("vm-91", power=None)
            night.world.on_submit = asked

    night.world.on_submit = unread
    report = night.run(RunKind.DAY)
    [outcome] = [each for each in report.outcomes if each.step.vm == "vm-91" and each.verdict is not Verdict.DONE][:1]
    assert "its power state cannot be read" in outcome.reason
    assert effects(night.world, PowerOffVm) == []


def test_a_right_withdrawn_half_way_is_not_called_nothing_changed(night: Night) -> None:
    night.run(RunKind.NIGHT)

    def withdrawn(step: Step) -> None:
        if isinstance(step, ResumeVm):
            night.world.unreadable = NoPermission("this login lacks the privilege System.View")

    night.world.on_submit = withdrawn
    with pytest.raises(PartlyDone, match=r"System\.View") as stopped:
        night.run(RunKind.DAY)
    assert "gpuops rotate resume" in stopped.value.hint
    night.world.unreadable, night.world.on_submit = None, lambda step: None
    night.world.settle()
    assert night.resume().exit_code == 0
    morning_is_good(night)


def test_two_crons_do_not_both_act(night: Night) -> None:
    with locked(night.state_dir, "vc-uuid", night.world.tick(), alone=True), pytest.raises(Locked):
        night.run(RunKind.NIGHT)
    assert night.world.requests == []


def test_the_morning_obeys_the_policy_of_the_night(night: Night) -> None:
    with pytest.raises(UsageError, match="no night in the journal"):
        rotate(RunKind.DAY, None, Site(SmallVcenter(night.world), night.state_dir, night.world.tick),
               apply=True, consent=agreed)  # fmt: skip
    night.run(RunKind.NIGHT)
    report = rotate(RunKind.DAY, None, Site(SmallVcenter(night.world), night.state_dir, night.world.tick),
                    apply=True, consent=agreed)  # fmt: skip
    assert report.exit_code == 0
    assert next(step for step in report.plan.steps if isinstance(step, ShutDownGuest)).grace_s == 60
    morning_is_good(night)


def test_a_morning_under_another_policy_is_not_the_one_remembered(night: Night) -> None:
    """What the night took is returned under its own policy, whatever the one that is said selects."""
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    night.run(RunKind.NIGHT)
    narrow = parse_policy(POLICY_TEXT.replace("desktop-*", "desktop-01"), "narrow")
    assert rotate(RunKind.DAY, narrow, site, apply=True, consent=agreed).exit_code == 0
    assert status(site).policy == "small"
    morning_is_good(night)


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


def test_status_tells_what_is_away_and_what_was_cut_off(night: Night) -> None:
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    assert status(site).vms == ()
    night.run(RunKind.NIGHT)
    told = status(site)
    assert (told.policy, told.cut_off) == ("small", None)
    assert {mine.original.name: mine.whereabouts for mine in told.away} == dict.fromkeys(
        ("desktop-01", "desktop-02", "ml-01", "ml-02"), Whereabouts.AWAY
    )
    with pytest.raises(Killed):
        night.run(RunKind.DAY, kill_at=30)
    assert status(site).cut_off == "rotate day"
    night.resume()
    assert status(site).vms == ()
    assert status(site).cut_off is None


def test_tags_that_cannot_be_read_in_the_morning_keep_nobody_away(night: Night, mocker: MockerFixture) -> None:
    """They select, and selection is for taking."""
    marks = 'marks: [{tag: "use:night"}], '
    by_tag = parse_policy(POLICY_TEXT.replace("select: {", f"select: {{{marks}"), "by tag")
    night.world.tags = {f"vm-{number}": ("use:night",) for number in range(1, 6)}
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    assert rotate(RunKind.NIGHT, by_tag, site, apply=True, consent=agreed).exit_code == 0
    assert night.powers()["desktop-01"] is PowerState.SUSPENDED
    mocker.patch.object(SmallVcenter, "with_tags", side_effect=NotConnected("the tags do not answer"))
    assert rotate(RunKind.DAY, by_tag, site, apply=True, consent=agreed).exit_code == 0
    morning_is_good(night)


def test_two_policies_rotate_one_vcenter_and_one_morning_returns_each_under_its_own(night: Night) -> None:
    """Each night takes its own, whatever the other still has; the morning clears the marker of each."""
    first = parse_policy(POLICY_TEXT.replace("desktop-*", "desktop-0[12]").replace(", {vm: ml-02}", ""), "first")
    second = parse_policy(
        POLICY_TEXT.replace("name: small", "name: other").replace("desktop-*", "desktop-0[345]")
        .replace("{vm: ml-01}, ", "").replace("grace_s: 60", "grace_s: 7") + "marker: other.marker\n",
        "second",
    )  # fmt: skip
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    night.world.attributes.add("other.marker")
    for policy in (first, second):
        assert rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed).exit_code == 0
    powers = night.powers()
    assert (powers["ml-01"], powers["ml-02"], powers["desktop-01"]) == (
        PowerState.ON,
        PowerState.ON,
        PowerState.SUSPENDED,
    )
    morning = rotate(RunKind.DAY, second, site, apply=True, consent=agreed)
    assert morning.exit_code == 0
    stops = {step.vm: step.grace_s for step in morning.plan.steps if isinstance(step, ShutDownGuest)}
    assert stops == {"vm-91": 60, "vm-92": 7}
    cleared = {step.vm: step.name for step in morning.plan.steps if isinstance(step, SetAttribute)}
    assert cleared["vm-91"] == "gpuops.rotation"
    assert cleared["vm-92"] == "other.marker"
    morning_is_good(night)
