"""What `schedule.yml` renders is run: units that systemd takes, lines that cron takes, up to a night on a vCenter."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.config.policy import load_policy
from gpuops.execute.rotation.installed_timers import timers
from gpuops.plan.rotation.returns.return_time import HANGS_AFTER
from gpuops.report.document import as_values
from gpuops.report.nights.rotation_setup_view import timers_document
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from tests.ansible.conftest import ROOT, Ansible
from tests.ansible.units import execute_unit, unit_of
from tests.notify.conftest import Webhook, webhook

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

__all__ = ["webhook"]
EXAMPLE = ("-i", "inventories/example/hosts.yml", "playbooks/schedule.yml")
_SOURCE: Final = ("-e", f"gpuops_schedule_policy_source={ROOT}/templates/policy.yaml")
LAB_POLICY = ROOT / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"
IN_CLONE: Final = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
TEMPLATE_POLICY = ROOT / "templates" / "policy.yaml"
OWN_RUNS: Final = [
    {"half": "night", "calendar": "Mon..Fri 20..23:00/20", "cron": "*/20 20-23 * * 1-5"},
    {"half": "day", "calendar": "*-*-* 05..19:00/10", "cron": "*/10 5-19 * * *"},
]
"""In place of what the windows say: those of a policy for any hour."""
AWKWARD = "50% of $HOME and ${USER} \"it\" \\n '%h'"


@dataclass(frozen=True)
class Site:
    """A simulated vCenter, and what was rendered for it with names that every format has to escape."""

    server: SimServer
    rendered: Path
    said: Mapping[str, Any]


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
        variables = {
            "gpuops_schedule_dir": str(home.parent / "schedule"),
            "gpuops_schedule_command": str(program),
            "gpuops_schedule_user": "root",
            "gpuops_schedule_config": str(home / "config.toml"),
            "gpuops_schedule_password_file": str(home / "password"),
            "gpuops_schedule_state_dir": str(home / "state"),
            "gpuops_schedule_on_failure": "tell-ops@%n.service",
            "gpuops_schedule_mailto": "ops@example.com",
            "gpuops_schedule_runs": OWN_RUNS,
            "gpuops_policy": str(home / "policy.yaml"),
            "gpuops_hostname": f"{server.host}:{server.port}",
            "gpuops_username": server.username,
            "gpuops_ca_file": str(home / "ca.pem"),
        }
        values = home / "values.yml"
        values.write_text(yaml.safe_dump(variables), encoding="utf-8")
        values = values.rename(home.parent / "values.yml")
        assert "changed=5" in ansible("playbook", *EXAMPLE, "-e", f"@{values}").stdout
        assert "changed=0" in ansible("playbook", *EXAMPLE, "-e", f"@{values}").stdout, "there is nothing left to do"
        shutil.copy(home.parent / "schedule" / "config.toml", home / "config.toml")
        yield Site(server, home.parent / "schedule", variables)


def test_the_example_site_renders_a_login(ansible: Ansible, tmp_path: Path) -> None:
    """With the command of the manual and no other variable: what group_vars say is what the run is given."""
    ansible("playbook", *EXAMPLE, "-e", f"gpuops_schedule_dir={tmp_path}", *_SOURCE)
    config = tomllib.loads((tmp_path / "config.toml").read_text(encoding="utf-8"))
    assert config["default"] == "prod"
    assert config["targets"] == {
        "prod": {
            "host": "vc.example.com",
            "username": "gpuops@vsphere.local",
            "ca_file": "/etc/gpuops/ca.pem",
        }
    }
    unit = (tmp_path / "gpuops-night.service").read_text(encoding="utf-8")
    assert "\nLoadCredential=gpuops-password-prod:/etc/gpuops/prod.password\n" in unit
    assert '--policy "/etc/gpuops/policy.yaml" --yes --by-timer --vcenter "prod"' in unit


@pytest.mark.parametrize("cron_tz", [True, False])
def test_calls_come_from_the_windows_of_the_policy(ansible: Ansible, tmp_path: Path, cron_tz: bool) -> None:
    """As `rotate timers` prints them, with the zone in each; also in check mode, which writes nothing."""
    values = ("-e", json.dumps({"gpuops_schedule_dir": str(tmp_path / "made"), "gpuops_schedule_cron_tz": cron_tz}))
    ansible("playbook", *EXAMPLE, *values, *_SOURCE, "-C")
    assert not (tmp_path / "made").exists()
    ansible("playbook", *EXAMPLE, *values, *_SOURCE)
    calls = as_values(timers_document(timers(load_policy(TEMPLATE_POLICY), cron_tz=cron_tz)))
    text = (tmp_path / "made" / "gpuops.cron").read_text(encoding="utf-8")
    for half in ("night", "day"):
        assert unit_of(tmp_path / "made" / f"gpuops-{half}.timer")["OnCalendar"] == calls[half]["systemd"]
        assert all(calendar.endswith(" Europe/Berlin") for calendar in calls[half]["systemd"])
        lines = [line for line in text.splitlines() if f" rotate {half} " in line]
        assert [line.partition(" gpuops ")[0] for line in lines] == [call["when"] for call in calls[half]["cron"]]
        assert all(" --by-timer " in line for line in lines)
    assert ("CRON_TZ=Europe/Berlin" in text.splitlines()) is cron_tz
    assert ("The hours are those of the machine's own zone" in text) is not cron_tz
    assert "#   install -d -o gpuops -m 700 /var/lib/gpuops" in text.splitlines()
    assert "#   useradd -r -s /usr/sbin/nologin gpuops" in text.splitlines()
    if shutil.which("systemd-analyze") is not None or "CI" in os.environ:
        for line in calls["night"]["systemd"]:
            subprocess.run(["systemd-analyze", "calendar", line], check=True, capture_output=True)


def test_a_policy_that_is_not_there_is_named(ansible: Ansible, tmp_path: Path) -> None:
    refused = ansible("playbook", *EXAMPLE, "-e", f"gpuops_schedule_dir={tmp_path / 'made'}", code=2)
    assert "/etc/gpuops/policy.yaml" in refused.stdout
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpuops_schedule_user", "gpuops\nExecStartPre=/bin/false"),
        ("gpuops_schedule_password_file", "/etc/gpuops/a\tb"),
        ("gpuops_schedule_target", "prod; rm"),
        ("gpuops_schedule_target", "prod\n"),
        ("gpuops_schedule_user", "gpuops root"),
        ("gpuops_schedule_config", "etc/config.toml"),
        ("gpuops_schedule_guest_username", 'ml"\npassword_file = "/etc/shadow'),
        ("gpuops_schedule_jobs_cron", "* * * * *\n* * * * * root false"),
        ("gpuops_schedule_mailto", "ops@example.com\u2028SHELL=/bin/false"),
        ("gpuops_schedule_notify", ['env:HOOK\nhost = "elsewhere"']),
        ("gpuops_schedule_notify_credentials", {"hook:/etc/shadow": "/etc/gpuops/hook.url"}),
        ("gpuops_schedule_notify_credentials", {"hook": "hook.url"}),
        ("gpuops_schedule_runs", [{"half": "day", "calendar": "daily", "cron": "* * * * *\n* * * * * root false"}]),
        ("gpuops_schedule_runs", [{"half": "day", "calendar": "daily\nUnit=other.service", "cron": "* * * * *"}]),
    ],
)
def test_a_value_that_would_forge_a_line_is_refused(ansible: Ansible, tmp_path: Path, name: str, value: object) -> None:
    values = tmp_path / "values.yml"
    values.write_text(yaml.safe_dump({name: value, "gpuops_schedule_dir": str(tmp_path / "made")}), encoding="utf-8")
    refused = ansible("playbook", *EXAMPLE, "-e", f"@{values}", code=2)
    assert "Correct the variable." in refused.stdout + refused.stderr
    assert not (tmp_path / "made").exists()


def _require_valid(units: list[Path]) -> None:
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)], capture_output=True, encoding="utf-8", check=False
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if "gpuops" in line]) == (0, [])


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and "CI" not in os.environ,
    reason="no systemd-analyze: apt-get install systemd",
)
def test_systemd_takes_the_units(site: Site) -> None:
    units = [site.rendered / f"gpuops-{half}.{kind}" for half in ("night", "day") for kind in ("service", "timer")]
    _require_valid(units)
    for unit in units[1::2]:
        (calendar,) = unit_of(unit)["OnCalendar"]
        calls = _called_by_systemd(calendar)
        analysis = subprocess.run(
            ["systemd-analyze", "calendar", f"--iterations={len(calls)}", "--base-time=2026-11-22 23:59:59", calendar],
            capture_output=True,
            encoding="utf-8",
            check=True,
            env=os.environ | {"TZ": "UTC", "LC_ALL": "C"},
        )
        elapses = re.findall(r"(?:Next elapse|Iter\. #\d+|Iteration #\d+): \w+ (\S+ \S+)", analysis.stdout)
        assert elapses == [f"{at:%Y-%m-%d %H:%M:%S}" for at in calls]


def test_a_missed_return_is_made_up_for_and_a_missed_night_is_not(site: Site) -> None:
    assert "Persistent=true" in (site.rendered / "gpuops-day.timer").read_text(encoding="utf-8")
    assert "Persistent=false" in (site.rendered / "gpuops-night.timer").read_text(encoding="utf-8")


def test_a_return_that_hangs_does_not_keep_the_next_one_away(site: Site) -> None:
    """systemd calls no service that still runs: it stops one that takes too long, and kills one that is silent."""
    assert unit_of(site.rendered / "gpuops-day.service")["RuntimeMaxSec"] == ["1h"]
    assert unit_of(site.rendered / "gpuops-night.service")["RuntimeMaxSec"] == ["infinity"]
    for half in ("night", "day"):
        unit = unit_of(site.rendered / f"gpuops-{half}.service")
        assert (unit["Type"], unit["WatchdogSec"]) == (["notify"], [f"{HANGS_AFTER.total_seconds() / 60:.0f}min"])
        assert unit["OnFailure"] == ["tell-ops@%n.service"]


WEEK: Final = [datetime(2026, 11, 23, tzinfo=UTC) + timedelta(minutes=minute) for minute in range(7 * 24 * 60)]
"""Each minute from a Monday to the Sunday after it."""


def _numbers(field: str, low: int, high: int) -> set[int]:
    """What a field of cron means: `*`, a number or a range, with or without a step."""
    values, _, step = field.partition("/")
    first, _, last = (f"{low}-{high}" if values == "*" else values).partition("-")
    return set(range(int(first), int(last or first) + 1, int(step or 1)))


def _called_by_cron(line: str) -> list[datetime]:
    minutes, hours, days, months, weekdays = line.split()[:5]
    assert (days, months) == ("*", "*")
    of_week = {day % 7 for day in _numbers(weekdays, 0, 6)}
    moments = itertools.product(_numbers(hours, 0, 23), _numbers(minutes, 0, 59))
    times = set(moments)
    return [at for at in WEEK if at.isoweekday() % 7 in of_week and (at.hour, at.minute) in times]


def _called_by_systemd(calendar: str) -> list[datetime]:
    """`Mon..Fri 20..23:00/20`, or with `*-*-*` for the days."""
    days, _, times = calendar.partition(" ")
    first, _, last = days.partition("..")
    names = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    of_week = range(7) if days == "*-*-*" else range(names.index(first), names.index(last or first) + 1)
    from_hour, to_hour, from_minute, step = map(int, re.fullmatch(r"(\d+)\.\.(\d+):(\d+)/(\d+)", times).groups())  # type: ignore[union-attr]
    hours, minutes = range(from_hour, to_hour + 1), range(from_minute, 60, step)
    return [at for at in WEEK if at.weekday() in of_week and at.hour in hours and at.minute in minutes]


def test_every_night_of_a_week_has_its_return_until_back_by_and_after_it(site: Site) -> None:
    timers = {half: unit_of(site.rendered / f"gpuops-{half}.timer")["OnCalendar"][0] for half in ("night", "day")}
    lines = (site.rendered / "gpuops.cron").read_text(encoding="utf-8").splitlines()
    called = {half: _called_by_systemd(calendar) for half, calendar in timers.items()}
    for half, calls in called.items():
        assert [calls] == [_called_by_cron(line) for line in lines if f" rotate {half} " in line], half
    assert not [at for at in called["night"] if 5 <= at.hour < 20], "none in working hours"
    closes, back_by, late = timedelta(hours=5), timedelta(hours=7), timedelta(hours=19)
    for midnight in WEEK[:: 24 * 60]:
        returns = [at - midnight for at in called["day"] if at.date() == midnight.date()]
        assert min(returns) == closes, f"{midnight:%A}: at once"
        assert max(returns) >= late, f"{midnight:%A}: far into the day"
        assert sum(return_time <= back_by for return_time in returns) >= 12, (
            f"{midnight:%A}: again and again until they are due"
        )
        gaps = [after - before for before, after in itertools.pairwise(returns)]
        assert max(gaps) <= timedelta(minutes=10), f"{midnight:%A}: and after that"


def test_the_units_run_a_night_and_bring_it_back(site: Site, tmp_path: Path) -> None:
    """Each ExecStart is executed with the environment and the credential that its unit names."""
    before = _suspended_vms(site.server)
    for half, changed in (("night", True), ("day", False)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(address := f"\0gpuops-test-{os.getpid()}-{half}")
            systemd.settimeout(0)
            unit = unit_of(site.rendered / f"gpuops-{half}.service")
            unit_run = execute_unit(unit, tmp_path, IN_CLONE, NOTIFY_SOCKET=f"@{address[1:]}")
            assert unit_run.returncode == 0, unit_run.stderr
            assert systemd.recv(100) == b"READY=1", "without it a unit of Type=notify fails"
        assert (_suspended_vms(site.server) != before) == changed


def test_a_unit_that_failed_is_told_of_by_the_one_that_it_starts(
    ansible: Ansible, site: Site, webhook: Webhook, tmp_path: Path
) -> None:
    """The receiver's URL is a credential: it is in no file that is rendered."""
    hook, rendered = tmp_path / "hook 100%.url", tmp_path / "schedule"
    hook.write_text(webhook.url, encoding="utf-8")
    variables = {
        **site.said,
        "gpuops_schedule_dir": str(rendered),
        "gpuops_schedule_state_dir": str(tmp_path / "state"),
        "gpuops_schedule_on_failure": "",
        "gpuops_schedule_config": str(rendered / "config.toml"),
        "gpuops_schedule_notify": ["credential:hook"],
        "gpuops_schedule_notify_credentials": {"hook": str(hook)},
    }
    values = tmp_path / "values.yml"
    values.write_text(yaml.safe_dump(variables), encoding="utf-8")
    ansible("playbook", *EXAMPLE, "-e", f"@{values}")
    for half in ("night", "day"):
        unit = unit_of(rendered / f"gpuops-{half}.service")
        assert unit["OnFailure"] == ["gpuops-notify.service"]
        assert f"hook:{hook}".replace("%", "%%") in unit["LoadCredential"]
        [writable] = unit["ReadWritePaths"]
        assert writable.strip('"') == f"-{tmp_path}/state", "gpuops says it better than systemd where it is not there"
    if shutil.which("systemd-analyze") is not None or "CI" in os.environ:
        _require_valid(list(rendered.glob("*.service")))
    notice_run = execute_unit(
        unit_of(rendered / "gpuops-notify.service"),
        tmp_path,
        IN_CLONE,
        MONITOR_UNIT="gpuops-night.service",
        MONITOR_INVOCATION_ID="b" * 32,
        MONITOR_SERVICE_RESULT="timeout",
    )
    assert notice_run.returncode == 0, notice_run.stderr
    not_told = [
        line for line in (rendered / "gpuops.cron").read_text(encoding="utf-8").splitlines() if "Not told" in line
    ]
    assert ["credential:hook" in line for line in not_told] == [True], "cron hands no credential over"
    ((_, body),) = webhook.calls
    assert "gpuops-night.service failed: timeout" in json.loads(body)["message"]
    assert [file for file in rendered.iterdir() if webhook.url in file.read_text(encoding="utf-8")] == []


