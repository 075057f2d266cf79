"""Maintenance mode set by an admin, and gates that an admin opens: gpuops leaves both alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

import pytest

from gpuops.api import rotate_night
from gpuops.broker.horizon import Horizon
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.steps import CloseGate, SetAttribute, SuspendVm
from gpuops.plan.rotation.nights.desktops import IN_MAINTENANCE
from tests.wire.nights.gated.gates import AT_MOST, POLICY, Gated, Killed


def test_the_maintenance_of_somebody_else_is_left_alone(vdi: Gated) -> None:
    """vdi-001 is the first that a night takes here."""
    with vdi.server.world.lock:
        vdi.pod.change_maintenance(vdi.vm("vdi-001"), enter=True)
    night = vdi.night()
    assert "vdi-001" not in vdi.suspended and len(vdi.suspended) == AT_MOST
    reasons = {choice.subject: choice.reason for choice in night.plan.choices}
    assert reasons["vdi-001"] == IN_MAINTENANCE
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), {"vdi-001"})


@pytest.mark.long
def test_maintenance_that_begins_after_the_plan_is_not_ours(vdi: Gated) -> None:
    def consent(report: Report) -> None:
        with vdi.server.world.lock:
            vdi.pod.change_maintenance(vdi.vm("vdi-001"), enter=True)

    night = vdi.run(lambda site: rotate_night(POLICY, site, apply=True, consent=consent))
    reasons = {outcome.reason for outcome in night.outcomes if night.before.vm(outcome.step.vm).name == "vdi-001"}
    assert reasons == {IN_MAINTENANCE, f"an earlier step failed: {IN_MAINTENANCE}"}
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), {"vdi-001"})


@pytest.mark.long
def test_maintenance_that_begins_after_the_mark_of_a_killed_night_is_not_ours(vdi: Gated) -> None:
    """vdi-001 is marked, and the journal knows that its gate was not closed by the night."""

    def kill(outcome: Outcome) -> None:
        if not isinstance(outcome.step, SetAttribute):
            raise Killed

    with suppress(Killed):
        vdi.night(watch=kill)
    with vdi.server.world.lock:
        gated = vdi.gated
        theirs = next(name for name in ("vdi-001", "vdi-002", "vdi-006", "vdi-007") if name not in gated)
        vdi.pod.change_maintenance(vdi.vm(theirs), enter=True)
    night = vdi.night()
    reasons = {choice.subject: choice.reason for choice in night.plan.choices}
    assert reasons[theirs] == IN_MAINTENANCE and theirs not in vdi.suspended
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), {theirs})


def test_maintenance_that_the_last_look_shows_is_not_ours(vdi: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step here goes by a look of its own; the gates of the first eight are closed when the first has ended."""
    monkeypatch.setattr("gpuops.execute.steps.vm_looks.SHARED_S", -1.0)
    theirs: list[str] = []

    def watch(outcome: Outcome) -> None:
        if isinstance(outcome.step, CloseGate) and not theirs:
            with vdi.server.world.lock:
                marked = [
                    vm
                    for _, vm in vdi.pod.machines()
                    if any(" desktop" in attribute for attribute in vm.attributes.values())
                ]
                waiting = next(vm for vm in marked if not vdi.pod.in_maintenance(vm))
                vdi.pod.change_maintenance(waiting, enter=True)
            theirs.append(waiting.name)

    vdi.night(watch=watch)
    [name] = theirs
    assert name not in vdi.suspended and len(vdi.suspended) == AT_MOST - 1
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), {name})


def test_a_gate_that_somebody_opens_keeps_its_desktop(vdi: Gated) -> None:
    opened: list[str] = []

    def watch(outcome: Outcome) -> None:
        if isinstance(outcome.step, CloseGate) and not opened:
            with vdi.server.world.lock:
                opened.append(sorted(vdi.gated - vdi.suspended)[-1])
                vdi.pod.change_maintenance(vdi.vm(opened[0]), enter=False)

    night = vdi.night(watch=watch)
    [suspend] = [
        outcome
        for outcome in night.outcomes
        if isinstance(outcome.step, SuspendVm) and outcome.verdict is Verdict.SKIPPED
    ]
    assert (night.before.vm(suspend.step.vm).name, suspend.reason) == (
        opened[0],
        "its gate at the broker is not closed",
    )
    assert vdi.gated == vdi.suspended
    vdi.day()
    vdi.nothing_is_left()


class AdminIsFaster(Horizon):
    """Somebody puts the machine into maintenance just before the night does, and the broker refuses the second."""

    def enter_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        super().enter_maintenance(machines)
        return dict.fromkeys(machines, "it is in maintenance already")


@pytest.mark.long
def test_a_gate_that_is_refused_because_somebody_closed_it_is_theirs(vdi: Gated) -> None:
    vdi.broker = AdminIsFaster
    night = vdi.night()
    theirs = vdi.gated
    assert theirs and vdi.suspended == set()
    assert {outcome.reason for outcome in night.outcomes if isinstance(outcome.step, CloseGate)} == {IN_MAINTENANCE}
    vdi.broker = Horizon
    vdi.day()
    assert vdi.gated == theirs
