"""One account for nights, `attach` and `rotate mark`, with the roles of `templates/roles/one-account.yaml`."""

from __future__ import annotations

from pathlib import Path

from gpuops.api import rotate_day, rotate_night, run
from gpuops.config.policy import load_policy
from gpuops.config.role_file import load_roles
from gpuops.plan.rotation.marks import RotateMark
from gpuops.plan.vm.attach import Attach
from gpuops.sim.server import SimServer
from tests.wire.roles.test_least_privilege import (
    DESKTOPS,
    POLICY,
    TEMPLATES,
    effects,
    night_account,
    site_of,
    suspended_names,
)

ROLES = {role.name: role for role in load_roles(TEMPLATES / "roles" / "one-account.yaml")}
BY_FOLDER = {"vdi": ROLES["gpuops desktops"].privileges, "ml": ROLES["gpuops ML VMs"].privileges}


def test_one_account_does_all_that_the_readme_shows(lab: SimServer, tmp_path: Path) -> None:
    night_account(lab, BY_FOLDER)
    policy = load_policy(POLICY)
    with site_of(lab, tmp_path) as site:
        assert run(Attach("ml-07", profile="a100-3-20c"), site, apply=True).exit_code == 0
        assert rotate_night(policy, site, apply=True).exit_code == 0
        assert rotate_day(policy, site, apply=True).exit_code == 0
        assert run(RotateMark(policy, opt_out=True, vm=("vdi-07",)), site, apply=True).exit_code == 0
        assert rotate_night(policy, site, apply=False).exit_code == 0
    assert suspended_names(lab) == DESKTOPS


def test_an_account_that_may_set_no_attribute_is_refused_before_anything_is_set(lab: SimServer, tmp_path: Path) -> None:
    night_account(lab, {"vdi": BY_FOLDER["vdi"] - {"Global.SetCustomField"}})
    with site_of(lab, tmp_path) as site:
        report = run(RotateMark(load_policy(POLICY), opt_out=True, pool="office"), site, apply=True)
    assert (report.exit_code, effects(lab)) == (3, [])
    assert "Global.SetCustomField" in " ".join(map(str, report.plan.rejections))
