"""Prints the output of commands: one document on stdout, everything else on stderr.

On a terminal text is coloured and wrapped to its width. Elsewhere it is plain, and a line is as long as it needs.
The first of these decides on colours: --no-color, NO_COLOR, FORCE_COLOR, TERM=dumb, and whether it is a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TextIO

import typer

from gpuops.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from gpuops.report.document import AnyDocument
    from gpuops.report.layout import Line, Shown


class OutputFormat(StrEnum):
    """How a result is printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    """Only for commands that have a table; the others refuse it before they do anything."""

    @property
    def is_document(self) -> bool:
        """Return whether results, and errors too, are printed as documents for programs."""
        return self in (OutputFormat.JSON, OutputFormat.YAML)


@dataclass(frozen=True, slots=True)
class Manners:
    """How much is printed in addition to the result, and whether in colours."""

    quiet: bool = False
    verbose: bool = False
    no_color: bool = False


_CODES: Final = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"
}  # fmt: skip
_USUAL_WIDTH: Final = 80
_COLORLESS_STYLES: Final = ("bold", "dim")
"""The styles that remain if NO_COLOR is set (no-color.org)."""
_chosen: ContextVar[OutputFormat] = ContextVar("output format", default=OutputFormat.TEXT)
_manners: ContextVar[Manners | None] = ContextVar("manners", default=None)
Receiver = Callable[["Shown", "AnyDocument", "Callable[[], str] | None"], None]
"""Takes a result in place of stdout: its text, its document, and a function that returns its CSV table."""
_results: TextIO | None = None
"""The stdout that the command was started with, if `sys.stdout` was redirected to stderr; None = `sys.stdout`."""
_receiver: ContextVar[Receiver | None] = ContextVar("receiver of results", default=None)


class ResultNotWritten(Exception):
    """The command is done, but its result could not be written to stdout."""


def choose(chosen: OutputFormat) -> None:
    """Choose the format of results, and of an error in their place, from now on."""
    _chosen.set(chosen)
    if chosen is not OutputFormat.TEXT:
        _keep_stdout_for_results()


def _keep_stdout_for_results() -> None:
    """Reserve stdout for the results that this module prints: what libraries print goes to stderr.

    HiGHS 1.16 writes to file descriptor 1 past Python, before it can be silenced by an option.
    """
    global _results
    stdout = sys.__stdout__
    if _results is not None or stdout is None or sys.stdout is not stdout:
        return  # done already, or the caller replaced sys.stdout to catch the output
    stdout.flush()
    # results go to a copy of descriptor 1; then descriptor 1 itself becomes stderr
    _results = os.fdopen(os.dup(stdout.fileno()), "w", encoding=stdout.encoding, errors=stdout.errors)
    os.dup2(sys.stderr.fileno(), stdout.fileno())


def results() -> TextIO:
    """Return the stream for results, which is the stdout that the command was started with."""
    return sys.stdout if _results is None else _results


def chosen() -> OutputFormat:
    return _chosen.get()


def behave(chosen_manners: Manners) -> None:
    """Set how much is printed from now on, and whether in colours."""
    _manners.set(chosen_manners)


def manners() -> Manners:
    return _manners.get() or Manners()


def deliver_to(receiver: Receiver) -> None:
    """Give results to this function from now on instead of printing them: another process merges them."""
    _receiver.set(receiver)


def show(text: Shown, document: AnyDocument, *, csv: Callable[[], str] | None = None) -> None:
    """Print one result on stdout in the chosen format. `csv` makes its table; None = it has none.

    Raises ResultNotWritten, BrokenPipeError when its reader left, and UsageError for CSV of a result without a table.
    """
    if (receiver := _receiver.get()) is not None:
        receiver(text, document, csv)
        return
    try:
        if _chosen.get() is OutputFormat.TEXT:
            print_text(text, results())
        elif _chosen.get() is OutputFormat.CSV:
            if csv is None:
                raise no_csv()
            _print_csv(csv())
        else:
            show_document(document)
        results().flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ResultNotWritten(f"the result cannot be written: {error.strerror}") from error


def show_document(document: AnyDocument) -> None:
    """Print a document on stdout as JSON, or as YAML."""
    from gpuops.report.json_and_csv import document_pieces, document_text

    if _chosen.get() is OutputFormat.YAML:
        results().write(_yaml(document_text(document)))
    else:
        results().writelines(document_pieces(document))


def no_csv() -> UsageError:
    """Return the error of a command without a table for `--output csv`."""
    return UsageError("only gpuops history has --output csv", hint="use --output json, which every command has")


def _print_csv(text: str) -> None:
    """Print CSV; characters that the encoding of stdout lacks are escaped."""
    encoding = results().encoding or "utf-8"
    results().write(text.encode(encoding, "backslashreplace").decode(encoding))


