"""The playbooks on `inventories/sim`, as a user types them: what check mode shows is what is done, and once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ansible.conftest import ROOT, Ansible

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

Play = Callable[..., str]


@pytest.fixture
def play(ansible: Ansible, tmp_path: Path) -> Iterator[Play]:
    """Runs a playbook of the clone and returns what it printed; its simulated vCenter is stopped at the end."""
    folder = ["-e", f"gpuops_sim_dir={tmp_path}/sim"]

    def run(name: str, *options: str) -> str:
        shown = ansible("playbook", "-i", "inventories/sim", f"playbooks/{name}.yml", *folder, "-f", "1", *options)
        assert "Skipping" not in shown.stderr
        return str(shown.stdout)

    yield run
    assert "changed=1" in run("sim_stop")


def diffs(shown: str) -> list[str]:
    """Each VM's difference as `--diff` shows it."""
    return re.findall(r"^--- before.*?^\s*$", shown, re.MULTILINE | re.DOTALL)


def changed(shown: str) -> dict[str, bool]:
    return {host: number != "0" for host, number in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", shown, re.MULTILINE)}


def test_attach(play: Play) -> None:
    foreseen = play("attach", "--check", "--diff")
    assert len(diffs(foreseen)) == 2
    assert '+        "vGPU grid_a100-3-20c"' in foreseen
    done = play("attach", "--diff")
    assert diffs(done) == diffs(foreseen)
    assert changed(done) == {"localhost": False, "ml-07": True, "ml-08": True}
    again = play("attach", "--diff")
    assert (diffs(again), set(changed(again).values())) == ([], {False})


def test_report_and_detach(play: Play, tmp_path: Path) -> None:
    play("attach")
    report = tmp_path / "report.md"
    play("fleet_report", "-e", f"gpuops_report_file={report}")
    assert "| ml-07 | poweredOff | esx-01.lab | vGPU grid_a100-3-20c |" in report.read_text(encoding="utf-8")

    foreseen = play("detach", "--check", "--diff")
    done = play("detach", "--diff")
    assert diffs(done) == diffs(foreseen) != []
    assert changed(done) == {"localhost": False, "ml-07": True, "ml-08": True}
    assert set(changed(play("detach")).values()) == {False}


def test_a_night_and_a_morning(play: Play) -> None:
    def without_night(shown: str) -> list[str]:
        return [re.sub(r'"\d{4}-\d\d-\d\dT\d\d:\d\dZ', '"NIGHT', each) for each in diffs(shown)]

    foreseen = play("rotate_night", "--check", "--diff")
    done = play("rotate_night", "--diff")
    assert without_night(done) == without_night(foreseen) != []
    assert '"vdi-03": "opted out (attribute gpuops.opt-out)"' in done
    assert changed(play("rotate_night")) == {"localhost": False}
    foreseen = play("rotate_day", "--check", "--diff")
    done = play("rotate_day", "--diff")
    assert without_night(done) == without_night(foreseen) != []
    assert "Every desktop is back" in done
    assert changed(play("rotate_day")) == {"localhost": False}


def test_every_playbook_and_the_example_can_be_read(ansible: Ansible) -> None:
    books = sorted(path.relative_to(ROOT) for path in (ROOT / "playbooks").glob("*.yml"))
    ansible("playbook", "-i", "inventories/example/hosts.yml", "--syntax-check", *books)
