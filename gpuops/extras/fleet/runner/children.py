"""Runs processes of gpuops for vCenters, and ends all of them when the runner is to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuops.model.nights.runners import Half

LONGEST_LINE: Final = 1 << 22
"""The longest line, in bytes, that is read from a process."""
REST_S: Final = 2.0
"""How long the output of a process is read after its end."""


@dataclass(slots=True)
class Children:
    """The running processes: one for each vCenter, and a return next to a night that does not end."""

    environment: Mapping[str, str]
    """Variables for the processes, in addition to those of this process."""
    configuration_of: Callable[[str], Path | None] = lambda _: None
    """Returns the configuration file for the processes of a site; None = the common one."""
    say: Callable[[str], None] = lambda _: None
    """Called with each line that they print, after the name of the site."""
    running: dict[tuple[str, Half], asyncio.Task[int]] = field(default_factory=dict)
    """Tasks by site and half; each stays until its process has ended, even if no caller waits for it any more."""
    processes: set[asyncio.subprocess.Process] = field(default_factory=set)
    ending: bool = False

    def begin(self, half: Half, site: str, policy: Path) -> asyncio.Task[int]:
        """Begin a turn; the task returns its exit code, or raises OSError. Shield it: its caller may be cancelled.

        If a turn of that site runs already, because the queue was lost meanwhile, that task is returned: the next turn
        does the rest. A return does not wait for a night.
        """
        for key in ((site, Half.DAY), (site, half)):
            if key in self.running:
                return self.running[key]
        self.running[site, half] = asyncio.create_task(self._play(half, site, policy, ("rotate", half)))
        return self.running[site, half]

    def begin_defrag(self, site: str, policy: Path) -> asyncio.Task[int]:
        """Begin the moves of the policy's `defrag` after its return, as part of that turn: no half begins meanwhile."""
        key = (site, Half.DAY)
        if key not in self.running:
            self.running[key] = asyncio.create_task(self._play(Half.DAY, site, policy, ("defrag",)))
        return self.running[key]

    async def wait_ended(self, site: str | None = None) -> None:
        """Wait until no process of that site runs; None = no process at all."""
        while mine := [task for (of, _), task in self.running.items() if site in (None, of)]:
            await asyncio.wait(mine)

    def end(self) -> None:
        """Stop all of them: each leaves its requests in flight to vCenter and closes its journal."""
        self.ending = True
        for process in self.processes:
            _send_sigterm(process)

    async def _play(self, half: Half, site: str, policy: Path, command: tuple[str, ...]) -> int:
        try:
            own_file = self.configuration_of(site)
            extra_environment = {"GPUOPS_CONFIG": str(own_file)} if own_file is not None else {}
            words = (*command, "--policy", str(policy), "--yes", "--quiet", "--vcenter", site)
            return await self._run(words, site, extra_environment)
        finally:
            del self.running[site, half]

    async def _run(self, words: tuple[str, ...], site: str, extra_environment: Mapping[str, str]) -> int:
        """Run `gpuops` with these words, pass each line that it prints to `say`, and return its exit code."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpuops", *words, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            limit=LONGEST_LINE, env={**os.environ, **self.environment, **extra_environment},
        )  # fmt: skip
        self.processes.add(process)
        reading = asyncio.create_task(self._pass_on_lines(site, process.stdout))
        try:
            if self.ending:  # `end` was called while the process was being started, and did not see it
                _send_sigterm(process)
            code = await process.wait()
            # not until the end of the pipe: a child of the process may still hold it open
            await asyncio.wait([reading], timeout=REST_S)
            return code
        finally:
            self.processes.discard(process)
            reading.cancel()

    async def _pass_on_lines(self, site: str, printed: asyncio.StreamReader | None) -> None:
        """Pass on its lines until its end: a process with a full pipe would wait forever."""
        while printed is not None:
            try:
                line = await printed.readline()
            except ValueError:  # what was read of it is dropped
                self.say(f"{site}: a line of more than {LONGEST_LINE} bytes is left out")
                continue
            if not line:
                return
            self.say(f"{site}: {line.decode('utf-8', 'replace').rstrip()}")


def _send_sigterm(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        process.send_signal(signal.SIGTERM)
