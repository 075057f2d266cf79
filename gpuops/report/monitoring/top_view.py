"""What part of a fleet `gpuops top` shows on a terminal, and what each key makes of it. Pure: a key in, a view out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.report.monitoring.top import Top, TopRow, filter_and_sort
from gpuops.report.monitoring.top_words import SortKey, TopLevel


@dataclass(frozen=True, slots=True)
class TopView:
    """Which rows are shown, in which order, and which of them is selected."""

    level: TopLevel = TopLevel.HOSTS
    sort: SortKey = SortKey.USE
    containing: str = ""
    """Only rows with this text."""
    typing: bool = False
    """Whether keys are letters of that text."""
    inside: TopRow | None = None
    """The host or GPU that the user went into; None = rows of all."""
    within: TopView | None = None
    """The view that it was left from."""
    selected: str = ""
    """The key of the selected row; empty = the first one."""
    number: int = 0
    """Where that row was, for when it is gone."""

    def selected_number(self, rows: Sequence[TopRow]) -> int:
        """Where the selected row is now; a row that is gone leaves the selection where it was."""
        number_now = next((number for number, row in enumerate(rows) if row.key == self.selected), None)
        return number_now if number_now is not None else max(0, min(self.number, len(rows) - 1))

    def selecting(self, rows: Sequence[TopRow], number: int) -> TopView:
        if not rows:
            return replace(self, selected="", number=0)
        at = max(0, min(number, len(rows) - 1))
        return replace(self, selected=rows[at].key, number=at)


def visible_rows(top: Top, view: TopView) -> tuple[TopRow, ...]:
    """The rows that the view shows, in its order."""
    rows = top.rows(view.level)
    if view.inside is not None and view.level is TopLevel.GPUS:
        rows = tuple(row for row in rows if row.host_ref == view.inside.host_ref)
    elif view.inside is not None:
        refs = _refs_now(top, view.inside)
        rows = tuple(row for row in rows if row.key in refs)
    return filter_and_sort(rows, view.sort, view.containing)


def _refs_now(top: Top, inside: TopRow) -> frozenset[str]:
    """The VMs that are on the GPU at this look."""
    return frozenset(ref for row in top.rows(TopLevel.GPUS) if row.key == inside.key for ref in row.refs)


def view_after_key(view: TopView, key: str, top: Top, page: int) -> TopView | None:
    """The view after a key; None = the user quits. `page` is how many rows are shown at once.

    A key is a character, or the name of a key: up, down, page-up, page-down, home, end, enter, back, escape.
    """
    if view.typing:
        return _after_filter_key(view, key)
    if key in ("q", "Q"):
        return None
    rows = visible_rows(top, view)
    at = view.selected_number(rows)
    moves = {"up": at - 1, "down": at + 1, "page-up": at - page, "page-down": at + page, "home": 0, "end": len(rows)}
    if key in moves:
        return view.selecting(rows, moves[key])
    if key == "enter":
        return _into(view, rows[at]) if rows else view
    if key in ("escape", "back"):
        return _out(view)
    if key == "/":
        return replace(view, typing=True)
    if key == "s":
        keys = list(SortKey)
        return replace(view, sort=keys[(keys.index(view.sort) + 1) % len(keys)])
    if key in _LEVELS:
        return TopView(_LEVELS[key], view.sort, view.containing)
    return view


_LEVELS: Final[Mapping[str, TopLevel]] = {"h": TopLevel.HOSTS, "g": TopLevel.GPUS, "v": TopLevel.VMS}


def _after_filter_key(view: TopView, key: str) -> TopView:
    match key:
        case "enter":
            return replace(view, typing=False)
        case "escape":
            return replace(view, typing=False, containing="")
        case "back":
            return replace(view, containing=view.containing[:-1])
        case _ if len(key) == 1 and key.isprintable():
            return replace(view, containing=view.containing + key, selected="", number=0)
        case _:
            return view


def _into(view: TopView, row: TopRow) -> TopView:
    """From a host to its GPUs, from a GPU to the VMs on it."""
    match view.level:
        case TopLevel.HOSTS:
            return TopView(TopLevel.GPUS, view.sort, inside=row, within=replace(view, selected=row.key))
        case TopLevel.GPUS:
            return TopView(TopLevel.VMS, view.sort, inside=row, within=replace(view, selected=row.key))
        case TopLevel.VMS:
            return view


def _out(view: TopView) -> TopView:
    """First the filter goes, then one level."""
    if view.containing:
        return replace(view, containing="", selected="", number=0)
    return view.within if view.within is not None else view
