"""A change of hosts and a rotation keep out of each other's way: by what is open, what is taken, and by the lease."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gpuops.api import Site, change, change_abort, rotate_day, rotate_init, rotate_night
from gpuops.clock import wall_clock
from gpuops.errors import Locked, Refused
from gpuops.execute.journal import Journal
from gpuops.execute.journal.orders import ChangeOrder, dump_order
from gpuops.execute.lease.lease import Nonces, take
from gpuops.execute.runs import CHANGE
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.vcenter.host_settings import Displacement, Rolling
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.sim.server import SimServer
from tests.wire.roles.test_least_privilege import effects, site_of
from tests.wire.steps.test_lease import LEASED

EQUAL = SetScheduler(SchedulerPolicy.EQUAL_SHARE, gpu=("0000:d8:00.0",), host="esx-01.lab")


def plan_roll(site: Site, *, apply: bool = True) -> ChangeReport:
    return change(EQUAL, "scheduler set", Rolling(vms=Displacement.POWER_OFF), site, apply=apply)


def begin(site: Site, kind: str, order: str = "") -> None:
    """A run of that kind in the journal, and no end of it."""
    with closing(Journal.open(site.state_dir, site.vcenter.uuid, wall_clock)) as journal:
        journal.begin(kind, order=order)


@pytest.mark.long
@pytest.mark.parametrize("apply", [True, False])
def test_no_night_is_begun_while_a_change_is_open(lab: SimServer, tmp_path: Path, apply: bool) -> None:
    with site_of(lab, tmp_path) as site:
        rotate_init(LEASED, site)
        begin(site, CHANGE, dump_order(ChangeOrder("scheduler set", (), {}, {})))
        before = len(effects(lab))
        with pytest.raises(Refused, match=r"the change of hosts that began at .* did not end"):
            rotate_night(LEASED, site, apply=apply)
        assert len(effects(lab)) == before
        rotate_day(LEASED, site, apply=apply)
        assert change_abort(site).exit_code == 0
        assert rotate_night(LEASED, site, apply=apply).exit_code == 0


def test_no_change_is_begun_while_another_or_a_night_is_open(lab: SimServer, tmp_path: Path) -> None:
    make_way(lab)
    for number, kind in enumerate((CHANGE, "rotate night", "rotate day")):
        with site_of(lab, tmp_path / str(number)) as site:
            begin(site, kind, dump_order(ChangeOrder("scheduler set", (), {}, {})) if kind == CHANGE else "")
            with pytest.raises(Refused, match=r"that began at .* did not end"):
                plan_roll(site)
    assert effects(lab) == []


def test_a_host_in_tonights_rotation_is_refused_by_name(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path / "a") as site:
        rotate_init(LEASED, site)
        assert rotate_night(LEASED, site, apply=True).exit_code == 0
        before = len(effects(lab))
        refusals = [str(rejection) for rejection in plan_roll(site).plan.rejections]
        assert any("is in the rotation of night" in refusal for refusal in refusals), refusals
    with site_of(lab, tmp_path / "b") as second_site:
        refusals = [str(rejection) for rejection in plan_roll(second_site).plan.rejections]
        assert any("is in the rotation of night" in refusal for refusal in refusals), "by vCenter's markers alone"
        assert len(effects(lab)) == before


@pytest.mark.long
def test_a_rotation_of_another_machine_keeps_the_change_away_by_its_lease(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path / "a") as first:
        rotate_init(LEASED, first)
        assert rotate_night(LEASED, first, apply=True).exit_code == 0
        assert rotate_day(LEASED, first, apply=True).exit_code == 0
    make_way(lab)
    with site_of(lab, tmp_path / "b") as second:
        lease = take(second, "bare", Nonces(tmp_path / "b", second.vcenter.uuid))
        with site_of(lab, tmp_path / "a") as first:
            before = len(effects(lab))
            with pytest.raises(Locked, match="holds the lease until"):
                plan_roll(first)
            assert len(effects(lab)) == before
        lease.give_back()
    with site_of(lab, tmp_path / "a") as first:
        report = plan_roll(first)
        assert report.exit_code == 0, (report.plan.rejections, report.outcomes)


def make_way(lab: SimServer) -> None:
    """Let no VM on the host opt out, wait for an answer or lack VMware Tools."""
    from gpuops.sim.state.vm_state import Power

    for vm in lab.world.by_type("VirtualMachine"):
        if vm.display_name in ("vdi-03", "asking", "bare"):
            vm.state.power, vm.state.seats, vm.state.question = Power.OFF, (), None
            vm.power_changed()
