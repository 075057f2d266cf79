"""The pytest plugin as other projects have it: its fixture, its marker, and nothing where a run asks for neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pyVim.connect import SmartConnection

from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from gpuops.sim.wire.sim_client import SimClient

EXAMPLE: Final = Path(__file__).parents[2] / "example_project"


def _run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, encoding="utf-8", check=False, timeout=100
    )


@pytest.mark.long
def test_a_project_with_gpuops_installed_has_the_fixture_and_the_marker() -> None:
    completed = _run("-m", "pytest", "-p", "no:cacheprovider", "-q", folder=EXAMPLE)
    assert completed.returncode == 0, f"{completed.stdout}{completed.stderr}: `make setup` installs the plugin"
    assert "2 passed" in completed.stdout


@pytest.mark.long
def test_a_run_that_does_not_ask_for_it_imports_nothing_of_the_simulator(tmp_path: Path) -> None:
    script = "import sys, pytest; before = set(sys.modules); import gpuops.sim.pytest_plugin; "
    completed = _run("-c", f"{script}print(*sorted(set(sys.modules) - before))", folder=tmp_path)
    assert {"gpuops.sim.pytest_plugin"} <= set(completed.stdout.split()), completed.stderr
    assert set(completed.stdout.split()) <= {"gpuops", "gpuops.sim", "gpuops.sim.pytest_plugin"}


def test_without_a_marker_it_is_the_lab(simulated_vcenter: SimServer) -> None:
    with SmartConnection(**simulated_vcenter.login) as vcenter:
        assert vcenter.content.about.instanceUuid == simulated_vcenter.world.get("ServiceInstance").instance_uuid
    assert {host.name for host in simulated_vcenter.world.by_type("HostSystem")} == {"esx-01.lab", "esx-02.lab"}


@pytest.mark.simulated_vcenter(clock="real", seed=7, tls=False)
def test_the_marker_names_the_clock_and_plain_http(simulated_vcenter: SimServer) -> None:
    assert simulated_vcenter.url.startswith("http://")
    assert SimClient(sim_client.of(simulated_vcenter)).clock()["mode"] == "real"


@pytest.mark.long
@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        (pytest.mark.simulated_vcenter("vdi"), r"takes scenario, faults, .* by name, not 'vdi'$"),
        (pytest.mark.simulated_vcenter(scenarios="vdi"), r"by name, not scenarios$"),
        (pytest.mark.simulated_vcenter(scenario="vdl"), r"no scenario 'vdl'"),
        (pytest.mark.simulated_vcenter(clock="slow"), r"no clock 'slow'"),
        (pytest.mark.simulated_vcenter(faults=["T2", "T99"]), r"the marker simulated_vcenter, fault 2: .*T99"),
    ],
)
def test_what_the_marker_cannot_mean_fails_the_test(
    marker: pytest.MarkDecorator, reason: str, request: pytest.FixtureRequest
) -> None:
    request.applymarker(marker)
    with pytest.raises(pytest.fail.Exception, match=reason):
        request.getfixturevalue("simulated_vcenter")


@pytest.mark.long
def test_a_bug_of_the_simulator_fails_the_test(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> None:
    [definition] = request._fixturemanager.getfixturedefs("simulated_vcenter", request.node) or ()
    function: Any = definition.func
    running_fixture = function(request)
    next(running_fixture).world.record_bug(KeyError("color"))
    with pytest.raises(pytest.fail.Exception, match=r"(?s)a bug of its own.*KeyError: 'color'"):
        next(running_fixture)