def errors_beside_result() -> bool:
    """Return whether stdout and stderr are one file: a terminal, or a log that both are written to."""
    try:
        return os.path.sameopenfile(results().fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False


def leave(exit_code: int) -> None:
    """End the command with this exit code, unless it is 0."""
    if exit_code:
        raise typer.Exit(exit_code)


def note(text: Shown) -> None:
    """Print a warning, or the text above a question, on stderr."""
    with ignoring_lost_stderr():
        print_text(text, sys.stderr)


def progress(text: Shown) -> None:
    """Print on stderr how far a run is, unless --quiet."""
    if not manners().quiet:
        note(text)


def refused(reasons: Iterable[str]) -> None:
    """Print each reason of a refusal on stderr, with its next move; programs read them in the result."""
    note([f"error: {reason}" for reason in reasons])


def note_if_cut_off(ended_by: type[BaseException] | None, how_far: str, next_move: str) -> None:
    """Print how far a run came and how to continue, if Ctrl-C or a signal ended it."""
    if ended_by is not None and issubclass(ended_by, KeyboardInterrupt | SystemExit):
        note(f"{how_far}; vCenter finishes the tasks that it has started")
        note(f"next: {next_move}")


def error(message: str, hint: str, exit_code: int, code: str, applied: bool | None = False) -> None:
    """Print one line on stderr and the next move below it; in JSON or YAML also a document on stdout."""
    from gpuops.report.layout import Text

    with ignoring_lost_stderr():
        sys.stderr.write(f"{Text(f'error: {message}').plain}\n")
        if hint:
            sys.stderr.write(f"{Text(f'next: {hint}').plain}\n")
    if _chosen.get().is_document:
        from gpuops.report.document import ErrorDocument

        try:
            show_document(ErrorDocument(code, message, hint, exit_code, applied))
            results().flush()
        except OSError:  # send the rest of the buffer to /dev/null, or it fails once more when the process ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), results().fileno())


@contextmanager
def ignoring_lost_stderr() -> Iterator[None]:
    """Ignore errors of stderr inside the block: a log on a full disk, `2>&1 | head`, a closed terminal.

    Otherwise `rotate day` would stop and leave desktops suspended.
    """
    try:
        yield
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_text(text: Shown, stream: TextIO) -> None:
    """Print text: styled and wrapped on a terminal, else plain. A view that fails prints nothing."""
    from gpuops.report.layout import lines

    encoding = (stream.encoding or "utf-8").lower()
    terminal = stream.isatty()
    text_lines = lines(text, _terminal_width(stream) if terminal else None, ascii_only=not encoding.startswith("utf"))
    style_line = _line_styler(os.environ, terminal=terminal, no_color=manners().no_color)
    styled_text = "".join(f"{style_line(line)}\n" for line in text_lines)
    # characters that the encoding lacks become escapes such as \xe4
    stream.write(styled_text.encode(encoding, "backslashreplace").decode(encoding))


def _without_styles(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def _line_styler(environment: Mapping[str, str], *, terminal: bool, no_color: bool) -> Callable[[Line], str]:
    """Return a function that returns a line with the escape sequences that the output accepts; none with `no_color`."""
    if no_color:
        return _without_styles
    is_colorless = bool(environment.get("NO_COLOR"))
    is_forced = not is_colorless and environment.get("FORCE_COLOR", "0") not in ("", "0")
    if not is_forced and (not terminal or environment.get("TERM", "").lower() in ("dumb", "unknown")):
        return _without_styles
    # NO_COLOR forbids colours, but not bold and dim
    codes = {style: _CODES[style] for style in _COLORLESS_STYLES} if is_colorless else _CODES

    def styled(text: str, style: str) -> str:
        sequence = ";".join(codes[word] for word in style.split() if word in codes)
        return f"\x1b[{sequence}m{text}\x1b[0m" if sequence and text else text

    return lambda line: "".join(styled(text, style) for text, style in line).rstrip()


def _terminal_width(stream: TextIO) -> int:
    """Return COLUMNS, else the width of the terminal, else 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_WIDTH
    return _USUAL_WIDTH


def rich_console(stream: TextIO) -> Console:
    """Return rich's console, for the progress of a run, a page of the manual and the screen of `top`."""
    from rich.console import Console

    no_color = True if manners().no_color else None  # None = rich asks NO_COLOR itself
    return Console(file=stream, markup=False, highlight=False, emoji=False, no_color=no_color)


def may_draw(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that takes escape sequences: `--no-color` sends none."""
    return stream.isatty() and not manners().no_color


def _yaml(document: str) -> str:
    """Return the document as YAML, with the same values as in JSON."""
    import msgspec
    import yaml

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    values = msgspec.json.decode(document)
    text: str = yaml.dump(values, Dumper=dumper, sort_keys=False, allow_unicode=False, width=10_000)
    return text
