"""A password is nowhere: not in what Ansible prints at -vvvv, not in facts it caches, not in what callbacks are given.

Every module that connects runs twice: with a good login, and against an address that does not answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuops.sim.server import start
from tests.ansible.conftest import COLLECTION, ROOT, Ansible

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CANARY = "Cn4ry&<e\"'>%s"
JOURNAL = "J0urn4l-c4nary"
POLICY = str(ROOT / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml")
SIZED = {"vcpu": 1, "memory": "1GiB"}
OPTIONS: dict[str, dict[str, Any]] = {
    "gpu_capacity_info": {},
    "gpu_diagnosis_info": {},
    "gpu_placement": {"requests": [{"name": "x", "profile": "a100-3-20c", **SIZED}]},
    "gpu_cluster": {"name": "train", "state": "absent"},
    "gpu_cluster_info": {},
    "gpu_job": {"name": "train", "state": "cancelled"},
    "gpu_job_info": {},
    "gpu_readiness_info": {},
    "gpu_site": {"content": {"version": 1, "vms": [{"vm": "ml-07", "devices": {"profile": "a100-3-20c"}}]}},
    "gpu_sizing_info": {"vm": "vdi-*"},
    "guest_gpu_info": {"vm": "ml-07"},
    "host_gpu_info": {},
    "host_gpu_scheduler": {"scheduler": "equal-share", "host": "esx-01.lab", "gpu": ["0000:d8:00.0"]},
    "host_graphics_mode": {"assignment": "performance", "host": "esx-02.lab"},
    "host_passthrough": {"state": "disabled", "gpu": ["0000:d8:00.0"], "host": "esx-02.lab"},
    "rotation": {"state": "night", "policy": POLICY},
    "rotation_info": {"policy": POLICY},
    "rotation_timers_info": {"policy": POLICY},
    "vm_clone": {"vm": "ml-10", "template": "golden"},
    "vm_gpu": {"vm": "ml-07", "profile": "a100-3-20c"},
    "vm_gpu_info": {"vm": "ml-07"},
    "vm_gpus": {"vms": [{"vm": "ml-07", "profile": "a100-3-20c"}]},
}
ASKS_NO_VCENTER = "rotation_timers_info"
REFUSED = {
    "gpu_diagnosis_info": 2, "gpu_job": 2, "gpu_sizing_info": 2, "guest_gpu_info": 3,
    ASKS_NO_VCENTER: 2,
}  # fmt: skip
"""Exit codes where the login is good: no history, no job, no login for guests, no windows for timers."""
CALLBACK = """
import json, os
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "everything"

    def _keep(self, result, **_):
        with open(os.environ["EVERYTHING"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"task": result._task.name, "result": result._result}, default=str) + "\\n")

    v2_runner_on_ok = v2_runner_on_failed = _keep
