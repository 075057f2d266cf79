"""Modules as ansible-playbook runs them, over TLS, in one play: predicted, changed, unchanged, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.conftest import Ansible

VM_GPU = "gpuops.vsphere.vm_gpu"
ATTACH = {"name": "ml-07", "profile": "a100-3-20c"}


def task(name: str, module: str, options: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    return {"name": name, module: options, "register": name, "ignore_errors": True, **keywords}


def play(folder: Path) -> list[dict[str, Any]]:
    lab = {"ready_file": f"{folder}/sim/ready.json", "state_file": f"{folder}/sim/state"}
    answers = ["started", "foreseen", "changed", "unchanged", "seen", "refused", "running", "ambiguous", "wrong"]
    answers += ["sized", "sizes", "slow"]
    return [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "module_defaults": {
                "group/gpuops.vsphere.gpuops": {
                    "hostname": f"sim@{folder}/sim/ready.json",
                    "state_dir": f"{folder}/state",
                }
            },
            "tasks": [
                task("started", "gpuops.vsphere.sim_vcenter", lab),
                task("foreseen", VM_GPU, ATTACH, check_mode=True),
                task("changed", VM_GPU, ATTACH),
                task("unchanged", VM_GPU, ATTACH),
                task("seen", "gpuops.vsphere.vm_gpu_info", {"vm": "/lab-dc/vm/ml/ml-07"}),
                task("refused", VM_GPU, ATTACH | {"name": "legacy"}),
                task("running", VM_GPU, ATTACH | {"name": "vdi-01"}),
                task("ambiguous", VM_GPU, {"name": "twin", "state": "absent", "all": True}),
                task("wrong", VM_GPU, ATTACH | {"hostname": "127.0.0.1:1", "user": "u", "pwd": "Cn4ry&<e\"'>"}),
                task("sized", "gpuops.vsphere.gpu_sizing_info", {"busy": "20%", "profile": "a40-8q", "at_most": 1.2}),
                task("sizes", "gpuops.vsphere.gpu_sizing_info", {"busy": "20%", "vm": "vdi-*"}),
                task("slow", "gpuops.vsphere.gpu_diagnosis_info", {"vm": "vdi-05"}),
                task("stopped", "gpuops.vsphere.sim_vcenter", lab | {"state": "stopped"}),
                {
                    "name": "Tell",
                    "ansible.builtin.copy": {
                        "content": "{{ " + f"dict({answers}|zip([{', '.join(answers)}]))" + " | to_json }}",
                        "dest": f"{folder}/told.json",
                        "mode": "0600",
                    },
                },
            ],
        }
    ]


def without_run(result: dict[str, Any]) -> dict[str, Any]:
    """What a task returns, without the moment and what only a run has."""
    other_keys = {key: value for key, value in result.items() if key != "plan"}
    hidden = ("read_at", "applied", "outcomes")
    return other_keys | {"plan": {key: value for key, value in result["plan"].items() if key not in hidden}}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_play(ansible: Ansible, tmp_path: Path) -> None:
    book = tmp_path / "book.yml"
    book.write_text(yaml.safe_dump(play(tmp_path)), encoding="utf-8")
    playbook_run = ansible("playbook", book, "--diff", "-vvvv")
    answers = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))

    assert answers["started"]["changed"]
    assert answers["started"]["url"].startswith("https://127.0.0.1:")
    assert answers["foreseen"]["changed"]
    assert without_run(answers["foreseen"]) == without_run(answers["changed"])
    assert (answers["unchanged"]["changed"], answers["unchanged"]["diff"]) == (False, [])
    assert answers["seen"]["vms"] == [answers["changed"]["vm"]] == [answers["foreseen"]["vm"]]
    assert '+        "grid_a100-3-20c"' in playbook_run.stdout, "the diff shows what comes"

    assert (answers["refused"]["failed"], answers["refused"]["exit_code"]) == (True, 3)
    assert answers["refused"]["reasons"] == [answers["refused"]["msg"].removeprefix("refused, nothing changed: ")]
    assert answers["running"]["exit_code"] == 3
    assert "power: cycle stops it" in answers["running"]["msg"]
    assert "power: off leaves it off" in answers["running"]["reasons"][0]
    assert "--power" not in answers["running"]["msg"]
    assert answers["ambiguous"]["exit_code"] == 2
    assert "/lab-dc/vm/misc/a/twin" in answers["ambiguous"]["msg"]
    assert (answers["wrong"]["failed"], answers["wrong"]["exit_code"]) == (True, 5)
    assert answers["sized"]["sizing"]["recommended"]["sharers"] == 4
    assert answers["sizes"]["msg"].startswith("busy and vm exclude each other")
    assert answers["slow"]["exit_code"] == 2
    assert answers["slow"]["msg"].split(";")[0] == "less than half an hour of vdi-05 was measured in this period"
    assert "Cn4ry" not in playbook_run.stdout + playbook_run.stderr + json.dumps(answers), (
        "the password is in no output"
    )
    assert not (tmp_path / "sim" / "ready.json").exists(), "it was stopped"
    assert (tmp_path / "sim" / "state").exists(), "and kept its state"
