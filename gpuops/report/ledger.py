"""The simulated vCenter's ledger, for people and for programs: what was done, by whom, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gpuops.report.plan_json import SCHEMA_VERSION, Document
from gpuops.report.visible import visible

Entry = Mapping[str, Any]


def ledger_text(entries: Sequence[Entry]) -> RenderableType:
    """A line per effect, and below it each value that changed."""
    if not entries:
        return Text("nothing was done")
    return Group(*(line for entry in entries for line in _lines(entry)))


def ledger_document(entries: Sequence[Entry]) -> Document:
    """The entries as the simulated vCenter gives them."""
    return {"schema_version": SCHEMA_VERSION, "kind": "ledger", "entries": [dict(entry) for entry in entries]}


def _lines(entry: Entry) -> list[Text]:
    head = Text(f"{entry['sequence']:>4}  {entry['at']}  ", "dim")
    head.append(f"{visible(entry['method'])} {visible(entry['name'])}", "default")
    head.append(f"  by {visible(entry['user'])}", "dim")
    before, after = entry["before"], entry["after"]
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return [head, *(Text(f"      {visible(key)}  {_value(before, key)} -> {_value(after, key)}") for key in changed)]


def _value(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return "none" if value in (None, "") else visible(str(value))
