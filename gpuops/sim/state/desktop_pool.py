"""What is declared of a desktop pool, whose machines are VMs of the simulated vCenter."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class DesktopPoolState:
    """A desktop pool, in the words of the Horizon REST API."""

    name: str
    vms: tuple[str, ...]
    """Names of its VMs, where * stands for anything."""
    source: str
    type: str
    power_policy: str
    logins_per_hour: float

    def has(self, name: str) -> bool:
        """Whether the VM of that name is one of its machines."""
        return any(fnmatchcase(name, pattern) for pattern in self.vms)
