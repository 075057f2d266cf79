"""What people copy and install: units that systemd takes, lines that cron takes, a page that a browser takes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from tests.ansible.conftest import ROOT, Ansible

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

AWKWARD = {"gpuops_policy": "/etc/gpuops/50% of it.yaml", "gpuops_target": "prod"}


@pytest.fixture(scope="module")
def schedule(ansible: Ansible, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `schedule.yml` puts into its directory, for a program that is there and a path that needs quoting."""
    folder = tmp_path_factory.mktemp("site") / "schedule"
    said = {"gpuops_schedule_dir": folder, "gpuops_command": "/bin/true", "gpuops_user": "root", **AWKWARD}
    options = [word for name, value in said.items() for word in ("-e", f"{name}={shlex.quote(str(value))}")]
    command = ("-i", "inventories/example/hosts.yml", *options, "playbooks/schedule.yml")
    assert "changed=4" in ansible("playbook", *command).stdout
    assert "changed=0" in ansible("playbook", *command).stdout, "a second time there is nothing to do"
    return folder


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and "CI" not in os.environ,
    reason="no systemd-analyze: apt-get install systemd",
)
def test_systemd_takes_the_units(schedule: Path) -> None:
    units = [schedule / f"gpuops-{half}.{kind}" for half in ("night", "day") for kind in ("service", "timer")]
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)], capture_output=True, encoding="utf-8", check=False
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if "gpuops" in line]) == (0, [])
    for unit in units[1::2]:
        (calendar,) = re.findall(r"^OnCalendar=(.+)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        subprocess.run(["systemd-analyze", "calendar", calendar], check=True, capture_output=True)


def test_the_services_run_what_gpuops_has(schedule: Path) -> None:
    for half in ("night", "day"):
        text = (schedule / f"gpuops-{half}.service").read_text(encoding="utf-8")
        (line,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
        assert_runs(shlex.split(line.replace("%%", "%")), half)


def test_cron_takes_the_lines(schedule: Path) -> None:
    text = (schedule / "gpuops.cron").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "PATH="))]
    assert len(lines) == 2
    assert text.endswith("\n"), "cron ignores a last line without its end"
    ranges = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
    for line, half in zip(lines, ("night", "day"), strict=True):
        assert re.search(r"(?<!\\)%", line) is None, "an unescaped % ends the command"
        *when, user, command = line.split(maxsplit=6)
        for field, (low, high) in zip(when, ranges, strict=True):
            assert re.fullmatch(r"(\*|\d+(-\d+)?)(/\d+)?", field)
            assert all(low <= int(number) <= high for number in re.findall(r"\d+", field.partition("/")[0]))
        assert user == "root"
        assert_runs(shlex.split(command.replace("\\%", "%")), half)


def assert_runs(words: list[str], half: str) -> None:
    """What gpuops says of this command line shows that it took all of it.

    A night is refused for the policy, which is not there. A return goes on without it, as far as the target, which this
    machine does not have either.
    """
    assert words[0] == "/bin/true"
    done = CliRunner().invoke(app, words[1:])
    assert words[1:3] == ["rotate", half]
    assert "No such option" not in done.output
    assert AWKWARD["gpuops_policy"] in " ".join(words)
    missing = AWKWARD["gpuops_policy"] if half == "night" else "no target 'prod'"
    assert missing in str(done.exception) + done.output


class Page(HTMLParser):
    """Whether every element is closed in its turn, and the text of it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_runbook_is_a_page_and_a_document(ansible: Ansible, tmp_path: Path) -> None:
    lab = (ROOT / "gpuops" / "sim" / "scenarios" / "lab.yaml").read_text(encoding="utf-8")
    evil = "<script>alert(1)</script>|x"
    scenario = tmp_path / "evil.yaml"
    changed = lab.replace("{<<: *desktop, first: 4, count: 1,", f"{{<<: *desktop, name: '{evil}', count: 1,")
    scenario.write_text(changed, encoding="utf-8")
    said = [f"gpuops_sim_dir={tmp_path}/sim", f"gpuops_runbook_dir={tmp_path}", f"gpuops_sim_scenario={scenario}"]
    options = ["-i", "inventories/sim", *(word for each in said for word in ("-e", each))]
    ansible("playbook", *options, "playbooks/runbook.yml")
    ansible("playbook", *options, "playbooks/sim_stop.yml")
    page = Page()
    page.feed((tmp_path / "runbook.html").read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    assert "script" not in page.seen
    assert evil in page.text
    assert "equal-share, 2 ms" in page.text
    assert "not in force before a reboot of esx-01.lab" in page.text
    rows = [line for line in (tmp_path / "runbook.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    assert "| esx-01.lab | 0000:d8:00.0 | best-effort | equal-share, 2 ms |" in rows
    widths = [len(re.split(r"(?<!\\)\|", row)) for row in rows]
    assert set(widths) == {5, 6}, "a name with a bar in it makes no further cell"
