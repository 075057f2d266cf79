"""Text and documents of `gpuops doctor`, `gpuops roles` and `gpuops guest check`.

They show findings with their fixes, vCenter roles, and the verdicts on guests with the next step of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

from gpuops.model.guests.guest import GuestWay
from gpuops.model.vcenter.login import RoleState
from gpuops.plan.doctor.examination import Examination
from gpuops.plan.doctor.host_findings import Severity
from gpuops.plan.guest.guest_check import GuestVerdicts, count_states
from gpuops.plan.guest.rows import GuestRow, GuestState
from gpuops.report.document import DocumentRecord, NamedRecord, PrintedDocument, VersionedSiteDocument, printed
from gpuops.report.layout import Text
from gpuops.report.text import count, count_hosts, vcenter_heading

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def doctor_text(examination: Examination) -> Iterator[Text]:
    """Yield each finding with its fix below it, worst first, and the number of findings of each severity."""
    gpus = sum(len(host.gpus) for host in examination.hosts)
    yield vcenter_heading(examination.inventory, count_hosts(len(examination.hosts), gpus))
    for finding in examination.findings:
        yield Text(f"{finding.severity:<8} ", _STYLES[finding.severity]).append(f"{finding.subject}: {finding.reason}")
        yield Text(f"         fix: {finding.fix}", "dim")
    counts = Counter(finding.severity for finding in examination.findings)
    summary = ", ".join(count(counts[severity], severity.value) for severity in Severity if counts[severity])
    yield Text(summary or "nothing found", "bold")


class FindingRecord(DocumentRecord, frozen=True):
    """One problem with its fix."""

    severity: Severity
    subject: str
    reason: str
    fix: str


@printed("doctor", by="gpuops doctor")
class DoctorDocument(VersionedSiteDocument, frozen=True):
    """Problems of hosts, GPUs and VMs, with their fixes."""

    healthy: bool
    findings: Annotated[list[FindingRecord], "worst first"]


def doctor_document(examination: Examination) -> DoctorDocument:
    """Return the findings, worst first, as a document."""
    return DoctorDocument.from_attributes(examination, examination.inventory, read_at=examination.inventory.taken_at)


def roles_text(states: Sequence[RoleState]) -> Iterator[Text]:
    """Yield, for each role, whether it is right, which privileges differ, and on what to grant it; and a summary."""
    for state in states:
        if state.written:
            word, style = "made" if state.there is None else "changed", "green"
        elif state.right:
            word, style = "right", "dim"
        else:
            word, style = "missing" if state.there is None else "differs", "yellow"
        yield Text(f"{word:<8} ", style).append(state.wish.name)
        if not state.right:
            missing_title, surplus_title = ("given", "taken away") if state.written else ("lacks", "surplus")
            for title, privileges in ((missing_title, state.missing), (surplus_title, state.surplus)):
                if privileges:
                    yield Text(f"         {title}: {', '.join(sorted(privileges))}")
        yield Text(f"         assign it on: {state.wish.where}", "dim")
    differing = [state for state in states if not state.right]
    if not differing:
        summary = f"{count(len(states), 'role')} as wanted: nothing to do"
    elif all(state.written for state in differing):
        summary = f"{count(len(differing), 'role')} written"
    else:
        summary = f"{count(len(differing), 'role')} not as wanted, nothing changed"
    yield Text(summary, "bold")


class RoleRecord(DocumentRecord, frozen=True):
    """A role that accounts of gpuops need."""

    name: str
    where: Annotated[str, "the object to grant it on"]
    there: bool
    right: bool
    lacks: Annotated[list[str], "privileges"]
    surplus: Annotated[list[str], "privileges"]
    written: bool

    @classmethod
    def made_of(cls, state: RoleState) -> Self:
        lacks, surplus = sorted(state.missing), sorted(state.surplus)
        return cls.from_attributes(state, state.wish, there=state.there is not None, lacks=lacks, surplus=surplus)


@printed("roles", by="gpuops roles")
class RolesDocument(PrintedDocument, frozen=True):
    """The roles that gpuops needs, compared with those in vCenter."""

    roles: list[RoleRecord]
    changed: Annotated[bool, "whether a role was written"]


def roles_document(states: Sequence[RoleState]) -> RolesDocument:
    """Return the roles as a document."""
    return RolesDocument.from_attributes(roles=states, changed=any(state.written for state in states))


_VERDICT_STYLES: Final = {GuestState.PASS: "green", GuestState.FAIL: "bold red", GuestState.UNKNOWN: "yellow"}
_WAYS: Final = {GuestWay.TOOLS: "VMware Tools", GuestWay.SSH: "SSH"}
_WIDTH: Final = 9


def guest_check_text(verdicts: GuestVerdicts, way: GuestWay) -> Iterator[Text]:
    """Yield the verdicts on each guest, with next steps, and the number of guests that are ready."""
    guest_count = count(len(verdicts.guests), "guest")
    yield vcenter_heading(verdicts.inventory, f"{guest_count} by {_WAYS[way]}")
    for guest in verdicts.guests:
        yield Text(f"{guest.vm.name}: {'ready' if guest.ready else 'not ready'}", "bold")
        for row in guest.rows:
            yield Text(f"  {row.state:<{_WIDTH}}", _VERDICT_STYLES[row.state]).append(f"{row.check}: {row.says}")
            if row.next_move:
                yield Text(f"{'':<{_WIDTH + 2}}next: {row.next_move}", "dim")
    if not verdicts.guests:
        yield Text("no guest was checked: the pool has no VMs", "bold")
        return
    counts = count_states(verdicts)
    words = {GuestState.PASS: "ready", GuestState.FAIL: "not ready", GuestState.UNKNOWN: "not known to be ready"}
    parts = [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    yield Text(f"{guest_count}: {', '.join(parts)}", "bold")


class CheckedRowRecord(DocumentRecord, frozen=True):
    """One verdict on a guest."""

    check: Annotated[str, "what was looked at, such as driver, licence or the name of a framework"]
    state: GuestState
    says: Annotated[str, "why, with figures; may hold text from the guest"]
    next: Annotated[str, "the next step; empty if it passes"]

    @classmethod
    def made_of(cls, row: GuestRow) -> Self:
        return cls.from_attributes(row, next=row.next_move)


class CheckedGuestRecord(DocumentRecord, frozen=True):
    """One guest that was checked, or could not be."""

    vm: NamedRecord
    ready: Annotated[bool, "whether every row passes"]
    rows: list[CheckedRowRecord]


@printed("guest-check", by="gpuops guest check")
class GuestCheckDocument(VersionedSiteDocument, frozen=True):
    """Whether guests are ready for work on their GPUs."""

    via: GuestWay
    ready: Annotated[bool, "whether every row of every guest passes"]
    guests: Annotated[list[CheckedGuestRecord], "by name"]


def guest_check_document(verdicts: GuestVerdicts, way: GuestWay) -> GuestCheckDocument:
    """Return the verdicts as a document."""
    return GuestCheckDocument.from_attributes(
        verdicts, verdicts.inventory, read_at=verdicts.inventory.taken_at, via=way
    )
