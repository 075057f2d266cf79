"""The view of `gpuops top` on a terminal: which rows it shows, and how each key changes it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.extras.web.top import SortKey, Top, TopLevel, TopRow, filter_and_sort


@dataclass(frozen=True, slots=True)
class TopView:
    """Which rows are shown, in which order, and which of them is selected."""

    level: TopLevel = TopLevel.HOSTS
    sort: SortKey = SortKey.USE
    containing: str = ""
    """Only rows with this text."""
    typing: bool = False
    """Whether the user is typing that text."""
    inside: TopRow | None = None
    """The host or GPU whose rows are shown; None = all rows."""
    within: TopView | None = None
    """The view to go back to."""
    selected: str = ""
    """The key of the selected row; empty = the first one."""
    number: int = 0
    """The position of that row, used if the row is gone."""

    def selected_number(self, rows: Sequence[TopRow]) -> int:
        """Return the number of the selected row; if the row is gone, the selection stays at its position."""
        number_now = next((number for number, row in enumerate(rows) if row.key == self.selected), None)
        return number_now if number_now is not None else max(0, min(self.number, len(rows) - 1))

    def selecting(self, rows: Sequence[TopRow], number: int) -> TopView:
        """Return the view with another row selected; a number beyond the rows selects the nearest row."""
        if not rows:
            return replace(self, selected="", number=0)
        at = max(0, min(number, len(rows) - 1))
        return replace(self, selected=rows[at].key, number=at)


def visible_rows(top: Top, view: TopView) -> tuple[TopRow, ...]:
    """Return the rows that the view shows, in its order."""
    rows = top.rows(view.level)
    if view.inside is not None and view.level is TopLevel.GPUS:
        rows = tuple(row for row in rows if row.host_ref == view.inside.host_ref)
    elif view.inside is not None:
        refs = _refs_of_vms_on(top, view.inside)
        rows = tuple(row for row in rows if row.key in refs)
    return filter_and_sort(rows, view.sort, view.containing)


def _refs_of_vms_on(top: Top, inside: TopRow) -> frozenset[str]:
    """Return the refs of the VMs that are on the GPU now."""
    return frozenset(ref for row in top.rows(TopLevel.GPUS) if row.key == inside.key for ref in row.refs)


def view_after_key(view: TopView, key: str, top: Top, page: int) -> TopView | None:
    """Return the view after a key; None = the user quits. `page`: the number of rows on the screen.

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
        return _one_level_down(view, rows[at]) if rows else view
    if key in ("escape", "back"):
        return _one_level_up(view)
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
    """Return the view after a key while the user types the filter text."""
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


def _one_level_down(view: TopView, row: TopRow) -> TopView:
    """Return the view inside a row: the GPUs of a host, or the VMs on a GPU."""
    match view.level:
        case TopLevel.HOSTS:
            return TopView(TopLevel.GPUS, view.sort, inside=row, within=replace(view, selected=row.key))
        case TopLevel.GPUS:
            return TopView(TopLevel.VMS, view.sort, inside=row, within=replace(view, selected=row.key))
        case TopLevel.VMS:
            return view


def _one_level_up(view: TopView) -> TopView:
    """Return the view without the filter, or one level up if there is no filter."""
    if view.containing:
        return replace(view, containing="", selected="", number=0)
    return view.within if view.within is not None else view
