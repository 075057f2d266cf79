"""The lease over real SOAP: written by compare-and-set into a VM of the simulated vCenter."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from gpuops.api import rotate_day, rotate_init, rotate_night, rotate_restore, rotate_status, rotate_unlock
from gpuops.config.policy import parse_policy
from gpuops.errors import GpuopsError, Locked, NoPermission
from gpuops.execute.lease.lease import Nonces, take
from gpuops.execute.lease.lock_vm import LockVm
from gpuops.plan.core.steps import ShutDownGuest
from gpuops.plan.rotation.lease_rules import next_lease
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.server import SimServer
from tests.wire.roles.test_least_privilege import NIGHT_ROLES, POLICY, effects, night_account, site_of

pytestmark = pytest.mark.long

LEASED = parse_policy(POLICY.read_text(encoding="utf-8") + "\nlock_vm: bare\n", "leased")
"""`bare` is a VM without GPU in the folder `misc`."""


def test_a_night_and_a_morning_of_two_machines(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path / "a") as first:
        assert "gpuops.rotation" in rotate_init(LEASED, first).undefined
        assert rotate_night(LEASED, first, apply=True).exit_code == 0
        assert rotate_status(first, LEASED).lease is None
    with site_of(lab, tmp_path / "b") as two:
        lease_held = take(two, "bare", Nonces(tmp_path / "b", two.vcenter.uuid))
        lease = rotate_status(two, LEASED).lease
        assert lease is not None
        assert lease.epoch == lease_held.number
        with site_of(lab, tmp_path / "a") as first:
            before = len(effects(lab))
            with pytest.raises(Locked, match="holds the lease until"):
                rotate_day(LEASED, first, apply=True)
            assert len(effects(lab)) == before
            rotate_unlock(LEASED, first, lease.nonce, force=True)
            assert rotate_day(LEASED, first, apply=True).exit_code == 0
        lease_held.give_back()
        lease_after = rotate_status(two, LEASED).lease
        assert lease_after is None


def test_a_machine_whose_night_took_nothing_brings_back_what_anothers_took(lab: SimServer, tmp_path: Path) -> None:
    """Each has a journal of its own: that of the first knows the ML VMs as intended, and never started."""
    with site_of(lab, tmp_path / "a") as first:
        rotate_init(LEASED, first)
        lab.world.injector.add(Rule(Effect.RESET, "SetField", times=None))
        with suppress(GpuopsError):
            rotate_night(LEASED, first, apply=True)
        lab.world.injector.clear()
        lease = rotate_status(first, LEASED).lease
        if lease is not None:
            rotate_unlock(LEASED, first, lease.nonce, force=True)
    with site_of(lab, tmp_path / "b") as two:
        assert rotate_night(LEASED, two, apply=True).exit_code == 0
    with site_of(lab, tmp_path / "a") as first:
        assert "ml-01" in {mine.original.name for mine in rotate_status(first, LEASED).away}
        report = rotate_day(LEASED, first, apply=True)
        assert report.exit_code == 0
        assert {report.before.vm(step.vm).name for step in report.plan.steps if isinstance(step, ShutDownGuest)} == {
            "ml-01", "ml-06", "ml-09"
        }  # fmt: skip
        assert rotate_day(LEASED, first, apply=True).plan.steps == ()
    with site_of(lab, tmp_path / "c") as three:
        assert rotate_restore(LEASED, three, from_markers=True, apply=True).plan.steps == ()


def test_of_two_that_write_on_the_same_look_one_holds_it(lab: SimServer, tmp_path: Path) -> None:
    with site_of(lab, tmp_path / "a") as first, site_of(lab, tmp_path / "b") as two:
        vms = [LockVm(site.vcenter, "bare") for site in (first, two)]
        looks = [vm.look() for vm in vms]
        won = [
            vm.write(next_lease(look, name, name, vm.seen.taken_at))
            for vm, look, name in zip(vms, looks, ("a", "b"), strict=True)
        ]
    assert won == [True, False]


def test_the_night_account_may_set_the_lock_vm_and_is_told_when_it_may_not(lab: SimServer, tmp_path: Path) -> None:
    night_account(lab)
    with site_of(lab, tmp_path) as site:
        report = rotate_night(LEASED, site, apply=False)
        assert report.exit_code == 3
        assert {(rejection.subject, rejection.rule) for rejection in report.plan.rejections} == {
            ("bare", "this login lacks VirtualMachine.Config.AdvancedConfig")
        }
        with pytest.raises(NoPermission, match=r"bare: this login lacks .*VirtualMachine\.Config\.AdvancedConfig"):
            rotate_night(LEASED, site, apply=True)
        assert effects(lab) == []
    night_account(lab, {**NIGHT_ROLES, "misc": frozenset({"VirtualMachine.Config.AdvancedConfig"})})
    with site_of(lab, tmp_path) as site:
        assert rotate_night(LEASED, site, apply=True).exit_code == 0
