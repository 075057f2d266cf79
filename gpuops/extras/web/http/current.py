"""The current state of the page of `gpuops serve`: its newest edition, and the error if vCenter cannot be followed.

`FleetFollower` reads vCenter after each notice of a change and publishes the state. It uses one thread and one session:
for any number of watchers there is one WaitForUpdatesEx and one read. Changes without a notice (a new name, a tag, the
journal) are seen within five minutes. If vCenter does not answer, the last read stays and the next try follows. A
refused login ends it, because more tries would lock the account.

With several vCenters (`Overview`), each has its own pages below `sites/NAME/` and a row in the common table: whether it
is followed now, when it was read, and the figures of its last read, which an unreachable site keeps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote
from zoneinfo import ZoneInfo

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, NotConnected
from gpuops.extras.web.page.html import SiteRow, overview_page, served_page
from gpuops.report.json_and_csv import document_text
from gpuops.report.sites import SiteAnswer, SiteFailure, sites_document

if TYPE_CHECKING:
    from gpuops.config.vcenter.sources import ConfiguredSite
    from gpuops.report.document import AnyDocument, Document

Maker = Callable[[], bytes]
PAGE: Final = "page"
REPORT: Final = "report"


@dataclass(frozen=True, slots=True, eq=False)
class Edition:
    """One read of vCenter, as page and documents; each is made once, when it is first asked for."""

    name: str
    """It stays the same while reads return the same report."""
    read_at: datetime
    """The time of the read, by the clock of this machine."""
    read_s: float
    """The same moment in seconds (`clock.passed_s`), which changes of the clock do not affect."""
    makers: Mapping[str, Maker]
    """Functions by name: `page`, and the documents below `api/`. They are called in other threads."""


@dataclass(frozen=True, slots=True)
class Current:
    """The newest edition (None = vCenter was never read), and why vCenter is not followed now (None = it is)."""

    edition: Edition | None = None
    trouble: str | None = None

    def event(self, now_s: float) -> bytes:
        """Return the state as a server-sent event (HTML standard, 9.2.5): one line of JSON, in ASCII."""
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
        self.is_ended = False
        self._changed = asyncio.Event()
        self._bodies: dict[str, asyncio.Future[bytes]] = {}
        """Page and documents of the newest edition that were requested, by name."""

    def tell(self, current: Current) -> None:
        """Set the state, in the loop's thread."""
        if current.edition is not self.now.edition:
            self._bodies = {}
        self.now = current
        self._wake()

    def end(self) -> None:
        """End the event streams of all watchers."""
        self.is_ended = True
        self._wake()

    def _wake(self) -> None:
        """Wake all waiters, and begin a new event for the next ones."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_newer(self, current: Current, at_most_s: float) -> None:
        """Wait for a newer state, or until the time is up."""
        if self.now is current and not self.is_ended:
            try:
                await asyncio.wait_for(self._changed.wait(), at_most_s)
            except TimeoutError:
                return

    async def body(self, name: str) -> bytes | None:
        """Return the page or document of that name of the newest edition, or None. Raises the errors of its maker."""
        edition = self.now.edition
        maker = edition.makers.get(name) if edition is not None else None
        if maker is None:
            return None
        if name not in self._bodies:
            self._bodies[name] = asyncio.ensure_future(asyncio.to_thread(maker))
        return await asyncio.shield(self._bodies[name])  # other requests still need it if this one is cancelled


_UNREAD: Final = Current(trouble="it has not been read yet")


@dataclass(frozen=True, slots=True)
class SiteNow:
    """The current state of one site."""

    site: ConfiguredSite
    current: Current = _UNREAD
    figures: Document | None = None
    """The figures of its last read (`site_figures`); None = it was never read."""


class Overview:
    """The common table of all sites, as one edition after the other. One thread at a time may call it."""

    def __init__(self, sites: Sequence[ConfiguredSite]) -> None:
        self._sites = {site.name: SiteNow(site) for site in sites}
        self._number = 0

    def unread(self) -> Current:
        """Return the state before any site was read."""
        return self._current_table()

    def tell(self, site: str, current: Current, figures: Document | None) -> Current:
        """Set the state of one site and return the state of all. Without `figures` those of its last read stay."""
        site_now = self._sites[site]
        self._sites[site] = replace(site_now, current=current, figures=figures or site_now.figures)
        return self._current_table()

    def _current_table(self) -> Current:
        """Return a new edition of the table: its page, and each document that at least one site has.

        Its trouble is set only if none of the vCenters is followed.
        """
        self._number += 1
        # a tuple: the makers run later, when the sites may have changed
        edition_name, sites = f"{self._number}", tuple(self._sites.values())
        documents = {
            key for site_now in sites if site_now.current.edition is not None for key in site_now.current.edition.makers
        }
        documents = (documents | {REPORT}) - {PAGE}
        makers: dict[str, Maker] = {key: partial(_merged_document, sites, key) for key in documents}
        makers[PAGE] = partial(_overview_page, sites, edition_name, tuple(sorted(documents)))
        is_followed = any(site_now.current.trouble is None for site_now in sites)
        trouble = None if is_followed else f"none of {len(sites)} vCenters is followed now"
        return Current(Edition(edition_name, clock.wall_clock(), clock.passed_s(), makers), trouble)


def address_of(site: str) -> str:
    """Return the path of the pages of a site, relative to the overview.

    >>> address_of("prod/1")
    'sites/prod%2F1/'
    """
    return f"sites/{quote(site, safe='')}/"


def _overview_page(sites: Sequence[SiteNow], edition: str, documents: Sequence[str]) -> bytes:
    """Return the page with the table of all sites; `documents`: the names of the documents that it links."""
    rows = [
        SiteRow(
            site_now.site.name,
            address_of(site_now.site.name),
            _read_at(site_now),
            site_now.current.trouble,
            site_now.figures,
        )
        for site_now in sites
    ]
    return overview_page(rows, edition, documents).encode()


def _merged_document(sites: Sequence[SiteNow], name: str) -> bytes:
    """Return the document of that name from all followed sites, with the reason for each other site."""
    with ThreadPoolExecutor(max(1, len(sites))) as pool:
        return document_text(sites_document(list(pool.map(partial(_site_answer, name=name), sites)))).encode()


def _site_answer(site_now: SiteNow, name: str) -> SiteAnswer:
    """Return a site's document of this name; a failure if the site is not followed or has no such document."""
    edition, labels = site_now.current.edition, tuple(sorted(site_now.site.labels.items()))
    at = edition.read_at if edition is not None else clock.wall_clock()
    base_answer = SiteAnswer(site_now.site.name, 0, at, site_now.site.zone, labels, kind=name)
    maker: Callable[[], bytes] | None = edition.makers.get(name) if edition is not None else None
    if site_now.current.trouble is None and maker is not None:
        try:
            return replace(base_answer, json=maker().decode())
        except NotConnected as error:
            return _failed_answer(base_answer, error.message, error.hint)
    return _failed_answer(
        base_answer,
        site_now.current.trouble or f"it has no document {name}",
        f"gpuops login test --vcenter {site_now.site.name} tests this vCenter alone",
    )


