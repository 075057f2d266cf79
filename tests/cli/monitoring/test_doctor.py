"""`gpuops doctor` on the simulated vCenter."""

from __future__ import annotations

import json
import pyexpat
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_mock import MockerFixture

from gpuops.sim.vcenter.authority import READ_ONLY
from tests.cli.conftest import Lab

Golden = Callable[[str, str], None]
NIGHT = Path(__file__).resolve().parents[3] / "templates" / "roles" / "night.yaml"


@pytest.fixture(autouse=True)
def sound_parser(mocker: MockerFixture) -> None:
    """Whatever Python these tests run with."""
    mocker.patch.object(pyexpat, "version_info", (2, 7, 2))


def spoil(lab: Lab) -> None:
    """A host whose driver is newer, whose GPU is for vSphere's graphics, and that waits for a reboot."""
    [host] = [esx for esx in lab.server.world.by_type("HostSystem") if esx.display_name == "esx-01.lab"]
    host.state.driver_version = "570.10.01-1OEM.800.1.0.20613240"
    host.state.module_options = "NVreg_RegistryDwords=RmPVMRL=0x01"
    host.state.gpus[0].graphics_type = host.state.gpus[0].configured_type = "shared"


def test_findings_worst_first(lab: Lab, golden: Golden) -> None:
    spoil(lab)
    result = lab.run("doctor")
    assert (result.exit_code, result.stderr, lab.effects) == (0, "", [])
    golden("doctor.txt", result.stdout)


@pytest.mark.long
def test_json(lab: Lab, golden: Golden) -> None:
    spoil(lab)
    answer = json.loads(lab.run("doctor", "--host", "esx-01.lab", "--output", "json").stdout)
    del answer["read_at"], answer["vcenter"]
    golden("doctor.json", json.dumps(answer, indent=2) + "\n")


@pytest.mark.long
@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 3)])
def test_strict_is_an_exit_code(lab: Lab, words: tuple[str, ...], code: int) -> None:
    result = lab.run("doctor", *words)
    assert (result.exit_code, result.stderr) == (code, "")
    assert "vgpu.hotmigrate.enabled: is off" in result.stdout


@pytest.mark.long
def test_an_old_parser_is_a_note(lab: Lab, mocker: MockerFixture) -> None:
    mocker.patch.object(pyexpat, "version_info", (2, 5, 0))
    result = lab.run("doctor")
    assert result.exit_code == 0
    assert "note     libexpat 2.5.0: " in result.stdout


@pytest.mark.long
def test_a_login_is_compared_with_its_roles(lab: Lab) -> None:
    """An administrator has all of them and much more; somebody who only reads has none."""
    result = lab.run("doctor", "--roles", str(NIGHT), "--strict")
    assert (result.exit_code, result.stderr) == (3, "")
    assert "the whole vCenter: this login also has " in result.stdout
    lab.server.world.authority.permit(lab.server.username, READ_ONLY)
    result = lab.run("doctor", "--roles", str(NIGHT), "--strict")
    assert (result.exit_code, lab.effects) == (3, [])
    assert "gpuops night desktops: this login has this role on no VM" in result.stdout
    assert "also has" not in result.stdout
