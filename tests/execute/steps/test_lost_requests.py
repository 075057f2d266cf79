"""A reply that was lost: what is not known is looked for, not repeated."""

from __future__ import annotations

import pytest

from gpuops.errors import StepFailed
from gpuops.execute.journal import Journal
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, RelocateVm, SetAttribute, Step, SuspendVm, VmChange
from tests.execute.small_vcenter import SmallVcenter, World
from tests.execute.steps.guarded_steps import Do


@pytest.mark.parametrize("step", [SuspendVm("vm-1"), PowerOnVm("vm-92"), SetAttribute("vm-1", "a", "b")])
def test_a_lost_reply_is_looked_for_not_repeated(do: Do, world: World, step: Step) -> None:
    world.lose_after.add(type(step))
    [outcome] = do((step,))
    assert outcome.verdict is Verdict.DONE
    assert world.requests == [step]
    assert len(world.ledger) == 1


def test_a_request_that_never_arrived_is_sent_once_more_after_looking(do: Do, world: World) -> None:
    world.lose_before.add(SuspendVm)
    [outcome] = do((SuspendVm("vm-1"),))
    assert outcome.verdict is Verdict.DONE
    assert world.requests == [SuspendVm("vm-1")] * 2
    assert len(world.ledger) == 1


CHANGE = ReconfigureVm("vm-92", VmChange(memory_locked=False))


def test_a_reconfiguration_that_never_arrived_is_sent_once_more_for_the_same_configuration(
    do: Do, world: World
) -> None:
    world.lose_before.add(ReconfigureVm)
    [outcome] = do((CHANGE,))
    assert outcome.verdict is Verdict.DONE
    assert world.requests == [CHANGE] * 2
    assert len(world.ledger) == 1


@pytest.mark.parametrize("arrives", ["before the second", "while the second is refused for it"])
def test_a_reconfiguration_that_arrives_late_and_again_has_one_effect(do: Do, world: World, arrives: str) -> None:
    vcenter = SmallVcenter(world)
    world.lose_before.add(ReconfigureVm)

    def first_arrives(step: Step) -> None:
        if not world.requests:
            return
        ref = vcenter.receive(step, "gpuops-late", world.vms["vm-92"].change_version)
        assert ref is not None
        if arrives == "before the second":
            world.finish(ref)
        else:
            raise StepFailed("another task is running on it")

    world.on_submit = first_arrives
    [outcome] = do((CHANGE,))
    assert outcome.verdict is Verdict.DONE
    assert len(world.ledger) == 1


def test_a_lost_reconfiguration_is_not_repeated_over_somebody_elses(do: Do, world: World, journal: Journal) -> None:
    world.lose_before.add(ReconfigureVm)
    world.on_submit = lambda step: world.set("vm-92", change_version="theirs")
    [outcome] = do((CHANGE,))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason.startswith("the reply was lost, and another user has changed its configuration since")
    assert world.requests == [CHANGE]
    [run] = journal.open_runs(["test"])
    assert journal.open_intents(run) == (), "it can have no effect any more"


def test_a_second_lost_request_is_unknown(do: Do, world: World) -> None:
    world.on_submit = lambda step: world.lose_before.add(ReconfigureVm)
    [outcome] = do((CHANGE,))
    assert outcome.verdict is Verdict.UNKNOWN
    assert "neither task nor effect" in outcome.reason
    assert world.requests == [CHANGE] * 2


MOVE = RelocateVm("vm-92", "host-2")


@pytest.fixture
def world_with_far_host(world: World) -> World:
    """The VM that is moved stands on another host than it is wanted on."""
    world.set("vm-92", host="host-1")
    return world


def test_a_move_whose_reply_was_lost_is_settled_by_the_host_of_the_vm(do: Do, world_with_far_host: World) -> None:
    world_with_far_host.lose_after.add(RelocateVm)
    [outcome] = do((MOVE,))
    assert outcome.verdict is Verdict.DONE
    assert world_with_far_host.requests == [MOVE]
    assert world_with_far_host.vms["vm-92"].host == "host-2"


def test_a_move_that_never_arrived_is_sent_once_more_after_looking(do: Do, world_with_far_host: World) -> None:
    world_with_far_host.lose_before.add(RelocateVm)
    [outcome] = do((MOVE,))
    assert outcome.verdict is Verdict.DONE
    assert world_with_far_host.requests == [MOVE] * 2
    assert len(world_with_far_host.ledger) == 1


def test_a_lost_move_is_not_repeated_over_somebody_elses(do: Do, world_with_far_host: World) -> None:
    world_with_far_host.lose_before.add(RelocateVm)
    world_with_far_host.on_submit = lambda step: world_with_far_host.set("vm-92", host="host-3")
    [outcome] = do((MOVE,))
    assert outcome.verdict is Verdict.UNKNOWN
    assert world_with_far_host.requests == [MOVE]


def test_a_request_that_was_lost_is_not_sent_again_to_a_desktop_whose_user_came(
    world: World, journal: Journal, do: Do
) -> None:
    """The first one may still arrive, so its end is unknown."""
    world.lose_before.add(SuspendVm)
    world.on_submit = lambda step: world.set("vm-1", cpu_usage_mhz=5200)
    [outcome] = do((SuspendVm("vm-1"),))
    assert world.requests == [SuspendVm("vm-1")]
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.reason == "the reply was lost; not sent again: uses 5200 MHz, idle is below 500"
