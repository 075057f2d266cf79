"""A plan is executed only if the admin agreed to it; one that has changed under the lock is asked about again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

import pytest

from gpuops.errors import Refused
from gpuops.execute.site import agreed, once_agreed
from gpuops.execute.site.agreement import Agreement, PlanChanged, apply_agreed, no_step_more
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import PowerOnVm, SetAttribute, SuspendVm


@dataclass(frozen=True)
class Proposed:
    """A plan: its deed and its reason."""

    text: str
    applied: bool = False
    done: bool = False

    @property
    def deeds(self) -> str | None:
        return None if self.text == "refused" else self.text.split(":")[0]


def apply(texts: list[str], consent: Callable[[str], None], *, apply: bool = True) -> Proposed:
    """Plan first without the lock, then under it."""
    planned_under_lock = iter(texts[1:])
    return apply_agreed(
        Proposed(texts[0]),
        lambda proposal: consent(proposal.text),
        lambda proposal, lock_held: replace(proposal, applied=True, done=True),
        apply=apply,
        lock=nullcontext,
        look_again=lambda lock_held: Proposed(next(planned_under_lock)),
    )


def test_an_equal_plan_is_executed_whatever_its_reason() -> None:
    questions: list[str] = []
    assert apply(["a:for x", "a:for y"], questions.append) == Proposed("a:for y", applied=True, done=True)
    assert questions == ["a:for x"]


def test_the_plan_that_has_changed_is_asked_about_until_it_stays() -> None:
    questions: list[str] = []
    assert apply(["a", "b", "c", "c"], questions.append) == Proposed("c", applied=True, done=True)
    assert questions == ["a", "b", "c"]


def test_a_no_to_the_second_plan_ends_the_run() -> None:
    def consent(plan: str) -> None:
        if plan != "a":
            raise Refused("not confirmed")

    with pytest.raises(Refused, match="not confirmed"):
        apply(["a", "b", "b"], consent)


@pytest.mark.parametrize("first", [[], ["a"]], ids=["at once", "under the lock"])
def test_a_refused_plan_is_not_applied_and_an_empty_one_is(first: list[str]) -> None:
    questions: list[str] = []
    assert apply([*first, "refused"], questions.append) == Proposed("refused")
    assert apply([*first, ""], questions.append) == Proposed("", applied=True)
    assert questions == [*first, *first]


def test_a_dry_run_asks_nobody() -> None:
    assert apply(["a"], lambda plan: pytest.fail("asked"), apply=False) == Proposed("a")


def test_what_was_agreed_to_covers_each_later_plan_and_not_only_the_next_one() -> None:
    """A return that waits for vCenter plans again and again under its lock, with the steps that remain."""
    steps = [SuspendVm("vm-1"), SuspendVm("vm-2")]
    agreement = Agreement(steps, no_step_more)
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


def test_it_is_done_after_each_yes_with_what_was_agreed_to_and_never_after_a_no() -> None:
    events = list[object]()
    first, second = cast(Report, object()), cast(Report, object())

    def ask(report: Report) -> None:
        events.append("asked")
        if report is second:
            raise Refused("no")

    consent = once_agreed(once_agreed(ask, events.append), lambda _: events.append("then"))
    consent(first)
    consent(first)
    with pytest.raises(Refused):
        consent(second)
    assert events == ["asked", first, "then", "asked", first, "then", "asked"]
    once_agreed(agreed, events.append)(second)
    assert events[-1] is second
