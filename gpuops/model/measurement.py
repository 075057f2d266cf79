"""What vCenter's performance counters say of a VM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

CPU_MHZ: Final = "cpu.usagemhz.average"
"""The CPU that a VM uses, in MHz."""


@dataclass(frozen=True, slots=True)
class CounterWindow:
    """What one counter of a VM said in each sample of a while. Missing samples are missing, never zero."""

    highest: int
    """Of all samples that are there, in the counter's own unit; percentages are in hundredths (135 = 1.35 %)."""
    since: datetime
    until: datetime
    """From when until when each sample is there, without a gap."""
    asked: datetime
    """By vCenter's clock, when it was asked."""
