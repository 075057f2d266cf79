"""Waits for what another process or thread does, in real time, whatever a test does to the clock of gpuops."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gpuops.clock import rounds

T = TypeVar("T")


def wait_until(
    look: Callable[[], T],
    within_s: float = 60.0,
    *,
    process: subprocess.Popen[Any] | None = None,
    every_s: float = 0.02,
) -> T:
    """Return the first answer of `look` that is true. Fails when the time is up, or when `process` ends before."""
    for _ in rounds((every_s,), within_s, wait=time.sleep, read_clock_s=time.monotonic):
        answer = look()
        if answer:
            return answer
        assert process is None or process.poll() is None, process.communicate()
    raise AssertionError(f"not within {within_s:.0f} s; the last answer: {answer!r}")
