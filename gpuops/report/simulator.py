"""What `gpuops sim` prints, as text and JSON: the faults it can be given, and the ledger of what was done to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gpuops.report.plan_json import SCHEMA_VERSION, Document
from gpuops.report.text import visible

Known = Iterable[tuple[str, str]]
"""(id, what a client sees of it)."""


def faults_text(known: Known) -> RenderableType:
    """A line per fault."""
    return Group(*(Text(f"{name:<4} {sees}") for name, sees in known))


def faults_document(known: Known) -> Document:
    """The faults by id."""
    faults = [{"id": name, "sees": sees} for name, sees in known]
    return {"schema_version": SCHEMA_VERSION, "kind": "faults", "faults": faults}


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
