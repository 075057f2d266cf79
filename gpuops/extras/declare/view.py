"""The output of `gpuops diff`, `apply`, `assert`, `drift` and `export`: text, documents, and JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Self
from xml.etree.ElementTree import Element, SubElement, tostring

from gpuops.errors import report_exit_code
from gpuops.extras.declare.applying import SiteReport
from gpuops.extras.declare.drift import DriftLook
from gpuops.extras.declare.wishes import SiteDifference
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Verdict
from gpuops.report.document import DocumentRecord, NamedRecord, SiteDocument, printed
from gpuops.report.hosts.host_plan_view import HostOutcomeRecord, HostStepRecord, host_outcome_record, host_step_record
from gpuops.report.layout import Text
from gpuops.report.plan_json import OutcomeRecord, RejectionRecord, StepRecord, outcome_document, step_document
from gpuops.report.plan_text import outcome_line, rejection_lines
from gpuops.report.step_changes import host_name
from gpuops.report.text import count

NOTHING_DIFFERS: Final = "nothing differs from the file: nothing to do"


def difference_lines(differences: Iterable[SiteDifference]) -> Iterator[Text]:
    """Yield a line for each difference: host or VM, GPU, key, before and after."""
    for difference in differences:
        yield (
            Text("  ")
            .append(subject(difference), "bold")
            .append(f"  {difference.title}: ")
            .append(change_in_words(difference), "yellow" if difference.pending else "green")
        )


def difference_text(difference: SiteDifference) -> str:
    """Return one line: the host with its GPU or the VM, the key, and the present and the wished value."""
    return f"{subject(difference)} {difference.title}: {change_in_words(difference)}"


def subject(difference: SiteDifference) -> str:
    """Return the host with its GPU, or the VM."""
    return f"{difference.name} {difference.gpu}" if difference.gpu is not None else difference.name


def change_in_words(difference: SiteDifference) -> str:
    """Return the present and the wished value of the setting."""
    pending = " (configured; waits for a reboot)" if difference.pending else ""
    return f"{difference.before or 'none'} -> {difference.after or 'none'}{pending}"


def site_report_text(report: SiteReport) -> Iterator[Text]:
    """Yield the reasons against the plan, the differences, rounds of reboots, failures, and the next steps."""
    yield from rejection_lines("refused", report.rejections, "bold red")
    yield from difference_lines(report.differences)
    for number, planned_hosts in enumerate(report.roll.rounds, 1):
        names = ", ".join(planned.host.name for planned in planned_hosts)
        away = sum(len(planned.away) for planned in planned_hosts)
        yield Text(
            f"round {number}: {count(away, 'VM')} {'leaves' if away == 1 else 'leave'}, then a reboot of {names}"
        )
    for host_outcome in report.host_outcomes:
        if host_outcome.verdict not in _GOOD:
            name = host_name(host_outcome.step.host, report.before)
            yield Text(f"{host_outcome.verdict}: {name}: {host_outcome.reason}", "bold red")
    yield from (outcome_line(outcome, report.before) for outcome in report.vm_outcomes if outcome.verdict not in _GOOD)
    yield from rejection_lines("not done", report.unmet, "bold red")
    if report.feasible and not report.applied:
        yield from (Text(f"warning: {line}", "yellow") for line in report.warnings)
    if report.applied and report.changed and report.remaining:
        yield Text("still differs:", "yellow")
        yield from difference_lines(report.remaining)
    yield from (Text(f"next: {line}", "yellow") for line in report.afterwards)
    yield Text(summary(report), "bold")


_GOOD: Final = (Verdict.DONE, Verdict.ALREADY)


def summary(report: SiteReport) -> str:
    """Return one line about the run."""
    if not report.feasible:
        return "refused: nothing was changed"
    if not report.differences:
        return NOTHING_DIFFERS
    differs = f"{count(len(report.differences), 'setting')} {'differs' if len(report.differences) == 1 else 'differ'}"
    if not report.applied:
        return f"{differs}; dry run: nothing was changed"
    if not report.changed:
        return f"{differs}: nothing was changed"
    steps = (*report.host_outcomes, *report.vm_outcomes)
    done_count = sum(outcome.verdict is Verdict.DONE for outcome in steps)
    remainder = f"; {len(report.remaining)} still differ" if report.remaining else "; nothing differs any more"
    return f"{count(done_count, 'step')} done{remainder}"


def assertion_text(report: SiteReport) -> Iterator[Text]:
    """Yield what differs, and one line that says whether the site is as the file says."""
    yield from rejection_lines("wrong", report.comparison.rejections, "bold red")
    yield from difference_lines(report.differences)
    number = len(report.differences) + len(report.comparison.rejections)
    differs_text = f"{count(number, 'setting')} {'differs' if number == 1 else 'differ'} from the file"
    yield Text(differs_text if number else "everything is as the file says", "bold red" if number else "bold green")


def junit_xml(report: SiteReport) -> str:
    """Return the comparison as JUnit XML: a test case for each host and VM of the file, failed if it differs."""
    wishes = [("hosts", wish.ref, wish.name) for wish in report.comparison.hosts]
    wishes += [("vms", wish.ref, wish.name) for wish in report.comparison.vms]
    rejections = report.comparison.rejections
    lines_by_ref: dict[str, list[str]] = {}
    for difference in report.differences:
        lines_by_ref.setdefault(difference.ref, []).append(difference_text(difference))
    suite = Element(
        "testsuite",
        name="gpuops assert",
        tests=str(len(wishes) + len(rejections)),
        failures=str(len(lines_by_ref)),
        errors=str(len(rejections)),
    )
    for group, ref, name in wishes:
        case = SubElement(suite, "testcase", classname=group, name=name)
        if (lines := lines_by_ref.get(ref)) is not None:
            failure = SubElement(case, "failure", message=f"{count(len(lines), 'setting')} differ from the file")
            failure.text = "\n".join(lines)
    for rejection in rejections:
        case = SubElement(suite, "testcase", classname="file", name=rejection.subject)
        SubElement(case, "error", message=str(rejection))
    return tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


class SiteDifferenceRecord(DocumentRecord, frozen=True):
    """One setting that is not as the file says."""

    kind: Annotated[str, "host or vm"]
    target: Annotated[NamedRecord, "the host or VM"]
    gpu: Annotated[str | None, "PCI address of the GPU; null = the setting is not about one GPU"]
    key: Annotated[str, "as in the file; `mark NAME` for a mark"]
    before: Annotated[str, "`unknown` = cannot be read"]
    after: Annotated[str, "what the file says"]
    pending: Annotated[bool, "whether it is configured as the file says, and waits for a reboot of the host"]

    @classmethod
    def made_of(cls, difference: SiteDifference) -> Self:
        gpu = str(difference.gpu) if difference.gpu is not None else None
        target = NamedRecord(difference.ref, difference.name)
        return cls.from_attributes(difference, target=target, gpu=gpu, key=difference.title)


class SiteComparisonDocument(SiteDocument, frozen=True):
    """What differs from a site file."""

    differences: Annotated[list[SiteDifferenceRecord], "what differs from the file"]
    rejections: Annotated[list[RejectionRecord], "why it cannot be done"]
    warnings: list[str]
    exit_code: int

    @classmethod
    def made_of(cls, report: SiteReport) -> Self:
        before = report.before
        return cls.from_attributes(report, before, read_at=before.taken_at, rejections=list(report.rejections))


@printed("assert", by="gpuops assert")
class AssertDocument(SiteComparisonDocument, frozen=True):
    """Whether a vCenter is as a site file says."""

    holds: Annotated[bool, "whether nothing differs"]

    @classmethod
    def made_of(cls, report: SiteReport) -> Self:
        before, reasons = report.before, report.comparison.rejections
        holds = not (report.differences or reasons)
        keys = {"read_at": before.taken_at, "rejections": list(reasons), "holds": holds, "warnings": []}
        return cls.from_attributes(report, before, **keys, exit_code=report_exit_code(refused=not holds))


class SitePlanDocument(SiteComparisonDocument, frozen=True):
    """What differs from a site file, and how it is changed."""

    feasible: Annotated[bool, "whether it can be done"]
    disruptive: Annotated[bool, "whether something is stopped, moved or rebooted"]
    host_steps: Annotated[list[HostStepRecord], "settings of hosts, which come first"]
    reboots: Annotated[list[list[str]], "names of the hosts that are rebooted, round by round"]
    vm_steps: Annotated[list[StepRecord], "changes of VMs"]
    afterwards: Annotated[list[str], "what is left to do, in order"]

    @classmethod
    def made_of(cls, report: SiteReport) -> Self:
        return cls.from_attributes(report, report.before, **cls._keys(report))

    @classmethod
    def _keys(cls, report: SiteReport) -> dict[str, object]:
        before = report.before
        return {
            "read_at": before.taken_at,
            "rejections": list(report.rejections),
            "host_steps": [host_step_record(step, before) for step in report.hosts.steps],
            "reboots": [[planned.host.name for planned in planned_hosts] for planned_hosts in report.roll.rounds],
            "vm_steps": [step_document(step, before) for step in report.vms.steps],
        }


@printed("diff", by="gpuops diff")
class DiffDocument(SitePlanDocument, frozen=True):
    """What differs from a site file, and how `gpuops apply` would change it."""


@printed("apply", by="gpuops apply")
class ApplyDocument(SitePlanDocument, frozen=True):
    """What differs from a site file, how it is changed, and what became of it."""

    applied: Annotated[bool, "whether something was done; never true of a dry run or a refusal"]
    changed: Annotated[bool, "whether something was changed, or in a dry run would be"]
    host_outcomes: Annotated[list[HostOutcomeRecord], "one for each step, and one for each host that was rebooted"]
    vm_outcomes: list[OutcomeRecord]
    unmet: Annotated[list[RejectionRecord], "what became infeasible after other changes had been made"]
    remaining: Annotated[list[SiteDifferenceRecord], "what still differs; in a dry run all of it"]

    @classmethod
    def _keys(cls, report: SiteReport) -> dict[str, object]:
        before = report.before
        return super()._keys(report) | {
            "applied": report.applied and report.changed,
            "host_outcomes": [host_outcome_record(outcome, before) for outcome in report.host_outcomes],
            "vm_outcomes": [outcome_document(outcome, before) for outcome in report.vm_outcomes],
        }


@printed("export", by="gpuops export")
class ExportDocument(SiteDocument, frozen=True):
    """A site file of what there is."""

    file: Annotated[str, "the text of the file, as YAML"]
    left_out: Annotated[list[str], "what a file cannot say"]

    @classmethod
    def of(cls, inventory: Inventory, text: str, left_out: tuple[str, ...]) -> Self:
        return cls.from_attributes(inventory, read_at=inventory.taken_at, file=text, left_out=list(left_out))


def drift_text(look: DriftLook) -> Iterator[Text]:
    """Yield the settings that drifted, are back, were set back or could not be, and how many still differ."""
    moment = format_zoned_minute(look.at)
    for difference in look.drifted:
        by = f", by {difference.by}" if difference.by else ""
        yield Text(f"{moment} drifted: {difference_text(difference)}{by}", "yellow")
    for difference in look.back:
        yield Text(f"{moment} back: {subject(difference)} {difference.title}: {difference.after or 'none'}", "green")
    yield from rejection_lines(f"{moment} does not fit the file", look.unmatched, "yellow")
    yield from (Text(f"{moment} set back: ").append(line) for line in healed_lines(look.healed))
    yield from rejection_lines("not set back", look.refusals, "bold red")
    number = len(look.remaining) + len(look.unmatched)
    yield Text(f"{moment} {count(number, 'setting')} {'differs' if number == 1 else 'differ'} from the file", "bold")


def healed_lines(reports: Iterable[SiteReport]) -> Iterator[str]:
    """Yield a line for each setting that was set back."""
    for report in reports:
        for difference in report.differences if report.changed else ():
            if difference not in report.remaining:
                yield difference_text(difference)


class DriftedRecord(SiteDifferenceRecord, frozen=True):
    """One setting that drifted."""

    by: Annotated[str | None, "user who changed it, by vCenter's events; null = unknown"]


@printed("drift", by="gpuops drift")
class DriftDocument(SiteDocument, frozen=True):
    """What a look of `gpuops drift` found."""

    drifted: Annotated[list[DriftedRecord], "what differs since this look"]
    back: Annotated[list[SiteDifferenceRecord], "what is as the file says again"]
    set_back: Annotated[list[str], "what gpuops set back, one line each"]
    rejections: Annotated[list[RejectionRecord], "why something could not be set back"]
    remaining: Annotated[list[SiteDifferenceRecord], "all that differs after the look"]
    unmatched: Annotated[list[RejectionRecord], "why entries of the file do not fit this vCenter"]
    exit_code: int

    @classmethod
    def made_of(cls, look: DriftLook) -> Self:
        return cls.from_attributes(
            look, read_at=look.at, set_back=list(healed_lines(look.healed)), rejections=list(look.refusals)
        )
