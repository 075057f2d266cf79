"""Every threat has a control whose loss a test sees."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.table import ROOT, check
from tests.sample import every_nth
from tests.threats.table import WAITING, Removal, removals

THREATS = {f"S{number}" for number in range(1, 25)}


@pytest.mark.parametrize("removal", removals(), ids=lambda removal: removal.name)
def test_a_removal_is_of_the_code_as_it_is(removal: Removal) -> None:
    check(removal.edits)
    file, _, name = removal.test.partition("::")
    assert f"def {name.partition('[')[0].rpartition('::')[2]}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_threat_has_one_or_waits_for_what_it_threatens() -> None:
    shown = {removal.threat for removal in removals()}
    assert shown.isdisjoint(WAITING)
    assert shown | {*WAITING} == THREATS


@pytest.mark.long
@pytest.mark.timeout(1800)  # a minute of one core, on a machine that others use too
@pytest.mark.parametrize("part", range(3))
def test_no_control_can_be_taken_away_unseen(part: int) -> None:
    """A sixth of them a run; `python -m tests.threats` plays all."""
    names = [removal.name for removal in every_nth(removals()[part::3], 6)]
    played = subprocess.run(
        [sys.executable, "-m", "tests.threats", *names], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    assert played.returncode == 0, played.stdout + played.stderr
