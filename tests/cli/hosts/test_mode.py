"""`gpuops host mode` and `gpuops host passthrough` on the simulated vCenter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from gpuops.cli.app import app
from gpuops.console.options import CommonOptions, RebootOptions
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.cli.conftest import Lab, lab_on

Golden = Callable[[str, str], None]


def transcript(lab: Lab, *commands: str) -> str:
    return "".join(f"$ gpuops {command}\n{lab.run(*command.split()).stdout}" for command in commands)


def test_show_and_set(lab: Lab, golden: Golden) -> None:
    text = transcript(
        lab,
        "host mode show",
        "host mode set --assignment consolidation --cluster lab-cluster --dry-run",
        "host mode set --assignment consolidation --cluster lab-cluster",
        "host mode set --assignment consolidation --cluster lab-cluster",
        "host passthrough on --gpu 0000:3b:00.0 --label mig-ml --host esx-01.lab",
        "host passthrough off --gpu 0000:d8:00.0 --host esx-02.lab --dry-run",
        "host mode show --host esx-01.lab",
    )
    golden("mode.txt", text)
    assert lab.effects == ["UpdateGraphicsConfig esx-01.lab", "UpdatePassthruConfig esx-01.lab"]


def test_which_devices_are_given_whole(lab: Lab, golden: Golden) -> None:
    golden("passthrough.txt", transcript(lab, "host passthrough show --host esx-02.lab"))
    answer = json.loads(lab.run("host", "passthrough", "show", "--host", "esx-02.lab", "-o", "json").stdout)
    whole = [device["address"] for host in answer["hosts"] for device in host["devices"] if device["active"]]
    assert whole == ["0000:5e:00.0", "0000:d8:00.0"]


@pytest.mark.long
def test_refusals_name_every_reason(lab: Lab, golden: Golden) -> None:
    text = transcript(
        lab,
        "host mode set --type shared --cluster lab-cluster",
        "host mode set --vgpu-mode mixedSize --host esx-01*",
        "host passthrough on --gpu 0000:d8:00.0 --host esx-01.lab",
        "host passthrough off --gpu 0000:5e:00.0 --host esx-02.lab",
    )
    golden("mode-refused.txt", text)
    assert lab.effects == []


def test_json(lab: Lab, golden: Golden) -> None:
    commands = ("host mode set --assignment consolidation --host esx-01.lab", "host mode show --host esx-01.lab")
    answers = [json.loads(lab.run(*command.split(), "--output", "json").stdout) for command in commands]
    for answer in answers:
        del answer["read_at"], answer["vcenter"]
    golden("mode.json", json.dumps(answers, indent=2) + "\n")


@pytest.mark.long
def test_modes_of_vsphere_9_1(tmp_path: Path, clean: Path, golden: Golden) -> None:
    """Set by the call that tells what it takes, and shown with all that is listed of a device."""
    world = build("supervisor", api_version="9.1.0.0")
    with SimServer(world) as server, lab_on(server, tmp_path, clean) as lab:
        text = transcript(
            lab,
            "host mode show --host esx-02.sup",
            "host mode set --vgpu-mode mixedSize --gpu 0000:af:00.0 --host esx-02.sup --dry-run",
            "host mode set --vgpu-mode mixedSize --gpu 0000:af:00.0 --host esx-02.sup",
            "host passthrough on --gpu 0000:af:00.0 --label ml --host esx-02.sup",
            "host passthrough on --gpu 0000:af:00.0 --label ml --host esx-02.sup",
            "host mode show --host esx-02.sup",
        )
        golden("mode-91.txt", text)
        assert lab.effects == [
            "ConfigureDirectPathDevice esx-02.sup",
            "ConfigureDirectPathDevice esx-02.sup",
            "UpdatePassthruConfig esx-02.sup",
        ]
        document = json.loads(lab.run("host", "mode", "show", "--host", "esx-02.sup", "--output", "json").stdout)
        golden("mode-91.json", json.dumps(document["hosts"][0]["devices"], indent=2) + "\n")


@pytest.mark.parametrize(
    ("noun", "verb", "request_type", "without"),
    [
        ("mode", "set", SetMode, set()),
        ("passthrough", "on", SetPassthrough, {"on"}),
        ("passthrough", "off", SetPassthrough, {"on", "label"}),
    ],
)
def test_fields_of_the_request_are_options(noun: str, verb: str, request_type: type, without: set[str]) -> None:
    group: Any = typer.main.get_command(app)
    shared = {field.name for group in (CommonOptions, RebootOptions) for field in fields(group)} | {"dry_run"}
    options = [
        param.name for param in group.commands["host"].commands[noun].commands[verb].params if param.name not in shared
    ]
    assert options == [field.name for field in fields(request_type) if field.name not in without]
