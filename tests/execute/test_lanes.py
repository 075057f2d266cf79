"""Which steps may be in flight at once: so many in all, on a host, and on a datastore."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.execute.doer import Underway
from gpuops.execute.lanes import Lanes
from gpuops.model.rotation import Limits
from gpuops.model.task import TaskRef
from gpuops.plan.plan import Plan, Wave
from gpuops.plan.steps import Step, SuspendVm
from tests.execute.small_vcenter import small_world

PLENTY = Limits(in_flight=99, per_host=99, per_datastore=99)
STEPS: tuple[Step, ...] = tuple(SuspendVm(f"vm-{number}") for number in range(1, 6))


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [
        (PLENTY, [5]),
        (replace(PLENTY, in_flight=2), [2, 2, 1]),
        (replace(PLENTY, per_host=3), [3, 2]),
        (replace(PLENTY, per_datastore=1), [2, 1, 1, 1]),
        (replace(PLENTY, per_datastore=2), [3, 2]),
    ],
)
def test_the_tightest_limit_tells_how_many_are_sent(limits: Limits, numbers: list[int]) -> None:
    """The first desktop is on a datastore of its own, the other four on one."""
    world = small_world()
    world.set("vm-1", datastores=("ds-2",))
    inventory = world.snapshot()
    lanes = Lanes(Plan(waves=(Wave("suspend", STEPS),)), limits)
    sent = []
    while lanes.unended:
        ready = lanes.ready(inventory)
        for waiting in ready:
            lanes.launch(waiting, Underway("op", waiting.step, TaskRef("task")))
        sent.append(len(ready))
        assert lanes.ready(inventory) == [], "nothing more, until one of these has landed"
        for flight in tuple(lanes.flights):
            lanes.land(flight)
    assert sent == numbers