def test_jobs_have_a_service_a_timer_and_a_line(ansible: Ansible, site: Site, tmp_path: Path) -> None:
    """Without `gpuops_schedule_jobs` there is no such unit; each unit that needs guest passwords gets them."""
    assert list(site.rendered.glob("gpuops-jobs*")) == []
    assert " job run " not in (site.rendered / "gpuops.cron").read_text(encoding="utf-8")
    awkward = tmp_path / "50% of $HOME"
    awkward.mkdir()
    (awkward / "guest password").write_text("Kept4now", encoding="utf-8")
    policy = awkward / "policy.yaml"
    text = LAB_POLICY.read_text(encoding="utf-8")
    policy.write_text(text.replace("\nml:\n", '\nml:\n  jobs: {vms: ["job-*"]}\n', 1), encoding="utf-8")
    rendered = tmp_path / "schedule"
    variables = {
        **site.said,
        "gpuops_schedule_dir": str(rendered),
        "gpuops_schedule_config": str(rendered / "config.toml"),
        "gpuops_schedule_state_dir": str(tmp_path / "state"),
        "gpuops_policy": str(policy),
        "gpuops_schedule_jobs": True,
        "gpuops_schedule_guest_username": "ml",
        "gpuops_schedule_guest_password_file": str(awkward / "guest password"),
    }
    values = tmp_path / "values.yml"
    values.write_text(yaml.safe_dump(variables), encoding="utf-8")
    ansible("playbook", *EXAMPLE, "-e", f"@{values}")
    if shutil.which("systemd-analyze") is not None or "CI" in os.environ:
        _require_valid([*rendered.glob("*.service"), *rendered.glob("*.timer")])
    for name in ("night", "day", "jobs"):
        unit = unit_of(rendered / f"gpuops-{name}.service")
        assert any(credential.startswith("gpuops-guest-password-prod:") for credential in unit["LoadCredential"])
    unit = unit_of(rendered / "gpuops-jobs.service")
    assert (unit["Type"], unit["SuccessExitStatus"]) == (["oneshot"], ["4 6"])
    assert unit_of(rendered / "gpuops-jobs.timer")["OnCalendar"] == ["*-*-* *:00/5"]
    unit_run = execute_unit(unit, tmp_path, IN_CLONE)
    assert (unit_run.returncode, unit_run.stderr) == (0, "")
    lines = (rendered / "gpuops.cron").read_text(encoding="utf-8").splitlines()
    (line,) = [cron_line for cron_line in lines if " job run " in cron_line]
    assert line.startswith("*/5 * * * * root ") and re.search(r"(?<!\\)%", line) is None
    assert f"GPUOPS_GUEST_PASSWORD_FILE={awkward}/guest password" in lines
    words = shlex.split(line.split(maxsplit=6)[6].replace("\\%", "%"))
    assert words[1:] == ["job", "run", "--policy", str(policy), "--quiet", "--vcenter", "prod"]


def _suspended_vms(server: SimServer) -> frozenset[str]:
    vms: list[Any] = list(server.world.by_type("VirtualMachine"))
    return frozenset(vm.name for vm in vms if vm.state.power is Power.SUSPENDED)


def test_cron_takes_the_lines(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (site.rendered / "gpuops.cron").read_text(encoding="utf-8")
    assert text.endswith("\n"), "cron ignores a last line without its end"
    settings = dict(re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE))
    assert settings["GPUOPS_CONFIG"] == site.said["gpuops_schedule_config"]
    assert settings["GPUOPS_PASSWORD_FILE"] == site.said["gpuops_schedule_password_file"]
    assert settings["MAILTO"] == "ops@example.com"
    lines = [line for line in text.splitlines() if re.match(r"[*\d]", line)]
    assert len(lines) == 2
    assert "Not told" not in text
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
        completed = CliRunner().invoke(app, [*words[1:], *dry])
        assert completed.exit_code == 0, completed.output
