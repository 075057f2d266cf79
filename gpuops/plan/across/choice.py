"""Which site each request across sites goes to, and why the others wait. `choose` is asked once per round of looks.

Order of the requests: the higher priority; of one priority by fair share over all sites (`advise/fair_share.py`), where
the policies count over all sites; else by name. Of the sites whose own plan starts a request:

1. the one that it was assigned to, as long as that still starts it: nothing moves where nothing changed;
2. whose night is open, before one whose night opens later;
3. where the most GPUs of its model are free afterwards: what is broken up least stays of use for what comes next;
4. where it runs the longest before desktops are due;
5. by name.

What runs somewhere stays there. What a site may have started that could not be read, or whose run is open, stays with
it: nobody knows that it does not run. So does until desktops are due there what a site has begun that says nothing of
it: it may be lost for good, stand in another machine's configuration file, or be asked by another policy of it. What a
team may have counts over all sites.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from math import inf
from typing import Final

from gpuops.advise.fair_share import Wish, fair_order
from gpuops.model.nights.across_sites import Assignment, assigned_to
from gpuops.model.nights.fair_share import Team
from gpuops.plan.across.offer import SiteOffer, SiteRequest, TeamTotal
from gpuops.plan.rotation.ml_queue.ml_vms import NO_WINDOW
from gpuops.plan.rotation.ml_queue.queue_look import Turn

_ROUNDING: Final = 1e-6


class Fate(StrEnum):
    """What becomes of a request across sites."""

    RUNS = "runs"
    GOES = "goes"
    """It is assigned to a site that starts it."""
    HELD = "held"
    """It stays with a site that may have started it, or has done so tonight."""
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class SiteChoice:
    """One request, and the site that it is for."""

    name: str
    fate: Fate
    team: str
    priority: int
    gpus: float
    site: str | None
    """None = it waits."""
    starts_at: datetime | None
    until: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class AcrossSites:
    """All requests across sites, in the order in which they are served."""

    choices: tuple[SiteChoice, ...]
    unread: Mapping[str, str]
    """Site -> why it was not read: nothing goes there."""
    again: bool
    """Whether a site has room for a request that waits, which its plan gave to one that goes elsewhere; or a request
    goes where the plan that starts it was made before that was known."""
    warnings: tuple[str, ...] = ()
    limited: frozenset[str] = frozenset()
    """Names of those that wait for what their team may have, whatever room there is."""

    def left_out(self, site: str) -> dict[str, str]:
        """Name -> why the site's plan is to leave it out, when it is asked anew."""
        others = {name: assigned_to(other) for name, other in self.meant.items() if other != site}
        return others | {each.name: each.reason for each in self.choices if each.name in self.limited}

    @property
    def meant(self) -> dict[str, str]:
        """Name -> site, of those that are for a site."""
        return {each.name: each.site for each in self.choices if each.site is not None}


def choose(
    offers: Sequence[SiteOffer],
    unread: Mapping[str, str],
    before: Mapping[str, Assignment],
    meant: Mapping[str, str],
    now: datetime,
    round_before: AcrossSites | None = None,
) -> AcrossSites:
    """Where each request goes. `round_before`: what was chosen when the sites were last asked, whose reasons stand.

    `before`: name -> what is assigned. `meant`: name -> the site that the offers took it to be for, so that the others
    did not count it; those of the round before, or in the first round of the assignments.
    """
    reasons = {each.name: each.reason for each in round_before.choices} if round_before is not None else {}
    limited = round_before.limited if round_before is not None else frozenset[str]()
    state = _Choosing.of(offers, unread, before, meant, now, reasons, set(limited))
    choices = [state.next(name) for name in state.ordered()]
    found = {each.name: each.site for each in choices}
    waiting = {each.name for each in choices if each.fate is Fate.WAITS and each.name not in state.limited}
    displaced = any(
        request.turn is Turn.STARTS and (found.get(name) not in (None, offer.site) or name in state.limited)
        for offer in offers
        for name, request in offer.requests.items()
    )
    let_go = any(name in meant for name in waiting)
    # a plan that has one request more or less may seat the others otherwise, and then one of them waits
    moved = any(each.fate is Fate.GOES and meant.get(each.name) != each.site for each in choices)
    return AcrossSites(
        tuple(choices),
        unread,
        moved or (bool(waiting) and (displaced or let_go)),
        tuple(state.warnings()),
        frozenset(state.limited),
    )


