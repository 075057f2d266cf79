"""Roles beside those that are wanted, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpuops.model.role import RoleState
from gpuops.report.plan_json import SCHEMA_VERSION, Document
from gpuops.report.units import count
from gpuops.report.visible import visible


def roles_text(states: Sequence[RoleState]) -> RenderableType:
    """Each role: right, missing or unlike, what it lacks and has too much, and where it is given."""
    return Group(*(line for state in states for line in _role(state)), Text(_summary(states), "bold"))


def _role(state: RoleState) -> Iterator[Text]:
    word, style = _word(state)
    yield Text(f"{word:<8} ", style).append(visible(state.wish.name), "default")
    if not state.right:
        lacks, surplus = ("given", "taken away") if state.written else ("lacks", "surplus")
        for title, privileges in ((lacks, state.missing), (surplus, state.surplus)):
            if privileges:
                yield Text(f"         {title}: {visible(', '.join(sorted(privileges)))}")
    yield Text(f"         give it on: {visible(state.wish.where)}", "dim")


def _word(state: RoleState) -> tuple[str, str]:
    if state.written:
        return ("made" if state.there is None else "changed"), "green"
    if state.right:
        return "right", "dim"
    return ("missing" if state.there is None else "unlike"), "yellow"


def _summary(states: Sequence[RoleState]) -> str:
    wrong = [state for state in states if not state.right]
    if not wrong:
        return f"{count(len(states), 'role')} as wanted: nothing to do"
    done = all(state.written for state in wrong)
    return f"{count(len(wrong), 'role')} {'written' if done else 'not as wanted, nothing changed'}"


def roles_document(states: Sequence[RoleState]) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "roles",
        "roles": [
            {
                "name": state.wish.name,
                "where": state.wish.where,
                "there": state.there is not None,
                "right": state.right,
                "lacks": sorted(state.missing),
                "surplus": sorted(state.surplus),
                "written": state.written,
            }
            for state in states
        ],
        "changed": any(state.written for state in states),
    }
