"""How an answer of gpuops, or an error, ends a module."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpuops.errors import GpuopsError, Locked, VmNotFound
from gpuops.model.vcenter.vm import PowerState
from gpuops.tasks.perform import TaskResult

DOOR = "ansible_collections.gpuops.vsphere.plugins.module_utils.door"


class Ended(Exception):
    """What ends the process of a module."""


@dataclass
class Module:
    """Stands in for AnsibleModule: keeps what the module returns."""

    failed: bool | None = None
    said: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    argument_spec: dict[str, Any] = field(default_factory=lambda: {"power": {"type": "str", "choices": ["cycle"]}})

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def exit_json(self, **fields: Any) -> None:
        self.failed, self.said = False, fields
        raise Ended

    def fail_json(self, **fields: Any) -> None:
        self.failed, self.said = True, fields
        raise Ended


@pytest.fixture
def door(collections: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(collections))
    yield importlib.import_module(DOOR)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ansible_collections"]:
        del sys.modules[name]


def module_after(door: ModuleType, ask: Callable[[Any], TaskResult]) -> Module:
    module = Module()
    with pytest.raises(Ended):
        door.finish(module, ask)
    return module


def test_what_went_well_is_plain_text_with_its_warnings(door: ModuleType) -> None:
    answer = TaskResult({"changed": True, "power": PowerState.ON}, warnings=("mind this",))
    module = module_after(door, lambda _: answer)
    assert (module.failed, module.said, module.warnings) == (
        False,
        {"changed": True, "power": "poweredOn"},
        ["mind this"],
    )
    assert type(module.said["power"]) is str


def test_what_was_partly_done_fails_and_is_told_all_the_same(door: ModuleType) -> None:
    answer = TaskResult({"changed": True, "diff": [], "reasons": ["A"]}, 4, "partly done: A")
    module = module_after(door, lambda _: answer)
    assert module.failed
    assert module.said == {"msg": "partly done: A", "exit_code": 4, "changed": True, "diff": [], "reasons": ["A"]}


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (VmNotFound("ml-70", hint="look"), 2, "no VM 'ml-70' in this vCenter; look"),
        (Locked("another run holds the lock"), 6, "another run holds the lock"),
    ],
)
def test_an_error_is_one_line_with_the_next_move(door: ModuleType, error: GpuopsError, code: int, line: str) -> None:
    def ask(_: Any) -> TaskResult:
        raise error

    module = module_after(door, ask)
    assert module.failed
    assert module.said == {"msg": line, "hint": error.hint, "reasons": [error.message], "exit_code": code}


def test_what_is_told_has_the_words_of_the_module(door: ModuleType) -> None:
    reason = "it runs; next: --power cycle"
    answer = TaskResult({"reasons": [reason], "because": [reason], "plan": {"line": reason}}, 3, reason, (reason,))
    module = module_after(door, lambda _: answer)
    line = "it runs; next: power: cycle"
    assert module.said["msg"] == line
    assert module.said["reasons"] == module.said["because"] == module.warnings == [line]
    assert module.said["plan"] == {"line": reason}, "the document of the command line"


def test_the_hint_of_an_error_has_the_words_of_the_module(door: ModuleType) -> None:
    def ask(_: Any) -> TaskResult:
        raise GpuopsError("--power is missing", hint="say --power cycle")

    module = module_after(door, ask)
    assert (module.said["msg"], module.said["hint"]) == ("power is missing; say power: cycle", "say power: cycle")


def test_an_alias_is_no_argument_of_a_task(door: ModuleType) -> None:
    vm = {"options": {"vm": {"aliases": ["name"]}, "host": {}}}
    vm_options = {"vm": "ml-07", "name": "ml-07", "host": None}
    arguments = {"user": {"aliases": ["admin"]}, "vms": vm, "clone": vm, "other": vm}
    params = {"user": "u", "admin": "u", "vms": [vm_options], "clone": vm_options, "other": None}
    without_alias = {"vm": "ml-07", "host": None}
    assert door.without_aliases(arguments, params) == {
        "user": "u",
        "vms": [without_alias],
        "clone": without_alias,
        "other": None,
    }


def test_without_gpuops_the_missing_package_is_named(door: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpuops.errors", None)
    module = module_after(door, lambda _: TaskResult({}))
    assert module.failed
    assert "(gpuops-vsphere)" in module.said["msg"]


def test_a_crash_of_a_module_leaves_no_core(collections: Path) -> None:
    """The process holds the password from its first line on."""
    code = (
        "import importlib, resource, sys; door = importlib.import_module(sys.argv[1]);"
        " resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]));"
        " door.finish(None, lambda module: (print(resource.getrlimit(resource.RLIMIT_CORE)), sys.exit()))"
    )
    environ = {**os.environ, "PYTHONPATH": f"{collections}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")}
    command = [sys.executable, "-c", code, DOOR]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, env=environ)
    assert process.stdout == "(0, 0)\n"
