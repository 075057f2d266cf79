"""What nights do with the servers of a pool of lent GPUs, as a policy says it, and as a book has it of one server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gpuops.model.stored import stored_as


class ByNight(StrEnum):
    """Who has the GPUs of a pool's servers by night."""

    TAKE_BACK = "take-back"
    """A server whose GPUs the night's ML VMs need is drained, stopped like any desktop, and lends again by day."""
    GIVE = "give"
    """A server that the night starts from its queue lends to clients until the return begins."""


@dataclass(frozen=True, slots=True)
class LentByNight:
    """What a policy says of one pool of lent GPUs."""

    pool: str
    """Its name."""
    by_night: ByNight
    grace: timedelta = timedelta(minutes=15)
    """How long clients keep what is taken back, or how long before the return the last lease of a given server ends."""


@stored_as("ServerNight", night="night", by_night="by_night", until="until", marker="marker")
@dataclass(frozen=True, slots=True)
class ServerNight:
    """That a night has a server drained, or has it lend."""

    night: str
    """Its id."""
    by_night: ByNight
    until: datetime
    """Until when it lends (give), or lends nothing (take-back: no longer than until the night's return has begun)."""
    marker: str = "gpuops.rotation"
    """The custom attribute that the VM carries while the night has it."""
