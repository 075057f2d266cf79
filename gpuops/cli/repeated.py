"""Repeated: an option given twice that takes one value. The last would win, and half of what was asked be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

from gpuops.errors import UsageError


class Once(TyperGroup):
    """A group of commands whose options are given once, but for those that take several values."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, TyperGroup):
            refuse_repeated(command, rest)
        return name, command, rest


def refuse_repeated(command: Any, arguments: Sequence[str]) -> None:
    """Raises UsageError for the first option of the command that is given more often than it can be meant."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given = [argument.partition("=")[0] for argument in arguments[:end]]
    for parameter in command.params:
        if getattr(parameter, "multiple", True) or getattr(parameter, "is_flag", False):
            continue
        times = sum(given.count(name) for name in parameter.opts)
        if times > 1:
            hint = "attach one after the other, with --add" if parameter.opts[0] == "--profile" else "give it once"
            raise UsageError(f"{parameter.opts[0]} is given {times} times, and takes one value", hint=hint)
