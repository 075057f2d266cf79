"""Records whether one session changed something, so that an error that ends a command can say so."""

from __future__ import annotations

from typing import Any, Final

from gpuops.errors import GpuopsError, OutcomeUnknown
from gpuops.model.vcenter.task import LEASE_OPERATION

CANCEL_OPERATION: Final = "gpuops-cancel-"
"""Prefix of the operation ids that cancel a queued task."""

_NOT_COUNTED: Final = (LEASE_OPERATION, CANCEL_OPERATION)


class ChangeRecord:
    """The changes of a session. The lease of a run, and the cancellation of a queued task, are not counted."""

    def __init__(self) -> None:
        self._done = False
        self._unknown = False
        self._under_way: set[str] = set()
        """Tasks whose end is not known."""

    @property
    def applied(self) -> bool | None:
        """Whether something was changed; None = not known: a reply was lost, or a task is still under way."""
        if self._done:
            return True
        return None if self._unknown or self._under_way else False

    def note_accepted(self, answer: Any, op_id: str) -> None:
        """Record that vCenter accepted a call. If it returned a task, the end of the task decides."""
        if op_id.startswith(_NOT_COUNTED):
            return
        task = getattr(answer, "_moId", None)
        if task is None:
            self._done = True
        else:
            self._under_way.add(str(task))

    def note_lost(self, op_id: str) -> None:
        """Record that the reply of a call was lost."""
        self._unknown = self._unknown or not op_id.startswith(_NOT_COUNTED)

    def note_ended(self, task: str, error: GpuopsError | None) -> None:
        """Record the end of a task. After OutcomeUnknown it stays unknown whether something was changed."""
        if task not in self._under_way or isinstance(error, OutcomeUnknown):
            return
        self._under_way.discard(task)
        self._done = self._done or error is None
