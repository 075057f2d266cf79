"""The program that a guest runs to tell all at once, for Linux (sh) and Windows (PowerShell). It changes nothing.

It prints sections, each after a line `@@ NAME`; `answer` reads them. What it calls: nvidia-smi -q -x (NVIDIA nvidia-smi
manual), modinfo, nvcc, ldconfig, rdma link (rdma-link(8)) and ibv_devinfo, timedatectl or chronyc, and python3 for the
versions of frameworks; on Windows nvidia-smi.exe, nvcc.exe, Get-NetAdapterRdma, w32tm and python.

A vSphere client gets no output of a program (vSphere API reference, GuestProcessManager), so it goes to a file that is
fetched and removed afterwards: `to_file` and `removal`. Its name is a random number that nobody in the guest can guess.
On Linux the program is started by a shell, on Windows `cmd /c` redirects (GuestProgramSpec.arguments).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

from gpuops.model.guests.guest import GuestSystem

LONGEST_CMD: Final = 8191
"""Characters of a command line of cmd.exe (Microsoft, command line string limitation)."""
_PYTHON: Final = "import sys,importlib.metadata as m;print(m.version(sys.argv[1]))"
_POWERSHELL: Final = r"C:\Windows\System32\WindowsPowerShell\v1.0\powershell.exe"
_CMD: Final = r"C:\Windows\System32\cmd.exe"
_LINUX: Final = (
    "LC_ALL=C; export LC_ALL",
    "PATH=$PATH:/usr/sbin:/sbin:/usr/local/bin:/usr/local/cuda/bin; export PATH",
    'echo "@@ begin linux"',
    'echo "@@ clock"; date -u +%s',
    (
        # timedatectl says no of a chrony without rtcsync, which keeps the clock all the same (chrony.conf(5))
        'echo "@@ synchronized"; n=$(timedatectl show -p NTPSynchronized --value 2>/dev/null);'
        ' if [ "$n" = yes ] || ! chronyc -n tracking 2>/dev/null | grep "^Leap status"; then echo "$n"; fi'
    ),
    'echo "@@ installed"; modinfo -F version nvidia 2>/dev/null | head -n 1',
    'if command -v nvidia-smi >/dev/null; then echo "@@ smi"; nvidia-smi -q -x 2>&1; else echo "@@ no-smi"; fi',
    'echo "@@ toolkit"; nvcc --version 2>/dev/null || cat /usr/local/cuda/version.json 2>/dev/null',
    'echo "@@ runtimes"; ldconfig -p 2>/dev/null | grep -o "libcudart\\.so\\.[0-9.]*" | sort -u | head -n 20',
    (
        # an rdma that is too old for -j, or may not ask the kernel, prints nothing
        'r=$(rdma -j link show 2>/dev/null); if [ -n "$r" ]; then echo "@@ rdma"; echo "$r";'
        ' elif command -v ibv_devinfo >/dev/null; then echo "@@ ibv"; ibv_devinfo 2>/dev/null; fi'
    ),
)
_WINDOWS: Final = (
    "[Console]::OutputEncoding=[Text.Encoding]::UTF8",
    "$ProgressPreference='SilentlyContinue'",
    "'@@ begin windows'",
    "'@@ clock';[DateTimeOffset]::UtcNow.ToUnixTimeSeconds()",
    "'@@ synchronized';w32tm /query /status 2>$null|select -First 1",
    "'@@ installed';(Get-CimInstance Win32_VideoController|?{$_.Name -like 'NVIDIA*'}|select -First 1).DriverVersion",
    (
        '$s=@("$env:SystemRoot\\System32\\nvidia-smi.exe",'
        '"$env:ProgramFiles\\NVIDIA Corporation\\NVSMI\\nvidia-smi.exe")'
        "|?{Test-Path $_}|select -First 1"
    ),
    "if($s){'@@ smi';& $s -q -x 2>&1}else{'@@ no-smi'}",
    r"'@@ toolkit';if($env:CUDA_PATH){& $env:CUDA_PATH\bin\nvcc.exe --version 2>$null}",
    (
        "'@@ rdma';ConvertTo-Json -Compress @(Get-NetAdapterRdma -ErrorAction SilentlyContinue|?{$_.Enabled}|"
        "%{@{ifname=$_.Name;state=''+(Get-NetAdapter -Name $_.Name).Status}})"
    ),
)


@dataclass(frozen=True, slots=True)
class GuestCall:
    """A program of a guest with its arguments (vSphere API, GuestProgramSpec)."""

    program: str
    arguments: str


def over_ssh(system: GuestSystem, frameworks: Sequence[str]) -> str:
    """The command whose output is the answer: one line, whichever shell the guest's SSH server starts."""
    if system is GuestSystem.LINUX:
        return f"/bin/sh -c {quote(_linux(frameworks))}"
    return f"powershell -NoProfile -NonInteractive -EncodedCommand {_encoded(_windows(frameworks))}"


def answer_path(system: GuestSystem, nonce: str) -> str:
    """Where the answer lies until it is fetched."""
    directory = "/tmp/" if system is GuestSystem.LINUX else "C:\\Windows\\Temp\\"  # noqa: S108 - of the guest
    return f"{directory}gpuops-{nonce}.txt"


def to_file(system: GuestSystem, frameworks: Sequence[str], path: str) -> GuestCall:
    """The program that writes its answer to that file, which nobody else may read, and which must not be there yet."""
    if system is GuestSystem.LINUX:
        return GuestCall("/bin/sh", "-c " + quote(f"umask 077; set -C; {{ {_linux(frameworks)}; }} > {path}"))
    command = f"{_POWERSHELL} -NoProfile -NonInteractive -EncodedCommand {_encoded(_windows(frameworks))}"
    return GuestCall(_CMD, f'/d /c "{command} > {path}"')


def removal(system: GuestSystem, path: str) -> GuestCall:
    """The program that removes that file."""
    if system is GuestSystem.LINUX:
        return GuestCall("/bin/rm", f"-f {path}")
    return GuestCall(_CMD, f"/d /c del {path}")


def _linux(frameworks: Sequence[str]) -> str:
    asked = [f'echo "{name} $(python3 -c "{_PYTHON}" {name} 2>/dev/null)"' for name in frameworks]
    with_python = f'echo "@@ frameworks"; {"; ".join(asked)}' if asked else ":"
    python = f'if command -v python3 >/dev/null; then {with_python}; else echo "@@ no-python"; fi' if asked else ":"
    return "; ".join((*_LINUX, python, 'echo "@@ end"'))


def _windows(frameworks: Sequence[str]) -> str:
    asked = ";".join(f"'{name} '+(& python -c '{_PYTHON}' {name} 2>$null)" for name in frameworks)
    python = f"if(Get-Command python -ErrorAction SilentlyContinue){{'@@ frameworks';{asked}}}else{{'@@ no-python'}}"
    return ";".join((*_WINDOWS, *([python] if asked else []), "'@@ end'"))


def _encoded(script: str) -> str:
    return base64.b64encode(script.encode("utf-16-le")).decode("ascii")
