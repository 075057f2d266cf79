"""How the next boot of a simulated host goes; what befalls it is told here beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REBOOT_S: Final = 600.0


@dataclass(slots=True)
class Boot:
    """One boot."""

    takes_s: float | None = REBOOT_S
    """From the moment it goes down until vCenter sees it again; None = it does not come back."""
    options: str | None = None
    """Module options that a host profile sets before the modules are loaded; None = none does."""
    forgets_mig: bool = False
    """Whether its GPUs come up out of MIG mode, whatever was asked for."""
    driver_late_s: float | None = 0.0
    """So long after it the driver lists the GPUs; None = never."""
