"""A watch that takes idle desktops too: behind a broker's gate, as long as enough are ready for users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gpuops.api import Site, rotate_day
from gpuops.config.policy import parse_policy
from gpuops.execute.rotation.watch import Watch
from gpuops.execute.rotation.watch_state import WatchState
from gpuops.model.rotation import Policy
from gpuops.model.target import BrokerTarget
from gpuops.plan.core.outcome import Report
from gpuops.plan.rotation.watch_look import WatchTold
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from tests.wire.conftest import target_of
from tests.wire.test_gates import Gated

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


@pytest.fixture
def vdi(tmp_path: Path) -> Iterator[Gated]:
    world = build("vdi")
    world.desktop_pools = tuple(replace(pool, logins_per_hour=0.0) for pool in world.desktop_pools)
    with SimServer(world) as server:
        served = server.serve_horizon()
        target = BrokerTarget(replace(target_of(server), port=served.port, username=served.username), served.domain)
        yield Gated(server, served.pod, target, tmp_path / "state")
        assert world.bugs == []


class Looks:
    """Looks of one watch, a minute apart."""

    def __init__(self, vdi: Gated, policy: Policy = POLICY) -> None:
        self.vdi, self.policy = vdi, policy
        self.last: Watch | None = None

    def __call__(self) -> WatchTold:
        found: list[WatchTold] = []
        self.vdi.run(partial(self._look, found=found))
        return found[0]

    def _look(self, site: Site, found: list[WatchTold]) -> Report:
        assert self.policy.spare is not None
        watch = Watch(self.policy, self.policy.spare, site, WatchState(self.policy.text))
        if self.last is not None:
            watch.history, watch.tried, watch.state = self.last.history, self.last.tried, self.last.state
        self.last = watch
        found.append(watch.look())
        return rotate_day(self.policy, site, apply=False)


def test_idle_desktops_are_taken_as_long_as_enough_are_ready(vdi: Gated) -> None:
    look = Looks(vdi)
    look()
    look()
    assert len(vdi.suspended) == 12 and vdi.gated == vdi.suspended
    running = {f"ml-0{number}" for number in (1, 2, 3) if vdi.vm(f"ml-0{number}").state.power is Power.ON}
    assert len(running) == 2, "the third would take six more"
    assert look().outcomes == ()
    waits = next(each for each in look().look.waiting if each.subject not in running)
    assert waits.reason == f"76 of pool office would be left ready for users, {READY} are to be"


def test_desktops_come_back_when_users_need_them(vdi: Gated) -> None:
    look = Looks(vdi)
    look()
    look()
    taken = vdi.suspended
    idle = [f"vdi-{number:03}" for number in range(1, 91) if f"vdi-{number:03}" not in taken]
    for name in idle[:5]:
        vdi.use(name)
    told = look()
    assert len(told.look.back.desktops) == READY - (UNUSED - 12 - 5)
    assert len(told.look.back.stops) <= 1
    assert len(vdi.suspended) == 12 - len(told.look.back.desktops) and vdi.gated == vdi.suspended
    assert not any(each.reason for each in told.outcomes)
    vdi.run(lambda site: rotate_day(POLICY, site, apply=True))
    vdi.nothing_is_left()


def test_without_take_idle_no_desktop_is_touched(vdi: Gated) -> None:
    look = Looks(vdi, parse_policy(TEXT.replace("take_idle: true", "take_idle: false"), "careful"))
    for _ in range(3):
        assert look().outcomes == ()
    assert (vdi.suspended, vdi.gated) == (set(), set())


def test_without_an_answer_of_the_broker_none_is_ready_and_none_is_taken(vdi: Gated) -> None:
    look = Looks(vdi)
    vdi.pod.down = True
    look()
    look()
    assert (vdi.suspended, vdi.gated) == (set(), set())
