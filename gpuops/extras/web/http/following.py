"""Reads vCenter after each notice of a change, and publishes the current state, until it is stopped.

One thread does it, with one session: for any number of watchers there is one WaitForUpdatesEx and one read. Changes
without a notice (a new name, a tag, the journal) are seen within five minutes. If vCenter does not answer, the last
read stays and the next try follows; a refused login ends it, because more tries would lock the account.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, NotConnected
from gpuops.extras.web.http.current import PAGE, REPORT, Current, Edition, Maker
from gpuops.extras.web.page.html import served_page
from gpuops.report.json_text import document_text

if TYPE_CHECKING:
    from gpuops.report.document import AnyDocument, Document

SLICE_S: Final = 15.0
"""How long one call waits for changes in vCenter."""
SHORTEST_S: Final = 2.0
"""The shortest time between two reads; all changes in it become one edition."""
BUSY_PART: Final = 10
"""At most a tenth of the time goes into reading: a large vCenter is read less often."""
LONGEST_S: Final = 300.0
AWAY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class FleetRead:
    """One read of vCenter."""

    report: Document
    """It holds lists, not iterators, because it is read several times."""
    others: Mapping[str, Callable[[], AnyDocument]]
    """Further documents by their names below `api/`; each is made in another thread when it is first requested."""


class FleetReads(Protocol):
    """The reads of a site. Methods raise GpuopsError."""

    def read(self) -> FleetRead:
        """Return the current report and documents."""
        ...

    def wait_for_change(self, timeout_s: float) -> bool:
        """Wait for a notice of a change since the last call, at most this time; return whether there was one."""
        ...


class Following:
    """The reads of one vCenter. `tell` is called with each new state, `say` once with each error.

    The page of one of several sites links the common table at `above`. The names of editions start with `begin`, so
    that a restarted process does not repeat them.
    """

    def __init__(
        self,
        opened: Callable[[], FleetReads],
        tell: Callable[[Current], None],
        say: Callable[[str], None],
        *,
        above: str = "",
        begin: str = "",
    ) -> None:
        self._open, self._tell, self._say = opened, tell, say
        self._above, self._begin = above, begin
        self._site: FleetReads | None = None
        self._now = Current()
        self._shown = b""  # the digest of the last edition's report
        self._number = 0  # of the last edition
        self._took_s = 0.0  # how long the last read took

    def run(self) -> None:
        """Run until a signal, LoginRefused, or, before the first read, any error but NotConnected."""
        while True:
            if self.look():
                self._wait(max(SHORTEST_S, BUSY_PART * self._took_s))
            else:
                clock.pause(AWAY_S)

    def look(self) -> bool:
        """Read vCenter and publish the state; return False if the read failed."""
        try:
            if self._site is None:
                self._site = self._open()
            # before the read: the next wait then reports a change during the read
            self._site.wait_for_change(0.0)
            read_at, read_s = clock.wall_clock(), clock.passed_s()
            read = self._site.read()
        except GpuopsError as error:
            self._note_trouble(error)
            return False
        self._now = Current(self._edition(read, read_at, read_s))
        # `_wait` keeps a pause in proportion to it; the first read also loads modules, so its duration is left out
        self._took_s = clock.passed_s() - read_s if self._number > 1 else 0.0
        self._tell(self._now)
        return True

    def _edition(self, read: FleetRead, read_at: datetime, read_s: float) -> Edition:
        """Return the edition of a read. It has the name of the last one if only `read_at` differs in its report."""
        report = read.report
        text = document_text(report)
        digest = blake2b(text.replace(report["read_at"], "", 1).encode()).digest()  # without the time of the read
        if digest != self._shown:
            self._number += 1
            self._shown = digest
        name = f"{self._begin}{self._number}"
        names = (REPORT, *read.others)
        makers: dict[str, Maker] = {key: partial(_json, make) for key, make in read.others.items()}
        makers[REPORT] = text.encode
        makers[PAGE] = lambda: served_page(report, name, names, self._above).encode()
        return Edition(name, read_at, read_s, makers)

    def _wait(self, shortest_s: float) -> None:
        """Return after a notice of a change or after LONGEST_S, not before `shortest_s`; after an error, in AWAY_S."""
        assert self._site is not None
        began_s = clock.passed_s()
        changed = False
        while not changed and clock.passed_s() - began_s < LONGEST_S:
            try:
                changed = self._site.wait_for_change(SLICE_S)
            except GpuopsError as error:
                self._note_trouble(error)
                clock.pause(AWAY_S)
                return
            self._note_recovery()
        clock.pause(max(0.0, shortest_s - (clock.passed_s() - began_s)))

    def _note_trouble(self, error: GpuopsError) -> None:
        if isinstance(error, LoginRefused) or (self._now.edition is None and not isinstance(error, NotConnected)):
            raise error
        if self._now.trouble != error.message:
            self._say(error.line)
            self._now = Current(self._now.edition, error.message)
            self._tell(self._now)

    def _note_recovery(self) -> None:
        if self._now.trouble is not None:
            self._now = Current(self._now.edition)
            self._tell(self._now)


def _json(make: Callable[[], AnyDocument]) -> bytes:
    return document_text(make()).encode()
