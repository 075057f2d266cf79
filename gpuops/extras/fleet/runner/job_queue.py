"""What the runners' queue must be able to do. `procrastinate_queue.py` is the one that is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from gpuops.errors import StateDamaged
from gpuops.model.nights.runners import PolicyTurn, QueueStatus


class QueueAway(StateDamaged):
    """The database of the queue does not answer, or refuses."""


class HandedOver(Exception):
    """A turn that was given back: another runner is to take it at once."""


Play = Callable[[PolicyTurn], Awaitable[None]]


class JobQueue(Protocol):
    """A queue that several runners share. Every method raises QueueAway where it cannot be reached."""

    async def make(self) -> bool:
        """Make what it needs in the database where it is not there; whether it made it."""
        ...

    async def offer(self, turn: PolicyTurn, since: datetime) -> bool:
        """Offer a turn that is due since that moment; return whether no runner had offered it before."""
        ...

    async def ask(self, turn: PolicyTurn) -> bool:
        """Offer a turn now, whatever was due; whether none was waiting already."""
        ...

    async def serve(self, sites: Callable[[], Sequence[str]], play: Play) -> None:
        """Take turns of the sites that there are at that moment, one at a time of each, until `stop`; returns when all
        that it took have ended.

        A turn whose `play` raises HandedOver is offered again at once, unless the next one of its policy waits already.
        One that this runner lost, because it gave no sign of life for too long, is not ended by it. Where the database
        is lost, what it plays is cancelled and offered again: raises QueueAway, and may be called anew.
        """
        ...

    def stop(self) -> None:
        """Take no more turns."""
        ...

    async def rescue(self) -> int:
        """Offer again the turns of runners that gave no sign of life for a while; how many."""
        ...

    async def status(self) -> QueueStatus: ...

    @property
    def rank(self) -> int:
        """The place of this runner among those that lived when they were last seen, from 0; 0 = none was ever seen."""
        ...
