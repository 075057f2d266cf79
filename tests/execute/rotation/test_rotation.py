"""A night and a morning: each is one bulk read, obeys its policy, and does nothing twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from pytest_mock import MockerFixture

from gpuops.config.policy import parse_policy
from gpuops.errors import Locked, NotConnected, Refused, StateDamaged, UsageError
from gpuops.execute.journal import Journal
from gpuops.execute.journal.journal_state import dump_state, load_state
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.rotation.next_night import preview, skip_next
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.execute.state.lock import locked
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import PowerOffVm, SetAttribute, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.taken_vms import Whereabouts
from tests.execute.nights import POLICY, POLICY_TEXT, Night, effects, morning_is_good
from tests.execute.small_vcenter import Killed, SmallVcenter, ml


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


def test_a_night_reads_no_history_of_tasks_while_every_vm_is_there(night: Night, mocker: MockerFixture) -> None:
    read_history = mocker.spy(SmallVcenter, "has_power_task_near")
    night.run(RunKind.NIGHT)
    assert read_history.call_count == 0


def test_an_ml_vm_that_the_policy_calls_by_its_id_is_stopped_in_the_morning(night: Night) -> None:
    policy = parse_policy(POLICY_TEXT.replace("{vm: ml-01}", "{vm: 'moid:vm-91'}"), "by id")
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    assert rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed).exit_code == 0
    assert night.world.power("ml-01") is PowerState.ON
    assert rotate(RunKind.DAY, None, site, apply=True, consent=agreed).exit_code == 0
    morning_is_good(night)


def test_a_night_without_a_window_has_one_name_however_long_it_takes(night: Night) -> None:
    policy = parse_policy(POLICY_TEXT.replace("window:", "# window:"), "manual")
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
    second_run = night.run(kind)
    assert night.world.ledger == before
    assert not second_run.changed
    assert second_run.exit_code == 0
    assert second_run.plan.because


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


def test_a_full_disk_stops_before_the_first_effect(night: Night, mocker: MockerFixture) -> None:
    mocker.patch("gpuops.execute.journal.Journal.intend", side_effect=StateDamaged("database or disk is full"))
    with pytest.raises(StateDamaged):
        night.run(RunKind.NIGHT)
    assert night.world.requests == []


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


def test_status_tells_what_is_away_and_what_was_cut_off(night: Night) -> None:
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    assert status(site).vms == ()
    night.run(RunKind.NIGHT)
    rotation = status(site)
    assert (rotation.policy, rotation.cut_off) == ("small", None)
    assert {mine.original.name: mine.whereabouts for mine in rotation.away} == dict.fromkeys(
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


def policy_of(name: str, floor: int, ml_vm: str) -> Policy:
    text = POLICY_TEXT.replace("name: small", f"name: {name}").replace(
        "parked: true", f"parked: true\n    floor: {floor}"
    )
    return parse_policy(text.replace("{vm: ml-01}, {vm: ml-02}", f"{{vm: {ml_vm}}}"), name)


def night_of(night: Night, policy: Policy) -> Report:
    site = Site(SmallVcenter(night.world), night.state_dir, night.world.tick)
    return rotate(RunKind.NIGHT, policy, site, apply=True, consent=agreed)


def count_suspended(night: Night) -> int:
    return len(effects(night.world, SuspendVm))


def test_the_floor_of_an_open_night_holds_for_another_policy(night: Night) -> None:
    """Five desktops: ml-01 needs the GPU of two, ml-03 that of the other three."""
    night.world.vms["vm-93"] = ml(3, "host-1")
    assert night_of(night, policy_of("early", 2, "ml-01")).exit_code == 0
    assert count_suspended(night) == 2
    report = night_of(night, policy_of("late", 0, "ml-03"))
    assert report.exit_code == 0
    assert count_suspended(night) == 2, "three run, two must, and one is not enough for ml-03"
    assert "the floors of policy early hold as well: its night is open" in report.plan.because
    reasons = {choice.reason for choice in report.plan.choices}
    assert "floor: 2 of pool all of policy early, whose night is open, stay running" in reasons


def test_a_floor_that_another_night_has_broken_is_named(night: Night) -> None:
    """The journal did not know the other policy when that night took its desktops."""
    assert night_of(night, policy_of("late", 0, "ml-01")).exit_code == 0
    report = night_of(night, policy_of("early", 4, "ml-02"))
    assert (report.exit_code, count_suspended(night)) == (4, 2)
    [broken] = report.plan.unmet
    assert broken.subject == "pool all"
    assert broken.rule.startswith("floor: 4 must stay running, 3 do: night 2")
    assert broken.rule.endswith(" of policy late has taken 2")


def site(night: Night) -> Site:
    return Site(SmallVcenter(night.world), night.state_dir, night.world.tick)


def skip(night: Night, *, undo: bool = False, policy: Policy = POLICY) -> tuple[str, bool]:
    skipped = skip_next(policy, site(night), undo=undo)
    return skipped.night.id, skipped.changed


def test_the_open_night_that_has_taken_nothing_is_the_next_one(night: Night) -> None:
    assert skip(night) == ("2026-11-20", True)
    assert skip(night) == ("2026-11-20", False)
    report = night.run(RunKind.NIGHT)
    assert (report.exit_code, report.plan.steps, night.world.requests) == (0, (), [])
    assert report.plan.because == (
        "night 2026-11-20 is skipped by `gpuops rotate skip-next`: add --undo to allow it again",
    )
    assert preview(POLICY, site(night), None).night_plan.skipped
    assert status(site(night), POLICY).skipped == ("2026-11-20",)


def test_the_night_after_it_is_taken(night: Night) -> None:
    skip(night)
    night.world.now += timedelta(days=1)
    assert status(site(night), POLICY).skipped == ()
    assert night.run(RunKind.NIGHT).changed


def test_undo_takes_it_after_all(night: Night) -> None:
    skip(night)
    assert skip(night, undo=True) == ("2026-11-20", True)
    assert skip(night, undo=True) == ("2026-11-20", False)
    assert night.run(RunKind.NIGHT).changed


@pytest.mark.parametrize("kind", [None, RunKind.DAY])
def test_a_night_that_has_taken_something_is_not_skipped_any_more(night: Night, kind: RunKind | None) -> None:
    night.run(RunKind.NIGHT)
    if kind is not None:
        night.run(kind)
    assert skip(night) == ("2026-11-21", True)
    assert night.run(RunKind.DAY).exit_code == 0


def test_a_morning_is_never_skipped(night: Night) -> None:
    night.run(RunKind.NIGHT)
    skip(night)
    night.world.now += timedelta(days=1)
    assert night.run(RunKind.DAY).changed


def test_another_policy_is_not_meant(night: Night) -> None:
    skip(night, policy=parse_policy(POLICY_TEXT.replace("name: small", "name: other"), "other"))
    assert night.run(RunKind.NIGHT).changed


def test_a_policy_without_a_window_has_no_next_night(night: Night) -> None:
    with pytest.raises(UsageError, match="small: a policy without a window has no next night"):
        skip(night, policy=parse_policy(POLICY_TEXT.replace("window:", "# window:"), "always"))
    assert night.run(RunKind.NIGHT).changed


def test_nothing_is_skipped_under_the_feet_of_a_run(night: Night) -> None:
    with locked(night.state_dir, "vc-uuid", night.world.tick(), alone=True), pytest.raises(Locked):
        skip(night)


def test_a_checkpoint_keeps_it_and_weeks_later_it_is_forgotten(night: Night) -> None:
    skip(night)
    journal = Journal.open(night.state_dir, "vc-uuid", night.world.tick)
    try:
        body = dump_state(journal.state)
        state = load_state("vc-uuid", Record(journal.state.seq, "", Kind.CHECKPOINT, night.world.tick(), body))
        assert state is not None
        assert state.skips == {("small", "2026-11-20")}
        night.world.now += timedelta(days=14)
        journal.end(journal.begin("rotate day"))
        assert journal.skipped_nights("small") == frozenset()
    finally:
        journal.close()


@pytest.mark.parametrize(
    ("hour", "expected_night"), [("05:59", "2026-11-20"), ("06:00", "2026-11-21"), ("06:59", "2026-11-21")]
)
def test_without_a_moment_that_night_is_planned_which_may_still_be_taken(
    night: Night, hour: str, expected_night: str
) -> None:
    """A window that has closed is a night's until its desktops are due."""
    policy = parse_policy(POLICY_TEXT.replace('closes: "06:00"', 'closes: "06:00", back_by: "07:00"'), "small")
    now = datetime.fromisoformat(f"2026-11-21T{hour}Z")
    foreseen = preview(policy, replace(site(night), clock=lambda: now), None)
    assert foreseen.night_plan.night == expected_night
