"""What `kill -9` is to a call of gpuops in the process of a test: an exception at a moment that the test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

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


class Killed(BaseException):
    """What ends a call of gpuops; nothing of it catches that."""


@dataclass
class Countdown:
    """Kills a call at its n-th event, before or `after` it; `left` None = never. A dead process has no more events."""

    left: int | None = None
    after: bool = False
    events: int = 0

    def around(self, event: Callable[[], Any]) -> Any:
        self.events += 1
        if self.left is None:
            return event()
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.after):
            raise Killed
        answer = event()
        if self.left == 0:
            raise Killed
        return answer

    @contextmanager
    def of_the_journal(self) -> Iterator[None]:
        """Each append to a journal is an event meanwhile."""
        append = Journal._append
        with patch.object(Journal, "_append", lambda *words: self.around(lambda: append(*words))):
            yield


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
                raise Killed
            return drafts

        state = append(journal, watch_state)
        if is_last:
            raise Killed
        return state

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Journal, "_append", append_or_end)
        call()
