"""Text and documents of `gpuops doctor` and `gpuops roles`: findings with their fixes, and vCenter roles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

from gpuops.model.vcenter.role import RoleState
from gpuops.plan.doctor.examination import Examination
from gpuops.plan.doctor.finding import Finding, Severity
from gpuops.report.document import DocumentRecord, PrintedDocument, VersionedSiteDocument, printed
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count, count_hosts, vcenter_heading

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def doctor_text(examination: Examination) -> Shown:
    """Return each finding with its fix below it, worst first, and one closing line."""
    gpus = sum(len(host.gpus) for host in examination.hosts)
    heading = vcenter_heading(examination.inventory, count_hosts(len(examination.hosts), gpus))
    lines = [line for finding in examination.findings for line in _lines(finding)]
    return (heading, *lines, Text(_summary(examination), "bold"))


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


def _lines(finding: Finding) -> tuple[Text, Text]:
    """Return the line of a finding, and the line of its fix."""
    head = Text(f"{finding.severity:<8} ", _STYLES[finding.severity])
    head.append(f"{finding.subject}: {finding.reason}")
    return head, Text(f"         fix: {finding.fix}", "dim")


def _summary(examination: Examination) -> str:
    """Return the number of findings of each severity."""
    if not examination.findings:
        return "nothing found"
    counts = {severity: sum(finding.severity is severity for finding in examination.findings) for severity in Severity}
    return ", ".join(count(number, severity.value) for severity, number in counts.items() if number)


def roles_text(states: Sequence[RoleState]) -> Shown:
    """Return, for each role, whether it is right, which privileges differ, and on what to grant it."""
    return (*(line for state in states for line in _role(state)), Text(_roles_summary(states), "bold"))


def _role(state: RoleState) -> Iterator[Text]:
    word, style = _word(state)
    yield Text(f"{word:<8} ", style).append(state.wish.name)
    if not state.right:
        lacks, surplus = ("given", "taken away") if state.written else ("lacks", "surplus")
        for title, privileges in ((lacks, state.missing), (surplus, state.surplus)):
            if privileges:
                yield Text(f"         {title}: {', '.join(sorted(privileges))}")
    yield Text(f"         give it on: {state.wish.where}", "dim")


def _word(state: RoleState) -> tuple[str, str]:
    """Return the word for the state of a role, and its style."""
    if state.written:
        return ("made" if state.there is None else "changed"), "green"
    if state.right:
        return "right", "dim"
    return ("missing" if state.there is None else "unlike"), "yellow"


def _roles_summary(states: Sequence[RoleState]) -> str:
    wrong = [state for state in states if not state.right]
    if not wrong:
        return f"{count(len(states), 'role')} as wanted: nothing to do"
    is_written = all(state.written for state in wrong)
    return f"{count(len(wrong), 'role')} {'written' if is_written else 'not as wanted, nothing changed'}"


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
