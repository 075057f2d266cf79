"""What `gpuops change` prints of rolling changes, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuops.plan.core.host_steps import HostStep
from gpuops.plan.core.outcome import Outcome
from gpuops.plan.hosts.change.emptying import LEAVES_BY, Away, Leaving
from gpuops.plan.hosts.change.report import ChangeReport, ChangeStatus
from gpuops.plan.hosts.change.roll import PlannedHost
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.hosts.given_up import GivenUpRecord, missed_lines
from gpuops.report.hosts.host_plan import changes
from gpuops.report.layout import Shown, Text
from gpuops.report.plan_json import RejectionRecord, plain
from gpuops.report.plan_text import STYLES, outcomes_counted, rejection_lines
from gpuops.report.text import count, visible

_STATES: Final = {"done": "green", "under way": "yellow", "to do": "dim", "given up": "magenta"}


def change_text(report: ChangeReport) -> Shown:
    """One run: refusals, or each round with its hosts and VMs and, once applied, what became of each host."""
    return (*_lines(report), Text(change_summary(report), "bold"))


def change_document(report: ChangeReport) -> Document:
    """One run."""
    plan, before = report.plan, report.before
    rolling = report.rolling
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "change",
        "vcenter": before.vcenter,
        "read_at": before.taken_at.isoformat(),
        "verb": report.verb,
        "max_hosts": rolling.max_hosts,
        "window": rolling.window.name if rolling.window is not None else None,
        "vms": rolling.vms.value,
        "vsan_mode": rolling.vsan_mode.value,
        "feasible": plan.feasible,
        "applied": report.begun,
        "changed": report.changed,
        "exit_code": report.exit_code,
        "rounds": [[_planned_host(planned) for planned in planned_hosts] for planned_hosts in plan.rounds],
        "rejections": [RejectionRecord.made_of(rejection) for rejection in plan.rejections],
        "warnings": list(plan.warnings),
        "because": list(plan.because),
        "outcomes": [
            {
                "host": {"ref": each.step.host, "name": host_name(each, report)},
                "verdict": each.verdict.value,
                "reason": each.reason,
            }
            for each in report.outcomes
        ],
        "afterwards": list(report.afterwards),
    }


def status_text(status: ChangeStatus) -> Shown:
    """Where the change stands, host by host."""
    missed = missed_lines(status.given_up)
    if not status.verb or status.began is None:
        return (Text("no change of hosts is under way", "bold"), *missed)
    lines = [
        Text("  ")
        .append(f"{host.state:<10}", _STATES[host.state])
        .append(visible(host.name) + (f"  not back: {visible(', '.join(host.away))}" if host.away else ""))
        for host in status.parts
    ]
    done = sum(part.state == "done" for part in status.parts)
    at_it = f"{status.holder} is at it" if status.holder else "nobody is at it: gpuops change resume, or abort"
    closing = (
        f"{status.verb}, begun {status.began:%Y-%m-%d %H:%M %Z}: {done} of {count(len(status.parts), status.noun)} done"
    )
    return (*lines, Text(f"{closing}; {at_it}", "bold"), *missed)


def status_document(status: ChangeStatus) -> Document:
    """Where the change stands."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "change-status",
        "verb": status.verb or None,
        "began": status.began.isoformat() if status.began is not None else None,
        "holder": status.holder or None,
        f"{status.noun}s": [plain(part) for part in status.parts],
        "given_up": list(map(GivenUpRecord.made_of, status.given_up)),
    }


def _planned_host(planned: PlannedHost) -> Document:
    return {
        "host": {"ref": planned.host.ref, "name": planned.host.name},
        "changes": [{"what": each.what, "before": each.before, "after": each.after} for each in changes(planned.step)],
        "vms": [
            {
                "vm": {"ref": each.vm.ref, "name": each.vm.name},
                "leaves_by": LEAVES_BY[each.leaving],
                "target": each.target.name if each.target is not None else None,
                "why": list(each.why),
            }
            for each in planned.away
        ],
    }


def _lines(report: ChangeReport) -> Iterator[Text]:
    plan = report.plan
    yield from rejection_lines("refused", plan.rejections, "bold red")
    if not report.applied:
        for number, planned_hosts in enumerate(plan.rounds, 1):
            yield Text(f"round {number}", "bold")
            for planned in planned_hosts:
                yield from _planned_lines(planned)
    yield from (_of_outcome(outcome, report) for outcome in report.outcomes)
    yield from (Text(f"warning: {visible(text)}", "yellow") for text in plan.warnings)
    if plan.rounds or report.outcomes:
        yield from (Text(f"note: {visible(text)}", "dim") for text in plan.because)
    yield from (Text(f"next: {visible(text)}", "yellow") for text in report.afterwards)


def _planned_lines(planned: PlannedHost) -> Iterator[Text]:
    yield Text(f"  {visible(planned.host.name)}: out of service, set and rebooted")
    rows = [(each.what, f"{each.before or 'none'} -> {each.after or 'none'}") for each in changes(planned.step)]
    rows = [row for row in rows if row[1].split(" -> ")[0] != row[1].split(" -> ")[1]]
    rows += [(each.vm.name, _goes(each)) for each in planned.away]
    width = max((len(visible(what)) for what, _ in rows), default=0)
    for what, how in rows:
        yield Text(f"      {visible(what):<{width}}  ").append(visible(how))


def _goes(away: Away) -> str:
    why = f": {'; '.join(away.why)}" if away.why else ""
    match away.leaving:
        case Leaving.VMOTION:
            return f"to {away.target.name if away.target else 'another host'} by vMotion, and back"
        case Leaving.DRS:
            return "moved by vCenter itself"
        case Leaving.SHUT_DOWN | Leaving.POWER_OFF:
            return f"{away.leaving}, and started again{why}"


def _of_outcome(outcome: Outcome[HostStep], report: ChangeReport) -> Text:
    line = Text("  ").append(f"{outcome.verdict:<8} ", STYLES[outcome.verdict])
    line.append(visible(host_name(outcome, report)))
    return line.append(f"  {visible(outcome.reason)}" if outcome.reason else "")


def host_name(outcome: Outcome[HostStep], report: ChangeReport) -> str:
    """The host that it became of, by its name."""
    host = report.before.hosts.get(outcome.step.host)
    return host.name if host is not None else report.names.get(outcome.step.host, outcome.step.host)


def change_summary(report: ChangeReport) -> str:
    """The closing line: what became of the hosts, would become of them, or why nothing does."""
    plan = report.plan
    if not plan.feasible:
        return f"nothing changed: refused for {count(len(plan.rejections), 'reason')}"
    if report.outcomes:
        return outcomes_counted(report.outcomes, "host")
    if report.taking_up and not report.applied:
        return f"{report.taking_up} {report.verb}; gpuops change status shows where it stands"
    if not plan.rounds:
        return "nothing to do" + (f": {'; '.join(visible(text) for text in plan.because)}" if plan.because else "")
    hosts, rounds = count(len(plan.planned_hosts), "host"), count(len(plan.rounds), "round")
    return f"{hosts} in {rounds} planned, nothing changed"
