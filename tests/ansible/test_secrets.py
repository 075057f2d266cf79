"""A password is nowhere: not in what Ansible prints at -vvvv, not in facts it caches, not in what callbacks are given.

Every module that connects is asked twice: where the login is good, and where nobody answers.
"""

from __future__ import annotations

import json
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
    "gpu_placement": {"requests": [{"name": "x", "profile": "a100-3-20c", **SIZED}]},
    "host_gpu_info": {},
    "host_gpu_scheduler": {"policy": "equal-share", "host": "esx-01.lab", "gpu": ["0000:d8:00.0"]},
    "host_graphics_mode": {"assignment": "performance", "host": "esx-02.lab"},
    "host_passthrough": {"state": "disabled", "device": ["0000:d8:00.0"], "host": "esx-02.lab"},
    "rotation": {"state": "night", "policy": POLICY},
    "rotation_info": {"policy": POLICY},
    "vm_clone": {"vm": "ml-10", "template": "golden"},
    "vm_gpu": {"vm": "ml-07", "profile": "a100-3-20c"},
    "vm_gpu_info": {"vm": "ml-07"},
    "vm_gpus": {"vms": [{"vm": "ml-07", "profile": "a100-3-20c"}]},
}
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


def test_a_password_is_nowhere(ansible: Ansible, tmp_path: Path) -> None:
    plugins = tmp_path / "callbacks"
    plugins.mkdir()
    (plugins / "everything.py").write_text(CALLBACK, encoding="utf-8")
    book, everything, cache = tmp_path / "book.yml", tmp_path / "everything.jsonl", tmp_path / "cache"
    with start("lab") as server:
        good = {
            "hostname": "127.0.0.1", "port": server.port, "username": server.username, "password": server.password,
            "ca_file": server.ca_file, "state_dir": str(tmp_path / "state"),
        }  # fmt: skip
        journal = f"postgresql://gpuops:{JOURNAL}@127.0.0.1:1/gpuops"
        bad = {**good, "port": 1, "password": CANARY, "journal_url": journal}
        book.write_text(yaml.safe_dump(play(good, bad)), encoding="utf-8")
        settings = {
            "ANSIBLE_CALLBACK_PLUGINS": str(plugins), "ANSIBLE_CALLBACKS_ENABLED": "everything",
            "EVERYTHING": str(everything), "ANSIBLE_CACHE_PLUGIN": "jsonfile",
            "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(cache), "PASSWORD": CANARY, "GOOD": server.password,
        }  # fmt: skip
        shown = ansible("playbook", book, "--check", "--diff", "-vvvv", **settings)
        password = server.password
    told = [json.loads(line) for line in everything.read_text(encoding="utf-8").splitlines()]
    ended = {each["task"]: each["result"].get("exit_code", 0) for each in told if each["task"].startswith("gpuops")}
    assert ended == {f"gpuops {name} {how}": 5 * (how == "bad") for name in OPTIONS for how in ("good", "bad")}
    (cached,) = cache.iterdir()
    for place in (shown.stdout, shown.stderr, everything.read_text("utf-8"), cached.read_text("utf-8")):
        assert len(place) > 0 or place is shown.stderr
        for secret in (password, "Cn4ry", JOURNAL):
            assert secret not in place


def play(good: dict[str, Any], bad: dict[str, Any]) -> list[dict[str, Any]]:
    """Passwords come from the environment, as from a vault: what the playbook itself says is no output of ours."""
    tasks: list[dict[str, Any]] = []
    for name, options in OPTIONS.items():
        for how, login, variable in (("good", good, "GOOD"), ("bad", bad, "PASSWORD")):
            secret = {"password": f"{{{{ lookup('ansible.builtin.env', '{variable}') }}}}"}
            told = f"told_{name}_{how}"
            module = {f"gpuops.vsphere.{name}": {**login, **secret, **options}}
            tasks.append({"name": f"gpuops {name} {how}", **module, "register": told, "ignore_errors": True})
            kept = {told: f"{{{{ {told} }}}}", "cacheable": True}
            tasks.append({"name": "kept", "ansible.builtin.set_fact": kept})
    return [{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]
