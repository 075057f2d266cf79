"""What was played of a story with pools, for the checkers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpuops.model.workloads.lease_book import LeaseBook
from gpuops.sim.state.vm_state import Power
from tests.nights.pools.guests import MadePoolGuests
from tests.nights.pools.site import FIRST, PoolSite


@dataclass
class Look:
    """At guests and books at one moment."""

    at: datetime = FIRST
    power: dict[str, Power] = field(default_factory=dict)
    """By name of each VM."""
    serving: set[str] = field(default_factory=set)
    """Names of the servers whose program runs."""
    lending: set[str] = field(default_factory=set)
    """Names of the servers that are to lend by their book."""
    shares: list[tuple[str, str]] = field(default_factory=list)
    """Server and lease of each share that somebody can use."""
    lets: list[tuple[str, str]] = field(default_factory=list)
    """Client and lease of each environment."""
    lent: set[str] = field(default_factory=set)
    """Ids of the leases that are lent by their books, and not over."""
    held: list[tuple[str, str]] = field(default_factory=list)
    """Server and id of each lease that has something of it by its book."""


@dataclass
class Morning:
    """What there was when desktops were due, and once the pools had had their minutes."""

    evening: datetime
    """The midnight before that night."""
    power: dict[str, Power]
    """By name of each VM, when desktops were due."""
    named: set[str]
    """VMs that the last return named: they could not come back, or were left."""
    after: Look = field(default_factory=lambda: Look())
    """At pools and guests, half an hour later."""
    told: str = ""
    """What the last calls for pools told, by then."""


@dataclass
class PoolStory:
    """What was played, for the checkers."""

    seed: int
    site: PoolSite
    world: Any
    guests: MadePoolGuests
    evenings: dict[datetime, dict[str, Power]] = field(default_factory=dict)
    """By name of each VM, before its night; by the midnight before that."""
    mornings: list[Morning] = field(default_factory=list)
    books: list[tuple[datetime, LeaseBook]] = field(default_factory=list)
    """Each book as it became durable."""
    hit: list[tuple[datetime, str]] = field(default_factory=list)
    """When somebody turned a server or a client off, started it anew, or ended its program."""
    mended: list[tuple[datetime, str]] = field(default_factory=list)
    """When somebody gave a server to its pool again, and that was done."""
    returned: list[tuple[datetime, str]] = field(default_factory=list)
    """When somebody began to return what a client has."""
    returns: list[datetime] = field(default_factory=list)
    """When a return of a night began."""
    told: list[str] = field(default_factory=list)
    """Every line that a call failed or warned with, or said."""
    kills: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    last: Look = field(default_factory=Look)
    """When every lease has to be over."""
    left: set[str] = field(default_factory=set)
    """Ids of the leases that are over and hold something then."""
