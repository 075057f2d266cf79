"""The current state of the page: its newest edition, and the error if vCenter is not followed.

Of several vCenters, each has pages of its own below `sites/NAME/` and a row in the common table: whether it is followed
now, when it was read, and the figures of its last read. The row of an unreachable site shows the reason, and keeps the
figures of its last answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

from gpuops import clock
from gpuops.errors import NotConnected
from gpuops.extras.web.page.html import SiteRow, overview_page
from gpuops.report.json_text import document_text
from gpuops.report.sites import SiteAnswer, SiteFailure, sites_document

if TYPE_CHECKING:
    from gpuops.config.vcenter.sources import ConfiguredSite
    from gpuops.report.document import Document

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
        """Return the page or document of that name of the newest edition, or None. Raises the errors of its maker."""
        edition = self.now.edition
        maker = edition.makers.get(name) if edition is not None else None
        if maker is None:
            return None
        if name not in self._made:
            self._made[name] = asyncio.ensure_future(asyncio.to_thread(maker))
        return await asyncio.shield(self._made[name])


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

    def begin(self) -> Current:
        """Return the state before any site was read."""
        return self._current()

    def tell(self, site: str, current: Current, figures: Document | None) -> Current:
        """Set the state of one site and return the state of all. Without `figures` those of its last read stay."""
        site_now = self._sites[site]
        self._sites[site] = replace(site_now, current=current, figures=figures or site_now.figures)
        return self._current()

    def _current(self) -> Current:
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
        makers[PAGE] = partial(_page, sites, edition_name, tuple(sorted(documents)))
        is_followed = any(site_now.current.trouble is None for site_now in sites)
        trouble = None if is_followed else f"none of {len(sites)} vCenters is followed now"
        return Current(Edition(edition_name, clock.wall_clock(), clock.passed_s(), makers), trouble)


def address_of(site: str) -> str:
    """Return the path of the pages of a site, relative to the overview.

    >>> address_of("prod/1")
    'sites/prod%2F1/'
    """
    return f"sites/{quote(site, safe='')}/"


def _page(sites: Sequence[SiteNow], edition: str, documents: Sequence[str]) -> bytes:
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
