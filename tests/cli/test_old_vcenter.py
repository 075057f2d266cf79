"""A vCenter that is too old to be changed is read, with a warning; of 7.0 what its API has is changed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.cli.conftest import LAB_POLICY, Lab, lab_on
from tests.sample import mostly_long

pytestmark = pytest.mark.long

WARNING = "warning: gpuops only reads this vCenter (API version {}); all changes need 8.0.0.0"
REFUSED = "gpuops only reads this vCenter (API version {}); all changes need 8.0.0.0"
NEXT = "update vCenter: gpuops changes version 7.0 as far as its API allows, and only reads older ones"
Old = Callable[[str], Lab]


@pytest.fixture
def old(tmp_path: Path, clean: Path, request: pytest.FixtureRequest) -> Old:
    """The scenario `lab` as a vCenter of an older API."""

    def serve(api_version: str) -> Lab:
        server = SimServer(build("lab", api_version=api_version))
        request.addfinalizer(server.close)
        opened = lab_on(server, tmp_path, clean)
        lab = opened.__enter__()
        request.addfinalizer(lambda: opened.__exit__(None, None, None))
        return lab

    return serve


@pytest.mark.long
@pytest.mark.parametrize("version", mostly_long(["6.5", "6.7", "6.7.3", "6.9.1"], ["6.5"]))
def test_it_is_read_with_a_warning(old: Old, version: str) -> None:
    lab = old(version)
    for command in ("inventory", "capacity", "doctor", "host mode show", "host scheduler show", "rotate status"):
        view = lab.run(*command.split())
        assert view.exit_code == 0, f"{command}: {view.output}"
        if command != "rotate status":
            assert WARNING.format(version) in view.stderr
    assert f"vCenter {version}: 2 hosts with 9 GPUs" in lab.run("doctor").stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        "attach --vm ml-07 --profile a100-3-20c --dry-run",
        "attach --vm ml-07 --profile a100-3-20c",
        f"rotate night --policy {shlex.quote(LAB_POLICY)} --yes",
        "host scheduler set --scheduler equal-share --host esx-01.lab",
        "host scheduler set --scheduler equal-share --host esx-01.lab --reboot rolling --yes",
    ],
)
def test_nothing_of_it_is_changed(old: Old, command: str) -> None:
    lab = old("6.5")
    refused = lab.run(*shlex.split(command))
    assert refused.exit_code == 3, refused.output
    assert REFUSED.format("6.5") in refused.output.replace("\n", " ")
    assert lab.effects == []


def test_what_has_no_plan_is_refused_before_it_is_sent(old: Old) -> None:
    lab = old("6.7")
    refused = lab.run("rotate", "init", "--policy", LAB_POLICY)
    assert (refused.exit_code, NEXT in refused.stderr) == (3, True), refused.output
    assert lab.effects == []


@pytest.mark.long
def test_of_7_0_what_its_api_has_is_changed(old: Old) -> None:
    lab = old("7.0.0.0")
    attach = lab.run("attach", "--vm", "ml-07", "--profile", "a100-3-20c")
    assert (attach.exit_code, "only read" in attach.stderr) == (0, False), attach.output
    assert lab.effects == ["ReconfigVM_Task ml-07"]
