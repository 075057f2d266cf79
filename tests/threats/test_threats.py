"""Every threat has a control whose loss a test sees."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.table import ROOT, check
from tests.sample import every_nth
from tests.threats.table import WAITING, Removal, claimed_sentences, claims, is_test, removals

THREATS = {f"S{number}" for number in range(1, 25)}


@pytest.mark.parametrize("removal", removals(), ids=lambda removal: removal.name)
def test_a_removal_is_of_the_code_as_it_is(removal: Removal) -> None:
    check(removal.edits)
    assert is_test(removal.test)


def test_every_threat_has_one_or_waits_for_what_it_threatens() -> None:
    covered = {removal.threat for removal in removals()}
    assert covered.isdisjoint(WAITING)
    assert covered | {*WAITING} == THREATS


def test_each_claim_has_tests_and_no_other_is_shown() -> None:
    assert sorted(claims()) == sorted(claimed_sentences())
    tests = {test for claimed_tests in claims().values() for test in claimed_tests}
    assert all(claims().values()) and [test for test in sorted(tests) if not is_test(test)] == []


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
