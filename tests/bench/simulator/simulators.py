"""The simulated vCenter that benchmarks ask, in a process of its own, and what that process has used."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.simulator import SimulatorProcess
from tests.peers.processes import BINARIES, Endpoint

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def unbuilt_govc() -> str:
    """Why govc cannot be asked; empty = it is built."""
    return "" if (BINARIES / "govc").exists() else "it needs govc (make -C tests/peers, with Go)"


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
        process = SimulatorProcess(Path(directory), scenario, *flags)
        try:
            ready = process.wait_ready()
            assert ready.ca_file is not None
            login = (ready.url, ready.username, ready.password, Path(ready.ca_file))
            yield Served(Endpoint(*login, pid=ready.pid), process.start_s)
        finally:
            process.end()