def _failed_answer(answer: SiteAnswer, why: str, hint: str) -> SiteAnswer:
    failure = SiteFailure(why, hint, NotConnected.exit_code, NotConnected.code)
    return replace(answer, exit_code=failure.exit_code, kind=None, failure=failure)


def _read_at(site_now: SiteNow) -> datetime | None:
    """Return the time of the last read in the zone of the site, to the minute, as the page shows it."""
    edition = site_now.current.edition
    if edition is None:
        return None
    local = edition.read_at.astimezone(ZoneInfo(site_now.site.zone) if site_now.site.zone is not None else UTC)
    return local - timedelta(seconds=local.second, microseconds=local.microsecond)


SLICE_S: Final = 15.0
"""How long one call waits for changes in vCenter."""
SHORTEST_S: Final = 2.0
"""The shortest time between two reads; all changes in it become one edition."""
BUSY_PART: Final = 10
"""After a read, at least this many times its duration passes before the next: a large vCenter is read less often."""
LONGEST_S: Final = 300.0
"""The longest time between two reads: not every change has a notice."""
AWAY_S: Final = 5.0
"""How long after an error vCenter is tried again."""


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


class FleetFollower:
    """Reads one vCenter after each change. `tell` is called with each new state, `warn` once with each error.

    The page of one of several sites links the common table at `above`. The names of editions start with `begin`, so
    that a restarted process does not repeat them.
    """

    def __init__(
        self,
        open_fleet: Callable[[], FleetReads],
        tell: Callable[[Current], None],
        warn: Callable[[str], None],
        *,
        above: str = "",
        begin: str = "",
    ) -> None:
        self._open_fleet, self._tell, self._warn = open_fleet, tell, warn
        self._above, self._begin = above, begin
        self._site: FleetReads | None = None
        self._now = Current()
        self._report_digest = b""  # of the last edition
        self._number = 0  # of the last edition
        self._took_s = 0.0  # how long the last read took

    def run(self) -> None:
        """Run until a signal, LoginRefused, or, before the first read, any error but NotConnected."""
        while True:
            if self.read_once():
                self._wait_for_next_read(max(SHORTEST_S, BUSY_PART * self._took_s))
            else:
                clock.pause(AWAY_S)

    def read_once(self) -> bool:
        """Read vCenter and publish the state; return False if the read failed."""
        try:
            if self._site is None:
                self._site = self._open_fleet()
            # before the read: the next wait then reports a change during the read
            self._site.wait_for_change(0.0)
            read_at, read_s = clock.wall_clock(), clock.passed_s()
            read = self._site.read()
        except GpuopsError as error:
            self._note_trouble(error)
            return False
        self._now = Current(self._edition(read, read_at, read_s))
        # the pause before the next read is in proportion to it; the first read also loads modules, so it does not count
        self._took_s = clock.passed_s() - read_s if self._number > 1 else 0.0
        self._tell(self._now)
        return True

    def _edition(self, read: FleetRead, read_at: datetime, read_s: float) -> Edition:
        """Return the edition of a read. It has the name of the last one if only `read_at` differs in its report."""
        report = read.report
        text = document_text(report)
        digest = blake2b(text.replace(report["read_at"], "", 1).encode()).digest()  # without the time of the read
        if digest != self._report_digest:
            self._number += 1
            self._report_digest = digest
        name = f"{self._begin}{self._number}"
        names = (REPORT, *read.others)
        makers: dict[str, Maker] = {key: partial(_document_bytes, make) for key, make in read.others.items()}
        makers[REPORT] = text.encode
        makers[PAGE] = lambda: served_page(report, name, names, self._above).encode()
        return Edition(name, read_at, read_s, makers)

    def _wait_for_next_read(self, shortest_s: float) -> None:
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
        """Publish an error, once while it lasts. Raise it if a retry cannot help, or could lock the account."""
        if isinstance(error, LoginRefused) or (self._now.edition is None and not isinstance(error, NotConnected)):
            raise error
        if self._now.trouble != error.message:
            self._warn(error.line)
            self._now = Current(self._now.edition, error.message)
            self._tell(self._now)

    def _note_recovery(self) -> None:
        if self._now.trouble is not None:
            self._now = Current(self._now.edition)
            self._tell(self._now)


def _document_bytes(make: Callable[[], AnyDocument]) -> bytes:
    return document_text(make()).encode()
