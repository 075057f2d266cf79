"""Patterns for names."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from gpuops.extras.declare.entries import SiteFile, VmEntry
from gpuops.extras.declare.export import Export, patterns_for, yaml_text
from gpuops.extras.declare.site_file import parse_site
from gpuops.model.vcenter.vm import VmDrs

NAMES = st.lists(st.text(alphabet="ab1-*[", min_size=1, max_size=5), unique=True, max_size=12)


@given(names=NAMES, others=NAMES)
def test_patterns_select_these_names_and_no_others(names: list[str], others: list[str]) -> None:
    every = {*names, *others}
    patterns = patterns_for(names, every)
    assert {name for name in every if any(fnmatchcase(name, pattern) for pattern in patterns)} == set(names)


def test_the_longest_of_equal_patterns_is_chosen() -> None:
    assert patterns_for(["vdi-01", "vdi-02"], ["vdi-01", "vdi-02", "ml-1"]) == ("vdi-0*",)


def test_a_hostile_name_neither_ends_a_comment_nor_changes_the_file() -> None:
    name = "x\x85version: 2\u2028y\n"
    file = SiteFile(1, vms=(VmEntry(vm=(name,), drs=VmDrs.MANUAL),))
    text = yaml_text(Export(file, (f"{name}: is left out",)), "heading")
    assert parse_site(text, "site.yaml") == file
