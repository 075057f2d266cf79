"""`gpuops queue --site`: which site each request across sites goes to, and with --assign writes it down.

Every site is asked for the plan of its next night, in a process of its own. Where one has planned a request that goes
to another site, and a request still waits, all are asked anew, each told what is meant for others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from gpuops import clock
from gpuops.cli.opening import journal_of
from gpuops.cli.options import CommonOptions
from gpuops.config.vcenter.sites import ALL, ConfiguredSite
from gpuops.errors import UsageError
from gpuops.execute.runs.assignments import AssignmentStore
from gpuops.model.nights.across_sites import assigned_to
from gpuops.plan.across.choice import AcrossSites, changes, choose
from gpuops.report.nights.across_sites import across_document, across_text, offer_of
from gpuops.report.sites import SiteAnswer

if TYPE_CHECKING:
    from gpuops.report.document import Document
    from gpuops.report.layout import Shown

ROUNDS: Final = 4
"""How often the sites are asked at the most: what waits after that is looked at by the next call."""
_left_out: ContextVar[Mapping[str, str] | None] = ContextVar("requests that a site leaves out", default=None)

AskSites = Callable[[Callable[[str], None]], list[SiteAnswer]]
"""Asks every site; the function is called with the site's name in its process before it is asked."""


def requests_left_out() -> Mapping[str, str] | None:
    """In the process of one of several sites: request -> why it is not for this one; None = no other is asked."""
    return _left_out.get()


@dataclass(frozen=True, slots=True)
class RequestsAnswer:
    """What is shown below the sites' own answers."""

    text: Shown
    document: Document


def ask_for_requests(
    ask: AskSites, sites: Sequence[ConfiguredSite], common: CommonOptions, *, assign: bool, at: object
) -> tuple[list[SiteAnswer], RequestsAnswer]:
    """The sites' answers of the last round, and where each request goes by them.

    Raises UsageError where it is to be written down and not all sites are asked, or they have no journal in common.
    """
    if assign and (common.site != ALL or at is not None):
        why = "--at shows another night" if at is not None else f"--site {common.site} may leave one out that runs it"
        raise UsageError(f"--assign is about the next night of every site: {why}", hint="say --site all, without --at")
    store = _store_of(sites, common, needed=assign)
    before = store.read() if store is not None else {}  # before any site is looked at: see `assignments.py`
    meant = {name: each.site for name, each in before.items()}
    found: AcrossSites | None = None
    answers: list[SiteAnswer] = []
    for _ in range(ROUNDS):
        answers = ask(_telling(meant, found))
        offers = [offer_of(each.site, each.document["offer"]) for each in answers if each.failure is None]
        unread = {each.site: each.failure.message for each in answers if each.failure is not None}
        found = choose(offers, unread, before, meant, clock.wall_clock(), found)
        meant = found.meant
        if not found.again:
            break
    assert found is not None, "at least one round"
    why = "no site was read" if assign else "--assign does"
    told, overtaken = f"nothing was written down: {why}", frozenset[str]()
    written = assign and bool(offers)
    if written and store is not None:
        wanted, dropped = changes(found, offers, before, clock.wall_clock())
        overtaken = store.change(wanted, dropped)
        told = f"{len(wanted) + len(dropped) - len(overtaken)} assignments changed"
        if overtaken:
            told += f", and of {', '.join(sorted(overtaken))} another gpuops did: ask again"
    zones: dict[str, tzinfo] = {site.name: ZoneInfo(site.zone) if site.zone else UTC for site in sites}
    document = across_document(found, assigned=written, overtaken=overtaken)
    return answers, RequestsAnswer(tuple(across_text(found, zones, told)), document)


def _telling(meant: Mapping[str, str], found: AcrossSites | None) -> Callable[[str], None]:
    """What tells the process of a site which requests it leaves out: by the round before, or by what is assigned."""

    def tell(site: str) -> None:
        if found is not None:
            _left_out.set(found.left_out(site))
        else:
            _left_out.set({name: assigned_to(other) for name, other in meant.items() if other != site})

    return tell


def _store_of(sites: Sequence[ConfiguredSite], common: CommonOptions, *, needed: bool) -> AssignmentStore | None:
    """Where all of these sites keep their journal; None = not in one place."""
    places = {site.name: journal_of(replace(common, vcenter=site.name, site=None)) for site in sites}
    if len(set(places.values())) == 1:
        return AssignmentStore(*next(iter(places.values())))
    if needed:
        names = ", ".join(sorted(places))
        raise UsageError(
            f"{names} do not keep their journals in one place: no assignment would bind all of them",
            hint="give them one journal_url, or [fleet].url and none of their own (gpuops help across)",
        )
    return None
