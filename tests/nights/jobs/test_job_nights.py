"""Nights with jobs: none is lost, none runs twice to its end, none keeps a desktop away, whatever is killed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gpuops.extras.jobs.job import JobEvent, JobState
from tests.nights.jobs import checkers
from tests.nights.jobs.checkers import tally, violations
from tests.nights.jobs.story import play


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed", [pytest.param(3), pytest.param(8), *(pytest.param(each, marks=pytest.mark.long) for each in (5, 11, 18))]
)
def test_no_night_with_jobs_breaks_an_invariant(seed: int) -> None:
    story = play(seed)
    assert violations(story) == []
    assert story.jobs and story.guests.made, "these nights did something"


@pytest.mark.long
def test_vms_of_the_template_run_jobs_and_are_removed() -> None:
    met = play(6).guests.met + play(10).guests.met
    assert met["VM made"] and met["VM has"] and met["VM removed"]


@pytest.mark.long
def test_a_return_lets_jobs_save_their_state() -> None:
    """In this story it finds some that run, for the clock did not call `job run` any more."""
    assert play(7).guests.met["a return saved a job"] > 0


@pytest.mark.long
def test_a_return_that_comes_late_has_no_time_for_jobs() -> None:
    assert play(9).guests.met["a return had no time"] > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_kills_and_troubles_meet_nearly_every_record_of_a_job() -> None:
    """`make job-nights` plays enough to meet each of them."""
    total = tally(range(100, 132), jobs=1)
    assert total.violations == []
    assert set(total.events) >= set(JobEvent) - {JobEvent.NOT_STARTED}
    assert {JobState.FINISHED, JobState.FAILED, JobState.CANCELLED} <= set(total.states)
    assert len(total.unmet()) <= 6


@pytest.mark.long
def test_a_checker_sees_what_it_is_for() -> None:
    """Stories changed so that each invariant is broken once."""
    story = play(3)
    container = next(submitted for submitted in story.guests.made if story.guests.came_to_its_end(submitted))
    story.guests.made.append(type(container)(**{**vars(container), "attempt": "again"}))
    counts = Counter(violation.partition(":")[0] for violation in violations(story))
    assert counts["JB"] == 1 and counts["JD"] >= 1
    story.guests.made.pop()
    story.mornings.append((story.guests.now, ["ml-01"], ["desktop-001"]))
    story.wanted["lost"] = next(iter(story.wanted.values()))
    counts = Counter(violation.partition(":")[0] for violation in violations(story))
    assert counts["JE"] == 2 and counts["JA"] == 1
    story.counts.append((story.guests.now, ["ml-made-01"], ["desktop-001"]))
    counts = Counter(violation.partition(":")[0] for violation in violations(story))
    assert counts["JG"] == 3, "too many, one gone, one left"
    job = next(job for job in story.jobs if job.job.name == container.job)
    hasty = replace(job, job=replace(job.job, after=(job.job.name,)))  # it would have begun before it had finished
    story.jobs = tuple(hasty if submitted is job else submitted for submitted in story.jobs)
    assert Counter(violation.partition(":")[0] for violation in violations(story))["JH"] >= 1
    assert all(f"{name} " in str(checkers.__doc__) for name in ("JA", "JB", "JC", "JD", "JE", "JF", "JG", "JH"))
