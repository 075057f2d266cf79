"""The faults that the simulated vCenter can be given, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from gpuops.report.plan_json import SCHEMA_VERSION, Document

Known = Iterable[tuple[str, str]]
"""(id, what a client sees of it)."""


def faults_text(known: Known) -> RenderableType:
    """A line per fault."""
    return Group(*(Text(f"{name:<4} {sees}") for name, sees in known))


def faults_document(known: Known) -> Document:
    """The faults by id."""
    faults = [{"id": name, "sees": sees} for name, sees in known]
    return {"schema_version": SCHEMA_VERSION, "kind": "faults", "faults": faults}
