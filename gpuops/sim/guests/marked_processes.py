"""Finds, stops and ends the processes of guests by a mark in their environment, those that they started included.

A process group or a session can be left by any process; the environment goes with every child. Run as a program,
`marked_processes.py MARK DIRECTORY` waits for the end of its input, then ends the processes with the mark and removes
the directory, so that a simulator that was killed leaves nothing behind. It is run alone and imports nothing of gpuops.

Linux: /proc/PID/environ, stat (proc(5)). A process that empties its environment is not found.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

VARIABLE: Final = "GPUOPS_SIM_GUEST"
_PROC: Final = Path("/proc")
_ROUNDS: Final = 200
"""How often the processes are looked up again: one that forks during a round is found in the next."""
_PAUSE_S: Final = 0.01


def pids_with_mark(mark: str) -> Iterator[int]:
    """Yield the ids of the running processes whose mark begins with `mark`."""
    variable = f"{VARIABLE}={mark}".encode()
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # it ended, or is another user's
            continue
        if any(assignment.startswith(variable) for assignment in environment.split(b"\0")):
            yield int(entry.name)


def end_all(mark: str) -> bool:
    """Kill the processes with this mark until none is left; return False if some could not be killed."""
    return _signal_marked(mark, signal.SIGKILL, lambda pid: True)


def stop_all(mark: str) -> bool:
    """Stop the processes with this mark, as suspending a VM does; return False if some could not be stopped."""
    return _signal_marked(mark, signal.SIGSTOP, lambda pid: _state(pid) not in "Tt")


def continue_all(mark: str) -> None:
    """Continue the processes with this mark; one round is enough, because stopped processes start no others."""
    for pid in pids_with_mark(mark):
        _send(pid, signal.SIGCONT)


def _signal_marked(mark: str, number: signal.Signals, needs_signal: Callable[[int], bool]) -> bool:
    for _ in range(_ROUNDS):
        pids = [pid for pid in pids_with_mark(mark) if needs_signal(pid)]
        if not pids:
            return True
        for pid in pids:
            _send(pid, number)
        threading.Event().wait(_PAUSE_S)
    return False


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself


def _state(pid: int) -> str:
    """The letter of its state in stat; T = stopped, Z = it has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "T"  # it has ended, and needs no signal
    return text.rpartition(")")[2].split()[0]


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_all(sys.argv[1])
    shutil.rmtree(sys.argv[2], ignore_errors=True)
