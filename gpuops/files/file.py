"""Reads a file that a user names, and the values of a text in JSON or TOML. `yaml_file` reads the values in YAML.

A path may lead to anything: a device that never ends, a pipe that nobody writes to, a directory; and a file of a few
kilobytes may nest lists until a parser's stack ends, or hold a number of half a million digits. Whatever it is becomes
one error of the kind that the caller names.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gpuops import clock
from gpuops.errors import GpuopsError, UsageError

SMALL: Final = 1024 * 1024
"""For what people write by hand."""
PIPE_S: Final = 10.0
"""For all that a pipe has to say."""
MOST_DIGITS: Final = 20
"""Of a whole number: more than 64 bits have."""
SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: escapes in JSON and YAML can spell it, and no encoding can write it."""
NO_TEXT: Final = "it holds half of a surrogate pair, which is no character"
_MAYBE_SURROGATE: Final = re.compile(rf"\\u[dD][89a-fA-F]|{SURROGATE.pattern}")
_PIECE: Final = 1024 * 1024
NOT_PARSED: Final = (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""What a parser, or whoever takes its values for what they should be, raises for a file that is something else."""


def read_bytes(
    path: Path,
    *,
    largest: int = SMALL,
    error: type[GpuopsError] = UsageError,
    name: str = "",
    hint: str = "",
    check: Callable[[os.stat_result], None] | None = None,
) -> bytes:
    """The content of a file, or of a pipe that ends in time. Raises `error`, with the file's own error as its cause.

    `name` is what the error calls the file, by default its path, and `hint` its next move; `check` may refuse what was
    opened.
    """
    parts, size, until = [], 0, clock.passed_s() + PIPE_S
    try:
        with _opened(path) as descriptor:
            found = os.fstat(descriptor)
            if check is not None:
                check(found)
            while size <= largest and (piece := _piece(descriptor, found, until)):
                parts.append(piece)
                size += len(piece)
    except (OSError, ValueError) as unread:  # a name with a null character is a ValueError
        reason = getattr(unread, "strerror", None) or unread
        missing = isinstance(unread, FileNotFoundError)
        if not hint:
            hint = _template_of(path) or "check the path" if missing else f"look at it: ls -l {path}"
        raise error(f"{name or path} cannot be read: {reason}", hint=hint) from unread
    if size > largest:
        raise error(f"{name or path} is larger than {largest} bytes", hint=hint or "is it the right file?")
    return b"".join(parts)


def _template_of(path: Path) -> str:
    """The command that writes a missing file of the manual's examples; '' = it is none of them."""
    from gpuops.files.templates import named_by

    found = named_by(path)
    return f"gpuops template write {found}" if found else ""


def read_text(path: Path, *, largest: int = SMALL, error: type[GpuopsError] = UsageError, name: str = "") -> str:
    """The same as text, which is UTF-8."""
    raw = read_bytes(path, largest=largest, error=error, name=name)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as found:
        raise error(f"{name or path} is not UTF-8 at byte {found.start}", hint="save it as UTF-8 text") from found


def is_missing(error: GpuopsError) -> bool:
    """Whether this error of `read_bytes` says that there is no such file."""
    return isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)


def parse_json(text: str | bytes) -> Any:
    """The values of a JSON text. Raises ValueError for whatever is none that a program writes."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))  # json.loads would let halves of surrogate pairs pass
    try:
        values = json.loads(text, parse_int=_whole, parse_constant=_no_constant)
        if _MAYBE_SURROGATE.search(text) and SURROGATE.search(json.dumps(values, ensure_ascii=False)):
            raise ValueError(NO_TEXT)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return values


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML text. Raises ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no number")


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor that no pipe or terminal can block. Raises OSError, for a device, a directory or a socket too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        nothing = stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode) or nothing):
            raise OSError("it is not a file")
        yield descriptor
    finally:
        os.close(descriptor)


def _piece(descriptor: int, found: os.stat_result, until: float) -> bytes:
    """The next bytes; b"" at the end. A pipe is waited for. Raises OSError."""
    if stat.S_ISFIFO(found.st_mode):
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        if not waiting.poll(max(0.0, until - clock.passed_s()) * 1000):
            raise OSError(f"it is a pipe that did not end within {PIPE_S:.0f} s")
    return os.read(descriptor, _PIECE)
