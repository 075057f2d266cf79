"""One problem that `gpuops doctor` reports, with its reason and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Severities, the worst first."""

    ERROR = "error"
    """Something does not work."""
    WARNING = "warning"
    """Something will not work as expected, or may not."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `fix` is a command, or an instruction if no command fixes it."""

    severity: Severity
    subject: str
    reason: str
    fix: str
