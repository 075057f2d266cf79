"""A simulated vCenter in a process of its own: `gpuops sim serve`, its ready file and its log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpuops.sim.wire.sim_client import ReadyFile, read
from tests.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
READY_S: Final = 120.0


class SimulatorProcess:
    """`gpuops sim serve` with a scenario (its name or its file); `folder` gets `ready.json` and `sim.log`."""

    def __init__(
        self, folder: Path, scenario: Path | str, *flags: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it. `environment` replaces that of this process."""
        self.ready_file = folder / "ready.json"
        self._log = folder / "sim.log"
        command = [sys.executable, "-m", "gpuops", "sim", "serve", "--scenario", str(scenario)]
        command += ["--ready-file", str(self.ready_file), *flags]
        self._began_s = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment or os.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.start_s = 0.0
        """Seconds from the start of the process until it listened."""

    def wait_ready(self) -> ReadyFile:
        """Wait until it listens. Raises RuntimeError with its log if it ends before."""
        wait_until(lambda: self.ready_file.exists() or self._process.poll() is not None, READY_S, every_s=0.01)
        self.start_s = time.perf_counter() - self._began_s
        if self._process.poll() is not None:
            raise RuntimeError(f"no simulated vCenter: {self._log.read_text(encoding='utf-8')}")
        return read(self.ready_file)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=READY_S)


@contextmanager
def simulator(
    folder: Path, scenario: Path | str, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[ReadyFile]:
    """Serve a scenario until the block ends."""
    process = SimulatorProcess(folder, scenario, *flags, environment=environment)
    try:
        yield process.wait_ready()
    finally:
        process.end()
