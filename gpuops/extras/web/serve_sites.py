"""`gpuops serve --site`: the page of each vCenter from its own process, and a table of all.

The process of a site reads its vCenter as `gpuops serve` does, and reports each edition; it also makes page and
documents when they are requested.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class ServedWords:
    """The command's options for the page, which the process of each site parses again."""

    since: str | None
    policy: Path | None
    by: str


@dataclass(frozen=True, slots=True)
class ToldEdition:
    """The report of a site's process about an edition, and why its vCenter is not followed now."""

    name: str | None
    """None = vCenter was never read."""
    read_at: datetime | None
    read_s: float
    documents: tuple[str, ...]
    figures: Document | None
    trouble: str | None


def serve_sites(
    services: Iterable[tuple[ConfiguredSite, CommonOptions]],
    words: ServedWords,
    listener: socket.socket,
    access: Access,
    timeout_s: float,
    say: Callable[[str], None],
    began: Callable[[], None],
) -> int:
    """Serve until a signal, or until no process of a site runs; return the exit code.

    `began` is called once, when the page can be opened.
    """
    sites = [(site, common) for site, common in services]
    overview = Overview([site for site, _ in sites])
    # the threads of the sites call `hear`; `servers` has its server before these threads start
    servers, in_order = list[WebServer](), Lock()
    processes: dict[str, SiteProcess] = {}

    def body(name: str, document: str) -> bytes:
        content: bytes = processes[name].ask(document, timeout_s)
        return content

    def hear(name: str, news: Any) -> None:
        current, figures = _current(news, partial(body, name))
        with in_order:  # so that the table is never replaced by an older one
            servers[0].tell(current, name)
            servers[0].tell(overview.tell(name, current, figures))

    def metrics(name: str, now: Current) -> bytes:
        names = [name] if name else [*processes]
        with ThreadPoolExecutor(len(names)) as pool:
            return merged_families(pool.map(metrics_of, names)).encode()

    def metrics_of(name: str) -> str:
        try:
            return body(name, METRICS).decode()
        except SiteAway:
            return MetricsWriter(name).text(None).decode()

    for site, common in sites:
        processes[site.name] = SiteProcess(
            site.name,
            fleet_of_site,
            # without --policy each site has the policy of its configuration
            (common, words if words.policy is not None else ServedWords(words.since, site.policy, words.by)),
            partial(hear, site.name),
            first=not processes,
        )

    with serving_sites(listener, [*processes], access, metrics, say) as server:
        servers.append(server)
        server.tell(overview.begin())
        with keep_running([*processes.values()], [__name__, "gpuops.extras.web.serve_reads"]):
            began()
            return wait_for_the_end([*processes.values()])


def _current(news: Any, body: Callable[[str], bytes]) -> tuple[Current, Document | None]:
    if isinstance(news, SiteFailure):
        return Current(trouble=news.message), None
    assert isinstance(news, ToldEdition)
    if news.name is None or news.read_at is None:
        return Current(trouble=news.trouble), None
    makers = {document: partial(body, document) for document in news.documents}
    return Current(Edition(news.name, news.read_at, news.read_s, makers), news.trouble), news.figures


def fleet_of_site(talk: SiteTalk, common: CommonOptions, words: ServedWords) -> None:
    """Run the process of one site: read its vCenter, report each edition, and make requested documents."""
    from gpuops.api.connection import only_read
    from gpuops.config.policy import load_policy
    from gpuops.console.opening import label_of, open_site
    from gpuops.extras.web.http.current import Following
    from gpuops.extras.web.serve_reads import ServedFleet, ServedMetrics

    night = load_policy(words.policy) if words.policy is not None else None
    owners, metrics = OwnerKey.parse("--by", words.by), ServedMetrics(label_of(common))
    newest, fleets = [Current()], list[ServedFleet]()  # lists, because the functions below replace the last state
    with ExitStack() as stack:

        def open_fleet() -> ServedFleet:
            site = stack.enter_context(open_site(common))
            fleets.append(ServedFleet(only_read(site), words.since, night, owners, only_own=True))
            return metrics.fleet(fleets[-1])

        def tell(now: Current) -> None:
            newest[0] = now
            edition, figures = now.edition, fleets[-1].figures if fleets else None
            if edition is None:
                talk.tell(ToldEdition(None, None, 0.0, (), None, now.trouble))
            else:
                names = tuple(edition.makers)
                talk.tell(ToldEdition(edition.name, edition.read_at, edition.read_s, names, figures, now.trouble))

        def answer() -> None:
            for number, name in talk.questions():
                try:
                    talk.answer(number, _body_of(name, newest[0], metrics.text))
                except Exception as error:  # the caller reports it; the next page may succeed
                    talk.refuse(number, f"{type(error).__name__}: {error}")
            end_this_process()  # the parent has closed the pipe, but the main thread still reads vCenter

        Thread(target=answer, name="answers", daemon=True).start()
        say = partial(_say, talk)
        Following(open_fleet, tell, say, above=_ABOVE, begin=f"{os.getpid()}.").run()


def _body_of(name: str, now: Current, metrics: Callable[[Current], bytes]) -> bytes:
    if name == METRICS:
        return metrics(now)
    assert now.edition is not None, "only what an edition has is asked for"
    return now.edition.makers[name]()


def _say(talk: SiteTalk, line: str) -> None:
    talk.say(f"warning: {line}")
