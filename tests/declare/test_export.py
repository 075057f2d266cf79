"""Patterns for names."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.declare.export import patterns_for

NAMES = st.lists(st.text(alphabet="ab1-*[", min_size=1, max_size=5), unique=True, max_size=12)


@given(names=NAMES, others=NAMES)
def test_patterns_select_these_names_and_no_others(names: list[str], others: list[str]) -> None:
    every = {*names, *others}
    patterns = patterns_for(names, every)
    assert {name for name in every if any(fnmatchcase(name, pattern) for pattern in patterns)} == set(names)


def test_the_longest_of_equal_patterns_is_chosen() -> None:
    assert patterns_for(["vdi-01", "vdi-02"], ["vdi-01", "vdi-02", "ml-1"]) == ("vdi-0*",)
