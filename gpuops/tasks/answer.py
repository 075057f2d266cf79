"""Answer: what a module of Ansible returns, and whether that is a failure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuops.report.plan_json import Document


@dataclass(frozen=True, slots=True)
class Answer:
    """`result` is made of JSON's own types."""

    result: Document
    exit_code: int = 0
    """As of the command line: anything but 0 fails the task."""
    message: str = ""
    """What a failed task says in one line."""
    warnings: tuple[str, ...] = field(default=())


def reasons_line(reasons: list[str], done: str) -> str:
    """Every reason in one line: `refused, nothing changed: A; B`."""
    return f"{done}: {'; '.join(reasons)}" if reasons else done
