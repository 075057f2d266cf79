"""What a journal tells: how far its records can be trusted, and which hosts and VMs were given up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuops.model.stored import stored_as


@dataclass(frozen=True, slots=True)
class AuditedChain:
    """The records of one vCenter. Those before `bad` are as gpuops wrote them, in their order and without a gap."""

    vcenter: str
    good: int
    """So many records fit the ones before them."""
    first: datetime | None
    last: datetime | None
    """When the first and the last good record were written."""
    head: str
    """SEQ:CHECKSUM of the last good record: what to note elsewhere, to find out later whether the end was cut off."""
    bad: str = ""
    """The first record that does not fit, and what is wrong with it; empty = none."""


@dataclass(frozen=True, slots=True)
class Audit:
    """A whole journal."""

    journal: str
    """The file, or the database without its password."""
    chains: tuple[AuditedChain, ...]
    damage: str = ""
    """What is wrong with the database itself, or with a head that was asked for; empty = nothing."""

    @property
    def whole(self) -> bool:
        return not self.damage and not any(chain.bad for chain in self.chains)


class Thing(StrEnum):
    """What was given up."""

    HOST = "host"
    VM = "VM"


@stored_as("GivenUp")
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
