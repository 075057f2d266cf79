"""A command that runs in a guest, and how it ended; what is known of a job's container in its guest."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

CHECKPOINT_REFUSALS: Final = 2
"""So many guests in a row may refuse the login of what saves work there, before it is tried in no other: the mistake of
one guest costs no other its work, and no account locks after two."""


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """One on its way."""

    vm: str
    """Managed object id."""
    name: str
    pid: int
    directory: str
    """Of its guest, for what it prints."""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How one ended in the VM of that name; it did well where there is no error."""

    name: str
    took_s: float | None = None
    """By the clock of its guest; None = not known."""
    exit_code: int | None = None
    printed: str = ""
    error: str = ""


class ContainerPhase(StrEnum):
    """Where one attempt at a job is in its guest."""

    ABSENT = "absent"
    """The guest knows nothing of it: it was never started there, or its files were removed."""
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One attempt at a job, as its guest tells it. Times are those of the guest's clock."""

    state: ContainerPhase
    exit_code: int | None = None
    """0 to 255, as the runtime ended; None = it runs, or its end was not seen because its guest went down meanwhile."""
    began: datetime | None = None
    ended: datetime | None = None
    asked_to_end: bool = False
    """Whether gpuops had asked it for its end before it ended: its exit code then says nothing of its work."""


@dataclass(frozen=True, slots=True)
class CheckpointEnd:
    """What became of the checkpoint command; it is true where the state was saved."""

    saved: bool
    reason: str = ""
    """Why it was not, in one line of the guest; code that prints it must escape it."""

    def __bool__(self) -> bool:
        return self.saved
