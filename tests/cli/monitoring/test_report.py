"""`gpuops report` as typed: text, document, page and table of the scenario `lab` after a night, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.extras.web.page.fleet_report_text import FOCUS_COLUMNS
from tests.cli.conftest import LAB_POLICY, Lab

Gpuops = Callable[..., Result]


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.long
def test_its_figures_are_those_of_the_other_commands(after_a_night: Lab) -> None:
    lab = after_a_night
    answer = document(lab.run("report", "--policy", LAB_POLICY, "-o", "json"))
    past = document(lab.run("history", "--kind", "night", "-o", "json"))
    assert (answer["totals"], answer["nights"]) == (past["totals"], past["nights"])
    [whole] = document(lab.run("history", "show", answer["nights"][0]["night"], "-o", "json"))["nights"]
    assert answer["last_night"] == whole
    assert {step["what"] for vm in whole["vms"] for step in vm["steps"]} >= {"suspend", "resume", "start", "shutdown"}

    inventory = document(lab.run("inventory", "-o", "json"))
    holders = {
        (host["name"], gpu["address"]): {vm["ref"] for vm in gpu["holders"]}
        for host in inventory["hosts"] for node in host["numa_nodes"] for gpu in node["gpus"]
    }  # fmt: skip
    mapped = {
        (host["name"], gpu["address"]): {slot["vm"] for slot in gpu["slots"]}
        for host in answer["hosts"] for node in host["numa_nodes"] for gpu in node["gpus"]
    }  # fmt: skip
    assert mapped == holders
    assert {vm["name"] for vm in answer["vms"]} == {vm["name"] for vm in inventory["vms"]}

    room = document(lab.run("capacity", "--policy", LAB_POLICY, "-o", "json"))
    fits = {profile["name"]: (profile["now"]["at_least"], profile["after"]["at_least"]) for profile in room["profiles"]}
    assert {
        profile["name"]: (profile["now"]["at_least"], profile["after"]["at_least"])
        for profile in answer["capacity"]["profiles"]
    } == fits
    assert answer["findings"] == document(lab.run("doctor", "-o", "json"))["findings"]
    judged = document(lab.run("idle", "--policy", LAB_POLICY, "-o", "json"))["vms"]
    assert [(verdict["name"], verdict["verdict"], verdict["because"]) for verdict in answer["idle"]] == [
        (verdict["name"], verdict["verdict"], verdict["because"]) for verdict in judged
    ]


@pytest.mark.long
def test_page_and_table_are_written_whole_and_kept_private(after_a_night: Lab, tmp_path: Path) -> None:
    page, table = tmp_path / "fleet.html", tmp_path / "hours.csv"
    table.write_text("old", encoding="utf-8")
    table.chmod(0o644)
    report = after_a_night.run("report", "--html", str(page), "--csv", str(table))
    assert report.exit_code == 0, report.output
    assert f"wrote {page}\n" in report.stderr
    assert "1 night: " in report.stdout
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    lines = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
    assert tuple(lines[0]) == FOCUS_COLUMNS
    assert {line["SubAccountName"] for line in lines} == {"ml"}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (page, table)] == [0o600, 0o644]
    assert {path.name for path in tmp_path.iterdir()} == {"fleet.html", "hours.csv", "home", "ready.json"}


@pytest.mark.long
@pytest.mark.parametrize("key", ["tag:team", "attribute:owner"])
def test_what_no_vm_says_is_nobodys(after_a_night: Lab, key: str) -> None:
    showback = document(after_a_night.run("report", "--by", key, "-o", "json"))["showback"]
    assert (showback["by"], [owner["owner"] for owner in showback["owners"]]) == (key, [None])
    assert "no owner" in after_a_night.run("report", "--by", key).stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--by", "tag:"), "error: --by: 'tag:' does not name a source of VM owners"),
        (("--by", "cluster"), "error: --by: 'cluster' does not name a source of VM owners"),
        (("--since", "yesterday"), "error: --since: 'yesterday' is neither a number of days or weeks nor a date"),
        (("--policy", "/nowhere.yaml"), "error: /nowhere.yaml"),
        (("--output", "csv"), "error: only gpuops history has --output csv"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(words: tuple[str, ...], line: str) -> None:
    refusal = CliRunner().invoke(app, ["report", *words, "--vcenter", "sim:lab"])
    assert refusal.exit_code == 2
    assert refusal.stderr.startswith(line)
    assert refusal.stderr.splitlines()[1].startswith("next: ")


@pytest.mark.long
def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "fleet.html", tmp_path):
        refusal = CliRunner().invoke(app, ["report", "--html", str(path), "--vcenter", "sim:lab"])
        assert refusal.exit_code == 2
        assert str(path) in refusal.stderr.splitlines()[0]
