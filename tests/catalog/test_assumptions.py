"""The table of assumptions, and its marks in the product and in the simulated vCenter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import gpuops
from gpuops.catalog.catalog_files import assumptions
from gpuops.errors import UsageError
from gpuops.model.assumption import Assumption, Confidence
from gpuops.sim.scenario.build import build
from gpuops.sim.scenario.deviations import deviate

PACKAGE: Final = Path(gpuops.__file__).parent
SURE: Final = (Confidence.RECORDED, Confidence.DOCUMENTED)


def marks(*folders: str) -> Iterator[str]:
    """The ids of all marks `assumption: ID` below these folders of the package."""
    for folder in folders:
        for path in (PACKAGE / folder).rglob("*"):
            if path.suffix in (".py", ".yaml") and path.name != "assumptions.yaml":
                yield from re.findall(r"assumption: ([a-z][a-z0-9-]*)", path.read_text(encoding="utf-8"))


def test_each_assumption_is_marked_in_the_product_and_in_the_simulator() -> None:
    folders = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("sim", "catalog")]
    assert set(marks(*folders)) == set(assumptions())
    assert set(marks("sim")) == set(assumptions())


@pytest.mark.parametrize("row", assumptions().values(), ids=assumptions())
def test_what_no_document_settles_has_a_deviation(row: Assumption) -> None:
    assert row.statement
    assert row.source
    assert row.deviation or row.confidence in SURE
    assert row.source != "none" or row.confidence is Confidence.MEMORY


def test_an_unknown_deviation_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no deviation is called 'gpu-choise'") as refused:
        deviate(build("lab"), ["gpu-choise"])
    assert "gpu-choice" in refused.value.hint
