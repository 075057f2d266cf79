"""What `schedule.yml` renders is run: units that systemd takes, lines that cron takes, up to a night on a vCenter."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from tests.ansible.conftest import ROOT, Ansible

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

EXAMPLE = ("-i", "inventories/example/hosts.yml", "playbooks/schedule.yml")
LAB_POLICY = ROOT / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"
AWKWARD = "50% of $HOME and ${USER} \"it\" \\n '%h'"


@dataclass(frozen=True)
class Site:
    """A simulated vCenter, and what was rendered for it with names that every format has to escape."""

    server: SimServer
    rendered: Path
    said: Mapping[str, str]


@pytest.fixture(scope="module")
def site(ansible: Ansible, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("site") / AWKWARD
    home.mkdir()
    program = home.parent / "gpuops"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuops "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    shutil.copy(LAB_POLICY, home / "policy.yaml")
    with SimServer(build("lab")) as server:
        assert server.ca_file is not None
        shutil.copy(server.ca_file, home / "ca.pem")
        (home / "password").write_text(server.password, encoding="utf-8")
        (home / "password").chmod(0o600)
        said = {
            "gpuops_schedule_dir": str(home.parent / "schedule"),
            "gpuops_schedule_command": str(program),
            "gpuops_schedule_user": "root",
            "gpuops_schedule_config": str(home / "config.toml"),
            "gpuops_schedule_password_file": str(home / "password"),
            "gpuops_schedule_state_dir": str(home / "state"),
            "gpuops_policy": str(home / "policy.yaml"),
            "gpuops_hostname": f"{server.host}:{server.port}",
            "gpuops_username": server.username,
            "gpuops_ca_file": str(home / "ca.pem"),
        }
        values = home / "values.yml"
        values.write_text(yaml.safe_dump(said), encoding="utf-8")
        values = values.rename(home.parent / "values.yml")
        assert "changed=5" in ansible("playbook", *EXAMPLE, "-e", f"@{values}").stdout
        assert "changed=0" in ansible("playbook", *EXAMPLE, "-e", f"@{values}").stdout, "there is nothing left to do"
        shutil.copy(home.parent / "schedule" / "config.toml", home / "config.toml")
        yield Site(server, home.parent / "schedule", said)


def test_the_example_site_renders_a_login(ansible: Ansible, tmp_path: Path) -> None:
    """With the command of the manual and no other variable: what group_vars say is what the run is given."""
    ansible("playbook", *EXAMPLE, "-e", f"gpuops_schedule_dir={tmp_path}")
    found = tomllib.loads((tmp_path / "config.toml").read_text(encoding="utf-8"))
    assert found["default"] == "prod"
    assert found["targets"] == {
        "prod": {
            "host": "vc.example.com",
            "username": "gpuops@vsphere.local",
            "ca_file": "/etc/gpuops/ca.pem",
        }
    }
    unit = (tmp_path / "gpuops-night.service").read_text(encoding="utf-8")
    assert "\nLoadCredential=gpuops-password-prod:/etc/gpuops/prod.password\n" in unit
    assert '--policy "/etc/gpuops/policy.yaml" --yes --vcenter "prod"' in unit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpuops_schedule_user", "gpuops\nExecStartPre=/bin/false"),
        ("gpuops_schedule_password_file", "/etc/gpuops/a\tb"),
        ("gpuops_schedule_target", "prod; rm"),
        ("gpuops_schedule_target", "prod\n"),
    ],
)
def test_a_value_of_two_lines_is_refused(ansible: Ansible, tmp_path: Path, name: str, value: str) -> None:
    values = tmp_path / "values.yml"
    values.write_text(yaml.safe_dump({name: value, "gpuops_schedule_dir": str(tmp_path / "made")}), encoding="utf-8")
    refused = ansible("playbook", *EXAMPLE, "-e", f"@{values}", code=2)
    assert "Correct the variable." in refused.stdout + refused.stderr
    assert not (tmp_path / "made").exists()


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and "CI" not in os.environ,
    reason="no systemd-analyze: apt-get install systemd",
)
def test_systemd_takes_the_units(site: Site) -> None:
    units = [site.rendered / f"gpuops-{half}.{kind}" for half in ("night", "day") for kind in ("service", "timer")]
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)], capture_output=True, encoding="utf-8", check=False
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if "gpuops" in line]) == (0, [])
    for unit in units[1::2]:
        (calendar,) = re.findall(r"^OnCalendar=(.+)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        subprocess.run(["systemd-analyze", "calendar", calendar], check=True, capture_output=True)


def test_a_missed_return_is_made_up_for_and_a_missed_night_is_not(site: Site) -> None:
    assert "Persistent=true" in (site.rendered / "gpuops-day.timer").read_text(encoding="utf-8")
    assert "Persistent" not in (site.rendered / "gpuops-night.timer").read_text(encoding="utf-8")


def test_the_units_run_a_night_and_bring_it_back(site: Site, tmp_path: Path) -> None:
    """Each ExecStart is executed with the environment and the credential that its unit names."""
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    before = _suspended(site.server)
    for half, changed in (("night", True), ("day", False)):
        unit = _unit(site.rendered / f"gpuops-{half}.service")
        credentials = tmp_path / half
        credentials.mkdir(mode=0o700)
        name, _, path = unit["LoadCredential"][0].partition(":")
        shutil.copy(path.replace("%%", "%"), credentials / name)
        environ = dict(shlex.split(line)[0].replace("%%", "%").split("=", 1) for line in unit["Environment"])
        words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(unit["ExecStart"][0])]
        done = subprocess.run(
            words,
            env=own | environ | {"CREDENTIALS_DIRECTORY": str(credentials)},
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (_suspended(site.server) != before) == changed


def _suspended(server: SimServer) -> frozenset[str]:
    vms: list[Any] = list(server.world.by_type("VirtualMachine"))
    return frozenset(vm.name for vm in vms if vm.state.power is Power.SUSPENDED)


def _unit(path: Path) -> dict[str, list[str]]:
    """The values of each key of a unit, in their order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_cron_takes_the_lines(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (site.rendered / "gpuops.cron").read_text(encoding="utf-8")
    assert text.endswith("\n"), "cron ignores a last line without its end"
    settings = dict(re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE))
    assert settings["GPUOPS_CONFIG"] == site.said["gpuops_schedule_config"]
    assert settings["GPUOPS_PASSWORD_FILE"] == site.said["gpuops_schedule_password_file"]
    lines = [line for line in text.splitlines() if re.match(r"[*\d]", line)]
    assert len(lines) == 2
    for name, value in settings.items():
        if name != "PATH":
            monkeypatch.setenv(name, value)
    ranges = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
    for line, half in zip(lines, ("night", "day"), strict=True):
        assert re.search(r"(?<!\\)%", line) is None, "an unescaped % ends the command"
        *when, user, command = line.split(maxsplit=6)
        for field, (low, high) in zip(when, ranges, strict=True):
            assert re.fullmatch(r"(\*|\d+(-\d+)?)(/\d+)?", field)
            assert all(low <= int(number) <= high for number in re.findall(r"\d+", field.partition("/")[0]))
        assert user == "root"
        words = shlex.split(command.replace("\\%", "%"))
        assert words[0] == site.said["gpuops_schedule_command"]
        assert words[1:3] == ["rotate", half]
        dry = ["--dry-run"] if half == "night" else []
        done = CliRunner().invoke(app, [*words[1:], *dry])
        assert done.exit_code == 0, done.output
