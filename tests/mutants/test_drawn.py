"""The tool that draws mutants: what it draws, how it finds it again, and that the recorded nights still kill."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.mutants.drawn.draw import AREAS, EACH, drawn
from tests.mutants.drawn.operators import Mutation, enums, is_change, mutate, mutations
from tests.mutants.table import ROOT

SOURCE = """
from enum import Enum

class Power(Enum):
    ON = "on"
    OFF = "off"

def may(vm: str, *, sure: bool = True) -> str | None:
    if vm is None or vm == "x":
        raise ValueError(f"no {vm}")
    if vm < "y":
        note(vm, hint="a" + "b")
    return Power.ON if sure else f"not {vm}"
"""
MEMBERS = {"Power": ("ON", "OFF")}


def drawn_from(source: str) -> set[str]:
    return {
        f"{mutation.operator}: {mutation.before} -> {mutation.after}" for mutation in mutations("x.py", source, MEMBERS)
    }


def test_every_operator_finds_its_places_and_leaves_messages_and_types_alone() -> None:
    assert enums(SOURCE) == MEMBERS
    assert drawn_from(SOURCE) == {
        "negate a condition: if vm is None or vm == 'x' -> if not (vm is None or vm == 'x')",
        "skip a branch: if vm is None or vm == 'x' -> if False",
        "swap and, or: vm is None or vm == 'x' -> vm is None and vm == 'x'",
        "drop an operand: vm is None or vm == 'x' -> vm == 'x'",
        "drop an operand: vm is None or vm == 'x' -> vm is None",
        "swap a comparison: vm is None -> vm is not None",
        "swap a comparison: vm == 'x' -> vm != 'x'",
        "drop a raise: raise ValueError(f'no {vm}') -> pass",
        "skip a branch: if vm < 'y' -> if False",
        "swap a comparison: vm < 'y' -> vm <= 'y'",
        "drop a call: note(vm, hint='a' + 'b') -> pass",
        "return nothing: return Power.ON if sure else f'not {vm}' -> return None",
        "swap the branches: Power.ON if sure else f'not {vm}' -> f'not {vm}' if sure else Power.ON",
        "swap a member: Power.ON -> Power.OFF",
    }


def test_a_mutation_is_found_again_after_an_edit_elsewhere_and_missed_where_it_is_gone() -> None:
    [mutation] = [mutation for mutation in mutations("x.py", SOURCE, MEMBERS) if mutation.after == "vm <= 'y'"]
    edited = SOURCE.replace("def may", "def other() -> bool:\n    return 1 < 2\n\ndef may").replace("note(vm", "note(1")
    assert "vm <= 'y'" in ast.unparse(mutate(mutation, edited, MEMBERS))
    with pytest.raises(LookupError):
        mutate(mutation, SOURCE.replace('vm < "y"', 'vm < "z"'), MEMBERS)


def test_between_moments_nothing_hangs_on_the_one_at_which_both_are_the_same() -> None:
    template = "def may(now: datetime, left_s: float, few: int) -> bool:\n    return {}\n"
    for compared in ("now < self.expires", "self.read_at >= now", "left_s <= 30", "abs(a.taken_at - b) > x"):
        assert not any(
            mutation_name.startswith("swap a comparison") for mutation_name in drawn_from(template.format(compared))
        )
    assert "swap a comparison: few < 3 -> few <= 3" in drawn_from(template.format("few < 3"))
    assert "swap a comparison: now is few -> now is not few" in drawn_from(template.format("now is few"))


def test_what_compiles_to_the_same_is_no_change() -> None:
    source = "def may(x: int) -> int:\n    return x if True else 5\n"
    same = Mutation("x.py", "may", "change a constant", "5", "6", 0)
    assert not is_change(same, source, {})
    assert is_change(Mutation("x.py", "may", "change a constant", "True", "False", 0), source, {})


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_recorded_nights_still_kill() -> None:
    """In a process of its own, for the engine must not be imported yet where it is mutated."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutants.drawn", "replay"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout}{run.stderr}"


@pytest.mark.long
@pytest.mark.parametrize("area", AREAS)
def test_a_sample_is_the_same_each_time(area: str) -> None:
    mutations = list(drawn(area))
    assert mutations == list(drawn(area))
    assert len(mutations) == len(set(mutations)) == EACH
