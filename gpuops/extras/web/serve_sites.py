"""`gpuops serve --site`: the page of each vCenter from its own process, and a table of all.

The process of a site reads its vCenter as `gpuops serve` does, and reports each new edition of its page. When the page
or a document is requested, it makes that too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from gpuops.console.options import CommonOptions
from gpuops.extras.fleet.sites.site_services import (
    SiteAway,
    SiteProcess,
    SiteTalk,
    end_this_process,
    keep_running,
    wait_for_the_end,
)
from gpuops.extras.web.http.current import Current, Edition, Overview
from gpuops.extras.web.http.web_server import WebServer, serving_sites
from gpuops.extras.web.metrics_view import MetricsWriter, merged_families
from gpuops.model.vcenter.owner import OwnerKey
from gpuops.report.sites import SiteFailure

if TYPE_CHECKING:
    from gpuops.config.vcenter.sources import ConfiguredSite
    from gpuops.extras.web.http.access import Access
    from gpuops.report.document import Document

METRICS: Final = "metrics"
_ABOVE: Final = "../../"
"""The address of the table of all sites, from the page of one site."""


@dataclass(frozen=True, slots=True)
class PageOptions:
    """The command's options for the page, which the process of each site parses again."""

    since: str | None
    policy: Path | None
    by: str


@dataclass(frozen=True, slots=True)
class EditionNews:
    """A new edition, as the process of a site reports it, or why it does not follow its vCenter now."""

    name: str | None
    """None = vCenter was never read."""
    read_at: datetime | None
    read_s: float
    documents: tuple[str, ...]
    figures: Document | None
    trouble: str | None


def serve_sites(
    services: Iterable[tuple[ConfiguredSite, CommonOptions]],
    page_options: PageOptions,
    listener: socket.socket,
    access: Access,
    timeout_s: float,
    warn: Callable[[str], None],
    announce: Callable[[], None],
) -> int:
    """Serve until a signal, or until no process of a site runs; return the exit code.

    `announce` is called once, when the page can be opened.
    """
    sites = [(site, common) for site, common in services]
    overview = Overview([site for site, _ in sites])
    # the threads of the sites call `publish_news`; `servers` has its server before these threads start
    servers, table_lock = list[WebServer](), Lock()
    processes: dict[str, SiteProcess] = {}

    def ask_site(name: str, document: str) -> bytes:
        content: bytes = processes[name].ask(document, timeout_s)
        return content

    def publish_news(name: str, news: Any) -> None:
        current, figures = _state_from_news(news, partial(ask_site, name))
        with table_lock:  # so that the table is never replaced by an older one
            servers[0].tell(current, name)
            servers[0].tell(overview.tell(name, current, figures))

    def metrics(name: str, now: Current) -> bytes:
        names = [name] if name else [*processes]
        with ThreadPoolExecutor(len(names)) as pool:
            return merged_families(pool.map(metrics_of, names)).encode()

    def metrics_of(name: str) -> str:
        try:
            return ask_site(name, METRICS).decode()
        except SiteAway:
            return MetricsWriter(name).text(None).decode()

    for site, common in sites:
        processes[site.name] = SiteProcess(
            site.name,
            fleet_of_site,
            # without --policy each site has the policy of its configuration
            (common, page_options if page_options.policy is not None else replace(page_options, policy=site.policy)),
            partial(publish_news, site.name),
            first=not processes,
        )

    with serving_sites(listener, [*processes], access, metrics, warn) as server:
        servers.append(server)
        server.tell(overview.unread())
        with keep_running([*processes.values()], [__name__, "gpuops.extras.web.serve_reads"]):
            announce()
            return wait_for_the_end([*processes.values()])


def _state_from_news(news: Any, ask_site: Callable[[str], bytes]) -> tuple[Current, Document | None]:
    """Return the state of a site and the figures of its last read, from an EditionNews or a SiteFailure.

    `ask_site` gets a document from the process of the site, when it is first requested.
    """
    if isinstance(news, SiteFailure):
        return Current(trouble=news.message), None
    assert isinstance(news, EditionNews)
    if news.name is None or news.read_at is None:
        return Current(trouble=news.trouble), None
    makers = {document: partial(ask_site, document) for document in news.documents}
    return Current(Edition(news.name, news.read_at, news.read_s, makers), news.trouble), news.figures


def fleet_of_site(talk: SiteTalk, common: CommonOptions, page_options: PageOptions) -> None:
    """Run the process of one site: read its vCenter, report each edition, and make requested documents."""
    from gpuops.api.connection import only_read
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import label_of, open_site
    from gpuops.extras.web.http.current import FleetFollower
    from gpuops.extras.web.serve_reads import ServedFleet, ServedMetrics

    policy = load_policy(page_options.policy) if page_options.policy is not None else None
    owners, metrics = OwnerKey.parse("--by", page_options.by), ServedMetrics(label_of(common))
    newest, fleets = [Current()], list[ServedFleet]()  # lists, because the functions below replace the last state
    with ExitStack() as stack:

        def open_fleet() -> ServedFleet:
            site = stack.enter_context(open_site(common))
            fleets.append(ServedFleet(only_read(site), page_options.since, policy, owners, only_own=True))
            return metrics.use_reads_of(fleets[-1])

        def report_state(now: Current) -> None:
            newest[0] = now
            edition, figures = now.edition, fleets[-1].figures if fleets else None
            if edition is None:
                talk.tell(EditionNews(None, None, 0.0, (), None, now.trouble))
            else:
                names = tuple(edition.makers)
                talk.tell(EditionNews(edition.name, edition.read_at, edition.read_s, names, figures, now.trouble))

        def answer_questions() -> None:
            for number, name in talk.questions():
                try:
                    talk.answer(number, _requested_document(name, newest[0], metrics.text))
                except Exception as error:  # the caller reports it; the next page may succeed
                    talk.refuse(number, f"{type(error).__name__}: {error}")
            end_this_process()  # the parent has closed the pipe, but the main thread still reads vCenter

        Thread(target=answer_questions, name="answers", daemon=True).start()
        warn = partial(_warn, talk)
        # edition names begin with the process id, so that they do not repeat after a restart
        FleetFollower(open_fleet, report_state, warn, above=_ABOVE, begin=f"{os.getpid()}.").run()


def _requested_document(name: str, now: Current, metrics: Callable[[Current], bytes]) -> bytes:
    if name == METRICS:
        return metrics(now)
    assert now.edition is not None, "only what an edition has is asked for"
    return now.edition.makers[name]()


def _warn(talk: SiteTalk, line: str) -> None:
    talk.say(f"warning: {line}")
