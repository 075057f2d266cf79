"""Text and documents of `gpuops change`: rolling changes of hosts, and the hosts and VMs that were given up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Self

from msgspec import UNSET, UnsetType

from gpuops.model.nights.history import GivenUp, Thing
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.host_settings import Displacement, VsanMode
from gpuops.plan.core.abandonment import Abandonment
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.change.emptying import LEAVES_BY, Away, Leaving
from gpuops.plan.hosts.change.rolling_plan import ChangeReport, ChangeStatus, PartProgress, PlannedHost
from gpuops.report.document import DocumentRecord, Moment, NamedRecord, PrintedDocument, Ref, SiteDocument, printed
from gpuops.report.given_up_view import GivenUpRecord, missed_lines
from gpuops.report.hosts.host_plan_view import changes
from gpuops.report.layout import Shown, Text, padded
from gpuops.report.plan_json import BeforeAfterRecord, RejectionRecord, to_json_types
from gpuops.report.plan_text import STYLES, outcomes_counted, rejection_lines
from gpuops.report.text import count


def abandonment_text(abandonment: Abandonment) -> Shown:
    """Return what is given up, and the consequences."""
    if abandonment.already:
        outcome = "was given up before"
    else:
        outcome = "given up" if abandonment.applied else "would be given up"
    return (
        *(Text(f"  {line}") for line in abandonment.means),
        Text(f"{abandonment.name}: {outcome}", "bold"),
        *(Text(f"next: {line}", "yellow") for line in abandonment.left),
    )


class AbandonedThingRecord(DocumentRecord, frozen=True):
    """A host or VM."""

    kind: Thing
    ref: Ref
    uuid: Annotated[str | None, "of the host's hardware, or the VM's instance uuid"]
    name: str
    of: Annotated[str, "the change or the night that waited for it"]

    @classmethod
    def made_of(cls, record: GivenUp) -> Self:
        return cls.from_attributes(record, kind=record.thing)


@printed("abandon", by="gpuops change abandon and gpuops rotate abandon")
class AbandonDocument(PrintedDocument, frozen=True):
    """What a person gives up for good."""

    given_up: list[AbandonedThingRecord]
    means: Annotated[list[str], "what that means"]
    next: Annotated[list[str], "what remains to be done, in order"]
    already: Annotated[bool, "whether it was given up before"]
    applied: Annotated[bool, "whether it is written; false of a dry run"]


def abandonment_document(abandonment: Abandonment) -> AbandonDocument:
    """Return the abandonment as a document."""
    return AbandonDocument.from_attributes(abandonment, given_up=abandonment.things, next=abandonment.left)


_STATES: Final = {"done": "green", "under way": "yellow", "to do": "dim", "given up": "magenta"}


def change_text(report: ChangeReport) -> Shown:
    """Return one run: refusals, or each round with its hosts and VMs and, after an apply, the outcome of each host."""
    return (*_change_lines(report), Text(change_summary(report), "bold"))


class LeavingVmRecord(DocumentRecord, frozen=True):
    """How a VM leaves a host."""

    vm: NamedRecord
    leaves_by: Annotated[str, "vmotion, drs, shut_down or power_off"]
    target: Annotated[str | None, "name of the host that it goes to"]
    why: list[str]

    @classmethod
    def made_of(cls, leaving_vm: Away) -> Self:
        target = leaving_vm.target.name if leaving_vm.target is not None else None
        return cls.from_attributes(leaving_vm, leaves_by=LEAVES_BY[leaving_vm.leaving], target=target)


class PlannedHostRecord(DocumentRecord, frozen=True):
    """One host of a rolling change."""

    host: NamedRecord
    changes: list[BeforeAfterRecord]
    vms: Annotated[list[LeavingVmRecord], "the VMs that leave it before its reboot"]

    @classmethod
    def made_of(cls, planned: PlannedHost) -> Self:
        return cls.from_attributes(planned, changes=changes(planned.step), vms=planned.away)


class ChangedHostRecord(DocumentRecord, frozen=True):
    """The outcome of one host."""

    host: NamedRecord
    verdict: Verdict
    reason: Annotated[str, "empty = there is nothing to say"]


@printed("change", by="the verbs that change hosts with --reboot rolling, gpuops change resume and gpuops change abort")
class ChangeDocument(SiteDocument, frozen=True):
    """A rolling change of hosts, and the outcome of each host."""

    verb: Annotated[str, "the command whose change it is"]
    max_hosts: Annotated[int, "so many hosts are out of service at the same time at most"]
    window: Annotated[str | None, "when hosts may be begun"]
    vms: Annotated[Displacement, "what happens to VMs that cannot be moved"]
    vsan_mode: VsanMode
    feasible: Annotated[bool, "whether it can be done"]
    applied: Annotated[bool, "whether a host was begun; never true of a dry run or a refusal"]
    changed: Annotated[bool, "whether a host was changed, or in a dry run would be"]
    exit_code: int
    rounds: Annotated[list[list[PlannedHostRecord]], "hosts that are out of service together"]
    rejections: Annotated[list[RejectionRecord], "why it cannot be done"]
    warnings: list[str]
    because: list[str]
    outcomes: list[ChangedHostRecord]
    afterwards: Annotated[list[str], "what is left to do, in order"]

    @classmethod
    def made_of(cls, report: ChangeReport) -> Self:
        rolling, before = report.rolling, report.before
        outcomes = [
            ChangedHostRecord.from_attributes(outcome, host=NamedRecord(outcome.step.host, host_name(outcome, report)))
            for outcome in report.outcomes
        ]
        window = rolling.window.name if rolling.window is not None else None
        return cls.from_attributes(
            report,
            report.plan,
            before,
            rolling,
            read_at=before.taken_at,
            window=window,
            vms=rolling.vms,
            applied=report.begun,
            outcomes=outcomes,
        )


def status_text(status: ChangeStatus) -> Shown:
    """Return the state of the change, host by host."""
    not_back_lines = missed_lines(status.given_up)
    if not status.verb or status.began is None:
        return (Text("no change of hosts is under way", "bold"), *not_back_lines)
    lines = [
        Text("  ")
        .append(f"{host.state:<10}", _STATES[host.state])
        .append(host.name + (f"  not back: {', '.join(host.away)}" if host.away else ""))
        for host in status.parts
    ]
    done_count = sum(part.state == "done" for part in status.parts)
    holder_text = (
        f"{status.holder} works on it" if status.holder else "no process works on it; next: gpuops change resume"
    )
    closing = (
        f"{status.verb}, begun {format_zoned_minute(status.began)}: "
        f"{done_count} of {count(len(status.parts), status.noun)} done"
    )
    return (*lines, Text(f"{closing}; {holder_text}", "bold"), *not_back_lines)


@printed("change-status", by="gpuops change status")
class ChangeStatusDocument(PrintedDocument, frozen=True, kw_only=True):
    """The state of a change that has not ended."""

    verb: Annotated[str | None, "the command whose change it is; null = none is under way"]
    began: Moment | None
    holder: Annotated[str | None, "the process that works on it now; null = none"]
    hosts: Annotated[list[PartProgress] | UnsetType, "of a change of hosts"] = UNSET
    moves: Annotated[list[PartProgress] | UnsetType, "of moves of VMs, instead of `hosts`"] = UNSET
    given_up: list[GivenUpRecord]

    @classmethod
    def made_of(cls, status: ChangeStatus) -> Self:
        parts = {f"{status.noun}s": [to_json_types(part) for part in status.parts]}
        return cls.from_attributes(status, verb=status.verb or None, holder=status.holder or None, **parts)


def _change_lines(report: ChangeReport) -> Iterator[Text]:
    """Yield refusals, the planned rounds or, after an apply, the outcomes, and warnings, notes and next steps."""
    plan = report.plan
    yield from rejection_lines("refused", plan.rejections, "bold red")
    if not report.applied:
        for number, planned_hosts in enumerate(plan.rounds, 1):
            yield Text(f"round {number}", "bold")
            for planned in planned_hosts:
                yield from _planned_lines(planned)
    yield from (_outcome_line(outcome, report) for outcome in report.outcomes)
    yield from (Text(f"warning: {text}", "yellow") for text in plan.warnings)
    if plan.rounds or report.outcomes:
        yield from (Text(f"note: {text}", "dim") for text in plan.because)
    yield from (Text(f"next: {text}", "yellow") for text in report.afterwards)


def _planned_lines(planned: PlannedHost) -> Iterator[Text]:
    yield Text(f"  {planned.host.name}: out of service, set and rebooted")
    settings = [(change.what, change.before or "none", change.after or "none") for change in changes(planned.step)]
    rows = [(what, f"{before} -> {after}") for what, before, after in settings if before != after]
    rows += [(leaving_vm.vm.name, _destination(leaving_vm)) for leaving_vm in planned.away]
    for subject, (_, how) in zip(padded(subject for subject, _ in rows), rows, strict=True):
        yield Text(f"      {subject}  ").append(how)


def _destination(leaving_vm: Away) -> str:
    """Return how a VM leaves its host, and where to."""
    why = f": {'; '.join(leaving_vm.why)}" if leaving_vm.why else ""
    match leaving_vm.leaving:
        case Leaving.VMOTION:
            return f"to {leaving_vm.target.name if leaving_vm.target else 'another host'} by vMotion, and back"
        case Leaving.DRS:
            return "moved by vCenter itself"
        case Leaving.SHUT_DOWN | Leaving.POWER_OFF:
            return f"{leaving_vm.leaving}, and started again{why}"


def _outcome_line(outcome: Outcome[HostStep], report: ChangeReport) -> Text:
    line = Text("  ").append(f"{outcome.verdict:<8} ", STYLES[outcome.verdict])
    line.append(host_name(outcome, report))
    return line.append(f"  {outcome.reason}" if outcome.reason else "")


def host_name(outcome: Outcome[HostStep], report: ChangeReport) -> str:
    """Return the name of the host of an outcome."""
    host = report.before.hosts.get(outcome.step.host)
    return host.name if host is not None else report.names.get(outcome.step.host, outcome.step.host)


def change_summary(report: ChangeReport) -> str:
    """Return the closing line: the outcomes, the plan, or the reason for a refusal."""
    plan = report.plan
    if not plan.feasible:
        return f"nothing changed: refused for {count(len(plan.rejections), 'reason')}"
    if report.outcomes:
        return outcomes_counted(report.outcomes, "host")
    if report.taking_up and not report.applied:
        return f"{report.taking_up} {report.verb}; gpuops change status shows where it stands"
    if not plan.rounds:
        return "nothing to do" + (f": {'; '.join(plan.because)}" if plan.because else "")
    hosts, rounds = count(len(plan.planned_hosts), "host"), count(len(plan.rounds), "round")
    return f"{hosts} in {rounds} planned, nothing changed"
