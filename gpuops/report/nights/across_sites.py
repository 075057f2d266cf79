"""Requests across sites: what a site says of them as a document and back, and which site each goes to, as text and
document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from gpuops.model.nights.fair_share import Team
from gpuops.plan.across.choice import AcrossSites, Fate, SiteChoice
from gpuops.plan.across.offer import SiteOffer, SiteRequest, TeamTotal
from gpuops.plan.rotation.ml_queue.queue_look import Turn
from gpuops.report.document import Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

_STYLES = {Fate.GOES: "green", Fate.WAITS: "yellow", Fate.RUNS: "", Fate.HELD: "yellow"}


def offer_document(offer: SiteOffer) -> Document:
    """What a site says; its own name, which it does not know, is left out. Figures are whole: they are read again."""
    return {
        "vcenter": offer.vcenter,
        "at": _utc(offer.at),
        "run_open": offer.run_open,
        "free_gpus": dict(offer.free_gpus),
        "requests": [
            {
                "name": each.name,
                "exists": each.exists,
                "team": each.team,
                "priority": each.priority,
                "gpus": each.gpus,
                "model": each.model,
                "turn": each.turn.value,
                "starts_at": _utc(each.starts_at),
                "until": _utc(each.until),
                "reason": each.reason,
            }
            for each in offer.requests.values()
        ],
        "teams": [
            {
                "team": each.team.name,
                "weight": each.team.weight,
                "gpus_at_most": each.team.gpus,
                "gpu_hours_at_most": each.team.gpu_hours,
                "gpu_hours": each.hours,
                "gpu_hours_week": each.week,
                "gpus": each.gpus,
                "gpus_here": each.gpus_here,
            }
            for each in offer.teams
        ],
    }


def offer_of(site: str, told: Mapping[str, Any]) -> SiteOffer:
    """The offer that `offer_document` wrote, of the site of this name."""
    requests = (
        SiteRequest(
            each["name"],
            each["exists"],
            each["team"],
            each["priority"],
            each["gpus"],
            each["model"],
            Turn(each["turn"]),
            _moment(each["starts_at"]),
            _moment(each["until"]),
            each["reason"],
        )
        for each in told["requests"]
    )
    teams = (
        TeamTotal(
            Team(each["team"], each["weight"], each["gpus_at_most"], each["gpu_hours_at_most"]),
            each["gpu_hours"],
            each["gpu_hours_week"],
            each["gpus"],
            each["gpus_here"],
        )
        for each in told["teams"]
    )
    return SiteOffer(
        site, told["vcenter"], datetime.fromisoformat(told["at"]), told["run_open"], told["free_gpus"],
        {each.name: each for each in requests}, tuple(teams),
    )  # fmt: skip


def across_text(found: AcrossSites, zones: Mapping[str, tzinfo], told: str) -> Iterator[Shown]:
    """The requests in their order. `zones`: site -> in which its moments are shown; `told`: what was written."""
    yield Text("requests across sites", "bold")
    if found.choices:
        table = TextTable("", "request", "team", "priority", "GPUs", "site", "", "at", "until", "why")
        for number, each in enumerate(found.choices, 1):
            zone = zones.get(each.site or "", UTC)
            table.add_row(
                str(number),
                visible(each.name),
                visible(each.team),
                str(each.priority),
                f"{each.gpus:.4g}",
                visible(each.site or "-"),
                Text(each.fate.value, _STYLES[each.fate]),
                _clock(each.starts_at, zone),
                _clock(each.until, zone),
                visible(each.reason),
            )
        yield table
    yield from (Text(f"not read, so nothing goes there: {visible(site)}", "yellow") for site in found.unread)
    yield from (Text(f"warning: {visible(each)}", "yellow") for each in found.warnings)
    if found.again:
        yield Text("there may be room for some that wait, which this look gave to others: ask again", "dim")
    goes, waits, runs, held = (
        sum(each.fate is fate for each in found.choices) for fate in (Fate.GOES, Fate.WAITS, Fate.RUNS, Fate.HELD)
    )
    kept = f", {held} held" if held else ""
    yield Text(f"{count(goes, 'request')} for a site, {waits} waiting, {runs} running{kept}; {told}", "bold")


def across_document(found: AcrossSites, *, assigned: bool, overtaken: frozenset[str]) -> Document:
    """The same for programs. `assigned`: whether it was written down; `overtaken`: of which another gpuops did so."""
    return {
        "requests": [_choice(each) for each in found.choices],
        "unread": dict(found.unread),
        "assigned": assigned,
        "overtaken": sorted(overtaken),
        "again": found.again,
        "warnings": list(found.warnings),
    }


def _choice(each: SiteChoice) -> Document:
    return {
        "name": each.name,
        "fate": each.fate.value,
        "team": each.team or None,
        "priority": each.priority,
        "gpus": round(each.gpus, 4),
        "site": each.site,
        "starts_at": _utc(each.starts_at),
        "until": _utc(each.until),
        "reason": each.reason,
    }


def _clock(moment: datetime | None, zone: tzinfo) -> str:
    return "" if moment is None else f"{moment.astimezone(zone):%H:%M}"


def _utc(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
