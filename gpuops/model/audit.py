"""What an audit of a journal found: how far the chain of its records can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Chain:
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
    chains: tuple[Chain, ...]
    damage: str = ""
    """What is wrong with the database itself, or with a head that was asked for; empty = nothing."""

    @property
    def whole(self) -> bool:
        return not self.damage and not any(chain.bad for chain in self.chains)
