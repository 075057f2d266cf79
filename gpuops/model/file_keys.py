"""What annotations of a class say about the keys of a file that `gpuops.config.decoding` decodes as that class.

memory_mib: Annotated[int, Key("memory"), Reads(memory_mib, Text)]  # `memory: 8GiB` in the file, 8192 here
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

from msgspec import NODEFAULT, Meta

from gpuops.errors import UsageError

Text = Annotated[str, Meta(min_length=1, max_length=200)]


class Key(NamedTuple):
    """Within Annotated: the key of the file, if it is not called as the field; None = the file has no such key."""

    name: str | None


NOT_IN_FILE: Final = Key(None)


class Reads(NamedTuple):
    """Within Annotated: the function that makes the value of what the file has, which is of the type `written`."""

    parse: Callable[[Any], Any]
    written: Any = str
    default: Any = NODEFAULT
    """What a file has for the default of the field; without it, the default itself."""


class Before(NamedTuple):
    """Within Annotated: the function that prepares content of the type `written`, which is then decoded."""

    prepare: Callable[[Any], Any]
    written: Any


class Mistaken(ValueError):
    """A value that cannot be meant, with the next move where the general one says too little."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


def reads_by(parse: Callable[[str], Any]) -> Reads:
    """Return a reader of a short text, in which a UsageError of `parse` becomes the mistake of the key."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise Mistaken(f"{error.message}; {error.hint}") from error

    return Reads(read, Text)
