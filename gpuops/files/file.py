"""Reads a file that a user names, the values of a text in JSON or TOML, and the templates that come with gpuops.

A path may lead to anything: a device that never ends, a pipe without a writer, a directory; and a file of a few
kilobytes may nest lists until a parser's stack ends, or hold a number of half a million digits. Each of these becomes
one error of the class that the caller names. `yaml_file` reads the values in YAML.

Templates are policies, requests, roles, units of systemd and reports. In the sources they are the folder `templates`;
the wheel has that folder in the Ansible collection, whose playbooks use some of them. The policies of the simulated
scenarios, with which the pages of the manual show a night, are templates too.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from gpuops import clock
from gpuops.errors import GpuopsError, UsageError

FOLDER: Final = "templates"
"""The folder of the templates in the paths of the manual's examples."""
_ROOT: Final = Path(__file__).parents[2]
_PLACES: Final = (_ROOT / "ansible_collections" / "gpuops" / "vsphere" / FOLDER, _ROOT / FOLDER)
_SCENARIOS: Final = Path(__file__).parents[1] / "sim" / "scenarios"


@cache
def templates() -> Mapping[str, Path]:
    """Return the file of each template by its name below the folder: `policy.yaml`, `roles/night.yaml`."""
    root = next(place for place in _PLACES if place.is_dir())
    paths = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    paths |= {path.name: path for path in _SCENARIOS.glob("*-policy.yaml")}
    return dict(sorted(paths.items()))


def describe_template(text: str) -> str:
    """Return the description in a template: its first comment without the comment marks, or its `description`."""
    first_line = text.lstrip().partition("\n")[0]
    # a JSON object; "{#" begins a comment of Jinja
    if first_line.startswith("{") and not first_line.startswith("{#"):
        return str(parse_json(text)["description"])
    for begin, end in (("{#", "#}"), ("#", "")):
        if first_line.startswith(begin):
            return first_line.removeprefix(begin).rstrip("-" + end).strip().removesuffix(":")
    return ""


def template_of_path(path: Path) -> str | None:
    """Return the template that a path of the manual's examples means: `templates/policy.yaml` is `policy.yaml`."""
    parts = path.parts
    name = "/".join(parts[parts.index(FOLDER) + 1 :]) if FOLDER in parts else ""
    return name if name in templates() else None


SMALL: Final = 1024 * 1024
"""The limit in bytes for files that people write."""
PIPE_S: Final = 10.0
"""The limit for reading a pipe to its end."""
MOST_DIGITS: Final = 20
"""The limit for the digits of a whole number; 64 bits have fewer."""
SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: escapes in JSON and YAML can spell it, and no encoding can write it."""
NO_TEXT: Final = "it holds half of a surrogate pair, which is no character"
_MAYBE_SURROGATE: Final = re.compile(rf"\\u[dD][89a-fA-F]|{SURROGATE.pattern}")
_READ_BYTES: Final = 1024 * 1024
"""How much one call reads at most."""
NOT_PARSED: Final = (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""The exceptions of a parser, and of code that uses its values, for a file with other content than expected."""


def read_bytes(
    path: Path,
    *,
    largest: int = SMALL,
    error: type[GpuopsError] = UsageError,
    name: str = "",
    hint: str = "",
    check: Callable[[os.stat_result], None] | None = None,
) -> bytes:
    """Return the content of a file, or of a pipe that ends within `PIPE_S`; at most `largest` bytes.

    Raises `error`, with the OSError or ValueError as its cause. `name`: the file's name in the error, by default its
    path; `hint`: the next step. `check` may refuse the opened file by raising one of these.
    """
    pieces, size, deadline_s = [], 0, clock.passed_s() + PIPE_S
    try:
        with _open_readable(path) as descriptor:
            file_status = os.fstat(descriptor)
            if check is not None:
                check(file_status)
            while size <= largest and (piece := _read_piece(descriptor, file_status, deadline_s)):
                pieces.append(piece)
                size += len(piece)
    except (OSError, ValueError) as read_error:  # a name with a null character is a ValueError
        reason = getattr(read_error, "strerror", None) or read_error
        if not hint and os.path.lexists(path):
            hint = f"look at it: ls -l {path}"
        elif not hint:
            template = template_of_path(path)
            hint = f"gpuops template write {template}" if template else "check the path"
        raise error(f"{name or path} cannot be read: {reason}", hint=hint) from read_error
    if size > largest:
        raise error(f"{name or path} is larger than {largest} bytes", hint=hint or "check that this is the right file")
    return b"".join(pieces)


def read_text(path: Path, *, largest: int = SMALL, error: type[GpuopsError] = UsageError, name: str = "") -> str:
    """Return the content of a UTF-8 file as text; the rest is as in `read_bytes`."""
    raw = read_bytes(path, largest=largest, error=error, name=name)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as decode_error:
        raise error(
            f"{name or path} is not UTF-8 at byte {decode_error.start}", hint="save it as UTF-8 text"
        ) from decode_error


def is_missing(error: GpuopsError) -> bool:
    """Whether this error of `read_bytes` says that there is no such file."""
    return isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)


def parse_json(text: str | bytes) -> Any:
    """Return the values of a JSON text. Raises ValueError for a text that is not JSON, or that no program writes."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))  # json.loads would let halves of surrogate pairs pass
    try:
        content = json.loads(text, parse_int=_parse_whole_number, parse_constant=_refuse_constant)
        if _MAYBE_SURROGATE.search(text) and SURROGATE.search(json.dumps(content, ensure_ascii=False)):
            raise ValueError(NO_TEXT)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text. Raises ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _parse_whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _refuse_constant(name: str) -> None:
    """Refuse NaN, Infinity and -Infinity, which Python reads and JSON forbids."""
    raise ValueError(f"it holds {name}, which JSON does not allow as a number")


@contextmanager
def _open_readable(path: Path) -> Iterator[int]:
    """Yield a descriptor that no pipe or terminal can block. Raises OSError, also for a device, directory or socket."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        file_status = os.fstat(descriptor)
        is_dev_null = stat.S_ISCHR(file_status.st_mode) and file_status.st_rdev == Path(os.devnull).stat().st_rdev
        if not (stat.S_ISREG(file_status.st_mode) or stat.S_ISFIFO(file_status.st_mode) or is_dev_null):
            raise OSError("it is not a file")
        yield descriptor
    finally:
        os.close(descriptor)


def _read_piece(descriptor: int, file_status: os.stat_result, deadline_s: float) -> bytes:
    """Return the next bytes; b"" at the end. Waits for a pipe until the deadline. Raises OSError."""
    if stat.S_ISFIFO(file_status.st_mode):
        pipe_poll = select.poll()
        pipe_poll.register(descriptor, select.POLLIN)
        if not pipe_poll.poll(max(0.0, deadline_s - clock.passed_s()) * 1000):  # in milliseconds
            raise OSError(f"it is a pipe that did not end within {PIPE_S:.0f} s")
    return os.read(descriptor, _READ_BYTES)
