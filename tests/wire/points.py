"""The moments at which a process may be killed: before and after each record of the journal and each change sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuops.execute.journal.sql import SqlStore
from gpuops.vsphere.hosts import HostConnection
from gpuops.vsphere.perform import Performer


class Killed(BaseException):
    """The process is gone."""


class Points:
    """Counts the moments at which a process may be killed, and kills at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, self.last = 0, 0
        for kind, name in (
            (SqlStore, "append"),
            (HostConnection, "submit"),
            (HostConnection, "configure"),
            (Performer, "submit"),
        ):
            monkeypatch.setattr(kind, name, self._around(getattr(kind, name)))

    def _around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            self._point()
            answer = real(*arguments)
            self._point()
            return answer

        return watched

    def _point(self) -> None:
        self.passed += 1
        if self.passed == self.last:
            raise Killed

    def kill_at(self, number: int) -> None:
        self.passed, self.last = 0, number
