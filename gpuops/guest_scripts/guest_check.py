"""The program calls that check a guest: they run `check_guest.sh` on Linux and `check_guest.ps1` on Windows.

`gpuops.plan.guest.answer` parses the output. A vSphere client gets no output of a program (vSphere API reference,
GuestProcessManager), so the program writes a file, which gpuops reads and then removes: `to_file` and `removal`. A
random number in its name makes the name unpredictable. On Linux a shell starts the program, on Windows `cmd /c`
redirects (GuestProgramSpec.arguments).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.guest_scripts.commands import SHELL, one_line_command, powershell_command, script_text
from gpuops.model.guests.guest import GuestSystem

LONGEST_CMD: Final = 8191
"""Characters of a command line of cmd.exe (Microsoft, command line string limitation)."""
_POWERSHELL: Final = r"C:\Windows\System32\WindowsPowerShell\v1.0\powershell.exe"
_CMD: Final = r"C:\Windows\System32\cmd.exe"


@dataclass(frozen=True, slots=True)
class GuestCall:
    """A program of a guest with its arguments (vSphere API, GuestProgramSpec)."""

    program: str
    arguments: str


def over_ssh(system: GuestSystem, frameworks: Sequence[str]) -> str:
    """Return a command that prints the answer: one line, for any shell that the guest's SSH server starts."""
    if system is GuestSystem.LINUX:
        return one_line_command("check_guest", frameworks)
    return f"powershell {powershell_command('check_guest', frameworks)}"


def answer_path(system: GuestSystem, nonce: str) -> str:
    """Return the path of the answer in the guest."""
    directory = "/tmp/" if system is GuestSystem.LINUX else "C:\\Windows\\Temp\\"  # noqa: S108 - of the guest
    return f"{directory}gpuops-{nonce}.txt"


def to_file(system: GuestSystem, frameworks: Sequence[str], path: str) -> GuestCall:
    """Return the call that writes the answer to a new file, which other users cannot read. It fails if the file
    exists."""
    if system is GuestSystem.LINUX:
        check = shlex.join((SHELL, "-c", script_text("check_guest.sh"), "check_guest", *frameworks))
        return GuestCall(SHELL, shlex.join(("-c", f"umask 077; set -C; {check} > {path}")))
    return GuestCall(_CMD, f'/d /c "{_POWERSHELL} {powershell_command("check_guest", frameworks)} > {path}"')


def removal(system: GuestSystem, path: str) -> GuestCall:
    """Return the call that removes the file."""
    if system is GuestSystem.LINUX:
        return GuestCall("/bin/rm", f"-f {path}")
    return GuestCall(_CMD, f"/d /c del {path}")
