"""A watch that takes idle desktops too: behind a broker's gate, as long as enough are ready for users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from gpuops.api import Site, rotate_day
from gpuops.config.policy import parse_policy
from gpuops.execute.rotation.rotation_lock import WatchState
from gpuops.execute.rotation.watch import Watch
from gpuops.model.nights.rotation_policy import Policy
from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.nights.desktops import running_desktops
from gpuops.plan.rotation.nights.watch_look import WatchReport
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.nights.gated.gates import Gated

UNUSED, READY = 94, 80
"""Desktops that run behind a gate that can be closed, with no session and no console; so many are to stay."""
TEXT = f"""
version: 1
name: spare
mode: spare-capacity
broker: horizon
spare: {{keep_free: {{a40-8q: 10}}, calm_s: 0, take_idle: true}}
pools:
  - name: office
    parked: false
    select: {{folder: vdi, name: "vdi-*", profile: "*-8q"}}
    idle: {{cpu_below_mhz: 500}}
    owner: none
    ready: {READY}
ml:
  queue: [{{vm: ml-01}}, {{vm: ml-02}}, {{vm: ml-03}}]
"""
POLICY: Policy = parse_policy(TEXT, "of the tests")


class Looks:
    """Looks of one watch, a minute apart."""

    def __init__(self, vdi: Gated, policy: Policy = POLICY) -> None:
        self.vdi, self.policy = vdi, policy
        self.last: Watch | None = None
        self.said: list[str] = []

    def __call__(self) -> WatchReport:
        reports: list[WatchReport] = []
        self.vdi.run(partial(self._look, reports=reports))
        return reports[0]

    def _look(self, site: Site, reports: list[WatchReport]) -> Report:
        assert self.policy.spare is not None
        site.say = self.said.append
        watch = Watch(self.policy, self.policy.spare, site, WatchState(self.policy.text))
        if self.last is not None:
            watch.history, watch.tried, watch.state = self.last.history, self.last.tried, self.last.state
        self.last = watch
        reports.append(watch.look())
        return rotate_day(self.policy, site, apply=False)


def test_idle_desktops_are_taken_as_long_as_enough_are_ready(vdi: Gated) -> None:
    look = Looks(vdi)
    look()
    look()
    assert len(vdi.suspended) == 12 and vdi.gated == vdi.suspended
    running = {f"ml-0{number}" for number in (1, 2, 3) if vdi.vm(f"ml-0{number}").state.power is Power.ON}
    assert len(running) == 2, "the third would take six more"
    assert look().outcomes == ()
    waits = next(waiting_vm for waiting_vm in look().look.waiting if waiting_vm.subject not in running)
    assert waits.reason == f"76 of pool office would be left ready for users, {READY} are required"


@pytest.mark.long
def test_desktops_come_back_when_users_need_them(vdi: Gated) -> None:
    look = Looks(vdi)
    look()
    look()
    suspended = vdi.suspended
    idle = [f"vdi-{number:03}" for number in range(1, 91) if f"vdi-{number:03}" not in suspended]
    for name in idle[:5]:
        vdi.use(name)
    report = look()
    assert len(report.look.back.desktops) == READY - (UNUSED - 12 - 5)
    assert len(report.look.back.stops) <= 1
    assert len(vdi.suspended) == 12 - len(report.look.back.desktops) and vdi.gated == vdi.suspended
    assert not any(outcome.reason for outcome in report.outcomes)
    vdi.run(lambda site: rotate_day(POLICY, site, apply=True))
    vdi.nothing_is_left()


@pytest.mark.long
def test_without_take_idle_no_desktop_is_touched(vdi: Gated) -> None:
    look = Looks(vdi, parse_policy(TEXT.replace("take_idle: true", "take_idle: false"), "careful"))
    for _ in range(3):
        assert look().outcomes == ()
    assert (vdi.suspended, vdi.gated) == (set(), set())


@pytest.mark.long
def test_without_an_answer_of_the_broker_none_is_ready_and_none_is_taken(vdi: Gated) -> None:
    look = Looks(vdi)
    vdi.pod.down = True
    look()
    look()
    assert (vdi.suspended, vdi.gated) == (set(), set())


AHEAD: Policy = parse_policy(TEXT.replace(f"ready: {READY}", "ready: {ahead_min: 60}"), "of the tests")
"""Its `ready` follows a forecast."""


def store_measured_weeks(vdi: Gated, in_use: Callable[[timedelta, int], int]) -> int:
    """Two weeks of the pool until now, in the store. Returns how many of its desktops run for users.

    `in_use`: how many were in use in the slot that begins so long after this one in each week, where so many run now.
    """
    from tests.measured_use import measure

    pool = AHEAD.pools[0]
    with Connection(target_of(vdi.server)) as connection:
        inventory = connection.inventory()
    parked = replace(AHEAD, pools=(replace(pool, gated=False),))
    running = running_desktops(parked, inventory.vms.values())[pool.name]
    refs = [vm.ref for vm in inventory.vms.values() if AHEAD.pool_of(vm) == pool]
    now = datetime.fromtimestamp(inventory.taken_at.timestamp() // 900 * 900, UTC)
    week = timedelta(days=7)

    def used_at(moment: datetime) -> int:
        return in_use((moment - now) % week, running)

    measure(vdi.state_dir, inventory.vcenter, refs, now - 2 * week, now, used_at)
    return running


def test_no_desktop_is_taken_that_a_forecast_needs(vdi: Gated) -> None:
    """All but three of those that run were in use at any time of two weeks."""
    running = store_measured_weeks(vdi, lambda _, running: running - 3)
    look = Looks(vdi, AHEAD)
    look()
    decision = look().look
    assert (vdi.suspended, vdi.gated) == (set(), set())
    assert [(forecast.pool, forecast.running, forecast.expected) for forecast in decision.ahead] == [
        ("office", running, running - 3)
    ]
    reasons = {waiting_vm.reason for waiting_vm in decision.waiting}
    assert f"{running - 6} of pool office would be left running, {running - 3} are expected to be needed" in reasons


def test_desktops_come_back_before_those_who_will_need_them(vdi: Gated) -> None:
    """In both weeks all desktops came into use two hours after this time, for a day: they are resumed an hour before
    that, though none of them is in use yet.
    """
    begin, end = timedelta(hours=2), timedelta(hours=26)
    running = store_measured_weeks(vdi, lambda after, running: 2 * running if begin <= after < end else 0)
    look = Looks(vdi, AHEAD)
    look()
    assert [forecast.expected for forecast in look().look.ahead] == [0]
    suspended = vdi.suspended
    assert len(suspended) == 18, "no user is expected, so no desktop is kept"
    vdi.server.world.clock.advance(timedelta(minutes=75).total_seconds())
    report = look()
    [office] = report.look.ahead
    assert office.running == running - 18
    assert office.expected is not None and office.expected > running - 18, "of the desktops that are still in the pool"
    assert {desktop.original.name for desktop in report.look.back.desktops} == suspended
    assert report.look.back.stops, "the ML VMs that are in the way stop"
    assert (vdi.suspended, vdi.gated) == (set(), set())
    assert not any(outcome.reason for outcome in report.outcomes)
    assert look().outcomes == (), "and none is taken again"


@pytest.mark.long
def test_where_nothing_was_measured_or_the_store_is_damaged_at_least_holds_alone(vdi: Gated) -> None:
    from gpuops.extras.observe.store_reads import FILE_NAME

    look = Looks(
        vdi, parse_policy(TEXT.replace(f"ready: {READY}", f"ready: {{at_least: {READY}, ahead_min: 60}}"), "-")
    )
    assert [forecast.expected for forecast in look().look.ahead] == [None]
    assert look.said == []
    vdi.state_dir.mkdir(exist_ok=True, mode=0o700)
    (vdi.state_dir / FILE_NAME).write_bytes(b"no database at all" * 100)
    (vdi.state_dir / FILE_NAME).chmod(0o600)
    look()
    assert len(vdi.suspended) == 12, f"{READY} are left ready"
    [line] = set(look.said)
    assert line.startswith("the store of measurements ")
    assert line.endswith("; no desktop comes back by a forecast, `at_least` holds")
