"""`gpuops doctor` on the simulated vCenter."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.conftest import Lab

Golden = Callable[[str, str], None]


def spoil(lab: Lab) -> None:
    """A host whose driver is newer, whose GPU is for vSphere's graphics, and that waits for a reboot."""
    [host] = [each for each in lab.server.world.by_type("HostSystem") if each.display_name == "esx-01.lab"]
    host.state.driver_version = "570.10.01-1OEM.800.1.0.20613240"
    host.state.module_options = "NVreg_RegistryDwords=RmPVMRL=0x01"
    host.state.gpus[0].graphics_type = host.state.gpus[0].configured_type = "shared"


def test_findings_worst_first(lab: Lab, golden: Golden) -> None:
    spoil(lab)
    result = lab.run("doctor")
    assert (result.exit_code, result.stderr, lab.effects) == (0, "", [])
    golden("doctor.txt", result.stdout)


def test_json(lab: Lab, golden: Golden) -> None:
    spoil(lab)
    found = json.loads(lab.run("doctor", "--host", "esx-01.lab", "--output", "json").stdout)
    del found["read_at"], found["vcenter"]
    golden("doctor.json", json.dumps(found, indent=2) + "\n")


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 3)])
def test_strict_is_an_exit_code(lab: Lab, words: tuple[str, ...], code: int) -> None:
    result = lab.run("doctor", *words)
    assert (result.exit_code, result.stderr) == (code, "")
    assert "vgpu.hotmigrate.enabled: is off" in result.stdout


def test_a_wrong_name_is_one_line(lab: Lab) -> None:
    result = lab.run("doctor", "--cluster", "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: no cluster 'nowhere'")
