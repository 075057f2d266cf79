"""Guests that are shut down: their grace, and the power-off after it."""

from __future__ import annotations

from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import PowerOffVm, ShutDownGuest
from tests.execute.small_vcenter import World
from tests.execute.steps.guarded_steps import Do, verdicts


def test_a_guest_shuts_down_within_its_grace(do: Do, world: World) -> None:
    world.set("vm-1", tools_running=True)
    [outcome] = do((ShutDownGuest("vm-1", grace_s=60, then_off=True),), guard=None)
    assert outcome == Outcome(ShutDownGuest("vm-1", grace_s=60, then_off=True), Verdict.DONE)
    assert world.requests == [outcome.step]


def test_a_stubborn_guest_is_powered_off_only_if_the_plan_says_so(do: Do, world: World) -> None:
    world.stubborn |= {"vm-1", "vm-2"}
    outcomes = do((ShutDownGuest("vm-1", 60, then_off=True), ShutDownGuest("vm-2", 60, then_off=False)), guard=None)
    assert verdicts(outcomes) == {"vm-1": Verdict.DONE, "vm-2": Verdict.FAILED}
    reasons = {outcome.step.vm: outcome.reason for outcome in outcomes}
    assert reasons == {
        "vm-1": "the guest still runs after 60 s; powered off",
        "vm-2": "the guest still runs after 60 s",
    }
    assert (world.power("desktop-01"), world.power("desktop-02")) == (PowerState.OFF, PowerState.ON)


def test_a_guest_without_tools_is_powered_off_at_once(do: Do, world: World) -> None:
    world.set("vm-1", tools_running=False)
    [outcome] = do((ShutDownGuest("vm-1", 60, then_off=True),), guard=None)
    assert outcome.verdict is Verdict.DONE
    assert "Tools" in outcome.reason
    assert world.requests[-1] == PowerOffVm("vm-1")
