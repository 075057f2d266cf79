"""Nights that close the gate of a connection broker: real SOAP, the real REST API, judged by the simulator's ledger."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest

from gpuops.api import Site, rotate_day, rotate_night
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.errors import UsageError
from gpuops.execute.past.past_runs import history
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.vsphere.connection import Connection
from tests.sample import mostly_long
from tests.wire.conftest import target_of
from tests.wire.nights.gated.gates import AT_MOST, POLICY, Gated, Killed, night_under

NIGHTS, MORNINGS = (13, 15, 22, 27, 34, 39), (2, 9, 16, 29)
"""Steps after which the quick suite kills one: of marks, gates, suspends and starts, of stops, resumes and gates."""


@pytest.mark.long
def test_each_desktop_is_gated_before_it_is_suspended_and_given_back_after_it_is_resumed(vdi: Gated) -> None:
    night = vdi.night()
    assert {outcome.verdict for outcome in night.outcomes} == {Verdict.DONE}
    suspended = vdi.suspended
    assert len(suspended) == AT_MOST and vdi.gated == suspended
    day = vdi.day()
    assert {outcome.verdict for outcome in day.outcomes} == {Verdict.DONE}
    vdi.nothing_is_left()
    for name in suspended:
        changes = [change for change in vdi.server.ledger if change.name == name]
        changes_of_vm = [
            "gate" if "gated" in change.after else change.after["power"]
            for change in changes
            if change.after.keys() & {"gated", "power"} and change.before.get("power") != change.after.get("power", "")
        ]
        assert changes_of_vm == ["gate", "suspended", "poweredOn", "gate"], name


@pytest.mark.long
def test_pools_that_cannot_be_gated_are_kept_with_the_reason(vdi: Gated) -> None:
    night = vdi.night()
    reasons = {choice.subject: choice.reason for choice in night.plan.choices}
    assert reasons["vdi-120"] == "is powered off"
    assert "its power policy keeps machines on" in reasons["vdi-101"] or "opted out" in reasons["vdi-101"]
    assert not vdi.gated & {f"vdi-{number:03}" for number in (*range(91, 97), *range(101, 105))}


@pytest.mark.drawn_cases(4)
@pytest.mark.long
@pytest.mark.parametrize("number", mostly_long(sorted({*range(1, 40, 6), *NIGHTS}), NIGHTS))
def test_a_night_that_is_killed_leaves_nobody_gated(vdi: Gated, number: int) -> None:
    """After any of its steps; the night that follows and the morning clear up."""
    ended = iter(range(10**6))

    def kill(outcome: Outcome) -> None:
        if next(ended) == number:
            raise Killed

    with suppress(Killed):
        vdi.night(watch=kill)
    if number % 2:
        vdi.night()
    vdi.day()
    vdi.nothing_is_left()


@pytest.mark.drawn_cases(4)
@pytest.mark.long
@pytest.mark.parametrize("number", mostly_long(sorted({*range(1, 40, 6), *MORNINGS}), MORNINGS))
def test_a_morning_that_is_killed_leaves_nobody_gated(vdi: Gated, number: int) -> None:
    vdi.night()
    ended = iter(range(10**6))

    def kill(outcome: Outcome) -> None:
        if next(ended) == number:
            raise Killed

    with suppress(Killed):
        vdi.day(watch=kill)
    vdi.day()
    vdi.nothing_is_left()


def test_the_journal_lost_the_marker_alone_opens_the_gate(vdi: Gated) -> None:
    vdi.night()
    vdi.state_dir = vdi.state_dir.with_name("another")
    vdi.day()
    assert (vdi.suspended, vdi.gated) == (set(), set())


@pytest.mark.long
def test_of_a_parked_pool_a_marker_alone_opens_no_gate(vdi: Gated) -> None:
    """A night closed no gate in that pool: the maintenance mode was set by an admin."""
    text = POLICY.text.replace("parked: false", "parked: true") + "\n"
    second_pool = (
        "  - {name: other, parked: false, select: {name: none}, idle: {cpu_below_mhz: 500}, owner: none}\nml:\n"
    )
    mixed = parse_policy(text.replace("ml:\n", second_pool), "of both kinds")
    assert [pool.gated for pool in mixed.pools] == [False, True]
    vdi.run(partial(night_under, policy=mixed))
    [first, *_] = sorted(vdi.suspended)
    assert vdi.gated == set()
    with vdi.server.world.lock:
        vdi.pod.change_maintenance(vdi.vm(first), enter=True)
    vdi.state_dir = vdi.state_dir.with_name("another")
    vdi.run(lambda site: rotate_day(mixed, site, apply=True))
    assert (vdi.suspended, vdi.gated) == (set(), {first})


@pytest.mark.long
def test_a_policy_with_a_gate_needs_a_broker(vdi: Gated) -> None:
    with Connection(target_of(vdi.server)) as connection:
        site = Site(connection, vdi.state_dir, wall_clock)
        with pytest.raises(UsageError, match="has `broker: horizon`, and no connection broker is configured"):
            rotate_night(POLICY, site, apply=True)


@pytest.mark.long
def test_the_history_tells_when_each_gate_was_closed_and_open_again(vdi: Gated) -> None:
    vdi.night()
    vdi.day()
    [night] = history(vdi.state_dir).nights
    assert len(night.desktops) == AT_MOST
    for vm in night.desktops:
        order = [step.what for step in vm.steps if step.what != "marker"]
        assert order == ["gate", "suspend", "resume", "opening of the gate"]
        assert all(step.done and step.ends is not None and step.begins <= step.ends for step in vm.steps)
