"""Options: the words of a request read as meant, whether they came as enums or as the text of a file or a module."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from gpuops.errors import UsageError

Word = TypeVar("Word", bound=StrEnum)


def word(kind: type[Word], text: str, option: str) -> Word:
    """The member of the vocabulary that `text` is. Raises UsageError."""
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(kind)
        raise UsageError(f"--{option} {text!r} is not one of {known}") from None
