"""Prints what commands have to say: one document on stdout, everything else on stderr.

On a terminal text is coloured and wrapped to its width. Elsewhere it is plain, and a line is as long as it needs.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gpuops.report.plan_json import Document


class OutputFormat(StrEnum):
    """How a result is printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


_PLAIN_WIDTH: Final = 10_000
_chosen: ContextVar[OutputFormat] = ContextVar("output format", default=OutputFormat.TEXT)


class ResultNotWritten(Exception):
    """stdout did not take the result of a command that is done."""


def choose(chosen: OutputFormat) -> None:
    """Says how results, and the error that may take their place, are printed from here on."""
    _chosen.set(chosen)


def show(text: RenderableType, document: Document) -> None:
    """Prints one result on stdout in the chosen format.

    Raises ResultNotWritten, and BrokenPipeError when its reader left.
    """
    try:
        if _chosen.get() is OutputFormat.TEXT:
            print_text(text, sys.stdout)
        else:
            show_document(document)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ResultNotWritten(f"the result cannot be written: {error.strerror}") from error


def show_document(document: Document) -> None:
    """Prints a document on stdout as JSON, or as YAML."""
    if _chosen.get() is OutputFormat.YAML:
        sys.stdout.write(_yaml(document))
        return
    import json

    # ASCII only: no character of a VM's name can move a cursor
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def note(text: RenderableType) -> None:
    """Prints progress, a warning or a question's matter on stderr."""
    with _ignoring_lost_stderr():
        print_text(text, sys.stderr)


def note_if_cut_off(ended_by: type[BaseException] | None, how_far: str, next_move: str) -> None:
    """Says how far a run came and how to go on, if Ctrl-C or a signal ended it; nothing for any other end."""
    if ended_by is not None and issubclass(ended_by, KeyboardInterrupt | SystemExit):
        note(f"{how_far}; what was begun goes on in vCenter")
        note(f"next: {next_move}")


def error(message: str, hint: str, exit_code: int) -> None:
    """One line on stderr, the next move below it; and in JSON or YAML a document on stdout, so that one is there."""
    from gpuops.report.text import visible

    with _ignoring_lost_stderr():
        sys.stderr.write(f"error: {visible(message)}\n")
        if hint:
            sys.stderr.write(f"next: {visible(hint)}\n")
    if _chosen.get() is not OutputFormat.TEXT:
        from gpuops.report.plan_json import error_document

        show_document(error_document(message, hint, exit_code))


@contextmanager
def _ignoring_lost_stderr() -> Iterator[None]:
    """What stderr no longer takes is lost and ends nothing: a log on a full disk, `2>&1 | head`, a closed terminal.

    A morning that stopped there would leave desktops suspended for want of a listener.
    """
    try:
        yield
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_text(text: RenderableType, stream: TextIO) -> None:
    """Prints for people: as the terminal takes it, or plain and never cut."""
    if stream.isatty():
        console_for(stream).print(text)
        return
    # rendered apart from the stream: rich would answer a broken pipe by closing stdout and leaving
    encoding = stream.encoding or "utf-8"  # rich draws with what it has
    rendered = io.TextIOWrapper(io.BytesIO(), encoding, errors="backslashreplace")
    console_for(rendered).print(text)
    rendered.seek(0)
    stream.write("".join(f"{line.rstrip()}\n" for line in rendered.read().splitlines()))


def console_for(stream: TextIO) -> Console:
    from rich.console import Console

    plain = not stream.isatty()
    return Console(
        file=stream,
        width=_PLAIN_WIDTH if plain else None,
        no_color=plain or None,
        force_terminal=False if plain else None,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _yaml(document: Document) -> str:
    import json

    import yaml

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    plain = json.loads(json.dumps(document))  # the same values as in JSON: enums as their text
    text: str = yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=False, width=_PLAIN_WIDTH)
    return text
