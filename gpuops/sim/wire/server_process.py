"""Starts and stops a simulated vCenter as a process of its own, found by its ready file."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuops import clock
from gpuops.errors import GpuopsError, UsageError, VcenterUnreachable
from gpuops.sim.wire import ready_file as ready
from gpuops.sim.wire.ready_file import ReadyFile
from gpuops.sim.wire.sim_client import SimClient

BEGIN_S: Final = 120.0
"""The largest fleet is built in less."""
END_S: Final = 60.0
_OF_OTHERS: Final = ("GPUOPS_", "VMWARE_", "GOVC_", "PG")
"""Variables with passwords among them, for this tool, Ansible's collections, govc and PostgreSQL's clients."""


def running_server(path: Path) -> ReadyFile | None:
    """Return the simulated vCenter of this ready file, if it answers; None = no ready file, or no answer.

    Raises TargetError for a file that is something else.
    """
    if not path.exists():
        return None
    ready_file = ready.read(path)
    try:
        SimClient(ready_file).clock()
    except GpuopsError:
        return None  # it was killed, and another process may have its port
    return ready_file


def start(path: Path, options: list[str]) -> ReadyFile:
    """Starts `gpuops sim serve` with these options, apart from this process. Raises UsageError with what it said."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = path.with_name(f"{path.name}.log").open("w+", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path.parent} cannot be used: {error.strerror}", hint="name a file of yours") from error
    command = [sys.executable, "-m", "gpuops", "sim", "serve", "--ready-file", str(path), *options]
    with log:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=_without_secrets(os.environ),
        )
        assert process.stdout is not None
        # it prints its first line when it listens, after the ready file is written; without a line it has ended
        with process.stdout:
            heard, _, _ = select.select([process.stdout], [], [], BEGIN_S)
            begun = bool(heard and process.stdout.readline())
        if begun:
            return ready.read(path)
        process.kill()
        process.wait()
        log.seek(0)
        log_lines = log.read().strip().splitlines()
    raise UsageError(f"the simulated vCenter did not start: {log_lines[0] if log_lines else 'it said nothing'}")


def _without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without variables for real vCenters and journals: a simulated vCenter uses none of them."""
    return {name: value for name, value in environ.items() if not name.startswith(_OF_OTHERS)}


def stop(path: Path, ready_file: ReadyFile) -> None:
    """Ends it, and waits until its state is kept. Raises VcenterUnreachable for one that does not end."""
    try:
        os.kill(ready_file.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    for _ in clock.rounds((0.05,), END_S):
        if not _runs(ready_file.pid):
            return
    raise VcenterUnreachable(f"the simulated vCenter of {path} (process {ready_file.pid}) does not end")


def _runs(pid: int) -> bool:
    """Whether the process runs; one that has ended and is not yet reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or ") Z " not in status.read_text(encoding="ascii", errors="replace")
