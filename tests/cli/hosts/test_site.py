"""`gpuops diff`, `apply`, `assert` and `export` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.sim.server import start
from tests.cli.conftest import Lab, lab_on

TEMPLATE = Path(__file__).parents[3] / "templates" / "site.yaml"
SITE = """
version: 1
hosts:
  - {host: esx-01, assignment: consolidation}
vms:
  - {vm: ml-07, devices: {profile: a100-3-20c}, marks: [{attribute: team, value: red}]}
  - {vm: ml-01, devices: {absent: true}, drs: manual}
"""


@pytest.fixture
def site(tmp_path: Path) -> Callable[[str], str]:
    """Writes a site file and returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "site.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_what_differs_is_changed_once_and_then_holds(lab: Lab, site: Callable[[str], str], tmp_path: Path) -> None:
    file = site(SITE)
    differs = lab.run("diff", "--file", file)
    assert differs.stdout.splitlines() == [
        "  esx-01.lab  assignment: performance -> consolidation",
        "  ml-01  devices: vgpu grid_a100-3-20c -> none",
        "  ml-01  drs: cluster -> manual",
        "  ml-07  devices: none -> a100-3-20c",
        "  ml-07  mark team: none -> red",
        (
            "warning: the settings of ml-01 before its first attach are not stored: "
            "its memory reservation and MMIO settings stay as they are"
        ),
        "5 settings differ; dry run: nothing was changed",
    ]
    assert lab.run("assert", "--file", file).exit_code == 3
    assert lab.effects == []
    applied = lab.run("apply", "--file", file)
    assert (applied.exit_code, applied.stdout.splitlines()[-1]) == (0, "5 steps done; nothing differs any more")
    effects = lab.effects
    second_apply = lab.run("apply", "--file", file)
    assert second_apply.stdout == "nothing differs from the file: nothing to do\n"
    junit = tmp_path / "result.xml"
    assert lab.run("assert", "--file", file, "--junit", str(junit)).exit_code == 0
    assert ElementTree.fromstring(junit.read_text(encoding="utf-8")).attrib == {
        "name": "gpuops assert", "tests": "3", "failures": "0", "errors": "0"
    }  # fmt: skip
    assert lab.effects == effects


def test_the_documents(lab: Lab, site: Callable[[str], str], tmp_path: Path) -> None:
    file, junit = site(SITE), tmp_path / "result.xml"
    diff = json.loads(lab.run("diff", "--file", file, "--output", "json").stdout)
    assert [(difference["target"]["name"], difference["key"]) for difference in diff["differences"]] == [
        ("esx-01.lab", "assignment"),
        ("ml-01", "devices"),
        ("ml-01", "drs"),
        ("ml-07", "devices"),
        ("ml-07", "mark team"),
    ]
    assert [step["kind"] for step in diff["host_steps"]] == ["configure_graphics"]
    assert [step["kind"] for step in diff["vm_steps"]] == [
        "set_vm_drs", "set_attribute", "reconfigure", "reconfigure"
    ]  # fmt: skip
    assertion = lab.run("assert", "--file", file, "--junit", str(junit), "--output", "json")
    document = json.loads(assertion.stdout)
    assert (assertion.exit_code, document["exit_code"], document["holds"]) == (3, 3, False)
    failed = ElementTree.fromstring(junit.read_text(encoding="utf-8")).findall("testcase/failure")
    assert [failure.get("message") for failure in failed] == ["1 setting differ from the file"] + [
        "2 settings differ from the file"
    ] * 2
    applied = json.loads(lab.run("apply", "--file", file, "--output", "json").stdout)
    assert (applied["applied"], applied["changed"], applied["remaining"]) == (True, True, [])


def test_an_infeasible_file_is_refused_completely_with_every_reason(lab: Lab, site: Callable[[str], str]) -> None:
    file = site(
        """
version: 1
hosts:
  - {host: esx-01, model: NVIDIA A40, vgpu_mode: mixedSize}
  - {host: esx-09, assignment: performance}
vms:
  - {vm: vdi-01, devices: {profile: a40-16q}}
  - {vm: ml-08, marks: [{attribute: team, value: red}]}
  - {vm: nobody, drs: manual}
"""
    )
    refused = lab.run("apply", "--file", file)
    assert (refused.exit_code, lab.effects) == (3, [])
    for reason in ("only while it is empty", "named esx-09", "no VM is selected by nobody", "refused: vdi-01"):
        assert reason in refused.stdout


