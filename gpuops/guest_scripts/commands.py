"""Commands that run a script of this package in a guest. Parameters are arguments or environment variables: their text
never becomes part of a script."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from gpuops.errors import ProtocolError

SHELL: Final = "/bin/sh"


@cache
def script_text(name: str) -> str:
    """Return the text of a script, for example `job.sh`."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def shell_command(name: str, *arguments: str | int, variables: Mapping[str, str | int] | None = None) -> str:
    """Return a shell command that runs the script `NAME.sh` with these arguments, with the functions of `common.sh`.

    `variables` are set by env(1), so that they are in the environment of the script's shell from its start.
    """
    text = script_text("common.sh") + script_text(f"{name}.sh")
    assignments = [f"{variable}={value}" for variable, value in (variables or {}).items()]
    return f"exec {shlex.join(['env', *assignments, SHELL, '-c', text, name, *map(str, arguments)])}"


def one_line_command(name: str, arguments: Sequence[str]) -> str:
    """Return the command as one line: as a login shell, csh takes no line break in quotes."""
    text = script_text(f"{name}.sh").replace("\\", "\\\\").replace("\n", "\\n")
    runner = 'text=$(printf %b "$1"); shift; eval "$text"'
    return shlex.join([SHELL, "-c", runner, name, text, *arguments])


def powershell_command(name: str, texts: Sequence[str]) -> str:
    """Return the arguments by which PowerShell runs the script `NAME.ps1`, whose one parameter is a list of texts."""
    literals = ",".join("'" + text.replace("'", "''") + "'" for text in texts)
    script = f"& {{\n{script_text(f'{name}.ps1')}}} {literals}"
    encoded = base64.b64encode(script.encode("utf-16-le")).decode("ascii")
    return f"-NoProfile -NonInteractive -EncodedCommand {encoded}"


def home_directory(printed: str) -> str:
    """Return the path in the line `home PATH`. Raises ProtocolError if that line is missing."""
    match = re.search(r"^home (/[^\n]*)$", printed, re.MULTILINE)
    if match is None:
        raise ProtocolError("the guest reported no home directory", hint="log in to guests as a user who has one")
    return match[1].rstrip("/")
