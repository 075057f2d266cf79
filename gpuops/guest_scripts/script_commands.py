"""Commands that run a script of this package in a guest.

Parameters are arguments or environment variables: their text never becomes part of a script.

A guest is checked by `check_guest.sh` on Linux and `check_guest.ps1` on Windows; `plan.guest.check_output` parses the
output. A vSphere client gets no output of a program (vSphere API reference, GuestProcessManager), so the program writes
a file, which gpuops reads and then removes: `to_file` and `removal`. A random number in its name makes the name
unpredictable. On Linux a shell starts the program, on Windows `cmd /c` redirects (GuestProgramSpec.arguments).
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from gpuops.errors import ProtocolError
from gpuops.model.guests.guest import GuestSystem

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
    """Return a command in one line that runs the script `NAME.sh`.

    csh accepts no line break in quotes, and may be the login shell of the guest: `printf %b` makes the line breaks.
    """
    text = script_text(f"{name}.sh").replace("\\", "\\\\").replace("\n", "\\n")
    unescape_and_run = 'text=$(printf %b "$1"); shift; eval "$text"'
    return shlex.join([SHELL, "-c", unescape_and_run, name, text, *arguments])


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
        raise ProtocolError(
            "the guest reported no home directory", hint="set a guest login whose user has a home directory"
        )
    return match[1].rstrip("/")


LONGEST_CMD: Final = 8191
"""The most characters of a command line of cmd.exe (Microsoft, command line string limitation)."""
_POWERSHELL: Final = r"C:\Windows\System32\WindowsPowerShell\v1.0\powershell.exe"
_CMD: Final = r"C:\Windows\System32\cmd.exe"


@dataclass(frozen=True, slots=True)
class GuestCall:
    """A program of a guest with its arguments (vSphere API, GuestProgramSpec)."""

    program: str
    arguments: str


def over_ssh(system: GuestSystem, frameworks: Sequence[str]) -> str:
    """Return a command that checks the guest and prints the result, in one line for any shell of an SSH server."""
    if system is GuestSystem.LINUX:
        return one_line_command("check_guest", frameworks)
    return f"powershell {powershell_command('check_guest', frameworks)}"


def answer_path(system: GuestSystem, nonce: str) -> str:
    """Return the path of the file in the guest for the result of a check; `nonce` is part of its name."""
    directory = "/tmp/" if system is GuestSystem.LINUX else "C:\\Windows\\Temp\\"  # noqa: S108 - of the guest
    return f"{directory}gpuops-{nonce}.txt"


def to_file(system: GuestSystem, frameworks: Sequence[str], path: str) -> GuestCall:
    """Return the call that checks the guest and writes the result to a new file, which other users cannot read.

    It fails if the file exists.
    """
    if system is GuestSystem.LINUX:
        check = shlex.join((SHELL, "-c", script_text("check_guest.sh"), "check_guest", *frameworks))
        return GuestCall(SHELL, shlex.join(("-c", f"umask 077; set -C; {check} > {path}")))
    return GuestCall(_CMD, f'/d /c "{_POWERSHELL} {powershell_command("check_guest", frameworks)} > {path}"')


def removal(system: GuestSystem, path: str) -> GuestCall:
    """Return the call that removes the file."""
    if system is GuestSystem.LINUX:
        return GuestCall("/bin/rm", f"-f {path}")
    return GuestCall(_CMD, f"/d /c del {path}")