def test_a_setting_that_waits_for_a_reboot_is_not_yet_so(lab: Lab, site: Callable[[str], str]) -> None:
    file = site("{version: 1, hosts: [{host: esx-01, model: NVIDIA A40, scheduler: equal-share}]}")
    assert "next: esx-01.lab must be rebooted" in lab.run("apply", "--file", file).stdout
    waits = "waits for a reboot"
    assert waits in lab.run("apply", "--file", file).stdout
    assertion = lab.run("assert", "--file", file)
    assert (assertion.exit_code, waits in assertion.stdout) == (3, True)


def test_without_a_terminal_a_reboot_needs_yes(site: Callable[[str], str], tmp_path: Path, clean: Path) -> None:
    file = site("{version: 1, hosts: [{host: esx-04, scheduler: equal-share}]}")
    with start("scattered", clock="stepped") as server, lab_on(server, tmp_path, clean) as scattered:
        unattended = scattered.run("apply", "--file", file, "--reboot", "rolling")
        assert (unattended.exit_code, scattered.effects) == (2, [])
        assert "then add --yes" in unattended.stderr
        apply = scattered.run("apply", "--file", file, "--reboot", "rolling", "--yes")
        assert (apply.exit_code, apply.stdout.splitlines()[-1]) == (0, "2 steps done; nothing differs any more")
        assert scattered.run("assert", "--file", file).exit_code == 0


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{version: 1, hosts: [{assignment: performance}]}", "hosts.0: selects no host"),
        ("{version: 1, hosts: [{host: a}]}", "has no key that sets something on its hosts"),
        ("{version: 1, hosts: [{host: a, time_slice: 2ms}]}", "need `scheduler`"),
        ("{version: 1, hosts: [{host: a, scheduler: best-effort, time_slice: 2ms}]}", "best effort has neither"),
        ("{version: 1, vms: [{drs: manual}]}", "vms.0: selects no VM"),
        ("{version: 1, vms: [{vm: a}]}", "has no key that sets something on its VMs"),
        ("{version: 1, vms: [{vm: a, devices: {profile: b, absent: true}}]}", "vms.0.devices: needs exactly one of"),
        ("{version: 1, vms: [{vm: a, devices: {absent: true, count: 2}}]}", "has `count`, which only goes with"),
        ("{version: 1, vms: [{vm: a, marks: [{attribute: b}]}]}", "needs either `value`"),
        ("{version: 1, policies: [none.yaml]}", "none.yaml"),
        ("{version: 2}", "version"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, wrong: str, site: Callable[[str], str]) -> None:
    result = CliRunner().invoke(app, ["diff", "--file", site(text), "--vcenter", "sim:lab"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert wrong in result.stderr


def test_a_directory_is_all_of_its_files(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    assert "has no file *.yaml" in lab.run("diff", "--file", str(folder)).stderr
    (folder / "1.yaml").write_text("{version: 1, vms: [{vm: 'ml-*', drs: manual}]}", encoding="utf-8")
    (folder / "2.yaml").write_text("{version: 1, vms: [{vm: 'ml-0[2-9]', drs: cluster}]}", encoding="utf-8")
    assert "  ml-01  drs: cluster -> manual\n1 setting differs" in lab.run("diff", "--file", str(folder)).stdout


def _export(scenario: str, path: Path) -> Result:
    return CliRunner().invoke(app, ["export", "--save", str(path), "--vcenter", f"sim:{scenario}"])


@pytest.mark.parametrize(
    "scenario",
    ["lab", "vdi", *(pytest.param(name, marks=pytest.mark.long) for name in ("accelerators", "stacks", "scattered"))],
)
def test_applying_an_export_changes_nothing(scenario: str, tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    assert _export(scenario, path).exit_code == 0
    assert len(path.read_text(encoding="utf-8").splitlines()) < 200
    result = CliRunner().invoke(app, ["apply", "--file", str(path), "--vcenter", f"sim:{scenario}"])
    assert (result.exit_code, result.stdout) == (0, "nothing differs from the file: nothing to do\n")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_applying_the_export_of_a_thousand_hosts_changes_nothing(tmp_path: Path) -> None:
    test_applying_an_export_changes_nothing("fleet:hosts=1000,vms=10000", tmp_path)


def test_an_export_replaces_no_file_and_says_what_it_leaves_out(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    document = json.loads(lab.run("export", "--output", "json").stdout)
    assert document["left_out"] == [
        "ml-05: a site file cannot describe its devices (vgpu grid_a100d-80c, vgpu grid_a100d-80c)"
    ]  # fmt: skip
    assert lab.run("export").stdout == document["file"]
    path.write_text("mine", encoding="utf-8")
    refused = lab.run("export", "--save", str(path))
    assert (refused.exit_code, path.read_text(encoding="utf-8")) == (3, "mine")


def test_the_template(lab: Lab) -> None:
    assert lab.run("diff", "--file", str(TEMPLATE)).exit_code == 0
