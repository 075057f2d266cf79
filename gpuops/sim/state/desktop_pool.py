"""What is declared of a desktop pool, whose machines are VMs of the simulated vCenter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase


class RecordForm(StrEnum):
    """How the record of a machine names its VM."""

    AS_IN_VCENTER = "as-in-vcenter"
    NO_PATH = "no-path"
    OTHER_CASE = "other-case"
    """The path in capital letters."""
    UNESCAPED = "unescaped"
    """The path with `/` for `%2f`."""
    RENAMED = "renamed"
    """Name and path of earlier: the VM was renamed since."""
    MOVED = "moved"
    """The path of earlier: the VM was moved to another folder since."""
    TWICE = "twice"
    """A second machine, left over from earlier, has the same name and path."""
    NO_VCENTER = "no-vcenter"
    """The record does not tell its vCenter."""
    UNMANAGED = "unmanaged"
    """Only the agent in the guest makes it known, by the name of the guest."""


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
    spare_machines: int = 0
    """How many unused machines are kept powered on."""
    records: RecordForm = RecordForm.AS_IN_VCENTER
    """How the records of its machines name their VMs."""
    second_vcenter: bool = False
    """Whether the pod has a second vCenter with the same folders, and a machine there for each of this pool."""

    def has(self, name: str) -> bool:
        """Whether the VM of that name is one of its machines."""
        return any(fnmatchcase(name, pattern) for pattern in self.vms)
