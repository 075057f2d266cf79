"""Modules say what gpuops has, no more and no less: arguments, documentation and requests cannot drift apart."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml

import gpuops
from gpuops.config.decoding import keys_of
from gpuops.config.requests_file import RequestEntry
from gpuops.model.devices.gpu import AssignmentPolicy
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.host_settings import Displacement, Rolling, SharedType, SizeMode, VsanMode
from gpuops.plan.capacity.question import CapacityRequest
from gpuops.plan.capacity.sizing import SizeRequest
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.scheduler.change import SetScheduler
from gpuops.plan.placement.suspended_vms import SuspendedPolicy
from gpuops.plan.placement.wanted import PinPolicy
from gpuops.plan.queue.place import Place
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.clone import Clone
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.power import MoveMode, PowerPolicy
from gpuops.tasks.connection import ConnectionArguments, HostShellArguments
from gpuops.tasks.hosts import OPTIONS as ROLLING
from gpuops.tasks.rotation import State
from tests.ansible.conftest import COLLECTION, ROOT, Ansible

NAMES = sorted(path.stem for path in (COLLECTION / "plugins" / "modules").glob("*.py"))
CONNECTION = {field.name for field in fields(ConnectionArguments)}
SHELL = {field.name for field in fields(HostShellArguments)}
VM = {"vm", "moid", "uuid"}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ModuleType]]:
    """Each module, imported as Ansible would: `gpuops/` itself must not become a place to import from."""
    place = tmp_path_factory.mktemp("collections")
    (place / "ansible_collections").symlink_to(ROOT / "gpuops" / "ansible_collections")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        yield {
            name: importlib.import_module(f"ansible_collections.gpuops.vsphere.plugins.modules.{name}")
            for name in NAMES
        }
    for name in [name for name in sys.modules if name.partition(".")[0] == "ansible_collections"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def documented(ansible: Ansible) -> dict[str, Any]:
    """What ansible-doc renders, by module."""
    found = json.loads(ansible("doc", "--json", "-t", "module", *(f"gpuops.vsphere.{name}" for name in NAMES)).stdout)
    return {name.rpartition(".")[2]: found[name] for name in found}


def spec(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The argument_spec that the module's main() hands to Ansible."""

    class Told(Exception):
        pass

    handed: dict[str, Any] = {}

    def take(**given: Any) -> None:
        handed.update(given)
        raise Told

    door = sys.modules["ansible_collections.gpuops.vsphere.plugins.module_utils.door"]  # of those that read
    for place in (module, door):
        monkeypatch.setattr(place, "AnsibleModule", take, raising=False)
    with pytest.raises(Told):
        module.main()
    assert handed["supports_check_mode"] is True
    found: dict[str, Any] = handed["argument_spec"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_what_is_documented(
    name: str, modules: dict[str, ModuleType], documented: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(spec(modules[name], monkeypatch), documented[name]["doc"]["options"])


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
    found = documented[name]
    assert {"reasons", "exit_code"} <= set(found["return"])
    for task in yaml.safe_load(found["examples"]):
        used = [key for key in task if key.startswith("gpuops.vsphere.")]
        options = documented[used[0].rpartition(".")[2]]["doc"]["options"] if used else {}
        names = {*options, *(alias for option in options.values() for alias in option.get("aliases", []))}
        assert not used or set(task[used[0]] or {}) <= names, task


def test_every_secret_is_kept_out_of_logs(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in modules.items():
        arguments = spec(module, monkeypatch)
        hidden = {each for each, argument in arguments.items() if argument.get("no_log")}
        assert hidden == ({"password", "journal_url"} if "hostname" in arguments else set()), name
    assert {field.name for field in fields(ConnectionArguments) if not field.repr} == {"password", "journal_url"}


def test_arguments_of_vm_gpu_are_the_fields_of_the_requests(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = spec(modules["vm_gpu"], monkeypatch)
    requests = {field.name for request in (Attach, Detach) for field in fields(request)}
    assert set(arguments) - CONNECTION - SHELL - VM - {"state", "after_clone"} == requests - {"vm"}
    cloned = spec(modules["vm_clone"], monkeypatch)
    assert arguments["after_clone"]["options"] == {name: cloned[name] for name in set(cloned) - CONNECTION}
    words = {"move": MoveMode, "pin": PinPolicy, "numa": NumaPolicy, "power": PowerPolicy}
    assert {name: arguments[name]["choices"] for name in words} == {name: list(kind) for name, kind in words.items()}


def test_each_vm_of_vm_gpus_has_the_arguments_of_vm_gpu(
    modules: dict[str, ModuleType], documented: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, each = spec(modules["vm_gpu"], monkeypatch), spec(modules["vm_gpus"], monkeypatch)["vms"]["options"]
    assert {name: one[name] for name in one.keys() - CONNECTION - SHELL - {"after_clone"}} == each
    said, repeated = (documented[name]["doc"]["options"] for name in ("vm_gpu", "vm_gpus"))
    for name, option in repeated["vms"]["suboptions"].items():
        if name != "vm":
            assert [line.replace("vms[].", "") for line in option["description"]] == said[name]["description"], name


def test_arguments_of_gpu_placement_are_the_fields_of_its_request(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = spec(modules["gpu_placement"], monkeypatch)
    fields_of_place = {each.name for each in fields(Place)} - {"workloads"}
    assert set(arguments) - CONNECTION - SHELL - {"requests", "file", "mig_layout"} == fields_of_place
    assert set(arguments["requests"]["options"]) == set(keys_of(RequestEntry))
    assert arguments["suspended"]["choices"] == list(SuspendedPolicy)
    assert arguments["pin"]["choices"] == list(PinPolicy)


@pytest.mark.parametrize(
    ("name", "request_type", "words"),
    [
        ("host_gpu_scheduler", SetScheduler, {"scheduler": SchedulerPolicy}),
        (
            "host_graphics_mode",
            SetMode,
            {"default_type": SharedType, "type": SharedType, "vgpu_mode": SizeMode, "assignment": AssignmentPolicy},
        ),
        ("host_passthrough", SetPassthrough, {}),
    ],
)
def test_arguments_of_host_modules_are_the_fields_of_their_requests(
    name: str,
    request_type: type[Any],
    words: dict[str, type[StrEnum]],
    modules: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = spec(modules[name], monkeypatch)
    rebooting = {field.name for field in fields(Rolling)} | {"reboot"}
    assert set(ROLLING) == rebooting
    assert set(arguments) - CONNECTION - rebooting - {"state"} == {field.name for field in fields(request_type)} - {
        "on"
    }
    words = words | {"vms": Displacement, "vsan_mode": VsanMode}
    assert {word: arguments[word]["choices"] for word in words} == {word: list(kind) for word, kind in words.items()}


def argument_of(hint: Any) -> dict[str, Any]:
    """What Ansible is to be told of a request's field: its type, and the words that may be said."""
    if get_origin(hint) is tuple:
        return {"type": "list", "elements": "str", "choices": None}
    (kind,) = (each for each in get_args(hint) or (hint,) if each is not NoneType)
    if issubclass(kind, StrEnum):
        return {"type": "str", "elements": None, "choices": list(kind)}
    return {"type": {str: "str", int: "int", bool: "bool", float: "float"}[kind], "elements": None, "choices": None}


@pytest.mark.parametrize(
    ("name", "request_type"),
    [
        ("vm_gpu", Attach),
        ("vm_gpu", Detach),
        ("host_gpu_scheduler", SetScheduler),
        ("host_graphics_mode", SetMode),
        ("host_passthrough", SetPassthrough),
        ("gpu_capacity_info", CapacityRequest),
        ("gpu_sizing_info", SizeRequest),
        ("gpu_placement", Place),
    ],
)
def test_an_argument_has_the_type_and_the_words_of_its_field(
    name: str, request_type: type[Any], modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, hints = spec(modules[name], monkeypatch), get_type_hints(request_type)
    elsewhere = {"on", "workloads"}  # `state`, and `requests` or `file`
    for field in fields(request_type):
        if field.name not in elsewhere:
            argument = arguments[field.name]
            assert {key: argument.get(key) for key in ("type", "elements", "choices")} == argument_of(hints[field.name])


def test_arguments_of_vm_clone_are_the_fields_of_its_request(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = {field.name for field in fields(Clone)} - {"memory_mib"} | {"memory"}
    assert set(spec(modules["vm_clone"], monkeypatch)) - CONNECTION == requested


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
    asked = {question["variable"] for question in survey["spec"] if question["required"]}
    assert asked >= required
    for question in survey["spec"]:
        assert question["variable"] in options
        assert isinstance(question["default"], kinds[question["type"]])
        if question["type"] == "multiplechoice":
            assert question["choices"] == list(NumaPolicy)
            assert question["default"] in question["choices"]


def test_states_of_rotation(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    assert spec(modules["rotation"], monkeypatch)["state"]["choices"] == list(State)


def test_the_action_group_holds_every_module_that_connects(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = yaml.safe_load((COLLECTION / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    connecting = [name for name, module in modules.items() if set(spec(module, monkeypatch)) >= CONNECTION]
    assert runtime["action_groups"] == {"gpuops": connecting}


def test_the_collection_has_the_version_of_the_package() -> None:
    galaxy = yaml.safe_load((COLLECTION / "galaxy.yml").read_text(encoding="utf-8"))
    assert galaxy["version"] == gpuops.__version__


def test_modules_know_nothing_of_gpuops_but_its_tasks_and_errors() -> None:
    allowed = ("__future__", "json", "traceback", "ansible", "ansible_collections.gpuops.vsphere", "gpuops.tasks")
    for path in COLLECTION.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert any(f"{name}.".startswith(f"{each}.") for each in (*allowed, "gpuops.errors")), (path.name, name)


def test_no_init_file_makes_the_collection_a_package() -> None:
    assert list((ROOT / "gpuops" / "ansible_collections").rglob("__init__.py")) == []


def test_every_name_in_the_readme_is_a_module() -> None:
    text = Path(COLLECTION / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| `{name}` |" not in text] == []


def test_the_lists_of_ansible_test_name_the_licence_of_every_module() -> None:
    modules = {f"plugins/modules/{path.name}" for path in (COLLECTION / "plugins" / "modules").glob("*.py")}
    lists = sorted((COLLECTION / "tests" / "sanity").glob("ignore-*.txt"))
    assert lists
    for each in lists:
        lines = each.read_text(encoding="utf-8").splitlines()
        assert modules <= {line.split()[0] for line in lines if "missing-gplv3-license" in line}, each.name
