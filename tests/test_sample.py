"""Which cases of a test marked `sampled` a run leaves to the long suite."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import sample
from tests.mutants.table import ROOT
from tests.sample import PROPERTIES, STORIES, pytest_collection_modifyitems
from tests.surroundings.plugin import HERE

CASES, NTH = 13, 4
IN_EACH_RUN = (
    ("tests/nights/interrupted/test_kills", "test_a_run_is_killed_at_each_point_of_a_night", 1),
    ("tests/nights/interrupted/test_returns", "test_a_return_at_once_brings_everybody_back", 1),
    ("tests/nights/playing/test_nights", "test_no_night_breaks_an_invariant", 1),
    ("tests/nights/judging/test_looks", "test_no_step_of_a_night_and_its_morning_goes_by_an_old_look", 1),
    ("tests/nights/playing/test_managed", "test_no_night_touches_a_vm_of_another_product", 1),
    ("tests/nights/gated/test_gated_nights", "test_no_gated_night_breaks_an_invariant", 1),
    ("tests/wire/nights/test_rotation", "test_a_night_and_a_morning_in_the_lab", 1),
    (
        "tests/wire/nights/test_rotation",
        "test_desktops_that_somebody_begins_to_work_with_while_the_night_goes_on_are_left_alone",
        1,
    ),
    (
        "tests/wire/nights/gated/test_gate_sessions",
        "test_a_session_that_began_before_the_suspend_keeps_the_desktop_and_its_gate_is_opened",
        1,
    ),
    ("tests/wire/guests/test_guest_sessions", "test_a_session_in_the_guest_keeps_its_desktop_and_no_name_is_told", 1),
    ("tests/wire/guests/test_guest_programs", "test_a_wrong_password_is_refused_and_never_shown", 1),
    (
        "tests/wire/guests/test_guest_commands",
        "test_without_a_login_and_with_a_wrong_one_nothing_is_run_and_no_password_is_told",
        1,
    ),
    ("tests/wire/connection/test_session", "test_an_expired_certificate_is_refused_before_the_password_is_sent", 1),
    ("tests/tasks/test_connection", "test_a_password_is_not_sent_in_the_clear", 1),
    ("tests/tasks/test_rotation", "test_a_night_takes_no_desktop_that_somebody_began_to_work_with", 1),
    ("tests/cli/first_steps/test_bundle", "test_a_bundle_holds_nothing_of_a_hostile_site", 1),
    ("tests/notify/test_watch", "test_no_secret_is_shown_or_kept", 1),
    ("tests/cli/advice/test_size_measure", "test_killed_on_its_way_nothing_is_left_after_the_next_call", 2),
    ("tests/nights/interrupted/test_hanging", "test_nothing_is_lost_by_it", 8),
    (
        "tests/cli/workloads/test_job_queue",
        "test_what_a_job_wrote_is_followed_whole_and_no_password_of_gpuops_is_shown",
        1,
    ),
    (
        "tests/cli/workloads/test_pool_guests",
        "test_a_lease_is_enabled_and_taken_back_whatever_script_gpuops_is_killed_at",
        3,
    ),
    ("tests/execute/jobs/test_job_run", "test_killed_anywhere_and_called_again_it_ends_in_the_same_state", 2),
    ("tests/plan/pool/test_books", "test_never_more_is_lent_than_there_is_and_every_lease_ends", 80),
    ("tests/plan/test_properties", "test_a_gpu_is_never_given_out_twice", 1),
    ("tests/runner/test_shared_targets", "test_no_password_goes_anywhere_on_the_word_of_the_database", 3),
    ("tests/runner/test_shared_targets", "test_a_password_of_the_environment_goes_to_no_other_vcenter", 1),
    ("tests/runner/test_shared_targets", "test_no_password_is_kept_there", 1),
    ("tests/wire/connection/test_certificates", "test_the_password_reaches_the_rightful_server_only", 1),
)
"""Tests of STORIES, and of others of which a part is drawn, that no draw leaves out, each with the share of its cases
that is tried: a killed night loses no desktop, no desktop is suspended that a night may not take, no GPU is promised
twice, no job and no lease is lost by a kill, no password is told."""


class Case:
    """One case of a test, as pytest collects it."""

    def __init__(self, nodeid: str, *marks: pytest.Mark) -> None:
        self.nodeid = nodeid
        self.marks = {mark.name: mark for mark in marks}
        self.obj: object = None

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


def quick(expression: str, seed: int, *marks: pytest.Mark) -> set[int]:
    """The cases that are not marked `long` when pytest is given that `-m`."""
    return drawn(expression, seed, [Case(f"test_file.py::test_it[{number}]", *marks) for number in range(CASES)])


def drawn(expression: str, seed: int, cases: list[Any]) -> set[int]:
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression), stash=pytest.Stash())
    config.stash[HERE] = SimpleNamespace(seed=seed)
    pytest_collection_modifyitems(config, cases)
    return {number for number, case in enumerate(cases) if "long" not in case.marks}


SAMPLED = pytest.mark.sampled(NTH).mark


def below_a_path(seed: int) -> set[int]:
    """Of such a path: tests of as many files, the last long anyway, and eight cases of one with a mark of its own."""
    cases = [Case(f"tests/folder/test_{number}.py::test_it") for number in range(CASES)]
    cases[-1].add_marker(pytest.mark.long)
    cases += [Case(f"tests/folder/test_1.py::test_own[{number}]", pytest.mark.sampled(2).mark) for number in range(8)]
    return drawn("not peer and not long", seed, cases)


def test_the_quick_suite_has_as_many_in_each_run_and_all_in_some() -> None:
    found = [quick("not peer and not long", seed, SAMPLED) for seed in range(60)]
    assert {len(each) for each in found} == {CASES // NTH}
    assert set.union(*found) == set(range(CASES))
    assert quick("not peer and not long", 7, SAMPLED) == found[7], "each worker draws the same"


def test_below_a_path_of_stories_tests_are_drawn_and_their_own_marks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files they lie in."""
    monkeypatch.setattr(sample, "STORIES", {"tests/folder/": NTH})
    found = [below_a_path(seed) for seed in range(60)]
    assert {len(each & set(range(CASES))) for each in found} == {(CASES - 1) // NTH}
    assert {len(each - set(range(CASES))) for each in found} == {4}
    assert set.union(*found) == set(range(CASES + 8)) - {CASES - 1}, "all in some"


@given(number=st.integers())
def holds(number: int) -> None:
    assert number - number == 0


def with_properties(seed: int) -> set[int]:
    """Of 13 tests in as many files, of which the first nine are of hypothesis."""
    cases = [Case(f"test_file_{number}.py::test_it") for number in range(CASES)]
    for case in cases[:9]:
        case.obj = holds
    return drawn("not peer and not long", seed, cases)


def test_properties_are_drawn_whatever_their_file_and_everything_else_there_is_tried() -> None:
    found = [with_properties(seed) for seed in range(60)]
    assert {len(each & set(range(9))) for each in found} == {9 // PROPERTIES}
    assert set.union(*found) == set(range(CASES)), "all in some"
    assert set.intersection(*found) == set(range(9, CASES))


def test_each_path_of_stories_is_there() -> None:
    for path in STORIES:
        assert list(ROOT.glob(f"{path}*")), path


@pytest.mark.parametrize(("file", "test", "share"), IN_EACH_RUN, ids=[each[1] for each in IN_EACH_RUN])
def test_what_must_not_break_unseen_is_left_to_no_draw(file: str, test: str, share: int) -> None:
    """Beside others of its file, whatever the seed."""
    found = getattr(import_module(file.replace("/", ".")), test)
    marks = [each for each in found.pytestmark if each.name in {"sampled", "long"}]
    assert marks == [pytest.mark.sampled(share).mark]
    of_it = [Case(f"{file}.py::{test}[{number}]", *marks) for number in range(share)]
    others = [Case(f"{file}.py::test_{number}") for number in range(CASES)]
    for seed in range(20):
        assert drawn("not long", seed, [*of_it, *others]) & set(range(share)), "at least one of its cases"


def test_the_long_suite_has_all_of_them() -> None:
    assert quick("long", 7, SAMPLED) == set()


def test_the_long_suite_has_one_in_so_many_where_the_mark_says_so() -> None:
    marked = pytest.mark.sampled(CASES, long=NTH).mark
    left = [quick("long", seed, marked) for seed in range(60)]
    assert {len(each) for each in left} == {CASES - CASES // NTH}
    assert set.intersection(*left) == set(), "all in some"
    assert {len(quick("not long", seed, marked)) for seed in range(60)} == {1}


@pytest.mark.parametrize(("expression", "marks"), [("", (SAMPLED,)), ("not long", ())])
def test_whoever_names_a_test_gets_all_of_it(expression: str, marks: tuple[pytest.Mark, ...]) -> None:
    assert quick(expression, 7, *marks) == set(range(CASES))
