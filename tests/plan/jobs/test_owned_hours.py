"""Jobs of two owners in one VM in one night: each owner has the hours of its own jobs, and none is lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.gpu_hours import owner_in, showback, use_by_team
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, SubmittedJob
from gpuops.extras.jobs.job_turns import with_job_times
from gpuops.model.nights.fair_share import WEEK
from gpuops.model.nights.history import HeldPeriod, PastNight, PastVm
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import NOBODY, NotedOwner, OwnerKey

OPENS = datetime(2026, 11, 20, 20, tzinfo=UTC)
MORNING = OPENS + timedelta(days=1)
BY = OwnerKey("tag", "team")
NOTED = NotedOwner(str(BY), "vision")
NOWHERE = Inventory("vc", "8.0.3", OPENS, {}, {}, {}, {})
"""All of its VMs are gone."""


def at(hour: float) -> datetime:
    return OPENS + timedelta(hours=hour)


def job(
    owner: str | None, begins: float, ends: float | None, *, vm: str = "uuid-1", end: JobEvent = JobEvent.ENDED
) -> SubmittedJob:
    """It was begun six minutes before its container ran."""
    spec = ContainerJob("fit", "quay.io/lab/fit:2", ("run",), "a40-48c", 2, 4096, timedelta(hours=3), owner=owner)
    records = [JobRecord(JobEvent.BEGUN, at(begins - 0.1), vm=vm), JobRecord(JobEvent.STARTED, at(begins))]
    if ends is not None:
        records.append(JobRecord(end, at(ends), exit_code=0))
    return SubmittedJob(1, spec, OPENS, "a@b", tuple(records))


def night(*periods: HeldPeriod, owner: NotedOwner | None = NOTED) -> PastNight:
    vm = PastVm("vm-1", "uuid-1", "job-01", Role.ML, ("a40-48c",), 1.0, periods, closed=True, owner=owner)
    return PastNight("2026-11-20", "vc", OPENS, "night", (), (vm,), ())


WHOLE = HeldPeriod(at(0), at(8))


def hours(of: PastNight, *jobs: SubmittedJob, key: OwnerKey = BY) -> dict[str, float]:
    """Owner -> GPU-hours by the report; the team's use of the week must be the same."""
    nights = with_job_times([of], jobs)
    hours_by_owner = {share.owner: share.hours.at_least for share in showback(nights, owner_in(NOWHERE, key)).owners}
    teams = use_by_team(nights, owner_in(NOWHERE, key), MORNING, WEEK)
    assert {name: use.week for name, use in teams.items()} == pytest.approx(
        {owner or "(no owner)": had for owner, had in hours_by_owner.items()}
    )
    return hours_by_owner


def test_each_owner_has_the_hours_of_its_jobs() -> None:
    hours_by_owner = hours(night(WHOLE), job("vision", 0.5, 3), job("audio", 4, 7.5))
    assert hours_by_owner == pytest.approx({"vision": 4.5, "audio": 3.5}), "what no job used stays the first one's"
    assert hours(night(WHOLE)) == {"vision": 8.0}
    assert hours(night(WHOLE), job("audio", 4, 7.5, vm="uuid-2")) == {"vision": 8.0}, "another VM"
    assert hours(night(WHOLE, owner=None), job("audio", 4, 7.5)) == {NOBODY: 8.0}, (
        "hours without an owner are not divided"
    )
    assert hours(night(WHOLE), job("audio", 4, 7.5), key=OwnerKey("folder")) == {NOBODY: 8.0}, "another key"


def test_an_attempt_counts_where_it_ran_whatever_became_of_it() -> None:
    for end in (JobEvent.INTERRUPTED, JobEvent.ENDED, JobEvent.CANCELLED):
        assert hours(night(WHOLE), job("audio", 6, 12, end=end)) == pytest.approx({"vision": 6.0, "audio": 2.0})
    assert hours(night(WHOLE), job("audio", 6, None)) == pytest.approx({"vision": 6.0, "audio": 2.0}), "it may run yet"
    earlier = job("audio", -20, -16)
    assert hours(night(WHOLE), earlier) == {"vision": 8.0}, "in an earlier night"
    twice = night(HeldPeriod(at(0), at(3)), HeldPeriod(at(5), at(8)))
    assert hours(twice, job("audio", 2, 6)) == pytest.approx({"vision": 4.0, "audio": 2.0}), "not while it was off"


def test_a_job_without_an_owner_is_the_vms_own() -> None:
    unowned = job(None, 4, 6)
    assert hours(night(WHOLE), unowned) == {"vision": 8.0}, "the first one was none of an owner: the VM's is noted"
    after = hours(night(WHOLE), job("vision", 1, 3), unowned)
    assert after == pytest.approx({"vision": 6.0, NOBODY: 2.0}), "whose a VM is that is gone, nothing tells"


def test_what_goes_on_is_the_owners_whose_job_runs() -> None:
    goes_on = night(HeldPeriod(at(0)))
    nights = with_job_times([goes_on], [job("vision", 1, 3), job("audio", 4, None)])
    used = use_by_team(nights, owner_in(NOWHERE, BY), at(6), WEEK)
    assert {name: use.week for name, use in used.items()} == pytest.approx({"vision": 4.0, "audio": 2.0})
    [vm] = nights[0].ml
    *_, (now_of, part) = vm.parts(vm.held[-1].until(at(6)))
    assert (now_of.owner, part.begins) == (NotedOwner(str(BY), "audio"), at(4))


def test_a_run_is_a_line_for_each_owner() -> None:
    jobs = [job("vision", 1, 3), job("audio", 4, 6)]
    report = showback(with_job_times([night(WHOLE)], jobs), owner_in(NOWHERE, BY))
    assert [(owner_run.owner, owner_run.held.begins, owner_run.held.ends) for owner_run in report.runs] == [
        ("vision", at(0), at(4)), ("audio", at(4), at(6)), ("vision", at(6), at(8)),
    ]  # fmt: skip
    assert {share.owner: share.vms for share in report.owners} == {"vision": 1, "audio": 1}


spans = st.tuples(st.sampled_from(["vision", "audio", "text", None]), st.floats(-4, 12), st.none() | st.floats(0, 12))


@given(st.lists(spans, max_size=6), st.booleans(), st.floats(0, 8))
def test_parts_are_the_whole_period(
    ran: list[tuple[str | None, float, float | None]], by_itself: bool, hour: float
) -> None:
    """Whatever clocks of several machines have written."""
    whole = HeldPeriod(at(0), at(hour), by_itself)
    jobs = [job(owner, begins, None if length is None else begins + length) for owner, begins, length in ran]
    [vm] = with_job_times([night(whole)], jobs)[0].ml
    parts = [part for _, part in vm.parts(whole)]
    assert (parts[0].begins, parts[-1].ends) == (whole.begins, whole.ends)
    assert all(earlier.ends == later.begins for earlier, later in pairwise(parts))
    assert {part.by_itself for part in parts} == {by_itself}
    assert replace(vm, jobs=()) == night(whole).ml[0]
