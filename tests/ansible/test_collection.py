"""Modules say what gpuops has, no more and no less: arguments, documentation and requests cannot drift apart."""

from __future__ import annotations

import ast
import importlib
import json
import runpy
import sys
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpuops
from gpuops.config.decoding import keys_of
from gpuops.config.requests_file import RequestEntry
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.host_settings import Displacement, Rolling, VsanMode
from gpuops.plan.vm.clone import Clone
from gpuops.tasks.changes import OPTIONS as ROLLING
from gpuops.tasks.night_tasks import State
from gpuops.tasks.perform import task_of
from gpuops.tasks.task_connection import ConnectionArguments, HostShellArguments
from tests.ansible.conftest import COLLECTION, ROOT, Ansible
from tests.ansible.generate import REQUESTS, generate

NAMES = sorted(path.stem for path in (COLLECTION / "plugins" / "modules").glob("*.py"))
CONNECTION = {field.name for field in fields(ConnectionArguments)}
SHELL = {field.name for field in fields(HostShellArguments)}
OPTIONS = {
    "sim_vcenter": {"scenario", "port", "seed"},
    "vm_clone": {field.name for field in fields(Clone)} | {"memory"},
}
"""What tasks take as `options` beside the fields of the requests that options are generated from."""

Specs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def modules(collections: Path) -> Iterator[Specs]:
    """The argument spec that each module hands to Ansible, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(collections))
        door = importlib.import_module("ansible_collections.gpuops.vsphere.plugins.module_utils.door")
        handed: list[dict[str, Any]] = []
        patch.setattr(door, "AnsibleModule", lambda **rules: handed.append(rules))
        patch.setattr(door, "finish", lambda module, ask: None)
        for name in NAMES:
            runpy.run_module(f"ansible_collections.gpuops.vsphere.plugins.modules.{name}", run_name="__main__")
        assert all(rules["supports_check_mode"] is True for rules in handed)
        yield {name: rules["argument_spec"] for name, rules in zip(NAMES, handed, strict=True)}
    for name in [name for name in sys.modules if name.partition(".")[0] == "ansible_collections"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def documented(ansible: Ansible) -> dict[str, Any]:
    """What ansible-doc renders, by module."""
    documents = json.loads(
        ansible("doc", "--json", "-t", "module", *(f"gpuops.vsphere.{name}" for name in NAMES)).stdout
    )
    return {name.rpartition(".")[2]: documents[name] for name in documents}


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_what_is_documented(name: str, modules: Specs, documented: dict[str, Any]) -> None:
    compare(modules[name], documented[name]["doc"]["options"])


def test_what_is_generated_is_current() -> None:
    stale = [path.name for path, text in generate().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "make generate"


@pytest.mark.parametrize("name", NAMES)
def test_the_task_of_a_module_takes_its_arguments(name: str, modules: Specs) -> None:
    arguments = set(modules[name])
    groups = {"hostname": CONNECTION, "host_shell": SHELL, "moid": {"moid", "uuid"}, "reboot": set(ROLLING)}
    grouped = set().union(*(group for argument, group in groups.items() if argument in arguments))
    parameters = set(signature(task_of(name)).parameters) - {"_", "connection", "site", "shell", "apply", "options"}
    options = {field.name for request in REQUESTS.get(name, ()) for field in fields(request)} | OPTIONS.get(name, set())
    assert parameters <= arguments
    assert arguments - grouped - parameters <= options
    assert options - {"on", "workloads", "memory_mib"} <= arguments


def compare(arguments: dict[str, Any], options: dict[str, Any]) -> None:
    assert set(arguments) == set(options)
    for name, argument in arguments.items():
        option = options[name]
        same = ("type", "elements", "choices", "default")
        assert {key: argument.get(key) for key in same} == {key: option.get(key) for key in same}, name
        assert argument.get("required", False) == option.get("required", False), name
        assert argument.get("aliases", []) == option.get("aliases", []), name
        compare(argument.get("options", {}), option.get("suboptions", {}))


@pytest.mark.parametrize("name", NAMES)
def test_every_module_has_examples_and_tells_what_it_returns(name: str, documented: dict[str, Any]) -> None:
    document = documented[name]
    assert {"reasons", "exit_code"} <= set(document["return"])
    for task in yaml.safe_load(document["examples"]):
        used = [key for key in task if key.startswith("gpuops.vsphere.")]
        options = documented[used[0].rpartition(".")[2]]["doc"]["options"] if used else {}
        names = {*options, *(alias for option in options.values() for alias in option.get("aliases", []))}
        assert not used or set(task[used[0]] or {}) <= names, task


def test_every_secret_is_kept_out_of_logs(modules: Specs) -> None:
    for name, arguments in modules.items():
        hidden = {option for option, argument in arguments.items() if argument.get("no_log")}
        assert hidden == ({"password", "journal_url"} if "hostname" in arguments else set()), name
    assert {field.name for field in fields(ConnectionArguments) if not field.repr} == {"password", "journal_url"}


def test_requests_of_gpu_placement_are_those_of_a_file(modules: Specs) -> None:
    assert set(modules["gpu_placement"]["requests"]["options"]) == set(keys_of(RequestEntry))


def test_arguments_of_a_rolling_reboot_are_its_fields(modules: Specs) -> None:
    assert set(ROLLING) == {field.name for field in fields(Rolling)} | {"reboot"}
    arguments = modules["host_gpu_scheduler"]
    assert arguments["vms"]["choices"] == list(Displacement)
    assert arguments["vsan_mode"]["choices"] == list(VsanMode)


def test_the_survey_asks_for_what_the_role_takes() -> None:
    survey = json.loads((ROOT / "templates" / "awx_survey.json").read_text(encoding="utf-8"))
    role = COLLECTION / "roles" / "new_vm"
    takes = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    options = takes["argument_specs"]["main"]["options"]
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text(encoding="utf-8"))
    required = {name for name, option in options.items() if option.get("required")}
    assert set(defaults) == set(options) - required
    kinds = {"text": str, "integer": int, "multiplechoice": str}
    assert set(survey) == {"name", "description", "spec"}
    required_answers = {question["variable"] for question in survey["spec"] if question["required"]}
    assert required_answers >= required
    for question in survey["spec"]:
        assert question["variable"] in options
        assert isinstance(question["default"], kinds[question["type"]])
        if question["type"] == "multiplechoice":
            assert question["choices"] == list(NumaPolicy)
            assert question["default"] in question["choices"]


def test_states_of_rotation(modules: Specs) -> None:
    assert modules["rotation"]["state"]["choices"] == list(State)


def test_the_action_group_holds_every_module_that_connects(modules: Specs) -> None:
    runtime = yaml.safe_load((COLLECTION / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    connecting = [name for name, arguments in modules.items() if set(arguments) >= CONNECTION]
    assert runtime["action_groups"] == {"gpuops": connecting}


def test_the_collection_has_the_version_of_the_package() -> None:
    galaxy = yaml.safe_load((COLLECTION / "galaxy.yml").read_text(encoding="utf-8"))
    assert galaxy["version"] == gpuops.__version__


def test_modules_know_nothing_of_gpuops_but_its_tasks_and_errors() -> None:
    allowed = ("__future__", "json", "traceback", "ansible", "ansible_collections.gpuops.vsphere", "gpuops.tasks")
    for path in COLLECTION.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert any(f"{name}.".startswith(f"{package}.") for package in (*allowed, "gpuops.errors")), (
                    path.name,
                    name,
                )


def test_no_init_file_makes_the_collection_a_package() -> None:
    assert list((ROOT / "gpuops" / "ansible_collections").rglob("__init__.py")) == []


def test_every_name_in_the_readme_is_a_module() -> None:
    text = Path(COLLECTION / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| `{name}` |" not in text] == []
