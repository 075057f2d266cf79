"""`make core`: run the tests of the core in a copy of the sources from which `gpuops/extras` was removed.

python -m tests.without_extras [ARGUMENT OF pytest ...]

The copy has a virtual environment of its own, whose packages are those of this one: a process that a test starts finds
no extra either. Where there is no `gpuops/extras`, this module is a plugin that leaves the tests of extras out. A test
is one of an extra if its file, its function or one of its fixtures imports the extra, itself or through `tests/`, if a
parameter of it names a file or a module of the extra, or if it stands in `OF_EXTRAS`. All other tests must pass.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
EXTRAS: Final = "gpuops/extras"
PACKAGE: Final = "gpuops.extras"
HAS_EXTRAS: Final = (ROOT / EXTRAS).exists()
FEWEST: Final = 14_500
"""The core has at least so many tests, with those of `make long` and `make peers`: 15,110 in November 2026."""
OF_EXTRAS: Final[Mapping[str, Sequence[str]]] = {
    "types a command or an option of an extra, or reads a file of one": (
        "cli/advice/test_layout_questions.py",
        "cli/advice/test_size_measure.py",
        "cli/first_steps/test_bundle.py",
        "cli/first_steps/test_explain.py::.*(pool|cluster)",
        "cli/first_steps/test_first_contact.py::.*in_the_bundle",
        "cli/first_steps/test_schema.py::.*(jobs|pool|remote|site-site)",
        "cli/first_steps/test_template.py::test_units_.*(serve|runner|observe|metrics)",
        "cli/hosts/test_site.py",
        "cli/monitoring/test_diagnose_scenarios.py",
        "cli/sites/",
        "cli/test_bad_input.py::.*\\[(metrics|size|top|what-if)\\b",
        "cli/test_read_only.py::.*job plan",
        "cli/workloads/",
        "config/test_hostile_files.py::.*jobs",
        "recorded/test_recorded_states.py::.*books",
    ),
    "compares a table with gpuops as a whole": (
        "cli/first_steps/test_help.py::test_every_option_a_page",
        "cli/first_steps/test_option_table.py::test_an_option_whose",
        "cli/test_canary.py::test_(every_command|no_error_shows)",
        "execute/journal/test_stored_words.py::test_the_runs_of_a_request",
        "model/test_stored.py::test_the_table",
        "mutants/test_mutants.py::test_a_mutant_is_of",
        "report/test_schema.py::test_the_manual_lists.*kinds",
        "test_docs.py",
        "test_extras.py",
        "test_guide.py::test_every_path.*CONTRIBUTING",
        "test_sample.py::test_(every_command|a_test_of_the_table)",
        "threats/test_threats.py::test_a_removal_is_of",
    ),
}
"""Tests that need an extra and import none, by what they do: patterns of their ids below `tests/`."""


def main(arguments: list[str]) -> int:
    """Return pytest's exit code for the core's tests, which it runs in the copy."""
    with tempfile.TemporaryDirectory(prefix="gpuops-core-") as folder:
        copy = Path(folder) / "gpuops"
        copy_sources(copy)
        python = make_environment(copy)
        environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return subprocess.run([python, "-m", "pytest", *arguments], cwd=copy, env=environ, check=False).returncode


def copy_sources(copy: Path) -> None:
    """Copy the files that git has or would take, without the extras."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout.split("\0")
    for name in names:
        if name and not name.startswith(f"{EXTRAS}/") and (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    for git in (["init", "--quiet"], ["add", "--all"]):  # some tests ask git for the files of the project
        subprocess.run(["git", *git], cwd=copy, check=True)


def make_environment(copy: Path) -> Path:
    """Make a virtual environment that finds the copy and the packages of this one; return its Python."""
    venv.create(copy / ".venv", symlinks=True)
    programs, packages = copy / ".venv" / "bin", Path(sysconfig.get_path("purelib"))
    # The files *.pth of a folder that is named by a *.pth are not read: that is how this environment finds gpuops.
    found_at = Path(sysconfig.get_path("purelib", vars={"base": str(copy / ".venv")}))
    (found_at / "core.pth").write_text(f"{copy}\n{packages}\n", encoding="utf-8")
    for program in Path(sysconfig.get_path("scripts")).iterdir():
        if not (programs / program.name).exists():
            shutil.copy2(program, programs / program.name)
            content = program.read_bytes()
            if content.startswith(b"#!"):
                content_here = content.replace(os.fsencode(program.parent), os.fsencode(programs))
                (programs / program.name).write_bytes(content_here)
    return programs / "python"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out a file that imports an extra, and a folder whose conftest.py does."""
    if HAS_EXTRAS:
        return None
    path = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    return True if path.suffix == ".py" and path.exists() and imports_extra(path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of extras in other files. Raises UsageError if too few tests of the core are left."""
    if HAS_EXTRAS:
        return
    left_out = {item for item in items if is_of_extra(item)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
    if config.args_source is not pytest.Config.ArgsSource.ARGS and len(items) < FEWEST:
        raise pytest.UsageError(f"{len(items)} tests of the core, and there were {FEWEST}: why are others left out?")


def is_of_extra(item: Any) -> bool:
    """Return whether a test is one of an extra."""
    functions = [
        item.function,
        *(fixture.func for definitions in item._fixtureinfo.name2fixturedefs.values() for fixture in definitions),
    ]
    parameters = repr(getattr(getattr(item, "callspec", None), "params", ""))
    return (
        any(map(imports_extra_when_called, functions))
        or EXTRAS in parameters
        or PACKAGE in parameters
        or any(re.match(f"tests/{pattern}", item.nodeid) for patterns in OF_EXTRAS.values() for pattern in patterns)
    )


@cache
def imports_extra_when_called(function: object) -> bool:
    """Return whether a function of the tests, or one that it calls, imports an extra."""
    functions, visited = [function], set[FunctionType]()
    while functions:
        called = functions.pop()
        if isinstance(called, FunctionType) and called not in visited and called.__module__.startswith("tests."):
            visited.add(called)
            names = set(names_in(called.__code__))
            if any(map(is_extra, names)):
                return True
            functions += map(called.__globals__.get, names)
    return False


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the modules, globals and attributes that a function names, those within it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


@cache
def imports_extra(path: Path) -> bool:
    """Return whether loading this file imports an extra, directly or through other files of `tests/`."""
    return any(map(is_extra, imported_modules(ast.parse(path.read_bytes()), path)))


def is_extra(module: str) -> bool:
    """Return whether this is the name of an extra's module, or of a module of `tests/` that imports one."""
    file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return f"{module}.".startswith(f"{PACKAGE}.") or (
        module.startswith("tests.") and file.exists() and imports_extra(file)
    )


def imported_modules(tree: ast.Module, path: Path) -> Iterator[str]:
    """Yield the names that a module imports when it is loaded: not those in functions or below `TYPE_CHECKING`."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        match node := nodes.pop():
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.If(test=ast.Name("TYPE_CHECKING")):
                pass
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                package = ".".join(path.relative_to(ROOT).parts[: -node.level]) if node.level else ""
                module = ".".join(filter(None, (package, node.module)))
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case _:
                nodes.extend(ast.iter_child_nodes(node))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
