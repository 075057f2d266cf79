"""A night by a wrong clock would end after the morning has begun: none is begun, one under way takes nothing more.
The way back goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from gpuops.api import Site, connect, rotate_day, rotate_night
from gpuops.config.policy import load_policy
from gpuops.config.vcenter.destination import Simulated
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import SuspendVm
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.roles.test_least_privilege import DESKTOPS, POLICY, suspended_names

pytestmark = pytest.mark.long


@contextmanager
def in_step(lab: SimServer, state_dir: Path) -> Iterator[Site]:
    """A machine whose clock shows what vCenter's should."""
    with Connection(target_of(lab)) as vcenter:
        yield Site(vcenter, state_dir, lab.world.clock.now, same_time=True)


def night(lab: SimServer, state_dir: Path, *, apply: bool = True) -> Report:
    with in_step(lab, state_dir) as site:
        return rotate_night(load_policy(POLICY), site, apply=apply)


@pytest.mark.parametrize(
    ("skew", "reason"),
    [
        (timedelta(hours=1, seconds=30), "vCenter's is 1 h 0 min ahead of this machine's"),
        (-timedelta(days=1), "vCenter's is 24 h 0 min behind this machine's"),
        (timedelta(seconds=90.4), "vCenter's is 1 min 30 s ahead of this machine's"),
    ],
)
def test_nothing_is_taken_while_the_clocks_are_apart(
    lab: SimServer, tmp_path: Path, skew: timedelta, reason: str
) -> None:
    lab.world.skew = skew
    for apply in (True, False):
        report = night(lab, tmp_path, apply=apply)
        assert report.exit_code == 3
        [rejection] = report.plan.rejections
        assert str(rejection) == f"clocks: {reason}: the hours of a night are uncertain"
    assert list(lab.world.ledger) == []


def test_a_night_takes_nothing_more_once_somebody_has_set_a_clock(lab: SimServer, tmp_path: Path) -> None:
    """vCenter's goes an hour ahead just as the second desktop is suspended; an hour later by ours it is right again."""
    lab.world.injector.add(
        Rule(Effect.HAPPEN, "SuspendVM_Task", phase=Phase.AFTER, skip=1, happening="clock.skewed", delay_s=3600.0)
    )
    report = night(lab, tmp_path)
    skipped = {outcome.reason for outcome in report.outcomes if outcome.verdict is Verdict.SKIPPED}
    why = "clocks: vCenter's is 1 h 0 min ahead of this machine's: the hours of a night are uncertain"
    assert why in skipped
    assert report.exit_code == 4
    names = suspended_names(lab)
    assert 0 < len(names) < len(DESKTOPS)
    assert sum(isinstance(outcome.step, SuspendVm) and outcome.reason == why for outcome in report.outcomes)
    lab.world.skew = timedelta()
    assert night(lab, tmp_path).exit_code == 0, "cron comes again, and the clocks agree"
    assert suspended_names(lab) == DESKTOPS


def test_a_minute_is_nothing(lab: SimServer, tmp_path: Path) -> None:
    lab.world.skew = timedelta(seconds=50)
    assert night(lab, tmp_path).exit_code == 0
    assert suspended_names(lab) == DESKTOPS


def test_the_way_back_goes_on_by_any_clock(lab: SimServer, tmp_path: Path) -> None:
    night(lab, tmp_path)
    lab.world.skew = timedelta(hours=-2)
    with in_step(lab, tmp_path) as site:
        assert rotate_day(load_policy(POLICY), site, apply=True).exit_code == 0


def test_a_simulated_vcenter_lives_in_a_time_of_its_own(lab: SimServer) -> None:
    with Connection(target_of(lab)) as vcenter:
        assert vcenter.is_simulated
    with connect(Simulated("lab")) as site:
        assert not site.same_time
