"""Teeth: careless engines are found out, each by a checker that names the invariant it breaks."""

from __future__ import annotations

import pytest

from tests.mutants.hunt import violations_in
from tests.mutants.kill import kill_all
from tests.mutants.lint import said_of
from tests.mutants.quick import quick_tests
from tests.mutants.table import ROOT, Mutant, check, mutants
from tests.nights.gated.checkers import GATED
from tests.nights.judging import checkers
from tests.sample import every_nth

NIGHTS = {mutant.night: mutant for mutant in mutants() if mutant.invariant}


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_is_of_the_engine_as_it_is(mutant: Mutant) -> None:
    check(mutant.edits)


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("night", NIGHTS)
def test_the_night_in_which_a_mutant_fails_breaks_nothing_without_it(night: str) -> None:
    """With these nights `make test` kills the mutants whose `first` is still the seed that shows them."""
    assert violations_in(NIGHTS[night].first, NIGHTS[night].kinds) == []


def test_thirty_mutants_and_more_break_an_invariant() -> None:
    assert sum(1 for mutant in mutants() if mutant.invariant) >= 30


def test_every_invariant_of_a_mutant_has_a_checker() -> None:
    checker_docs = " ".join(str(checker.__doc__) for checker in (*checkers.CHECKERS, *GATED))
    named = {mutant.invariant for mutant in mutants() if mutant.invariant}
    assert named <= {word.rstrip(":") for word in checker_docs.split()}


def test_every_test_of_a_mutant_is_there() -> None:
    for mutant in mutants():
        if mutant.test:
            file, _, name = mutant.test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), mutant.name


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_mutant_is_killed_by_a_test_that_runs_each_time() -> None:
    assert [mutant.name for mutant, _, is_quick in quick_tests(mutants()) if not is_quick] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_mutants_pass_lint() -> None:
    """A quarter of them a run."""
    assert list(said_of(every_nth(mutants(), 4))) == []


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(3))
def test_the_mutants_are_killed(part: int) -> None:
    """A twelfth of them a run; `python -m tests.mutants` has all."""
    ends = kill_all(every_nth(mutants()[part::3], 12))
    assert [end.mutant.name for end in ends if end.said is None] == []
