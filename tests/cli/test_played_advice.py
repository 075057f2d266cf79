"""What plays advice: the commands it finds in a line, and that it names one that leads nowhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.played_advice import Advice, Ran

DAY = ("rotate", "day", "--yes")


@pytest.mark.parametrize(
    ("hint", "before", "words"),
    [
        ("gpuops rotate resume finishes it, or gpuops rotate day", (), [("rotate", "resume", "--yes"), DAY]),
        ("connect its host, then gpuops rotate day", (), []),
        ("gpuops rotate status shows it", (), [("rotate", "status")]),
        ("gpuops host mode set --help", (), [("host", "mode", "set", "--help")]),
        ("gpuops rotate day --policy FILE returns all", ("rotate", "status", "--policy", "mine.yaml"),
         [("rotate", "day", "--policy", "mine.yaml", "--yes")]),
        ("gpuops rotate day --policy FILE returns all", ("rotate", "status"), []),
        ("gpuops rotate restore --vm vdi-07", (), [("rotate", "restore", "--vm", "vdi-07", "--yes")]),
    ],
)  # fmt: skip
def test_which_commands_a_line_advises(hint: str, before: tuple[str, ...], words: list[tuple[str, ...]]) -> None:
    ran = Ran(before, 4, frozenset({f"next: {hint}"}), "")
    assert [typed for _, typed in ran.advised] == words


def play_advice(*ends: tuple[int, str], changes: bool = False) -> list[str]:
    """What leads nowhere of commands that end so, one after the other; `changes`: each changes something."""
    (code, text), *remaining_ends = ends
    states = iter(range(99))

    def run(*words: str) -> Any:
        code, text = remaining_ends.pop(0)
        return SimpleNamespace(exit_code=code, stdout=text, stderr="")

    advice = Advice(run, lambda: str(next(states)) if changes else "")
    return advice.play(advice.ran(("rotate", "day"), code, text))


AGAIN = (4, "left out vdi-07: is away\nnext: gpuops rotate day\n")


def test_the_same_line_again_leads_nowhere() -> None:
    [bad] = play_advice(AGAIN, AGAIN)
    assert bad.startswith("`gpuops rotate day --yes` is advised ('next: gpuops rotate day'), and says the same")


def test_two_that_advise_each_other_lead_nowhere() -> None:
    status = (4, "vdi-07 is lost\nnext: gpuops rotate status\n")
    assert len(play_advice(status, AGAIN, status, AGAIN)) == 1


@pytest.mark.parametrize("ends", [(AGAIN, (0, "done")), (AGAIN, (4, "next: power it on, then gpuops rotate day"))])
def test_what_ends_well_or_names_who_must_act_is_good(ends: tuple[tuple[int, str], ...]) -> None:
    assert play_advice(*ends) == []
