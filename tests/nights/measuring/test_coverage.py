"""What counts as coverage: faults that took effect, in stages that leave no call and no record of the engine out. A
night that breaks an invariant can be replayed, and is shrunk to the fewest events that still break it."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.execute.journal.record import Kind
from gpuops.execute.site.ports import Vcenter
from gpuops.plan.rotation.returns import day
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.fault_injection.rule import rules_of
from tests.mutants.drawn import results as mutants
from tests.nights.__main__ import main
from tests.nights.faults.event import Event
from tests.nights.faults.schedule import ALL, HANGS
from tests.nights.judging.checkers import violations
from tests.nights.measuring import coverage
from tests.nights.measuring.aiming import (
    AIMS,
    BY_CHANCE,
    HARD,
    HARD_AIMS,
    LIGHT_AIMS,
    PARTS,
    aimed_event,
    aimed_night,
    aims,
    kind_of,
)
from tests.nights.measuring.coverage import (
    MOST,
    OFTEN,
    ORDINARY,
    SHORT,
    STATES,
    Coverage,
    cover,
    faults,
    impossible,
    of_ordinary,
)
from tests.nights.measuring.stages import ADOPT, DEFINE, LEASE, LOGIN, OF_CALLS, RECORDS, STAGES, SUBMIT, SUBMITS
from tests.nights.measuring.tally import tally
from tests.nights.playing.night import Nightly
from tests.nights.world.prepared import PERSISTENT, everywhere, prepared_site

SEED = 4
"""Of a world in which desktops are taken and returned when nothing goes wrong."""


def test_every_call_to_vcenter_and_every_record_is_of_a_stage() -> None:
    calls = {name for name in vars(Vcenter) if not name.startswith("_")} - {"uuid", "hosts", "applied"}
    assert set(OF_CALLS) == calls
    assert set(RECORDS) == set(Kind)
    of_calls = {stage for stage in OF_CALLS.values() if stage not in (SUBMIT, DEFINE)}
    assert {*of_calls, *SUBMITS.values(), *RECORDS.values(), LOGIN, LEASE} == set(STAGES)


def test_the_states_are_those_of_the_code() -> None:
    assert set(STATES) == {*(whereabouts.value for whereabouts in Whereabouts), *STAGES}
    assert {state for _, state in impossible()} <= set(STATES)
    assert {fault for fault, _ in impossible()} <= set(faults())


@pytest.mark.quick_cases(9)
@pytest.mark.parametrize(
    ("fault", "state"),
    [
        ("T1", "look"),
        ("T2", "submit SuspendVm"),
        ("N3", "wait"),
        ("K1", "write intent"),
        ("K2", "write settled"),
        ("K3", "write submitted"),
        ("N6", "login"),
        ("V7", "away"),
        ("V4", "write intent"),
        ("C5", "untouched"),
        ("H4", "untouched"),
        ("H5", "look"),
        ("H6", "away"),
        ("K6", "submit SuspendVm"),
        ("K11", "look"),
        ("T1", "adopt"),
        ("A3", "submit RelocateVm"),
        ("K1", "write given_up"),
        ("A5", "lost"),
        ("T1", "given up"),
        ("V8", "foreign"),
        ("K6", "adopt"),
        ("K11", "adopt"),
        ("K12", "submit SuspendVm"),
        ("A3", "gone"),
        ("A2", "gone"),
        ("G6", "lost"),
        ("H1", "unknown"),
        ("H4", "unknown"),
    ],
)
def test_a_fault_strikes_in_the_state_that_it_is_aimed_at(fault: str, state: str) -> None:
    nights = (aimed_night(seed, [(fault, state)]).play() for seed in range(1, 6))
    assert any((fault, state) in night.reached for night in nights)


@pytest.mark.long
def test_what_is_armed_and_does_not_strike_does_not_count() -> None:
    events = [Event("T1", rules_of("T1", {"skip": 100_000})), Event("V7", rules_of("V7", {"target": "nobody"}))]
    assert Nightly(SEED, events).play().reached == frozenset()


@pytest.mark.long
def test_a_happening_that_changes_nothing_does_not_count() -> None:
    """A VM that is off is not powered off once more."""
    off = rules_of("V7", {"target": "ml-01", "at_s": 1.0})
    night = Nightly(SEED, [Event("V7", off)]).play()
    assert "ml-01" in night.names.values()
    assert night.reached == frozenset()


def test_what_is_rare_is_named_rarest_first_and_what_is_impossible_is_not() -> None:
    reached = Coverage(nights=1)
    often = {(fault, state): OFTEN for fault in faults() for state in STATES if (fault, state) not in impossible()}
    reached.reached.update({**often, ("T1", "look"): 29, ("T1", "wait"): 3, ("T1", "write intent"): 1})
    assert reached.rare() == [("T1", "wait"), ("T1", "look")]
    assert reached.surprising() == [("T1", "write intent")]
    assert "- T1: wait 3, look 29" in coverage.section(reached)


def test_a_prepared_night_sends_every_kind_of_step_and_comes_back() -> None:
    night = Nightly(1, [], site=prepared_site(1, leased=True, crowded=False)).play()
    sent = {next(iter(record.body["step"])) for record, _ in night.kept if record.kind is Kind.INTENT}
    assert {f"submit {kind}" for kind in sent} == set(SUBMITS.values()) - {"submit ReconfigureVm"}
    assert violations(night) == []


@pytest.mark.long
def test_a_crowded_night_has_a_vm_at_each_whereabouts() -> None:
    late = aimed_event("T11", "look")
    nights = [
        Nightly(1, [*everywhere(random.Random(1), asked_for=True), replace(late, point=point)],
                site=prepared_site(1, leased=False, crowded=True)).play()
        for point in (20, 60, 100)
    ]  # fmt: skip
    assert {state for night in nights for fault, state in night.reached if fault == "T11"} >= {
        whereabouts.value for whereabouts in Whereabouts
    }
    assert [violations(night) for night in nights] == [[], [], []]


def test_a_night_is_aimed_at_what_is_missing_most() -> None:
    missing = {("T1", "look"): 30, ("T1", "wait"): 1, ("K1", "look"): 30}
    chosen = Counter(pair for _, pairs in aims(missing, 50, 0) for pair in pairs)
    assert set(chosen) <= set(missing)
    assert chosen["T1", "look"] > 40


@pytest.mark.long
def test_what_ordinary_nights_reach_counts_and_the_rest_is_aimed_at() -> None:
    ordinary = of_ordinary(tally(range(4, 7), jobs=1))
    assert ordinary.ordinary == 3
    assert ordinary.reached.total() > 0
    before = Counter(ordinary.reached)
    coverage = cover(4, jobs=1, first=70_000, before=ordinary)
    assert (coverage.ordinary, coverage.nights) == (3, 4)
    assert coverage.reached.total() > before.total()
    assert all(coverage.reached[pair] >= count for pair, count in before.items())


def test_no_night_is_aimed_where_nothing_is_missing_but_what_comes_by_chance() -> None:
    reached = Counter(dict.fromkeys(Coverage().rare(), OFTEN))
    for pair in BY_CHANCE:
        reached[pair] = 0
    assert cover(10, jobs=1, before=Coverage(reached=reached)).nights == 0


def test_a_night_is_aimed_at_many_pairs_in_states_that_such_a_night_has() -> None:
    missing = dict.fromkeys(Coverage().rare(), OFTEN)
    for seed, (leading, *other_pairs) in aims(missing, 40, 70_000):
        assert len({leading, *other_pairs}) == 1 + len(other_pairs) <= 1 + LIGHT_AIMS + AIMS, seed
        assert sum(1 for fault, _ in other_pairs if fault in HARD) <= HARD_AIMS, seed
        assert {kind_of(pair) for pair in other_pairs} == {kind_of(leading)}, seed
        states = PARTS.get(kind_of(leading), ())
        assert leading[1] in states[-1:] or len({state for _, state in other_pairs}) >= min(2, len(states)), seed
        assert all(states.index(state) >= states.index(leading[1]) for _, state in other_pairs if states), seed


def test_each_state_that_a_night_can_have_is_of_nights_that_have_it() -> None:
    possible = {pair[1] for pair in Coverage().rare()}
    stays = {*PERSISTENT, ADOPT, RECORDS[Kind.GIVEN_UP]}
    assert possible == {*(state for states in PARTS.values() for state in states), *stays}


def test_a_pair_that_nights_already_aim_at_leaves_the_next_ones_to_others() -> None:
    """The lead is shared evenly, though nothing is counted before a round is over."""
    missing = {("T1", "look"): 3, ("T1", "login"): 3, ("K1", "write ended"): 3, ("T1", "lost"): 3}
    leads = Counter(pairs[0][1] for _, pairs in aims(missing, 24, 0))
    assert set(leads) == {state for _, state in missing}
    assert max(leads.values()) <= 12


def test_a_process_that_is_to_hang_at_a_request_hangs_just_after_it() -> None:
    """Between its last check and its request, K6 stops its machine."""
    night = aimed_night(1, [(HANGS, "submit SuspendVm")]).play()
    assert (HANGS, "submit SuspendVm") in night.reached
    asked_at = min(
        night.asked[record.body["op"]]
        for record, _ in night.kept
        if record.kind is Kind.INTENT and "SuspendVm" in record.body["step"]
    )
    assert [since >= asked_at for since, _ in night.stood] == [True]


def test_a_task_that_is_aimed_at_whereabouts_is_asked_for_by_a_vm_that_is_there() -> None:
    """A VM that is back is asked for nothing but its DRS: a fault of tasks waits for that."""
    nights = (aimed_night(seed, [("A3", "back")]).play() for seed in range(1, 6))
    assert any(("A3", "back") in night.reached for night in nights)


def test_every_fault_that_nights_know_has_its_line_in_the_table() -> None:
    lines = coverage.table(Coverage()).splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == list(dict.fromkeys(ALL))


def test_the_kept_results_are_what_the_tool_makes() -> None:
    """Its part of the file says a command that there is, and is a whole table of what this code has."""
    stored_text = coverage.FILE.read_text(encoding="utf-8")
    part = stored_text[stored_text.index(coverage.BEGIN) : stored_text.index(coverage.END)]
    [(command, ordinary, aimed)] = re.findall(r"Made by `(.+?) --ordinary (\d+) --nights (\d+)`:$", part, re.MULTILINE)
    assert command == coverage.COMMAND
    assert 0 <= int(ordinary) <= len(ORDINARY)
    assert 0 < int(aimed) <= MOST
    [(often, possible)] = re.findall(rf"^(\d+) of (\d+) pairs were reached {OFTEN} times or more", part, re.MULTILINE)
    assert int(possible) - int(often) <= SHORT
    header, _, *rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    assert set(header[1:]) <= set(STATES)
    assert {row[0] for row in rows} <= set(faults())
    assert all(len(row) == len(header) and all(re.fullmatch(r"-|\d+", cell) for cell in row[1:]) for row in rows)
    assert "## Mutants judged by nights alone" in stored_text


def test_each_tool_replaces_its_own_part_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_text = coverage.FILE.read_text(encoding="utf-8")
    monkeypatch.setattr(coverage, "FILE", tmp_path / "RESULTS.md")
    coverage.FILE.write_text(stored_text, encoding="utf-8")
    mutants.put_into_table()
    for nights in (1, 2):
        coverage.put_section(coverage.section(Coverage(nights=nights)))
    text = coverage.FILE.read_text(encoding="utf-8")
    assert "and 2 that are aimed" in text
    marks = "|".join(map(re.escape, (coverage.BEGIN, coverage.END, mutants._BEGIN, mutants._END)))
    parts, stored_parts = re.split(marks, text), re.split(marks, stored_text)
    assert len(parts) == 5
    assert parts[::2] == stored_parts[::2], "what is between and after the parts"


BREAKING = 36
"""Of a night in which half of the desktops are deleted, among much else that goes wrong."""


@pytest.mark.long
def test_a_careless_engine_is_shown_in_five_events_or_fewer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    careless = tuple(whereabouts for whereabouts in day._REPORTED if whereabouts is not Whereabouts.GONE)
    monkeypatch.setattr(day, "_REPORTED", careless)
    assert main(["play", "--nights", "1", "--first", str(BREAKING), "--jobs", "1"]) == 1
    output = capsys.readouterr().out
    assert f"seed {BREAKING}, commit " in output
    schedule = [line for line in output.splitlines() if line.startswith('{"fault"')]
    assert len(schedule) > 5
    least = tmp_path / "least.json"
    assert main(["shrink", str(BREAKING), "--out", str(least)]) == 0
    capsys.readouterr()
    events = json.loads(least.read_text(encoding="utf-8"))["events"]
    assert 1 <= len(events) <= 5
    assert {event["fault"] for event in events} == {"V4"}
    [deleted] = {rule["target"] for event in events for rule in event["rules"]}
    assert main(["replay", str(least)]) == 1
    assert f"I1: {deleted} is gone, and the morning does not name it" in capsys.readouterr().out


@pytest.mark.long
def test_an_aimed_night_is_shrunk_on_its_own_site(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    careless = tuple(whereabouts for whereabouts in day._REPORTED if whereabouts is not Whereabouts.GONE)
    monkeypatch.setattr(day, "_REPORTED", careless)
    least = tmp_path / "least.json"
    assert main(["shrink", "1", "--aims", "V4/away,T11/wait,H4/look", "--out", str(least)]) == 0
    document = json.loads(least.read_text(encoding="utf-8"))
    assert [(event["fault"], event["state"]) for event in document["events"]] == [("V4", "away")]
    capsys.readouterr()
    assert main(["replay", str(least)]) == 1
    assert "is gone, and the morning does not name it" in capsys.readouterr().out


@pytest.mark.long
def test_an_engine_that_crashes_is_told_by_its_seed_and_other_nights_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(self: object, *arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(day.RotateDay, "plan", crash)
    assert main(["play", "--nights", "2", "--first", str(BREAKING), "--jobs", "1"]) == 1
    output = capsys.readouterr().out
    assert "2 nights, " in output
    assert output.count("ZeroDivisionError: a bug (replay: ") == 2
    assert f"seed {BREAKING}, commit " in output


@pytest.mark.long
def test_a_night_that_breaks_nothing_is_not_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", str(BREAKING)]) == 0
    assert "breaks no invariant" in capsys.readouterr().out
    assert main(["play", "--nights", "1", "--first", str(BREAKING), "--jobs", "1"]) == 0
    assert "schedule:" not in capsys.readouterr().out
