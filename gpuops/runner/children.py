"""Runs one process of gpuops for each vCenter, and ends all of them when the runner is to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuops.model.runners import Half


@dataclass(slots=True)
class Children:
    """The processes that run now, by site."""

    environment: Mapping[str, str]
    """What they are given beside this process's own environment."""
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    ending: bool = False

    async def rotate(self, half: Half, site: str, policy: Path) -> int:
        """The exit code of a turn. One of that site that runs already, because the queue was lost and found while it
        ran, is waited for instead: the next turn does the rest."""
        process = self.running.get(site)
        if process is None:
            words = ("rotate", half, "--policy", str(policy), "--yes", "--quiet", "--vcenter", site)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gpuops", *words, stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **self.environment},
            )  # fmt: skip
            self.running[site] = process
        try:
            return await process.wait()
        finally:
            if process.returncode is not None and self.running.get(site) is process:
                del self.running[site]

    def end(self) -> None:
        """Tells all of them to end: each leaves what is in flight to vCenter and closes its journal."""
        self.ending = True
        for process in self.running.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
