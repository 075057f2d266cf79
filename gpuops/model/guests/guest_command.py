"""A command that runs in a guest, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
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
