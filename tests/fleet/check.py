"""What must hold of a fleet whatever befell it: on the ledgers of the vCenters, the journal and what was said alone.

It shares no code with gpuops. Numbers are those of the protocol (`tests/nights/judging/checkers.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

OURS = "gpuops-"
AWAY, BACK = "SuspendVM_Task", "PowerOnVM_Task"
DAY = "rotate day"
NO_JOURNAL = "went by vCenter's markers"
TAKEN_OVER_S = 30.0


@dataclass(slots=True)
class SiteSeen:
    """One vCenter, after the morning."""

    name: str
    desktops: list[str]
    """Those that ran in the evening: all of them."""
    marker: str
    ledger: list[dict[str, Any]]
    journal: list[dict[str, Any]]
    """Each record: seq, run, kind, at, body."""
    status: str = ""
    """What `gpuops rotate status` said at the end."""


@dataclass(slots=True)
class FleetSeen:
    """All that was seen of one story."""

    sites: list[SiteSeen]
    said: str = ""
    """By all runners and what they played."""
    taken_over_s: list[float] = field(default_factory=list)
    """From the moment a runner died or stood still to the next connection to a vCenter whose turn it had."""
    not_taken_over: list[str] = field(default_factory=list)
    """Names of vCenters to which no runner connected after that."""
    bugs: list[str] = field(default_factory=list)
    """Of the simulated vCenters."""


def violations(fleet_seen: FleetSeen, within_s: float = TAKEN_OVER_S) -> list[str]:
    """Everything that is not as it must be; empty = nothing was lost. `within_s`: a turn is taken over by then."""
    problems = [
        *_taken_over(fleet_seen, within_s),
        *(f"a bug of the simulator: {bug}" for bug in fleet_seen.bugs),
        *_tracebacks(fleet_seen),
    ]
    for site in fleet_seen.sites:
        site_problems = [
            *_back(site, fleet_seen.said),
            *_one_actor(site, fleet_seen.said),
            *_once(site),
            *_unintended_effects(site, fleet_seen.said),
            *_only_suspended(site),
        ]
        problems += [f"{site.name}: {problem}" for problem in site_problems]
    return problems


def powers(site: SiteSeen) -> dict[str, str]:
    """How each desktop is at the end."""
    power_by_desktop = dict.fromkeys(site.desktops, "poweredOn")
    for change in site.ledger:
        if change["name"] in power_by_desktop and "power" in change["after"]:
            power_by_desktop[change["name"]] = change["after"]["power"]
    return power_by_desktop


def marked_names(site: SiteSeen) -> set[str]:
    """Return the VMs with a marker at the end."""
    marker_by_desktop: dict[str, str] = {}
    for change in site.ledger:
        if change["object_type"] == "VirtualMachine" and site.marker in change["after"]:
            marker_by_desktop[change["name"]] = change["after"][site.marker]
    return {name for name, value in marker_by_desktop.items() if value}


def _back(site: SiteSeen, output: str) -> Iterator[str]:
    """I1: every desktop is back by the end, without its marker, or is named."""
    for name, power in powers(site).items():
        if power != "poweredOn" and name not in output and name not in site.status:
            yield f"I1: {name} is {power}, and nobody says so"
    for name in sorted(marked_names(site)):
        if name not in output and name not in site.status:
            yield f"I1: {name} still has its marker, and nobody says so"


def _one_actor(site: SiteSeen, output: str) -> Iterator[str]:
    """I6: once a run has taken over, the earlier ones intend nothing more, and at most the one request of each that was
    past its check takes effect; what vCenter had accepted before that is no new request. What a return sends without
    its journal has no such check: without a `lock_vm` another return may act beside it."""
    begun = [record for record in site.journal if record["kind"] == "begun"]
    without_journal = _sent_without_journal(site, output)
    accepted = {record["body"]["op"]: record["seq"] for record in site.journal if record["kind"] == "submitted"}
    for earlier, later in pairwise(begun):
        for record in site.journal:
            if record["kind"] == "intent" and record["run"] == earlier["run"] and record["seq"] > later["seq"]:
                yield f"I6: {record['body']['op']} was intended after run {later['run']} had begun"
        mine, since = f"{OURS}{earlier['run']}-", datetime.fromisoformat(later["at"])
        late = [
            f"{change['method']} on {change['name']}"
            for change in site.ledger
            if change["operation_id"].startswith(mine)
            and datetime.fromisoformat(change["at"]) > since
            and accepted.get(change["operation_id"], later["seq"]) >= later["seq"]
            and not without_journal(change)
        ]
        if len(late) > 1:
            yield f"I6: {len(late)} requests took effect after run {later['run']} had begun: {', '.join(late)}"


def _once(site: SiteSeen) -> Iterator[str]:
    """I17: in one night a desktop is suspended once, and resumed once; no request has two effects (I16)."""
    for method in (AWAY, BACK):
        counts = Counter(entry["name"] for entry in _ours(site) if entry["method"] == method)
        for name, count in counts.items():
            if count > 1 and name in site.desktops:
                yield f"I17: {method} {count} times on {name}"
    operations = Counter((entry["operation_id"], entry["moid"]) for entry in _ours(site))
    for (operation, _), count in operations.items():
        if count > 1:
            yield f"I16: {operation} took effect {count} times"


def _unintended_effects(site: SiteSeen, output: str) -> Iterator[str]:
    """I15: an effect has its intent in the journal, but for what a return sends that says that it lost it."""
    without_journal = _sent_without_journal(site, output)
    intents = {record["body"]["op"] for record in site.journal if record["kind"] == "intent"}
    for entry in _ours(site):
        if entry["operation_id"] not in intents and not without_journal(entry):
            yield f"I15: {entry['method']} on {entry['name']} has no intent in the journal: {entry['operation_id']}"


def _sent_without_journal(site: SiteSeen, output: str) -> Callable[[dict[str, Any]], bool]:
    """Whether an effect is one of a return that lost its journal: one of this vCenter says so, the effect has no
    intent, its run is a return, and intended nothing from then on; or the journal knows nothing of it, for it was
    lost before the run began."""
    lost = any(line.startswith(f"{site.name}: ") and NO_JOURNAL in line for line in output.splitlines())
    intents = {record["body"]["op"] for record in site.journal if record["kind"] == "intent"}
    kinds = {record["run"]: record["body"]["kind"] for record in site.journal if record["kind"] == "begun"}
    # the runner that takes a run over settles its effects and ends it, and intends nothing in it
    last = {record["run"]: record["at"] for record in site.journal if record["kind"] in ("begun", "intent")}

    def answer(entry: dict[str, Any]) -> bool:
        if not lost or entry["operation_id"] in intents:
            return False
        run = entry["operation_id"].removeprefix(OURS).rpartition("-")[0]
        if run not in kinds:
            return entry["method"] != AWAY
        return bool(kinds[run] == DAY and datetime.fromisoformat(entry["at"]) >= datetime.fromisoformat(last[run]))

    return answer


def _only_suspended(site: SiteSeen) -> Iterator[str]:
    """I2, I11: no desktop is powered off or reset, suspended or not."""
    for entry in _ours(site):
        if entry["name"] in site.desktops and entry["after"].get("power") == "poweredOff":
            yield f"I11: {entry['method']} powered off {entry['name']}"


def _taken_over(fleet_seen: FleetSeen, within_s: float) -> Iterator[str]:
    for seconds in fleet_seen.taken_over_s:
        if seconds > within_s:
            yield f"a turn was taken over after {seconds:.1f} s"
    for name in fleet_seen.not_taken_over:
        yield f"{name}: nobody took the turn over"


def _tracebacks(fleet_seen: FleetSeen) -> Iterator[str]:
    if "Traceback" in fleet_seen.said:
        yield f"a traceback: {fleet_seen.said[fleet_seen.said.index('Traceback') :][:2000]}"


def _ours(site: SiteSeen) -> Iterator[dict[str, Any]]:
    return (change for change in site.ledger if change["operation_id"].startswith(OURS))
