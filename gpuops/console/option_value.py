"""Converts options of a command line into values without pydantic, where none of its checks is needed.

Typer checks each option of a command with pydantic, the options that are not given too. Importing it and building some
30 of its validators is a third of the time of a short command: only a value that has to be checked is worth that.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Any, Final

from typer.core import TyperOption

_UNDECIDED: Final = object()


class PlainOption(TyperOption):
    """An option whose value goes through typer's checks only where it is neither missing nor plainly right."""

    def process_value(self, ctx: Any, typed: Any) -> Any:
        plain = self._plain(typed)
        if plain is _UNDECIDED:
            return super().process_value(ctx, typed)
        return plain if self.callback is None else self.callback(ctx, self, plain)

    def _plain(self, typed: Any) -> Any:
        """Return the value for the command, or _UNDECIDED if pydantic has to check it.

        Decided here: an option that is not given (None), any text, a number that is already an int (a default), a path
        that needs no check or can be read, and the exact word of an enum.
        """
        if self.required or self.multiple or self.nargs != 1:
            return _UNDECIDED
        kind, parameter = self.type_descriptor.annotation, self.type_descriptor.parameter_info
        if typed is None or (kind in (str, int) and type(typed) is kind and parameter.parser is None):
            return typed
        if kind is Path and not parameter.exists and _may_be_read(typed):
            return Path(typed)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return next((member for member in kind if typed in (member, member.value)), _UNDECIDED)
        return _UNDECIDED


def _may_be_read(path: str | Path) -> bool:
    """Return whether typer accepts the path: it refuses existing files that cannot be read."""
    return "\0" not in str(path) and (os.access(path, os.R_OK) or not Path(path).exists())


def without_needless_checks(parameters: list[Any]) -> list[Any]:
    """Return the parameters of a command with each option of typer as a `PlainOption`."""
    for parameter in parameters:
        if type(parameter) is TyperOption:
            parameter.__class__ = PlainOption
    return parameters
