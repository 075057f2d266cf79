"""A plan is executed only if the admin agreed to it; one that has changed under the lock is asked about again."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from gpuops.errors import Refused
from gpuops.execute.site.agreement import Agreement, PlanChanged, apply_agreed, no_step_more
from gpuops.plan.core.steps import PowerOnVm, SetAttribute, SuspendVm


def apply(plans: list[str], asked: list[str]) -> str:
    """Plan first without the lock, then under it; a plan is its deed and its reason."""
    planned_under_lock = iter(plans[1:])

    def execute(agreement: Agreement[str]) -> str:
        with nullcontext():
            current = next(planned_under_lock)
            agreement.require(current)
            return f"did {current}"

    return apply_agreed(plans[0], asked.append, execute, deeds=lambda plan: plan.split(":")[0])


def test_an_equal_plan_is_executed_whatever_its_reason() -> None:
    asked: list[str] = []
    assert apply(["a:for x", "a:for y"], asked) == "did a:for y"
    assert asked == ["a:for x"]


def test_the_plan_that_has_changed_is_asked_about_until_it_stays() -> None:
    asked: list[str] = []
    assert apply(["a", "b", "c", "c"], asked) == "did c"
    assert asked == ["a", "b", "c"]


def test_a_no_to_the_second_plan_ends_the_run() -> None:
    def consent(plan: str) -> None:
        if plan != "a":
            raise Refused("not confirmed")

    def execute(agreement: Agreement[str]) -> str:
        agreement.require("b")
        return "did b"

    with pytest.raises(Refused, match="not confirmed"):
        apply_agreed("a", consent, execute, deeds=lambda plan: plan)


def test_what_was_agreed_to_covers_each_later_plan_and_not_only_the_next_one() -> None:
    """A return that waits for vCenter plans again and again under its lock, with the steps that remain."""
    steps = [SuspendVm("vm-1"), SuspendVm("vm-2")]
    agreement = Agreement(steps, lambda steps: steps, no_step_more)
    agreement.require(steps[:1])
    agreement.require(steps)
    with pytest.raises(PlanChanged):
        agreement.require([*steps, SuspendVm("vm-3")])


def test_a_rotation_may_do_less_than_was_agreed_to_and_writes_its_own_markers() -> None:
    agreed = (SuspendVm("vm-1"), PowerOnVm("vm-2", "host-1"), SetAttribute("vm-1", "marker", "lease 1"))
    assert no_step_more(agreed, agreed[:1])
    assert no_step_more(agreed, (SetAttribute("vm-1", "marker", "lease 2"),))
    assert not no_step_more(agreed, (PowerOnVm("vm-2", "host-2"),))
    assert not no_step_more(agreed, (SuspendVm("vm-2"),))
