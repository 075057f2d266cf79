"""DRS is kept off the ML VMs of a night, and does with them what it did before when they are back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuops.api import Site, rotate_day, rotate_night, rotate_restore
from gpuops.config.policy import parse_policy
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import SetVmDrs
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.server import SimServer
from gpuops.sim.state.drs import Behavior, DrsState, Override
from tests.sample import mostly_long
from tests.wire.roles.test_least_privilege import NIGHT_ROLES, POLICY, night_account, site_of

pytestmark = pytest.mark.long

KEPT_OFF = parse_policy(POLICY.read_text(encoding="utf-8") + "\ndrs_override: manual\n", "kept off")
ML = ("ml-01", "ml-06", "ml-09")


def cluster(lab: SimServer) -> Any:
    [cluster] = lab.world.by_type("ClusterComputeResource")
    return cluster


def refs(lab: SimServer) -> dict[str, str]:
    return {vm.name: vm.moid for vm in lab.world.by_type("VirtualMachine") if vm.name in ML}


@pytest.fixture
def overridden(lab: SimServer) -> SimServer:
    """ml-01 is fully automated, ml-06 is left alone by DRS anyhow, and ml-09 follows its cluster."""
    vms = refs(lab)
    cluster(lab).drs.overrides = {vms["ml-01"]: Override(behavior=Behavior.FULL), vms["ml-06"]: Override(enabled=False)}
    return lab


def drs(lab: SimServer) -> dict[str, Override]:
    names = {ref: name for name, ref in refs(lab).items()}
    return {names[ref]: override for ref, override in cluster(lab).drs.overrides.items()}


BEFORE = {"ml-01": Override(behavior=Behavior.FULL), "ml-06": Override(enabled=False)}
AT_NIGHT = {
    "ml-01": Override(behavior=Behavior.MANUAL),
    "ml-06": Override(enabled=False),
    "ml-09": Override(behavior=Behavior.MANUAL),
}


def order(lab: SimServer) -> list[tuple[str, str]]:
    kinds = ("ReconfigureComputeResource_Task", "PowerOnVM_Task", "PowerOffVM_Task")
    return [(change.method, change.name) for change in lab.world.ledger if change.method in kinds]


def test_a_night_keeps_drs_off_and_the_morning_puts_back_what_there_was(overridden: SimServer, tmp_path: Path) -> None:
    with site_of(overridden, tmp_path) as site:
        assert rotate_night(KEPT_OFF, site, apply=True).exit_code == 0
        assert drs(overridden) == AT_NIGHT
        calls = order(overridden)
        changed = [number for number, call in enumerate(calls) if call[0] == "ReconfigureComputeResource_Task"]
        assert len(changed) == 2, "one change for each VM that DRS might have moved"
        assert changed[0] < calls.index(("PowerOnVM_Task", "ml-01")), "before it starts"
        assert rotate_night(KEPT_OFF, site, apply=True).plan.steps == (), "a second run does nothing"
        assert rotate_day(KEPT_OFF, site, apply=True).exit_code == 0
        assert drs(overridden) == BEFORE
        assert rotate_day(KEPT_OFF, site, apply=True).plan.steps == ()


def test_the_markers_alone_tell_what_there_was(overridden: SimServer, tmp_path: Path) -> None:
    with site_of(overridden, tmp_path / "lost") as site:
        rotate_night(KEPT_OFF, site, apply=True)
    shutil.rmtree(tmp_path / "lost")
    with site_of(overridden, tmp_path / "new") as site:
        assert rotate_restore(KEPT_OFF, site, from_markers=True, apply=True).exit_code == 0
    assert drs(overridden) == BEFORE


def test_one_ml_vm_that_is_brought_back_early_has_its_own_put_back(overridden: SimServer, tmp_path: Path) -> None:
    with site_of(overridden, tmp_path) as site:
        rotate_night(KEPT_OFF, site, apply=True)
        assert rotate_restore(KEPT_OFF, site, ("ml-01",), apply=True).exit_code == 0
        assert drs(overridden) == {**AT_NIGHT, "ml-01": BEFORE["ml-01"]}
        assert rotate_day(KEPT_OFF, site, apply=True).exit_code == 0
    assert drs(overridden) == BEFORE


def test_what_somebody_else_has_set_meanwhile_is_left_alone(overridden: SimServer, tmp_path: Path) -> None:
    with site_of(overridden, tmp_path) as site:
        rotate_night(KEPT_OFF, site, apply=True)
        cluster(overridden).drs.overrides[refs(overridden)["ml-09"]] = Override(behavior=Behavior.PARTIAL)
        cluster(overridden).touch("configurationEx")
        assert rotate_day(KEPT_OFF, site, apply=True).exit_code == 0
    assert drs(overridden) == {**BEFORE, "ml-09": Override(behavior=Behavior.PARTIAL)}


def test_a_change_that_is_still_under_way_is_waited_for_and_not_called_failed(
    overridden: SimServer, tmp_path: Path
) -> None:
    for effect in (Effect.RESET, Effect.SLOW):
        method, phase = "ReconfigureComputeResource_Task", Phase.AFTER
        overridden.world.injector.add(Rule(effect, method, phase=phase, factor=60.0))
    with site_of(overridden, tmp_path) as site:
        night = rotate_night(KEPT_OFF, site, apply=True)
        assert {outcome.verdict for outcome in night.outcomes} <= {Verdict.DONE, Verdict.ALREADY}
        assert drs(overridden) == AT_NIGHT
        assert len([call for call in order(overridden) if call[0] == method]) == 2


@pytest.mark.parametrize("phase", mostly_long(Phase, [Phase.AFTER]))
def test_a_change_whose_reply_is_lost_is_made_once(overridden: SimServer, tmp_path: Path, phase: Phase) -> None:
    overridden.world.injector.add(Rule(Effect.RESET, "ReconfigureComputeResource_Task", phase=phase))
    with site_of(overridden, tmp_path) as site:
        assert rotate_night(KEPT_OFF, site, apply=True).exit_code == 0
        assert drs(overridden) == AT_NIGHT
        changes = [call for call in order(overridden) if call[0] == "ReconfigureComputeResource_Task"]
        assert len(changes) == 2
        assert rotate_day(KEPT_OFF, site, apply=True).exit_code == 0
    assert drs(overridden) == BEFORE


def test_a_morning_that_cannot_put_it_back_says_so_and_the_next_one_does(overridden: SimServer, tmp_path: Path) -> None:
    with site_of(overridden, tmp_path) as site:
        rotate_night(KEPT_OFF, site, apply=True)
        overridden.world.injector.add(Rule(Effect.FAULT, "ReconfigureComputeResource_Task", fault="NoPermission"))
        morning = rotate_day(KEPT_OFF, site, apply=True)
        assert morning.exit_code == 4
        assert isinstance(next(outcome.step for outcome in morning.outcomes if outcome.reason), SetVmDrs)
        assert rotate_day(KEPT_OFF, site, apply=True).exit_code == 0
        assert drs(overridden) == BEFORE
        assert rotate_day(KEPT_OFF, site, apply=True).plan.steps == ()


def test_it_needs_a_privilege_on_the_cluster(lab: SimServer, tmp_path: Path) -> None:
    night_account(lab)
    with site_of(lab, tmp_path) as site:
        report = rotate_night(KEPT_OFF, site, apply=True)
    assert report.exit_code == 3
    assert [(rejection.subject, rejection.rule) for rejection in report.plan.rejections] == [
        ("lab-cluster", "this login lacks Host.Inventory.EditCluster")
    ]
    assert list(lab.world.ledger) == []
    night_account(lab, {**NIGHT_ROLES, "lab-cluster": frozenset({"Host.Inventory.EditCluster"})})
    with site_of(lab, tmp_path) as site:
        assert rotate_night(KEPT_OFF, site, apply=True).exit_code == 0
        assert rotate_day(KEPT_OFF, site, apply=True).exit_code == 0
    assert cluster(lab).drs.overrides == {}


def test_where_drs_is_off_there_is_nothing_to_keep_away(lab: SimServer, tmp_path: Path) -> None:
    cluster(lab).drs = DrsState(enabled=False)
    with site_of(lab, tmp_path) as site:
        assert rotate_night(KEPT_OFF, site, apply=True).exit_code == 0
        assert cluster(lab).drs.overrides == {}
        assert rotate_day(KEPT_OFF, site, apply=True).exit_code == 0


def dry_run(site: Site) -> set[str]:
    report = rotate_night(KEPT_OFF, site, apply=False)
    return {report.before.vm(step.vm).name for step in report.plan.steps if isinstance(step, SetVmDrs)}


def test_a_dry_run_tells_whom_it_would_be_kept_off(overridden: SimServer, tmp_path: Path) -> None:
    with site_of(overridden, tmp_path) as site:
        assert dry_run(site) == {"ml-01", "ml-09"}
    assert list(overridden.world.ledger) == []
