"""A login that lacks a privilege is refused before the first effect, naming it; a morning is not kept from the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.api import Site, rotate_day, rotate_night, run
from gpuops.clock import wall_clock
from gpuops.config.policy import load_policy
from gpuops.model.vcenter.target import Target
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.vm_blockers import MoveMode
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection

pytestmark = pytest.mark.long

POLICY = Path(__file__).resolve().parents[3] / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"

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
    return [change.method for change in lab.world.ledger]


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


@pytest.mark.parametrize(
    ("request_", "lacking", "beside"),
    [
        (Attach("vdi-01", profile="a40-8q", count=2), "AddRemoveDevice", "vdi-01: runs; its devices change only while"),
        (Attach("ml-07", profile="a100-7-40c", count=3), "Resource", "esx-01.lab: room for grid_a100-7-40c: needs 3"),
        (Attach("snapped", profile="a100-3-20c", replace="a40-8q"), "AdvancedConfig", "has no a40-8q to replace"),
        (Detach("vdi-01", all=True), "AddRemoveDevice", "vdi-01: runs; its devices change only while it is off"),
    ],
)
def test_what_the_login_lacks_is_said_beside_all_other_reasons(
    lab: SimServer, lab_target: Target, tmp_path: Path, request_: Attach | Detach, lacking: str, beside: str
) -> None:
    """All blockers are named at once, so that an admin does not meet them one after the other."""
    _may(lab, ATTACH - {f"VirtualMachine.Config.{lacking}"})
    with Connection(lab_target) as vcenter:
        report = run(request_, Site(vcenter, tmp_path, wall_clock), apply=True)
    lines = [str(rejection) for rejection in report.plan.rejections]
    assert any(beside in line for line in lines), lines
    assert lines[-1] == f"{request_.vm}: this login lacks VirtualMachine.Config.{lacking}"
    assert (report.exit_code, report.changed, _effects(lab)) == (3, False, [])


def test_the_move_of_a_refused_plan_is_asked_for_too(lab: SimServer, lab_target: Target, tmp_path: Path) -> None:
    _may(lab, ATTACH)
    request = Attach("ml-08", profile="a100-3-20c", host="esx-01", move=MoveMode.COLD, replace="a40-8q")
    with Connection(lab_target) as vcenter:
        report = run(request, Site(vcenter, tmp_path, wall_clock), apply=True)
    assert [str(rejection) for rejection in report.plan.rejections] == [
        "ml-08: has no a40-8q to replace",
        "ml-08: this login lacks Resource.ColdMigrate",
    ]


@pytest.mark.long
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
