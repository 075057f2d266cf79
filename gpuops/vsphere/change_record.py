"""Records what one session had changed, so that an error which ends a command can say whether something was."""

from __future__ import annotations

from typing import Any, Final

from gpuops.errors import GpuopsError, OutcomeUnknown
from gpuops.model.vcenter.task import LEASE_OPERATION

CANCEL_OPERATION: Final = "gpuops-cancel-"
"""How the ids of operations begin that take a queued task back."""

_NOT_COUNTED: Final = (LEASE_OPERATION, CANCEL_OPERATION)


class ChangeRecord:
    """The changes of a session. What only guards a run, or takes a change back before it began, is not counted."""

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
        """vCenter took the call: with a task as its answer the end of that decides, without one it is done."""
        if op_id.startswith(_NOT_COUNTED):
            return
        task = getattr(answer, "_moId", None)
        if task is None:
            self._done = True
        else:
            self._under_way.add(str(task))

    def note_lost(self, op_id: str) -> None:
        """The reply of the call was lost."""
        self._unknown = self._unknown or not op_id.startswith(_NOT_COUNTED)

    def note_ended(self, task: str, error: GpuopsError | None) -> None:
        """A task ended; whose end cannot be told stays unknown."""
        if task not in self._under_way or isinstance(error, OutcomeUnknown):
            return
        self._under_way.discard(task)
        self._done = self._done or error is None
