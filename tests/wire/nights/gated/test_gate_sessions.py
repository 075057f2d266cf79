"""Sessions that begin while a night closes gates and suspends: whose desktop it is then."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import pytest

from gpuops.api import rotate_night
from gpuops.config.policy import parse_policy
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import CloseGate, OpenGate, Step, SuspendVm
from tests.wire.nights.gated.gates import POLICY, Gated, steps_of


def test_a_session_that_began_before_the_suspend_keeps_the_desktop_and_its_gate_is_opened(vdi: Gated) -> None:
    used: list[str] = []

    def watch(outcome: Outcome) -> None:
        if isinstance(outcome.step, CloseGate) and outcome.verdict is Verdict.DONE and not used:
            used.append(sorted(vdi.gated - vdi.suspended)[-1])
            vdi.use(used[0])

    night = vdi.night(watch=watch)
    [name] = used
    assert name not in vdi.suspended | vdi.gated
    assert name in steps_of(night, OpenGate)
    assert vdi.gated == vdi.suspended
    vdi.day()
    vdi.nothing_is_left()


def test_a_session_that_began_during_the_suspend_has_its_desktop_back_at_once(vdi: Gated) -> None:
    used: list[str] = []
    names = {vm.moid: vm.name for _, vm in vdi.pod.machines()}

    def in_flight(steps: Collection[Step]) -> None:
        suspends = [step.vm for step in steps if isinstance(step, SuspendVm)]
        if suspends and not used:
            used.append(names[suspends[0]])
            vdi.use(used[0])

    night = vdi.night(in_flight=in_flight)
    [name] = used
    [suspend] = [
        outcome for outcome in night.outcomes if isinstance(outcome.step, SuspendVm) and names[outcome.step.vm] == name
    ]
    assert (suspend.verdict, suspend.reason) == (
        Verdict.FAILED,
        "a session began while it was being suspended: resumed at once",
    )
    assert name not in vdi.suspended | vdi.gated
    vdi.day()
    vdi.nothing_is_left()


@pytest.mark.long
def test_sessions_that_are_disconnected_for_long_keep_no_desktop_where_the_policy_says_so(vdi: Gated) -> None:
    """vdi-001 and vdi-002 are the first that a night takes here. To vdi-002 its user comes back during the suspend."""
    for name, minutes in (("vdi-001", 61), ("vdi-002", 61), ("vdi-003", 55)):
        vdi.use(name, timedelta(minutes=minutes))
    looked = vdi.run(lambda site: rotate_night(POLICY, site, apply=False))
    reasons = {choice.subject: choice.reason for choice in looked.plan.choices}
    assert {reasons[f"vdi-00{number}"] for number in (1, 2, 3)} == {"1 session(s), as the broker reports"}
    back: list[str] = []

    def in_flight(steps: Collection[Step]) -> None:
        if not back and any(isinstance(step, SuspendVm) and step.vm == vdi.vm("vdi-002").moid for step in steps):
            back.append("vdi-002")
            vdi.use("vdi-002")

    allowing = POLICY.text.replace("mhz: 500}", "mhz: 500, disconnected_session_timeout_minutes: 60}")
    night = vdi.night(parse_policy(allowing, "of the tests"), in_flight=in_flight)
    assert back and "vdi-001" in vdi.suspended and not {"vdi-002", "vdi-003"} & (vdi.suspended | vdi.gated)
    reasons = {night.before.vm(outcome.step.vm).name: outcome.reason for outcome in night.outcomes if outcome.reason}
    assert reasons["vdi-002"] == "a session began while it was being suspended: resumed at once"
    vdi.day()
    vdi.nothing_is_left()