"""


def test_every_module_is_among_them() -> None:
    runtime = yaml.safe_load((COLLECTION / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    assert sorted(OPTIONS) == runtime["action_groups"]["gpuops"]


@dataclass(frozen=True)
class Sweep:
    """Run a play with every module; return everything that Ansible wrote."""

    places: Mapping[str, str]
    """What is written where, by the name of the place."""
    secrets: tuple[str, ...]
    results: Mapping[str, Mapping[str, Any]]
    """What each task of a module returned, by its name."""


def sweep(ansible: Ansible, folder: Path, **settings: str) -> Sweep:
    """Every module once, with all that Ansible can keep of a task switched on."""
    plugins, reports = folder / "callbacks", folder / "reports"
    plugins.mkdir()
    (plugins / "everything.py").write_text(CALLBACK, encoding="utf-8")
    book, everything, ready = folder / "book.yml", folder / "everything.jsonl", folder / "sim" / "ready.json"
    with start("lab", clock="stepped") as server:
        good = {
            "hostname": "127.0.0.1", "port": server.port, "username": server.username, "password": server.password,
            "ca_file": server.ca_file, "state_dir": str(folder / "state"),
        }  # fmt: skip
        journal = f"postgresql://gpuops:{JOURNAL}@127.0.0.1:1/gpuops"
        bad = {**good, "port": 1, "journal_url": _of_environment("JOURNAL")}
        book.write_text(yaml.safe_dump(play(good, bad, str(ready))), encoding="utf-8")
        variables = settings | {
            "ANSIBLE_CALLBACK_PLUGINS": str(plugins), "EVERYTHING": str(everything), "ANSIBLE_CACHE_PLUGIN": "jsonfile",
            "ANSIBLE_CALLBACKS_ENABLED": "everything,ansible.builtin.tree,ansible.builtin.junit",
            "ANSIBLE_CALLBACK_TREE_DIR": str(reports / "tree"), "JUNIT_OUTPUT_DIR": str(reports / "junit"),
            "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(reports / "cache"), "ANSIBLE_LOG_PATH": str(reports / "log"),
            "PASSWORD": CANARY, "GOOD": server.password, "JOURNAL": journal,
        }  # fmt: skip
        reports.mkdir()
        playbook_run = ansible("playbook", book, "--check", "--diff", "-vvvv", **variables)
        served = json.loads(ready.read_text(encoding="utf-8"))
        ansible("playbook", "playbooks/sim_stop.yml", "-e", f"gpuops_sim_dir={ready.parent}")
        secrets = (server.password, served["password"], "Cn4ry", JOURNAL)
    written_files = [everything, *(path for path in reports.rglob("*") if path.is_file())]
    lines = [json.loads(line) for line in everything.read_text(encoding="utf-8").splitlines()]
    return Sweep(
        {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in written_files}
        | {"stdout": playbook_run.stdout, "stderr": playbook_run.stderr},
        secrets,
        {line["task"]: line["result"] for line in lines if line["task"].startswith("gpuops")},
    )


@pytest.fixture(scope="module")
def swept(ansible: Ansible, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return sweep(ansible, tmp_path_factory.mktemp("sweep"))


def test_a_password_is_nowhere(swept: Sweep) -> None:
    ended = {task: result.get("exit_code", 0) for task, result in swept.results.items()}
    assert ended == {"gpuops sim_vcenter good": 0} | {
        f"gpuops {name} {how}": 5 if how == "bad" and name != ASKS_NO_VCENTER else REFUSED.get(name, 0)
        for name in OPTIONS
        for how in ("good", "bad")
    }
    for place in ("everything.jsonl", "reports/log", "reports/tree/", "reports/cache/", "reports/junit/", "stdout"):
        written = [text for name, text in swept.places.items() if name.startswith(place)]
        assert "gpu" in "".join(written), f"{place} was written"
    for place, text in swept.places.items():
        assert [secret for secret in swept.secrets if secret in text] == [], place


OF_ANSIBLE = {"changed", "failed", "msg", "invocation", "warnings", "exception", "diff"}


def test_a_module_returns_what_it_documents(ansible: Ansible, swept: Sweep) -> None:
    names = [f"gpuops.vsphere.{name}" for name in (*OPTIONS, "sim_vcenter")]
    documented = json.loads(ansible("doc", "--json", "-t", "module", *names).stdout)
    for task, result in swept.results.items():
        name = task.split()[1]
        keys = {key for key in result if not key.startswith("_")} - OF_ANSIBLE
        assert keys <= set(documented[f"gpuops.vsphere.{name}"]["return"]), name
        assert keys or name == "sim_vcenter"


def _of_environment(name: str) -> str:
    return f"{{{{ lookup('ansible.builtin.env', '{name}') }}}}"


def play(good: dict[str, Any], bad: dict[str, Any], ready: str) -> list[dict[str, Any]]:
    """Secrets come from the environment, as from a vault: what a playbook itself says, Ansible repeats (junit does)."""
    started = {"gpuops.vsphere.sim_vcenter": {"ready_file": ready}, "check_mode": False}
    tasks: list[dict[str, Any]] = [{"name": "gpuops sim_vcenter good", **started}]
    for name, options in OPTIONS.items():
        for how, login, variable in (("good", good, "GOOD"), ("bad", bad, "PASSWORD")):
            secret = {"password": _of_environment(variable)}
            register = f"told_{name}_{how}"
            module = {f"gpuops.vsphere.{name}": {**login, **secret, **options}}
            tasks.append({"name": f"gpuops {name} {how}", **module, "register": register, "ignore_errors": True})
            facts = {register: f"{{{{ {register} }}}}", "cacheable": True}
            tasks.append({"name": "kept", "ansible.builtin.set_fact": facts})
    return [{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]
