"""Which cases of a test marked `sampled` a run leaves to the long suite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.sample import pytest_collection_modifyitems
from tests.surroundings.plugin import HERE

CASES, NTH = 13, 4


class Case:
    """One case of a test, as pytest collects it."""

    def __init__(self, number: int, *marks: pytest.Mark) -> None:
        self.nodeid = f"test_file.py::test_it[{number}]"
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


def quick(expression: str, seed: int, *marks: pytest.Mark) -> set[int]:
    """The cases that are not marked `long` when pytest is given that `-m`."""
    cases: list[Any] = [Case(number, *marks) for number in range(CASES)]
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression), stash=pytest.Stash())
    config.stash[HERE] = SimpleNamespace(seed=seed)
    pytest_collection_modifyitems(config, cases)
    return {number for number, case in enumerate(cases) if "long" not in case.marks}


SAMPLED = pytest.mark.sampled(NTH).mark


def test_the_quick_suite_has_as_many_in_each_run_and_all_in_some() -> None:
    drawn = [quick("not peer and not long", seed, SAMPLED) for seed in range(60)]
    assert {len(each) for each in drawn} == {CASES // NTH}
    assert set.union(*drawn) == set(range(CASES))
    assert quick("not peer and not long", 7, SAMPLED) == drawn[7], "each worker draws the same"


def test_the_long_suite_has_all_of_them() -> None:
    assert quick("long", 7, SAMPLED) == set()


@pytest.mark.parametrize(("expression", "marks"), [("", (SAMPLED,)), ("not long", ())])
def test_whoever_names_a_test_gets_all_of_it(expression: str, marks: tuple[pytest.Mark, ...]) -> None:
    assert quick(expression, 7, *marks) == set(range(CASES))
