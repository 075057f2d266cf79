"""A "no" with its numbers. Tables of hosts and GPUs have them too, and load no plan for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Shortage(Enum):
    """What of a host or node is too small for a VM, where a rejection says how much there is."""

    VCPUS = auto()
    MEMORY = auto()


@dataclass(frozen=True, slots=True)
class Rejection:
    """A "no" with its numbers: `numa0: memory beside the GPU: needs 65536 MiB, 32768 free`."""

    subject: str
    """What is refused: a VM, a host, a GPU (`esx-01 0000:3b:00.0`), a NUMA node."""
    rule: str
    needed: float | str | None = None
    available: float | str | None = None
    unit: str = ""
    hint: str = ""
    short_of: Shortage | None = None
    """What a smaller VM would need less of; None = its size is not the reason."""
    by_the_hour: bool = False
    """The time of day alone is the reason: cron meets it every day, and nobody needs to be told."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"

    @property
    def reason(self) -> str:
        """The rule with its numbers, for a text that names the subject already."""
        if self.needed is None and self.available is None:
            return self.rule
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.rule}: needs {self.needed}{unit}, {self.available} there"

    @property
    def line(self) -> str:
        """All of it with its next move, where one text is kept for both."""
        return f"{self} (next: {self.hint})" if self.hint else str(self)