@dataclass(slots=True)
class _Choosing:
    """The state while requests are gone through: what each site has free, and what each team has."""

    offers: Mapping[str, SiteOffer]
    unread: Mapping[str, str]
    before: Mapping[str, Assignment]
    meant: Mapping[str, str]
    now: datetime
    reasons: Mapping[str, str]
    """Name -> why it was chosen for its site, or waits, in the round before."""
    limited: set[str]
    """Requests that wait for what their team may have, whatever room there is."""
    free: dict[tuple[str, str], float]
    """(site, GPU model) -> free, if what is chosen so far is all that starts of the requests."""
    totals: dict[str, TeamTotal]
    added: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Team -> (GPUs, GPU-hours) that are meant for it so far, and that nothing counts yet."""

    @classmethod
    def of(
        cls,
        offers: Sequence[SiteOffer],
        unread: Mapping[str, str],
        before: Mapping[str, Assignment],
        meant: Mapping[str, str],
        now: datetime,
        reasons: Mapping[str, str],
        limited: set[str],
    ) -> _Choosing:
        free = {(offer.site, model): gpus for offer in offers for model, gpus in offer.free_gpus.items()}
        for offer in offers:
            for request in offer.requests.values():
                if request.turn is Turn.STARTS:  # its plan counts it as started: it is taken off again when chosen
                    key = offer.site, request.model
                    free[key] = free.get(key, 0.0) + request.gpus
        sites = {offer.site: offer for offer in offers}
        return cls(sites, unread, before, meant, now, reasons, limited, free, over_all_sites(offers))

    def ordered(self) -> list[str]:
        """The names, in the order in which they are served."""
        first = {name: self._first(name) for name in self._names()}
        by_priority = sorted(first, key=lambda name: (-first[name].priority, name))
        had = {team: total.hours for team, total in self.totals.items()}
        found: list[str] = []
        for _, of_priority in groupby(by_priority, key=lambda name: first[name].priority):
            names = list(of_priority)
            wishes = [Wish(first[name].team, self._hours(first[name])) for name in names]
            order = fair_order(wishes, had, self._weight) if self.totals else list(range(len(names)))
            found += [names[at] for at in order]
            for wish in wishes:
                had[wish.team] = had.get(wish.team, 0.0) + wish.hours
        return found

    def next(self, name: str) -> SiteChoice:
        """What becomes of this request."""
        first = self._first(name)
        for site, offer in self.offers.items():
            request = offer.requests.get(name)
            if request is not None and request.turn is Turn.RUNS:
                return self._made(request, Fate.RUNS, site, "runs there")
        held = self._held(name)
        if held is not None:
            site, why = held
            seen = self.offers[site].requests.get(name) if site in self.offers else None
            known = seen if seen is not None else replace(first, until=self.before[name].until)
            if site in self.offers and self.offers[site].run_open:
                self._count(known)  # of what a site has started before its journal tells
            return self._made(known, Fate.HELD, site, why)
        if name in self.limited:  # since a round before, and what was chosen before it is no less
            return self._made(first, Fate.WAITS, None, self.reasons[name])
        ready = [site for site, offer in self.offers.items() if _starts(offer, name)]
        beyond = self._beyond(first) if ready else ""
        if beyond:
            self.limited.add(name)
            return self._made(first, Fate.WAITS, None, beyond)
        if not ready:
            return self._made(first, Fate.WAITS, None, self._nowhere(name))
        kept = self._site_before(name) or self.meant.get(name)
        site = kept if kept in ready else min(ready, key=lambda each: self._rank(each, name))
        chosen = self.offers[site].requests[name]
        self._count(chosen)
        self.free[site, chosen.model] = self.free.get((site, chosen.model), 0.0) - chosen.gpus
        if site == self._site_before(name):
            why = "stays where it is assigned"
        elif site == self.meant.get(name) and name in self.reasons:
            why = self.reasons[name]  # the other sites were told to leave it out since
        else:
            why = self._why(site, ready, max(self.free[site, chosen.model], 0.0))
        return self._made(chosen, Fate.GOES, site, why)

    def warnings(self) -> Iterable[str]:
        """What is said of requests that differ from site to site, or run twice."""
        for name in sorted(self._names()):
            there = {site: offer.requests[name] for site, offer in self.offers.items() if name in offer.requests}
            runs = [site for site, request in there.items() if request.turn is Turn.RUNS]
            if len(runs) > 1:
                yield f"{name} runs in {', '.join(runs)}: stop all but one"
            teams = {request.team: site for site, request in there.items() if request.exists}
            if len(teams) > 1:
                told = ", ".join(f"{team or 'nobody'} in {site}" for team, site in sorted(teams.items()))
                yield f"{name} is of several teams: {told}; served as {self._first(name).team or 'nobody'}"

    def _names(self) -> set[str]:
        asked = {name for offer in self.offers.values() for name in offer.requests}
        # what a site that was not read may run is told, too
        return asked | {name for name, each in self.before.items() if self._may_run_unseen(each)}

    def _may_run_unseen(self, each: Assignment) -> bool:
        """Whether it may run in a site that was not read, or that says nothing of it."""
        return each.begun and (each.site in self.unread or _runs_unasked(each, self.offers.values(), self.now))

    def _first(self, name: str) -> SiteRequest:
        """The request as the first site has it in which there is such a VM; of the sites' priorities the highest."""
        there = [offer.requests[name] for offer in self.offers.values() if name in offer.requests]
        if not there:
            each = self.before[name]
            return SiteRequest(name, False, each.team, 0, each.gpus, "", Turn.NOT_NOW, until=each.until)
        return max(there, key=lambda request: (request.exists, request.priority))

    def _site_before(self, name: str) -> str | None:
        """The site of its assignment, whatever that is called by now; None = it has none that is a site."""
        each = self.before.get(name)
        if each is None:
            return None
        called = next((site for site, offer in self.offers.items() if offer.vcenter == each.vcenter), None)
        return called or (each.site if self._may_run_unseen(each) or each.site in self.unread else None)

    def _held(self, name: str) -> tuple[str, str] | None:
        """The site that may have started it, and why it stays there; None = it is free to go."""
        each, site = self.before.get(name), self._site_before(name)
        if each is None or site is None or not each.begun:
            return None
        if site in self.unread:
            return site, f"{site} was not read, and has begun it: it may run there"
        if _runs_unasked(each, self.offers.values(), self.now):
            why = "does not name it in its queue" if site in self.offers else "is none of these sites"
            return site, f"{site} {why}, and has begun it: it may run there until desktops are due"
        offer = self.offers[site]
        request = offer.requests.get(name)
        if offer.run_open:
            return (site, "a run of this site that may start it is open") if request is not None else None
        told = self.meant.get(name) in (None, site) and name not in self.limited  # else it was left out as it was asked
        if told and request is not None and request.exists and request.turn is Turn.NOT_NOW:
            return site, request.reason
        return None

    def _rank(self, site: str, name: str) -> tuple[bool, float, float, str]:
        offer = self.offers[site]
        request = offer.requests[name]
        after = self.free.get((site, request.model), 0.0) - request.gpus
        return offer.at > self.now, -round(after, 6), -self._length(offer, name), site

    def _why(self, site: str, ready: Sequence[str], left: float) -> str:
        model = f"{left:.4g} GPUs of its model are free afterwards"
        others = [each for each in ready if each != site]
        if not others:
            return f"starts there alone; {model}"
        sooner = self.offers[site].at <= self.now < min(self.offers[each].at for each in others)
        return f"{'its night is open' if sooner else 'fits best and longest'}; {model}"

    def _nowhere(self, name: str) -> str:
        reasons = []
        for site, offer in self.offers.items():
            request = offer.requests.get(name)
            if request is not None:
                reasons.append(f"{site}: {request.reason or request.turn}")
        return "; ".join(reasons)

    def _beyond(self, request: SiteRequest) -> str:
        """Which limit of its team it would exceed, over all sites; empty = none."""
        total = self.totals.get(request.team)
        if total is None:
            return ""
        team, (gpus, hours) = total.team, self.added.get(request.team, (0.0, 0.0))
        if team.gpus is not None and total.gpus + gpus + request.gpus > team.gpus + _ROUNDING:
            return f"team {team.name} has {total.gpus + gpus:.4g} of {team.gpus:g} GPUs at once in all sites"
        own = self._hours(request)
        if team.gpu_hours is not None and total.week + hours + own > team.gpu_hours + _ROUNDING:
            told = f"{total.week + hours:.4g} of {team.gpu_hours:.4g} GPU-hours of 7 days in all sites"
            return f"team {team.name} has had or is to have {told}, and this request {own:.4g}"
        return ""

    def _count(self, request: SiteRequest) -> None:
        gpus, hours = self.added.get(request.team, (0.0, 0.0))
        self.added[request.team] = gpus + request.gpus, hours + self._hours(request)

    def _hours(self, request: SiteRequest) -> float:
        """GPU-hours that it may use: of the sites that start it the longest."""
        ready = [offer for offer in self.offers.values() if _starts(offer, request.name)]
        longest = max((self._length(offer, request.name) for offer in ready), default=0.0)
        return request.gpus * (NO_WINDOW.total_seconds() / 3600 if longest == inf else longest)

    @staticmethod
    def _length(offer: SiteOffer, name: str) -> float:
        """Hours from the night's begin until desktops are due; infinite where nobody has said."""
        until = offer.requests[name].until
        return inf if until is None else max(0.0, (until - offer.at).total_seconds() / 3600)

    def _weight(self, team: str) -> float:
        total = self.totals.get(team)
        return total.team.weight if total is not None else 1.0

    @staticmethod
    def _made(request: SiteRequest, fate: Fate, site: str | None, reason: str) -> SiteChoice:
        starts = request.starts_at if fate is Fate.GOES else None
        until = request.until if site is not None else None
        return SiteChoice(request.name, fate, request.team, request.priority, request.gpus, site, starts, until, reason)


