"""The two simulated vCenters the benchmarks ask, each a process of its own, and what such a process has used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.measure import ROOT
from tests.peers.processes import BINARIES, Endpoint, running_vcsim
from tests.waiting import wait_until

START_LIMIT_S = 120
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def unbuilt_peers() -> str:
    """Why vcsim and govc cannot be asked; empty = they are built."""
    names = [name for name in ("govc", "vcsim") if not (BINARIES / name).exists()]
    return f"it needs {' and '.join(names)} (make -C tests/peers, with Go)" if names else ""


@dataclass(frozen=True, slots=True)
class Served:
    """A simulated vCenter that answers, and how long it took from its process start to that."""

    endpoint: Endpoint
    start_s: float

    def cpu_s(self) -> float:
        """CPU seconds the server process has used so far."""
        # Fields 14 and 15 of /proc/PID/stat, counted after the command name, which may hold blanks.
        fields = Path(f"/proc/{self.endpoint.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


@contextmanager
def our_simulator(scenario: str, *flags: str) -> Iterator[Served]:
    """`gpuops sim serve` with a scenario; it ends with the block."""
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "ready.json"
        command = (sys.executable, "-m", "gpuops", "sim", "serve", f"--scenario={scenario}", f"--ready-file={ready}")
        started = time.perf_counter()
        with subprocess.Popen(
            (*command, *flags), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as server:
            try:
                wait_until(ready.exists, START_LIMIT_S, process=server, every_s=0.01)
                start_s = time.perf_counter() - started
                said = json.loads(ready.read_text(encoding="utf-8"))
                login = (said["username"], said["password"], Path(said["ca_file"]))
                yield Served(Endpoint(said["url"], *login, pid=server.pid), start_s)
            finally:
                server.terminate()


@contextmanager
def vcsim_fleet(hosts: int, machines: int, *flags: str) -> Iterator[Served]:
    """A vcsim with so many hosts and VMs, GPUs included; to make its files is not part of its start."""
    with tempfile.TemporaryDirectory() as directory:
        # In a process of its own: a child's memory is counted from its parent's size, so this one stays small.
        command = (sys.executable, "-m", "tests.bench.simulator.vcsim_fleet", directory, str(hosts), str(machines))
        made = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
        if made.returncode:
            raise RuntimeError(f"no fleet for vcsim: {made.stderr.strip()[-2000:]}")
        started = time.perf_counter()
        with running_vcsim(Path(directory), f"-load={made.stdout.strip()}", *flags) as endpoint:
            yield Served(endpoint, time.perf_counter() - started)
