"""The current state of the page: its newest edition, and the error if vCenter is not followed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

Maker = Callable[[], bytes]
PAGE: Final = "page"
REPORT: Final = "report"


@dataclass(frozen=True, slots=True, eq=False)
class Edition:
    """One read of vCenter, as page and documents; each is made once, when it is first asked for."""

    name: str
    """It is kept while reads show the same."""
    read_at: datetime
    """By the clock of this machine."""
    read_s: float
    """The same as seconds (`clock.passed_s`), whatever is done to the clock."""
    makers: Mapping[str, Maker]
    """By name: `page`, and the documents below `api/`. They are called in other threads."""


@dataclass(frozen=True, slots=True)
class Current:
    """The newest edition (None = vCenter was never read), and why vCenter is not followed now (None = it is)."""

    edition: Edition | None = None
    trouble: str | None = None

    def event(self, now_s: float) -> bytes:
        """As a server-sent event (HTML standard, 9.2.5): one line of JSON, in ASCII."""
        edition = self.edition
        fields = {
            "edition": edition.name if edition is not None else None,
            "age_s": round(now_s - edition.read_s, 1) if edition is not None else None,
            "trouble": self.trouble,
        }
        return f"data: {json.dumps(fields)}\n\n".encode()


class CurrentState:
    """The newest `Current` for the watchers of one event loop. There are no queues: a slow watcher skips old states."""

    def __init__(self) -> None:
        self.now = Current()
        self.watchers = 0
        self.over = False
        self._changed = asyncio.Event()
        self._made: dict[str, asyncio.Future[bytes]] = {}

    def tell(self, current: Current) -> None:
        """Set the state, in the loop's thread."""
        if current.edition is not self.now.edition:
            self._made = {}
        self.now = current
        self._wake()

    def end(self) -> None:
        """End the event streams of all watchers."""
        self.over = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_newer(self, current: Current, at_most_s: float) -> None:
        """Wait for a newer state, or until the time is up."""
        if self.now is current and not self.over:
            try:
                await asyncio.wait_for(self._changed.wait(), at_most_s)
            except TimeoutError:
                return

    async def body(self, name: str) -> bytes | None:
        """Page or document of that name of the newest edition; None if it has none. Raises as its maker."""
        edition = self.now.edition
        maker = edition.makers.get(name) if edition is not None else None
        if maker is None:
            return None
        if name not in self._made:
            self._made[name] = asyncio.ensure_future(asyncio.to_thread(maker))
        return await asyncio.shield(self._made[name])
