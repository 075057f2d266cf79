"""What counts as coverage: faults that took effect, in stages that leave no call and no record of the engine out."""

from __future__ import annotations

import pytest

from gpuops.execute.journal.record import Kind
from gpuops.execute.port import Vcenter
from gpuops.plan.rotation.ours import Whereabouts
from gpuops.sim.trouble.catalogue import rules_of
from tests.nights.coverage import STATES, Coverage, aimed_night, faults, impossible, results
from tests.nights.event import Event
from tests.nights.night import Nightly
from tests.nights.stages import OF_CALLS, OF_RECORDS, Stage

SEED = 4
"""Of a world in which desktops are taken and returned when nothing goes wrong."""


def test_every_call_to_vcenter_and_every_record_is_of_a_stage() -> None:
    calls = {name for name in vars(Vcenter) if not name.startswith("_")} - {"uuid", "hosts"}
    assert set(OF_CALLS) == calls
    assert set(OF_RECORDS) == set(Kind)
    assert {*OF_CALLS.values(), *OF_RECORDS.values(), Stage.LOGIN, Stage.LEASE, Stage.NONE} == set(Stage)


def test_the_states_are_those_of_the_code() -> None:
    assert set(STATES) == {*(each.value for each in Whereabouts), *(each.value for each in Stage)} - {Stage.NONE.value}
    assert {state for _, state in impossible()} <= set(STATES)
    assert {fault for fault, _ in impossible()} <= set(faults())


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        ("T1", "look"),
        ("T2", "submit"),
        ("N3", "wait"),
        ("K1", "intend"),
        ("K2", "settle"),
        ("K3", "journal write"),
        ("N6", "login"),
        ("V7", "away"),
        ("V4", "intend"),
        ("C5", "untouched"),
    ],
)
def test_a_fault_strikes_in_the_state_that_it_is_aimed_at(fault: str, state: str) -> None:
    nights = (aimed_night(seed, [(fault, state)]) for seed in range(SEED, SEED + 24, 2))
    assert any((fault, state) in night.reached for night in nights)


def test_what_is_armed_and_does_not_strike_does_not_count() -> None:
    events = [Event("T1", rules_of("T1", {"skip": 100_000})), Event("V7", rules_of("V7", {"target": "nobody"}))]
    assert Nightly(SEED, events).play().reached == frozenset()


def test_a_happening_that_changes_nothing_does_not_count() -> None:
    """A VM that is off is not powered off once more."""
    off = rules_of("V7", {"target": "ml-01", "at_s": 1.0})
    night = Nightly(SEED, [Event("V7", off)]).play()
    assert "ml-01" in night.names.values()
    assert night.reached == frozenset()


def test_what_is_rare_is_named_rarest_first_and_what_is_impossible_is_not() -> None:
    found = Coverage(nights=1)
    found.reached.update({("T1", "look"): 29, ("T1", "submit"): 30, ("T1", "intend"): 1})
    rare = found.rare()
    assert ("T1", "submit") not in rare
    assert rare[-1] == ("T1", "look")
    assert found.surprising() == [("T1", "intend")]
    assert "T1 in look: 29" in results(found)
