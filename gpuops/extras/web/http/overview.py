"""What there is of several vCenters together: a page with a row for each, and their documents as one of kind `sites`.

Each site has pages of its own below `sites/NAME/`. Here it is a row: whether it is followed now, when it was read, and
the figures of its last read. A site that is away has its reason in that row, and what it told last stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

from gpuops import clock
from gpuops.errors import NotConnected
from gpuops.extras.web.http.current import PAGE, REPORT, Current, Edition, Maker
from gpuops.extras.web.page.sites_page import SiteRow, overview_page
from gpuops.report.json_text import document_text
from gpuops.report.sites import SiteAnswer, SiteFailure, sites_document

if TYPE_CHECKING:
    from gpuops.config.vcenter.sites import ConfiguredSite
    from gpuops.report.document import Document

_UNREAD: Final = Current(trouble="it has not been read yet")


@dataclass(frozen=True, slots=True)
class SiteNow:
    """What there is of one site."""

    site: ConfiguredSite
    current: Current = _UNREAD
    figures: Document | None = None
    """Of its last read (`site_figures`); None = there was none."""


class Overview:
    """What all sites tell, as one edition after the other. One thread at a time may call it."""

    def __init__(self, sites: Sequence[ConfiguredSite]) -> None:
        self._sites = {site.name: SiteNow(site) for site in sites}
        self._number = 0

    def begin(self) -> Current:
        """Return what is there before anything was read."""
        return self._current()

    def tell(self, site: str, current: Current, figures: Document | None) -> Current:
        """Return what there is of all, now that one tells this; without figures those of its last read stay."""
        site_now = self._sites[site]
        self._sites[site] = replace(site_now, current=current, figures=figures or site_now.figures)
        return self._current()

    def _current(self) -> Current:
        self._number += 1
        name, now = f"{self._number}", tuple(self._sites.values())
        documents = {
            key for site_now in now if site_now.current.edition is not None for key in site_now.current.edition.makers
        }
        documents = (documents | {REPORT}) - {PAGE}
        makers: dict[str, Maker] = {key: partial(_merged_document, now, key) for key in documents}
        makers[PAGE] = partial(_page, now, name, tuple(sorted(documents)))
        followed = any(site_now.current.trouble is None for site_now in now)
        trouble = None if followed else f"none of {len(now)} vCenters is followed now"
        return Current(Edition(name, clock.wall_clock(), clock.passed_s(), makers), trouble)


def address_of(site: str) -> str:
    """Return where the pages of a site are, below the overview.

    >>> address_of("prod/1")
    'sites/prod%2F1/'
    """
    return f"sites/{quote(site, safe='')}/"


def _page(now: Sequence[SiteNow], edition: str, documents: Sequence[str]) -> bytes:
    rows = [
        SiteRow(
            site_now.site.name,
            address_of(site_now.site.name),
            _read_at(site_now),
            site_now.current.trouble,
            site_now.figures,
        )
        for site_now in now
    ]
    return overview_page(rows, edition, documents).encode()


def _merged_document(sites: Sequence[SiteNow], name: str) -> bytes:
    """Return the document of that name of each site that is followed; of the others the reason."""
    with ThreadPoolExecutor(max(1, len(sites))) as pool:
        return document_text(sites_document(list(pool.map(partial(_site_answer, name=name), sites)))).encode()


def _site_answer(site_now: SiteNow, name: str) -> SiteAnswer:
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
        base_answer, site_now.current.trouble or f"it has no document {name}", "gpuops login test asks it alone"
    )


def _failed_answer(answer: SiteAnswer, why: str, hint: str) -> SiteAnswer:
    failure = SiteFailure(why, hint, NotConnected.exit_code, NotConnected.code)
    return replace(answer, exit_code=failure.exit_code, kind=None, failure=failure)


def _read_at(site_now: SiteNow) -> datetime | None:
    """Return when it was last read, in its own zone, to the minute: what a page shows."""
    edition = site_now.current.edition
    if edition is None:
        return None
    local = edition.read_at.astimezone(ZoneInfo(site_now.site.zone) if site_now.site.zone is not None else UTC)
    return local - timedelta(seconds=local.second, microseconds=local.microsecond)
