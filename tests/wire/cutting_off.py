"""Calls that are cut off before or after one line of the journal, as by `kill -9`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from gpuops.execute.journal import Journal
from gpuops.execute.journal.record import Kind

POINTS: Final = (
    ("before the intent", Kind.INTENT, True),
    ("intent on disk, not sent", Kind.INTENT, False),
    ("sent, task not on disk", Kind.SUBMITTED, True),
    ("task on disk", Kind.SUBMITTED, False),
    ("task ended, outcome not on disk", Kind.SETTLED, True),
    ("outcome on disk", Kind.SETTLED, False),
)


class CutOffHere(BaseException):
    """What ends a call of gpuops; nothing of it catches that."""


def cut_off(
    call: Callable[[], object], step: str, line: Kind, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    """Make a call that ends before or after this line of the journal about this kind of step."""
    op_ids: set[str] = set()
    append = Journal._append

    def is_meant(draft: tuple[str, Kind, Any]) -> bool:
        _, kind, body = draft
        if kind is Kind.INTENT and step in body["step"]:
            op_ids.add(body["op"])
        return kind is line and body["op"] in op_ids

    def append_or_end(journal: Journal, drafted: Any) -> Any:
        is_last = False

        def watch_state(state: Any) -> Any:
            nonlocal is_last
            drafts = drafted(state)
            is_last = any(map(is_meant, drafts))
            if is_last and before:
                raise CutOffHere
            return drafts

        state = append(journal, watch_state)
        if is_last:
            raise CutOffHere
        return state

    with monkeypatch.context() as patched, pytest.raises(CutOffHere):
        patched.setattr(Journal, "_append", append_or_end)
        call()