def _starts(offer: SiteOffer, name: str) -> bool:
    return name in offer.requests and offer.requests[name].turn is Turn.STARTS


def _runs_unasked(each: Assignment, offers: Iterable[SiteOffer], now: datetime) -> bool:
    """Whether it was begun by a vCenter that says nothing of it, and desktops are not due there yet."""
    until = each.until if each.until is not None else each.at + NO_WINDOW
    told = any(offer.vcenter == each.vcenter and each.name in offer.requests for offer in offers)
    return each.begun and now < until and not told


def over_all_sites(offers: Iterable[SiteOffer]) -> dict[str, TeamTotal]:
    """Team -> how it stands over all sites, where policies count over all of them.

    Each site reads the same journal; what its own VMs hold it sees besides. So of each figure the highest that a site
    tells, and of GPUs the sum of the sites' own where that is more. Of limits the lowest.
    """
    told: dict[str, list[TeamTotal]] = {}
    for offer in offers:
        for total in offer.teams:
            told.setdefault(total.team.name, []).append(total)
    return {name: _merged(name, totals) for name, totals in sorted(told.items())}


def _merged(name: str, totals: Sequence[TeamTotal]) -> TeamTotal:
    limits = [(each.team.gpus, each.team.gpu_hours) for each in totals]
    team = Team(
        name,
        totals[0].team.weight,
        min((gpus for gpus, _ in limits if gpus is not None), default=None),
        min((hours for _, hours in limits if hours is not None), default=None),
    )
    gpus = max(max(each.gpus for each in totals), sum(each.gpus_here for each in totals))
    return TeamTotal(team, max(each.hours for each in totals), max(each.week for each in totals), gpus)


