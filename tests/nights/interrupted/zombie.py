"""A process of its own that works on a simulated vCenter and stops itself (SIGSTOP) before its n-th step of a kind.

python -m tests.nights.interrupted.zombie PORT CA_FILE STATE_DIR WHAT [KIND NTH SLEPT_S]     the password comes by stdin

WHAT is night, day, return (by the markers alone), later: day, when what was lost can come no more; or much later: day,
when a night that has given no sign of life meanwhile hangs. When it is
continued, its monotonic clock has gone on by SLEPT_S: by more than a lease lasts, as that of a process that slept so
long, or not at all, as that of a machine that was paused; vCenter's clock is the caller's. It ends with the exit code
of gpuops.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib import resources
from pathlib import Path

from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.errors import GpuopsError
from gpuops.execute.rotation import rotation_lock
from gpuops.execute.rotation.rotation import restore, rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation_policy import LATE
from gpuops.model.vcenter.target import Secret, Target
from gpuops.plan.rotation.returns.return_time import HANGS_AFTER
from gpuops.sim.server import USERNAME
from gpuops.vsphere.connection import Connection
from tests.nights.playing.soap import Watched

POLICY = resources.files("gpuops.sim").joinpath("scenarios", "lab-policy.yaml").read_text(encoding="utf-8")
LEASED = parse_policy(f"{POLICY}\nlock_vm: bare\n", "lab")
"""`bare` is a VM without GPU."""


GRACE_S = 1.0
"""A process that is stopped takes any time that it is given to end."""

AHEAD = {"later": LATE, "much later": HANGS_AFTER}


class Sleeper:
    """Stops the process before a step, and counts the time that passed meanwhile."""

    def __init__(self, kind: str, nth: int, slept_s: float) -> None:
        self._before = f"before {kind} "
        self._left = nth
        self._slept_s, self._sleeps_s = 0.0, slept_s

    def __call__(self, point: str) -> None:
        if self._left and point.startswith(self._before):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
                self._slept_s = self._sleeps_s

    def passed_s(self) -> float:
        return time.monotonic() + self._slept_s


def main(arguments: Sequence[str]) -> int:
    port, ca_file, state_dir, run_name, *stop = arguments
    sleeper = Sleeper(stop[0], int(stop[1]), float(stop[2])) if stop else Sleeper("", 0, 0.0)
    rotation_lock.GRACE_S = GRACE_S  # type: ignore[misc]
    target = Target("127.0.0.1", USERNAME, Secret(sys.stdin.readline().strip()), port=int(port), ca_files=(ca_file,))
    return work(target, Path(state_dir), run_name, sleeper)


def work(target: Target, state_dir: Path, run_name: str, sleeper: Sleeper) -> int:
    """The exit code of gpuops for that run, in this process."""
    try:
        with Connection(target) as connection:
            on = AHEAD.get(run_name, timedelta())
            site = Site(Watched(connection, sleeper), state_dir, lambda: wall_clock() + on)
            site.passed_s = sleeper.passed_s
            if run_name == "night":
                return rotate(RunKind.NIGHT, LEASED, site, apply=True, consent=agreed).exit_code
            return restore(LEASED, site, (), from_markers=run_name == "return", apply=True, consent=agreed).exit_code
    except GpuopsError as error:
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
