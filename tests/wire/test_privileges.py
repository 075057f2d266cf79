"""A login that lacks a privilege is refused before the first effect, naming it; a morning is not kept from the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.api import Site, rotate_day, rotate_night, run, wall_clock
from gpuops.config.policy import load_policy
from gpuops.model.target import Target
from gpuops.plan.attach import Attach
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection

POLICY = Path(__file__).resolve().parents[2] / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"

NIGHT = {
    "Global.SetCustomField",
    "Global.ManageCustomFields",
    "Resource.ColdMigrate",
    "Resource.AssignVMToPool",
    "VirtualMachine.Interact.Suspend",
    "VirtualMachine.Interact.PowerOn",
    "VirtualMachine.Interact.PowerOff",
}
ATTACH = {
    "VirtualMachine.Config.AddRemoveDevice",
    "VirtualMachine.Config.AdvancedConfig",
    "VirtualMachine.Config.CPUCount",
    "VirtualMachine.Config.EditDevice",
    "VirtualMachine.Config.Resource",
    "VirtualMachine.Config.Settings",
}


def _may(lab: SimServer, privileges: set[str]) -> None:
    role = lab.world.authority.add_role(f"role-{len(lab.world.authority.roles)}", privileges)
    lab.world.authority.permit(lab.username, role)


def _effects(lab: SimServer) -> list[str]:
    return [entry.method for entry in lab.world.ledger]


@pytest.mark.parametrize(
    "privilege",
    [
        "VirtualMachine.Config.AddRemoveDevice",
        "VirtualMachine.Config.AdvancedConfig",
        "VirtualMachine.Config.Resource",
    ],
)
def test_an_attach_names_what_the_login_lacks(
    lab: SimServer, lab_target: Target, tmp_path: Path, privilege: str
) -> None:
    _may(lab, ATTACH - {privilege})
    with Connection(lab_target) as vcenter:
        report = run(Attach(vm="ml-07", profile="a100-3-20c"), Site(vcenter, tmp_path, wall_clock), apply=True)
    assert report.exit_code == 3
    assert [str(rejection) for rejection in report.plan.rejections] == [f"ml-07: this login lacks {privilege}"]
    assert _effects(lab) == []


def test_the_privileges_named_are_enough_to_attach(lab: SimServer, lab_target: Target, tmp_path: Path) -> None:
    _may(lab, ATTACH)
    with Connection(lab_target) as vcenter:
        report = run(Attach(vm="ml-07", profile="a100-3-20c"), Site(vcenter, tmp_path, wall_clock), apply=True)
    assert report.exit_code == 0
    assert _effects(lab) == ["ReconfigVM_Task"]


def test_a_night_is_refused_and_a_morning_brings_back_what_it_can(
    lab: SimServer, lab_target: Target, tmp_path: Path
) -> None:
    policy = load_policy(POLICY)
    with Connection(lab_target) as vcenter:
        site = Site(vcenter, tmp_path, wall_clock)
        _may(lab, NIGHT - {"VirtualMachine.Interact.Suspend"})
        refused = rotate_night(policy, site, apply=True)
        assert refused.exit_code == 3
        assert {rejection.subject for rejection in refused.plan.rejections} == {f"vdi-{n:02}" for n in range(7, 11)}
        assert _effects(lab) == []

        _may(lab, NIGHT)
        assert rotate_night(policy, site, apply=True).exit_code == 0
        _may(lab, NIGHT - {"Global.SetCustomField"})
        morning = rotate_day(policy, site, apply=True)
        assert morning.exit_code == 4
        assert any("Global.SetCustomField" in outcome.reason for outcome in morning.outcomes)
    running = {vm.state.name for vm in lab.world.by_type("VirtualMachine") if vm.state.power.value == "poweredOn"}
    assert {f"vdi-{n:02}" for n in range(7, 11)} <= running
