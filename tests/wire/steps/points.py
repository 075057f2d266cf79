"""The moments at which a process may be killed: before and after each record of the journal and each change sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from gpuops.execute.journal.stores import SqlStore
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.writing.host_changes import HostConnection


class Killed(BaseException):
    """The process is gone."""


class Points:
    """The moments at which a process may be killed: killed at one by number, at one kind's first, or at each kind's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, self.last = 0, 0
        self.kinds: set[str] | None = None
        """Those at which it was killed; None = it is killed by number."""
        self.first = ""
        """The kind at whose first moment it is killed."""
        for kind, name in (
            (SqlStore, "append"),
            (HostConnection, "submit"),
            (HostConnection, "configure"),
            (Connection, "submit"),
        ):
            monkeypatch.setattr(kind, name, self._around(f"{kind.__name__}.{name}", getattr(kind, name)))

    def _around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call_at_points(*arguments: Any) -> Any:
            call_name = f"{name} {_kind_of(arguments[1])}"
            self._point(f"before {call_name}")
            answer = real(*arguments)
            self._point(f"after {call_name}")
            return answer

        return call_at_points

    def _point(self, kind: str) -> None:
        self.passed += 1
        if self.kinds is not None and kind not in self.kinds:
            self.kinds.add(kind)
            raise Killed
        if kind == self.first:
            self.first = ""
            raise Killed
        if self.passed == self.last:
            raise Killed

    def kill_at(self, number: int) -> None:
        self.passed, self.last = 0, number

    def kill_at_first(self, kind: str) -> None:
        self.first = kind

    def kill_at_each_kind(self) -> None:
        self.kinds = set()


def _kind_of(sent: Any) -> str:
    """Return the kind of a step, or of a journal record about one."""
    if not isinstance(sent, Sequence):
        return type(sent).__name__
    step = sent[0].body.get("step")
    return f"{sent[0].kind} {', '.join(step) if isinstance(step, Mapping) else ''}"
