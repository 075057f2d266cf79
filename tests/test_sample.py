"""Which cases `make test` and `make long` run, and that `make test` has one for each command and safety rule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from gpuops.cli.app import app
from gpuops.report.document_schema import document_kinds
from tests.sample import pytest_collection_modifyitems
from tests.surroundings.plugin import HERE

ROOT: Final = Path(__file__).parents[1]
TABLE: Final[Mapping[str, Mapping[Any, str]]] = yaml.safe_load((ROOT / "tests" / "quick_tests.yaml").read_text("utf-8"))
CASES, SEEDS = 13, range(20)


class Case:
    """One case of a test, as pytest collects it."""

    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid = nodeid
        self.marks = {mark.name: mark for mark in marks}
        self.obj: object = None

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


@given(number=st.integers())
def property_test(number: int) -> None:
    assert number - number == 0


def cases_run(
    expression: str, *marks: pytest.Mark, seed: int = 1, function: object = None, path: str = "cli", every: bool = False
) -> set[int]:
    """Return which of 13 cases of a test with these marks run when pytest is given this expression with `-m`."""
    cases: list[Any] = [Case(f"tests/{path}/test_file.py::test_it[{number}]", *marks) for number in range(CASES)]
    for case in cases:
        case.obj = function
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression, all_cases=every), stash=pytest.Stash())
    config.stash[HERE] = SimpleNamespace(seed=seed)
    config.hook = SimpleNamespace(pytest_deselected=lambda items: None)
    numbers = {case: number for number, case in enumerate(cases)}
    pytest_collection_modifyitems(config, cases)
    is_long = {numbers[case] for case in cases if "long" in case.marks}
    if not expression:
        return set(range(CASES))
    return set(range(CASES)) - is_long if "not long" in expression else is_long


@pytest.mark.parametrize(
    ("mark", "quick"),
    [
        (None, set(range(CASES))),
        (pytest.mark.long, set()),
        (pytest.mark.quick_cases(1), {0}),
        (pytest.mark.quick_cases(4), {0, 3, 6, 9}),
        (pytest.mark.quick_cases(99), set(range(CASES))),
        (pytest.mark.drawn_cases(4), set()),
    ],
)
def test_make_test_runs_the_same_cases_whatever_the_seed(mark: Any, quick: set[int]) -> None:
    marks = [mark.mark] if mark else []
    assert [cases_run("not peer and not long", *marks, seed=seed) for seed in SEEDS] == [quick] * len(SEEDS)


@pytest.mark.parametrize("mark", [None, pytest.mark.long, pytest.mark.quick_cases(4)])
@pytest.mark.parametrize("where", [{"path": "kills"}, {"path": "wire/nights"}, {"every": True}])
def test_make_long_runs_all_that_guards_a_night_and_everything_if_asked(mark: Any, where: dict[str, Any]) -> None:
    marks = [mark.mark] if mark else []
    assert cases_run("long", *marks, **where) == set(range(CASES)) - cases_run("not long", *marks)


@pytest.mark.parametrize(
    ("marks", "path", "counts"),
    [
        ([pytest.mark.long], "cli", {0, 1}),
        ([pytest.mark.quick_cases(1)], "cli", {0, 1}),
        ([pytest.mark.long, pytest.mark.drawn_cases(20)], "cli", {0, 1}),
        ([pytest.mark.long, pytest.mark.drawn_cases(4)], "kills", {3, 4}),
    ],
)
def test_make_long_draws_cases_elsewhere(marks: list[Any], path: str, counts: set[int]) -> None:
    drawn = [cases_run("long", *(mark.mark for mark in marks), seed=seed, path=path) for seed in range(100)]
    assert {len(cases) for cases in drawn} == counts
    assert set.union(*drawn) == set(range(CASES)) - cases_run("not long", *(mark.mark for mark in marks))


def test_properties_run_in_both() -> None:
    everything = set(range(CASES))
    assert cases_run("not long", function=property_test) == everything
    assert cases_run("long", function=property_test, path="nights") == everything
    assert len(cases_run("long", function=property_test)) in {0, 1}


def test_without_an_expression_every_case_runs() -> None:
    assert cases_run("", pytest.mark.quick_cases(1).mark) == set(range(CASES))


def command_names() -> Iterator[str]:
    def walk(words: tuple[str, ...], command: Any) -> Iterator[str]:
        subcommands = getattr(command, "commands", None) or {}
        if not subcommands or getattr(command, "invoke_without_command", False):
            yield " ".join(words)
        for name, subcommand in subcommands.items():
            yield from walk((*words, name), subcommand)

    yield from walk((), get_command(app))


def exit_codes() -> set[int]:
    """Return the codes of the manual's table."""
    page = (ROOT / "gpuops" / "manual" / "exit-codes.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    return {int(code) for cell in cells for code in cell.split(",")}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("commands", set(command_names()) - {""}),
        ("exit codes", exit_codes()),
        ("documents", set(document_kinds())),
    ],
)
def test_every_command_exit_code_and_document_has_a_test(rows: str, expected: set[Any]) -> None:
    assert set(TABLE[rows]) == expected


@pytest.mark.parametrize("test", sorted({test for rows in TABLE.values() for test in rows.values()}))
def test_a_test_of_the_table_is_run_by_make_test(test: str) -> None:
    path, *names = test.split("::")
    module = import_module(path.removesuffix(".py").replace("/", "."))
    marks = [*marks_of(module), *(mark for scope in scopes(module, names) for mark in marks_of(scope))]
    assert not {mark.name for mark in marks} & {"long", "peer"}
    assert any(mark.name == "quick_cases" for mark in marks) or not any(mark.name == "drawn_cases" for mark in marks)
    for mark in marks:
        if mark.name == "parametrize":
            assert not all(is_long(parameter) for parameter in mark.args[1]), mark.args[0]


def scopes(module: ModuleType, names: list[str]) -> Iterator[Any]:
    scope: Any = module
    for name in names:
        scope = getattr(scope, name)
        yield scope


def marks_of(scope: Any) -> list[pytest.Mark]:
    marks = getattr(scope, "pytestmark", [])
    return [
        mark if isinstance(mark, pytest.Mark) else mark.mark for mark in (marks if isinstance(marks, list) else [marks])
    ]


def is_long(parameter: Any) -> bool:
    return any(mark.name == "long" for mark in getattr(parameter, "marks", ()))
