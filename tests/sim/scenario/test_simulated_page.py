"""`gpuops/sim/SIMULATED.md` says what the sources say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.sim.scenario.simulated_page import renew_page, sections

pytestmark = pytest.mark.long

PAGE: Final = Path(__file__).parents[3] / "gpuops" / "sim" / "SIMULATED.md"


@pytest.fixture(scope="module")
def page_sections() -> Mapping[str, str]:
    return sections()


def test_the_page_is_what_the_sources_make(page_sections: Mapping[str, str], request: pytest.FixtureRequest) -> None:
    text = renew_page(PAGE.read_text(encoding="utf-8"), page_sections)
    if request.config.getoption("--refresh-golden"):
        PAGE.write_text(text, encoding="utf-8")
    same = text == PAGE.read_text(encoding="utf-8")
    assert same, "pytest tests/sim/scenario/test_simulated_page.py --refresh-golden renews gpuops/sim/SIMULATED.md"


def test_methods_and_refusals_that_everybody_knows_are_in_it(page_sections: Mapping[str, str]) -> None:
    [machine] = [line for line in page_sections["methods"].splitlines() if line.startswith("| VirtualMachine |")]
    assert "PowerOnVM_Task" in machine
    rows = [line.strip("| ").split(" | ") for line in page_sections["refusals"].splitlines() if line.startswith("| ")]
    assert [row for row in rows if len(row) != 3] == []
    rules = {(fault, says): rule for fault, says, rule in rows}
    assert rules["NotSupported", "A template cannot be powered on."] == "RuntimeFault, of any method"
    assert "InsufficientGraphicsResourcesFault" in {fault for fault, _ in rules}
    assert rules["TooManyDevices", "More than … passthrough devices, or … vGPUs, in one VM."] == (
        "VMware configuration maximums"
    )
