"""The examples in docstrings of plans run, so that they stay true."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import gpuops.plan

PACKAGE = Path(gpuops.plan.__file__).parent
MODULES = [
    ".".join(file.relative_to(PACKAGE.parent.parent).with_suffix("").parts)
    for file in sorted(PACKAGE.rglob("*.py"))
    if ">>>" in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0
