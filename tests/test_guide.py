"""CONTRIBUTING.md names files, folders and functions: each is there, and the ways that it describes are long enough."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
GUIDE: Final = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES: Final = ("CONTRIBUTING.md", "tests/nights/README.md", "tests/bench/RESULTS.md")
ROWS_OF_ADDING: Final = 19
STEPS_OF_WALKS: Final = {"A walk": 22, "A night": 11}
MOST_BYTES: Final = 16_600


def section(title: str) -> str:
    [body] = re.findall(rf"^## {re.escape(title)}.*?\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    return str(body)


def rows(title: str) -> list[list[str]]:
    """Cells of the table in a section, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def quoted_words(text: str) -> list[str]:
    """What stands in backticks; drawings and examples of several lines do not count."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def paths(text: str) -> list[str]:
    """What is written as a path from the root of the tree."""
    return [path for path in quoted_words(text) if re.fullmatch(r"(?:gpuops|tests|\.ci)/[\w./-]*", path)]


def defined_names(path: Path) -> set[str]:
    """Functions and classes of a module, methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
    return names


def missing(walk: list[list[str]]) -> list[str]:
    """What the walk names and the tree does not have: a file, a function, or a file of which no function is named."""
    wrong = []
    for subject, files, functions in walk:
        names_by_file = {name: defined_names(ROOT / name) for name in quoted_words(files) if (ROOT / name).is_file()}
        wrong += [f"{subject}: no file {name}" for name in quoted_words(files) if name not in names_by_file]
        names = set(quoted_words(functions))
        wrong += [f"{subject}: no {name}" for name in sorted(names - set().union(*names_by_file.values()))]
        wrong += [f"{subject}: nothing named of {name}" for name, has in names_by_file.items() if not names & has]
    return wrong


@pytest.mark.parametrize("title", STEPS_OF_WALKS)
def test_a_walk_names_files_and_functions_that_are_there(title: str) -> None:
    walk = rows(title)
    assert len(walk) == STEPS_OF_WALKS[title]
    assert missing(walk) == []


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (["look", "`gpuops/api/sight.py`", "`run`"], "look: no file gpuops/api/sight.py"),
        (["look", "`gpuops/api/vms.py`", "`run`, `walk`"], "look: no walk"),
        (["look", "`gpuops/api/vms.py`, `gpuops/clock.py`", "`run`"], "look: nothing named of gpuops/clock.py"),
    ],
)
def test_a_name_that_is_not_there_is_noticed(row: list[str], wrong: str) -> None:
    assert wrong in missing([row])


def test_adding_names_files_and_folders_that_are_there() -> None:
    adding = rows("Adding things")
    assert len(adding) == ROWS_OF_ADDING
    assert all(paths(touch) or "`pyproject.toml`" in touch for _, touch, _ in adding)


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_is_named_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [path for path in paths(text) if not (ROOT / path).exists()] == []
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_every_layer_and_every_package_of_the_planner_is_in_the_picture() -> None:
    picture = section("The picture")
    packages = {path.parent.name for path in (ROOT / "gpuops").glob("*/__init__.py")}
    assert packages <= {name.split("/")[1] for name in paths(picture) if "/" in name.rstrip("/")}
    planner = {path.parent.name for path in (ROOT / "gpuops" / "plan").glob("*/__init__.py")}
    assert planner <= set(quoted_words(picture))


def test_the_guide_stays_a_few_pages() -> None:
    assert len(GUIDE.encode()) <= MOST_BYTES
