"""What every JSON document has, and the one of an error; a view imports no plan for it."""

from __future__ import annotations

from typing import Any, Final

SCHEMA_VERSION: Final = 1

Document = dict[str, Any]


def error_document(message: str, hint: str, exit_code: int, code: str, applied: bool | None) -> Document:
    """What is printed in place of a result when there is none. `applied` None = not known."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "error",
        "code": code,
        "message": message,
        "hint": hint,
        "exit_code": exit_code,
        "applied": applied,
    }
