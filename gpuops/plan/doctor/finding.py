"""One thing that stands in the way, why, and the next move."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much it matters, worst first."""

    ERROR = "error"
    """Something does not work."""
    WARNING = "warning"
    """Something will not work as expected, or it is not known whether it does."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` is a command, or what to do if there is no command for it."""

    severity: Severity
    subject: str
    reason: str
    fix: str
