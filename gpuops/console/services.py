"""Commands that run as services, or from cron: pages, metrics, counters, notices, runners."""

from __future__ import annotations

import gc
from typing import Final

SERVICE_THRESHOLDS: Final = (700, 10, 10)
"""Python's own thresholds; a command that ends soon has a higher one (`gpuops.cli.app`)."""


def collect_garbage_often() -> None:
    """Free unreachable cycles as often as Python does by default: a service runs for months.

    What was imported until now stays, so the garbage collector need not look at it.
    """
    gc.freeze()
    gc.set_threshold(*SERVICE_THRESHOLDS)
