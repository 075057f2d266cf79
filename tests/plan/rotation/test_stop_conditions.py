"""When a night takes nothing more: so much of it has failed, over all of its runs, or two clocks differ."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpuops.errors import Trouble
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import CloseGate, SuspendVm
from gpuops.plan.rotation.nights.night_refusals import StepCounts, ahead_by, clock_trouble, is_refusal, reason_to_stop
from tests.execute.small_vcenter import small_world

ASKED = datetime(2026, 11, 20, 21, 0, tzinfo=UTC)


@pytest.fixture
def inventory() -> Inventory:
    """vm-1 to vm-5 and vm-91 are on esx-01, vm-92 is on esx-02."""
    return small_world().snapshot()


def outcomes_of(*refs: str, verdict: Verdict = Verdict.FAILED, trouble: Trouble = Trouble.CAPACITY) -> list[Outcome]:
    return [Outcome(SuspendVm(ref), verdict, "no", trouble=trouble) for ref in refs]


def count_steps(*runs: list[Outcome], planned: int, inventory: Inventory) -> StepCounts:
    """How a night went whose runs ended so."""
    counts = StepCounts().with_plan(planned)
    for outcome in (outcome for run in runs for outcome in run):
        failed = outcome.verdict in (Verdict.FAILED, Verdict.UNKNOWN)
        refused = failed and outcome.trouble is Trouble.DENIED
        counts = counts.with_end(failed=failed, refused=refused, host=inventory.vm(outcome.step.vm).host)
    return counts


@pytest.mark.parametrize("split", range(4))
def test_three_failures_on_one_host_stop_it_in_whatever_runs_they_were(inventory: Inventory, split: int) -> None:
    failures = outcomes_of("vm-1", "vm-2", "vm-3")
    before = count_steps(failures[:split], planned=200, inventory=inventory)
    assert reason_to_stop(before, failures[split:], inventory) == "3 steps failed on esx-01"
    assert reason_to_stop(before, failures[split:][:-1], inventory) is None or split == 3


def test_a_tenth_of_the_whole_nights_plan_stops_it(inventory: Inventory) -> None:
    """A second run plans what is left: a share of that would be less than a share of the night."""
    before = count_steps(
        outcomes_of("vm-1", "vm-92", verdict=Verdict.UNKNOWN), planned=40, inventory=inventory
    ).with_plan(20)
    assert reason_to_stop(before, outcomes_of("vm-92"), inventory) is None, "3 of 40"
    assert reason_to_stop(before, outcomes_of("vm-92", "vm-1"), inventory) == "4 of its steps failed"


def test_few_failures_of_a_short_night_are_no_pattern(inventory: Inventory) -> None:
    before = StepCounts().with_plan(5)
    assert reason_to_stop(before, outcomes_of("vm-1", "vm-92"), inventory) is None
    assert reason_to_stop(before, outcomes_of("vm-1", "vm-92", "vm-92"), inventory) == "3 of its steps failed"


def test_two_refusals_in_a_row_stop_it_over_runs_too(inventory: Inventory) -> None:
    refused = outcomes_of("vm-1", trouble=Trouble.DENIED)
    success = outcomes_of("vm-2", verdict=Verdict.DONE)
    before = count_steps(refused, planned=200, inventory=inventory)
    assert reason_to_stop(before, refused, inventory) == "vCenter refuses one step after the other"
    assert reason_to_stop(before, [*success, *refused], inventory) is None
    assert reason_to_stop(count_steps(refused, success, planned=200, inventory=inventory), refused, inventory) is None


@pytest.mark.parametrize(
    ("told_s", "took_s", "ahead_s"),
    [(0, 0, 0), (30, 90, 0), (90, 90, 0), (100, 90, 10), (-5, 90, -5), (-5, -90, 0), (-100, -90, -10)],
)
def test_a_slow_answer_is_no_difference(told_s: int, took_s: int, ahead_s: int) -> None:
    vcenter_time, answered = ASKED + timedelta(seconds=told_s), ASKED + timedelta(seconds=took_s)
    assert ahead_by(vcenter_time, ASKED, answered) == timedelta(seconds=ahead_s)


def test_a_minute_is_nothing_and_more_is_named() -> None:
    assert clock_trouble(None) is None
    assert clock_trouble(timedelta(seconds=-60)) is None
    assert clock_trouble(timedelta(seconds=-61)) == (
        "vCenter's is 1 min 1 s behind this machine's: the hours of a night cannot be told"
    )


def test_what_a_broker_refuses_is_no_refusal_of_vcenter() -> None:
    refused = [
        Outcome(step, Verdict.FAILED, "no", trouble=Trouble.DENIED)
        for step in (CloseGate("vm-1", "m"), SuspendVm("vm-1"))
    ]
    assert [is_refusal(refusal) for refusal in refused] == [False, True]
