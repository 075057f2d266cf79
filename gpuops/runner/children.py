"""Runs processes of gpuops for vCenters, and ends all of them when the runner is to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuops.model.runners import Half


@dataclass(slots=True)
class Children:
    """The processes that run now: of each vCenter one, and a return beside a night that does not end."""

    environment: Mapping[str, str]
    """What they are given beside this process's own environment."""
    running: dict[tuple[str, Half], asyncio.Task[int]] = field(default_factory=dict)
    """By site and half; each is there until its process has ended, whoever waits for it or does no more."""
    processes: set[asyncio.subprocess.Process] = field(default_factory=set)
    ending: bool = False

    def begin(self, half: Half, site: str, policy: Path) -> asyncio.Task[int]:
        """A turn; its exit code, or OSError. Shield it, for whoever waits for it may be cancelled.

        One of that site that runs already, because the queue was lost and found while it ran, is taken instead: the
        next turn does the rest. A return does not wait for a night.
        """
        for key in ((site, Half.DAY), (site, half)):
            if key in self.running:
                return self.running[key]
        self.running[site, half] = asyncio.create_task(self._played(half, site, policy))
        return self.running[site, half]

    async def assign_requests(self) -> int:
        """Has it written down which site each request across sites is for; the exit code, or OSError."""
        return await self._run(("queue", "--site", "all", "--assign", "--quiet"), stdout=asyncio.subprocess.DEVNULL)

    async def ended(self, site: str | None = None) -> None:
        """Returns when nothing of that site runs; None = nothing at all."""
        while mine := [task for (of, _), task in self.running.items() if site in (None, of)]:
            await asyncio.wait(mine)

    def end(self) -> None:
        """Tells all of them to end: each leaves what is in flight to vCenter and closes its journal."""
        self.ending = True
        for process in self.processes:
            _tell(process)

    async def _played(self, half: Half, site: str, policy: Path) -> int:
        try:
            return await self._run(("rotate", half, "--policy", str(policy), "--yes", "--quiet", "--vcenter", site))
        finally:
            del self.running[site, half]

    async def _run(self, words: tuple[str, ...], stdout: int | None = None) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpuops", *words, stdin=asyncio.subprocess.DEVNULL, stdout=stdout,
            env={**os.environ, **self.environment},
        )  # fmt: skip
        self.processes.add(process)
        try:
            if self.ending:  # since it was begun
                _tell(process)
            return await process.wait()
        finally:
            self.processes.discard(process)


def _tell(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        process.send_signal(signal.SIGTERM)
