"""Which steps may be in flight at once: so many in all, on a host, and on a datastore."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.execute.steps.step_executor import StepInFlight
from gpuops.execute.steps.step_queue import StepQueue
from gpuops.model.nights.rotation_policy import Limits
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.plan import Plan, Wave
from gpuops.plan.core.steps import CloseGate, OpenGate, PowerOnVm, ResumeVm, SetAttribute, Step, SuspendVm
from tests.execute.small_vcenter import START, small_world

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
    queue = StepQueue(Plan(waves=(Wave("suspend", STEPS),)), limits)
    at_once = []
    while queue.has_steps:
        ready = queue.ready(inventory)
        for waiting in ready:
            queue.add_sent(waiting, StepInFlight("op", waiting.step, TaskRef("task"), START))
        at_once.append(len(ready))
        assert queue.ready(inventory) == [], "nothing more, until one of these has finished"
        for sent in tuple(queue.sent):
            queue.remove_sent(sent)
    assert at_once == numbers


def test_starts_on_a_host_keep_the_order_of_the_plan() -> None:
    """The second would have a GPU that the first one needs, were it ready first."""
    inventory = small_world().snapshot()
    host, marker = inventory.vm("vm-91").host, SetAttribute("vm-91", "marker", "x")
    first, second = PowerOnVm("vm-91", host), PowerOnVm("vm-92", host)
    queue = StepQueue(Plan(waves=(Wave("mark", (marker,)), Wave("start", (first, second)))), PLENTY)
    [marking] = queue.ready(inventory)
    queue.add_sent(marking, StepInFlight("op", marker, TaskRef("task"), START))
    assert queue.ready(inventory) == [], "the first waits for its marker, the second for the first"
    queue.end(queue.remove_sent(queue.sent[0]))
    assert [waiting.step for waiting in queue.ready(inventory)] == [first, second]


def test_a_start_that_is_tried_again_waits_for_none_that_comes_later() -> None:
    """It stands behind the others that wait then; the start of a later stage waits for it, and it for none of them."""
    inventory = small_world().snapshot()
    host = inventory.vm("vm-91").host
    first, second = PowerOnVm("vm-91", host), PowerOnVm("vm-92", host)
    queue = StepQueue(Plan(waves=(Wave("start", (first,)), Wave("start", (second,)))), PLENTY)
    [starting] = queue.ready(inventory)
    queue.retry_later(starting, 20.0)
    assert queue.ready(inventory) == [], "the first rests"
    queue.count_time(20.0)
    assert [waiting.step for waiting in queue.ready(inventory)] == [first]
    queue.end(starting)
    assert [waiting.step for waiting in queue.ready(inventory)] == [second]


def test_on_the_way_back_no_start_waits_for_another() -> None:
    """A desktop without a guest that could be suspended is started again: one that must wait keeps no other away."""
    inventory = small_world().snapshot()
    host = inventory.vm("vm-91").host
    first, second = PowerOnVm("vm-91", host), PowerOnVm("vm-92", host)
    queue = StepQueue(Plan(waves=(Wave("start", (first, second)),)), PLENTY, returning=True)
    queue.retry_later(queue.waiting[0], 20.0)
    assert [waiting.step for waiting in queue.ready(inventory)] == [second]


def test_what_needs_a_broker_that_fails_waits_for_the_desktops() -> None:
    """Each try may take minutes; a marker waits for the gate of its VM."""
    inventory = small_world().snapshot()
    opened, resumed, cleared = OpenGate("vm-1"), ResumeVm("vm-2"), SetAttribute("vm-1", "marker", "")
    queue = StepQueue(Plan(waves=(Wave("", (opened,)), Wave("", (resumed,)), Wave("", (cleared,)))), PLENTY)
    assert [waiting.step for waiting in queue.ready(inventory)] == [opened, resumed]
    [waiting] = queue.ready(inventory, broker_fails=True)
    assert waiting.step == resumed
    queue.add_sent(waiting, StepInFlight("op", resumed, TaskRef("task"), START))
    assert queue.ready(inventory, broker_fails=True) == []
    queue.end(queue.remove_sent(queue.sent[0]))
    assert [waiting.step for waiting in queue.ready(inventory, broker_fails=True)] == [opened]


def test_where_only_a_gate_is_ready_a_broker_that_fails_is_asked() -> None:
    """What waits behind that gate can never come first: the queue would go round until the broker's rest is over."""
    inventory = small_world().snapshot()
    closed, suspended = CloseGate("vm-1", "m"), SuspendVm("vm-1")
    queue = StepQueue(Plan(waves=(Wave("", (closed,)), Wave("", (suspended,)))), PLENTY)
    assert [waiting.step for waiting in queue.ready(inventory, broker_fails=True)] == [closed]
    queue.retry_later(queue.waiting[1], 20.0)
    assert queue.ready(inventory, broker_fails=True) == [], "something rests: time passes"
