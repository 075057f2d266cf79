"""What the runners' queue must be able to do. `procrastinate_queue.py` is the one that is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from gpuops.errors import StateDamaged
from gpuops.model.nights.runners import PolicyTurn, QueueStatus


class QueueAway(StateDamaged):
    """The database of the queue does not answer, or refuses the request."""


class HandedOver(Exception):
    """A turn was given back: another runner should take it at once."""


Play = Callable[[PolicyTurn], Awaitable[None]]


class JobQueue(Protocol):
    """A queue that several runners share. Every method raises QueueAway if the database is unreachable."""

    async def make(self) -> bool:
        """Create missing tables in the database; return whether it created any."""
        ...

    async def offer(self, turn: PolicyTurn, since: datetime) -> bool:
        """Offer a turn that is due since that moment; return whether no runner had offered it before."""
        ...

    async def ask(self, turn: PolicyTurn) -> bool:
        """Offer a turn now, even if it is not due; return whether none was waiting yet."""
        ...

    async def serve(self, sites: Callable[[], Sequence[str]], play: Play) -> None:
        """Take turns and play them, one at a time for each site, until `stop`; return when all taken turns have ended.

        `sites` returns the current sites. A turn whose `play` raises HandedOver is offered again at once, unless the
        next turn of its policy is waiting already. If this runner gave no sign of life for too long, another runner may
        have taken its turn; that turn is not ended here. If the database is lost, running turns are cancelled and
        offered again, and QueueAway is raised; call it again then.
        """
        ...

    def stop(self) -> None:
        """Take no more turns."""
        ...

    async def rescue(self) -> int:
        """Offer again the turns of runners that gave no sign of life for a while; return how many."""
        ...

    async def status(self) -> QueueStatus: ...

    @property
    def rank(self) -> int:
        """The place of this runner among the living ones when they were last seen, from 0; 0 if none was ever seen."""
        ...