def changes(
    found: AcrossSites,
    offers: Sequence[SiteOffer],
    before: Mapping[str, Assignment],
    now: datetime,
) -> tuple[tuple[Assignment, ...], tuple[Assignment, ...]]:
    """What of the assignments has to become another one, and which are taken away. Each has the version that was seen.

    What waits is assigned to nobody. An assignment that no queue asks for any more is taken away once every site was
    read.
    """
    sites = {offer.site: offer for offer in offers}
    wanted: list[Assignment] = []
    asked: set[str] = set()
    for each in found.choices:
        if each.site is None:
            continue
        asked.add(each.name)
        known = before.get(each.name)
        if each.fate is Fate.HELD or each.site not in sites:
            continue
        offer, begun = sites[each.site], each.fate is Fate.RUNS
        version = 0 if known is None else known.version
        made = Assignment(each.name, offer.vcenter, each.site, each.team, each.gpus, each.until, begun, version, now)
        if known is None or replace(known, at=now) != made:
            wanted.append(made)
    waits = {each.name for each in found.choices if each.site is None}
    asked |= {name for name, each in before.items() if _runs_unasked(each, offers, now)}
    gone = set() if found.unread else before.keys() - asked
    return tuple(wanted), tuple(before[name] for name in sorted(before) if name in waits | gone)
