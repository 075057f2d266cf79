"""A skipped night takes nothing and says so; the one after it is taken as ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import Locked, UsageError
from gpuops.execute.journal import Journal
from gpuops.execute.journal.journal_state import dump_state, load_state
from gpuops.execute.journal.record import Kind, Record
from gpuops.execute.rotation.next_night import preview, skip_next
from gpuops.execute.rotation.status import status
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site
from gpuops.execute.state.lock import locked
from gpuops.model.nights.rotation import Policy
from tests.execute.nights import POLICY, POLICY_TEXT, Night
from tests.execute.small_vcenter import SmallVcenter


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
