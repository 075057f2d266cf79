"""`gpuops host scheduler` on the simulated vCenter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import typer

from gpuops.cli.app import app
from gpuops.console.options import CommonOptions, RebootOptions
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from tests.cli.conftest import Lab

Golden = Callable[[str, str], None]
SET = (
    "host",
    "scheduler",
    "set",
    "--scheduler",
    "equal-share",
    "--time-slice",
    "2ms",
    "--gpu",
    "0000:d8:00.0",
    "--host",
    "esx-01*",
)


@pytest.mark.long
def test_show_set_show(lab: Lab, golden: Golden) -> None:
    text = ""
    for words in (
        ("host", "scheduler", "show"),
        (*SET, "--dry-run"),
        SET,
        SET,
        ("host", "scheduler", "show", "--host", "esx-01.lab"),
    ):
        result = lab.run(*words)
        assert (result.exit_code, result.stderr) == (0, "")
        text += f"$ gpuops {' '.join(words)}\n{result.stdout}"
    golden("scheduler.txt", text)
    assert lab.effects == ["UpdateModuleOptionString esx-01.lab"]


def test_a_refusal_names_every_reason(lab: Lab, golden: Golden) -> None:
    result = lab.run("host", "scheduler", "set", "--scheduler", "fixed-share", "--cluster", "lab-cluster")
    assert (result.exit_code, result.stderr) == (3, "")
    golden("scheduler-refused.txt", result.stdout)
    assert lab.effects == []


def document(lab: Lab, *words: str) -> Any:
    answer = json.loads(lab.run(*words, "--output", "json").stdout)
    return {key: value for key, value in answer.items() if key not in ("read_at", "vcenter")}


def test_json(lab: Lab, golden: Golden) -> None:
    documents = [document(lab, *SET), document(lab, "host", "scheduler", "show", "--host", "esx-01.lab")]
    assert [document_of_command["kind"] for document_of_command in documents] == ["scheduler-set", "scheduler-show"]
    golden("scheduler.json", json.dumps(documents, indent=2) + "\n")


def test_fields_of_the_request_are_options_of_the_command() -> None:
    group: Any = typer.main.get_command(app)
    shared = {field.name for group in (CommonOptions, RebootOptions) for field in fields(group)} | {"dry_run"}
    options = {param.name: param for param in group.commands["host"].commands["scheduler"].commands["set"].params}
    assert [name for name in options if name not in shared] == [field.name for field in fields(SetScheduler)]
    for field in fields(SetScheduler):
        assert f"--{field.name.replace('_', '-')}" in options[field.name].opts
