"""Child processes measured by the kernel's own accounts, several contenders in interleaved rounds.

Wall time on a busy machine says little; CPU seconds and ratios inside one round say more. So every figure is the
median of rounds in which each contender ran once, one after the other, and ratios are taken within a round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Usage:
    """What one run of a command took, and what it said about itself."""

    wall_s: float
    cpu_s: float
    peak_rss_mib: float
    said: Mapping[str, Any]

    @property
    def peak_mib(self) -> float:
        """The peak resident memory in MiB; a Python contender's own reading is the truer one.

        The kernel's account of a child starts at its parent's size at the fork, which a small child never undercuts.
        """
        return float(self.said.get("peak_rss_mib", self.peak_rss_mib))


@dataclass(frozen=True, slots=True)
class Contender:
    """A command to measure. A command that prints one JSON object on its last line has it kept in `Usage.said`."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] | None = None

    def run(self) -> Usage:
        """Run the command once; raises RuntimeError with its message when it fails."""
        started = time.perf_counter()
        with subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=_compiling(os.environ if self.environment is None else self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            last = b""
            while chunk := child.stdout.read(1 << 20):  # drained as it comes: govc writes 100 MB of JSON
                last = (last + chunk)[-4096:]
            errors = child.stderr.read()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{self.name}: {errors.decode()[-2000:]}")
        return Usage(
            wall_s=time.perf_counter() - started,
            cpu_s=used.ru_utime + used.ru_stime,
            peak_rss_mib=used.ru_maxrss / 1024,
            said=_parse_report(last),
        )


def _compiling(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with Python keeping what it compiled, as pip does when it installs a program.

    Without it each run would compile our 300 modules again, and none of the peers', which pip installed.
    """
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _parse_report(output: bytes) -> Mapping[str, Any]:
    lines = output.decode(errors="replace").strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {}
    try:
        parsed = json.loads(lines[-1])
    except json.JSONDecodeError:  # the tail of a peer's own JSON
        return {}
    return parsed if isinstance(parsed, dict) else {}


def python(name: str, *arguments: str) -> Contender:
    """A contender run by this interpreter."""
    return Contender(name, (sys.executable, *arguments))


Rounds = Mapping[str, Sequence[Usage]]


def interleave(contenders: Sequence[Contender], rounds: int) -> Rounds:
    """Every contender once per round, so that the load of the machine meets all of them alike."""
    usages: dict[str, list[Usage]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            usages[contender.name].append(contender.run())
    return usages


def median_cpu_s(rounds: Rounds, name: str) -> float:
    """The median CPU seconds of a contender."""
    return median(usage.cpu_s for usage in rounds[name])


def paired_ratio(rounds: Rounds, name: str, peer: str) -> float:
    """The median over rounds of CPU(name) / CPU(peer)."""
    return median(
        usage.cpu_s / max(peer_usage.cpu_s, 1e-9) for usage, peer_usage in zip(rounds[name], rounds[peer], strict=True)
    )
