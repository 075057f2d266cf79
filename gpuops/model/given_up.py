"""Given up: a host or VM that a person told gpuops not to wait for any more; named until it is back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Thing(StrEnum):
    """What was given up."""

    HOST = "host"
    VM = "VM"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """One host or VM that was given up."""

    thing: Thing
    ref: str
    """Managed object id, as it was then."""
    uuid: str | None
    """Of the host's hardware, or the VM's instance uuid; None = not known."""
    name: str
    of: str
    """The change (`scheduler set`) or the night (`night 2026-11-14`) that waited for it."""
    at: datetime
    """When it was given up, by the clock of the journal."""
    runs: bool = True
    """Of a VM, whether it ran before: then it is back when it runs, else when it does not."""
