"""The one runner of the cases in `cases/`: a new case needs no Python."""

from __future__ import annotations

import pytest

from gpuops.errors import GpuopsError
from gpuops.plan.core.step_checks import is_satisfied
from tests.plan.case import Case, carried_out, cases, plan_request, rejection_line, snapshot, step_words

ALL = [case for folder in ("attach", "detach", "placement") for case in cases(folder)]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_case(case: Case) -> None:
    inventory, expect = snapshot(case), dict(case.expect)
    if "error" in expect:
        with pytest.raises(GpuopsError) as raised:
            plan_request(case.request, inventory)
        assert f"{type(raised.value).__name__}: {raised.value.message}" == expect["error"]
        return
    plan = plan_request(case.request, inventory)
    expected = expect.pop("rejections", [])
    padded = [*expected, *[""] * len(plan.rejections)]
    assert [
        rejection_line(rejection, like) for rejection, like in zip(plan.rejections, padded, strict=False)
    ] == expected
    for key in ("because", "warnings"):
        assert list(getattr(plan, key)) == expect.pop(key, [])
    if "choices" in expect:
        chosen = [f"{'+' if choice.chosen else '-'} {choice.subject}: {choice.reason}" for choice in plan.choices]
        assert chosen == expect.pop("choices")
    assert plan.disruptive is expect.pop("disruptive", False)
    steps = expect.pop("steps", [])
    world = inventory
    lines = []
    for step, like in zip(plan.steps, [*steps, *[""] * len(plan.steps)], strict=False):
        lines.append(step_words(step, world, like))
    assert lines == steps
    assert not expect, f"unknown expectations: {expect}"


@pytest.mark.parametrize("case", [case for case in ALL if case.expect.get("steps")], ids=str)
def test_a_finished_plan_has_nothing_left_to_do(case: Case) -> None:
    inventory = snapshot(case)
    plan = plan_request(case.request, inventory)
    after = carried_out(plan, inventory)
    assert all(is_satisfied(step, after) for wave in plan.waves[-1:] for step in wave.steps)
    second_plan = plan_request(case.request, after)
    assert second_plan.rejections == ()
    assert second_plan.steps == ()
    assert second_plan.because
