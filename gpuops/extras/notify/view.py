"""Notices of runs that ended or died, and their text. Pure: the sender passes the run and the moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Annotated, Any, Final, Self

from gpuops.errors import GpuopsError, Locked, NotConnected, PolicyError, TargetError, UsageError, report_exit_code
from gpuops.model.notice import Notice, NoticeKind, NoticeText, Receipt
from gpuops.model.time_text import format_zoned_minute, format_zoned_second
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.steps import Step
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.returns.return_time import Overdue
from gpuops.report.document import DocumentRecord, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, cut_off
from gpuops.report.plan_text import outcomes_counted
from gpuops.report.run_progress import changed_vms, changed_vms_line
from gpuops.report.step_changes import title

NAMED_AT_MOST: Final = 20
_LONGEST_LINE: Final = 300
_BAD_VERDICTS: Final = frozenset({Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED})
_ALARMING_CODES: Final = frozenset({4, 7})
"""Exit codes that cause a notice even if a refusal is due to the time of day."""
_DAY: Final = "%Y-%m-%d"
_FILE_ERRORS: Final = (PolicyError, TargetError)
"""Errors in a file that a night uses: the admin must learn of them, unlike of a command that was typed wrongly."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """The run that a notice is about."""

    id: str
    vcenter: str
    """The target's name in the configuration file."""
    command: str
    """As it is typed after `gpuops`: `rotate night`."""


def notice_of_report(report: Report[Any] | ChangeReport, run: ReportedRun, at: datetime) -> Notice | None:
    """Return the notice of a run that ended: an alarm if something failed or was refused, else what was changed.

    None = nothing was changed, or the run was refused only because of the time of day: cron starts nights outside their
    window too. The key of an alarm contains the day and the names, so the same names are reported once a day, however
    often a return tries again.
    """
    kind = _kind(report, run.command)
    code = report.exit_code
    if code in _ALARMING_CODES or (code and not _is_refused_by_time(report)):
        troubles = tuple(dict.fromkeys(_troubles(report)))
        # the key of the notice is made from these
        about = (run.command, str(code), f"{at:{_DAY}}", *sorted({subject for subject, _ in troubles}))
        lines = tuple(f"{subject}: {reason}" if reason else subject for subject, reason in troubles)
        headline = f"{run.command}: {_summary(report)} (exit code {code})"
        return Notice(NoticeKind.ALARM, run.vcenter, about, at, headline, lines, _next_command(report, run))
    if code or not report.changed:
        return None
    headline = f"{run.command}: {_summary(report)}"
    named = tuple(changed_vms(report)) if isinstance(report, Report) else ()
    return Notice(kind, run.vcenter, (run.command, run.id), at, headline, named, _status_command(run))


def notice_of_error(error: Exception, run: ReportedRun, at: datetime) -> Notice | None:
    """Return the notice of a run that ended in an error.

    Return None if another run is active, because that run sends its own notices, or if the command was typed wrongly.
    """
    if isinstance(error, Locked) or (isinstance(error, UsageError) and not isinstance(error, _FILE_ERRORS)):
        return None
    code = error.exit_code if isinstance(error, GpuopsError) else GpuopsError.exit_code
    message = error.message if isinstance(error, GpuopsError) else f"internal error: {type(error).__name__}"
    next_move = error.hint if isinstance(error, GpuopsError) else ""
    about = (run.command, str(code), f"{at:{_DAY}}")  # in the key: the same failure is reported once a day
    headline = f"{run.command} ended with exit code {code}"
    return Notice(NoticeKind.ALARM, run.vcenter, about, at, headline, (message,), next_move or _status_command(run))


def notice_of_death(run: ReportedRun, began: datetime, at: datetime) -> Notice:
    """Return the notice of a run that did not end and whose process does not exist any more."""
    headline = f"{run.command}, begun at {format_zoned_minute(began)}, did not end: its process no longer exists"
    return Notice(NoticeKind.DIED, run.vcenter, (run.id,), at, headline, (), _next_after_death(run))


def notice_of_unit(vcenter: str, unit: str, invocation: str, outcome: str, at: datetime) -> Notice:
    """Return the notice of a systemd unit that failed, sent by the `OnFailure=` unit that it started."""
    headline = f"{unit} failed: {outcome}"
    run = ReportedRun(invocation, vcenter, "rotate")
    return Notice(
        NoticeKind.DIED, vcenter, (unit, invocation), at, headline, (), f"journalctl -u {unit}; {_status_command(run)}"
    )


def notice_of_overdue(overdue: Overdue, at: datetime) -> Notice:
    """Return the notice of a vCenter for which no return runs, once a day. It is named by its instance uuid."""
    about = ("overdue", f"{at:{_DAY}}")
    return Notice(NoticeKind.ALARM, overdue.vcenter, about, at, str(overdue), overdue.vms, overdue.next_move)


def notice_text(notice: Notice) -> NoticeText:
    """Return the text of a notice: the headline, at most `NAMED_AT_MOST` names, the next command."""
    subject = _line(f"gpuops {notice.vcenter}: {notice.kind}: {notice.headline}")
    named = [f"- {_line(name)}" for name in notice.names[:NAMED_AT_MOST]]
    if len(notice.names) > NAMED_AT_MOST:
        named.append(f"and {len(notice.names) - NAMED_AT_MOST} more")
    lines = [
        _line(notice.headline),
        *(["", *named] if named else []),
        *(["", f"next: {_line(notice.next_move)}"] if notice.next_move else []),
        "",
        f"vCenter {_line(notice.vcenter)}, {format_zoned_second(notice.at)}, notice {notice.key}",
    ]
    return NoticeText(notice.key, subject, "\n".join(lines) + "\n")


def receipts_text(receipts: Sequence[Receipt]) -> Shown:
    """Return a line for each receiver: whether it accepted the notices, or why not."""
    if not receipts:
        return Text("no notice is waiting to be sent", "bold")
    return tuple(
        Text("not accepted  ", "bold red").append(f"{receipt.receiver}: {receipt.trouble}")
        if receipt.trouble
        else Text("accepted      ", "green").append(receipt.receiver)
        for receipt in receipts
    )


class ReceiptRecord(DocumentRecord, frozen=True):
    """What became of notices at one receiver."""

    receiver: Annotated[str, "its scheme and, where it has one, its host"]
    accepted: Annotated[int, "how many it took"]
    trouble: Annotated[str | None, "why it did not take one; null = it took all that there was"]

    @classmethod
    def made_of(cls, receipt: Receipt) -> Self:
        return cls.from_attributes(receipt, trouble=receipt.trouble or None)


@printed("notify-test", by="gpuops notify test")
class NotifyTestDocument(PrintedDocument, frozen=True):
    """Which receivers accepted a test notice."""

    receivers: list[ReceiptRecord]


@printed("notify-flush", by="gpuops notify flush")
class NotifyFlushDocument(NotifyTestDocument, frozen=True):
    """Which receivers accepted the waiting notices."""


def receipts_exit_code(receipts: Sequence[Receipt]) -> int:
    """Return 0 if all receivers accepted, 4 if some did not, 5 if none did."""
    refused = sum(1 for receipt in receipts if receipt.trouble)
    return NotConnected.exit_code if refused and refused == len(receipts) else report_exit_code(partly=refused)


def _line(text: str) -> str:
    return cut_off(text, _LONGEST_LINE)


def _kind(report: Report[Any] | ChangeReport, command: str) -> NoticeKind:
    if not command.startswith("rotate"):
        return NoticeKind.CHANGE
    night = isinstance(report, Report) and isinstance(report.request, RotateNight)
    return NoticeKind.NIGHT if night else NoticeKind.RETURN


def _is_refused_by_time(report: Report[Any] | ChangeReport) -> bool:
    """Return whether the time of day is the only reason for a refusal."""
    return bool(report.plan.rejections) and all(rejection.by_the_hour for rejection in report.plan.rejections)


def _summary(report: Report[Any] | ChangeReport) -> str:
    """Return in a few words what the run did."""
    if isinstance(report, Report):
        return changed_vms_line(report)
    if report.outcomes:
        return outcomes_counted(report.outcomes, "host")
    return "nothing changed: refused" if not report.plan.feasible else "nothing to do"


def _troubles(report: Report[Any] | ChangeReport) -> Iterator[tuple[str, str]]:
    """Yield each subject that is left out, failed or refused, with the reason, and warnings if the journal is lost."""
    if isinstance(report, Report):
        yield from (
            (rejection.subject, rejection.reason) for rejection in (*report.plan.rejections, *report.plan.unmet)
        )
        if report.journal_lost:
            yield from ((warning, "") for warning in report.plan.warnings)
    else:
        yield from ((rejection.subject, rejection.reason) for rejection in report.plan.rejections)
    for outcome in report.outcomes:
        if outcome.verdict in _BAD_VERDICTS:
            yield _subject(report, outcome), f"{outcome.verdict}: {outcome.reason}" if outcome.reason else "not done"


def _subject(report: Report[Any] | ChangeReport, outcome: Outcome[Any]) -> str:
    """Return the step of the outcome in words, or the name of its host."""
    step = outcome.step
    if isinstance(step, Step):
        return title(step, report.before)
    names = report.names if isinstance(report, ChangeReport) else {}
    host = report.before.hosts.get(step.host)
    return names.get(step.host) or (host.name if host is not None else str(step.host))


def _next_command(report: Report[Any] | ChangeReport, run: ReportedRun) -> str:
    """Return the next step: of the change, or the hint of the first refusal, or else the status command."""
    if isinstance(report, ChangeReport) and report.afterwards:
        return report.afterwards[0]
    unmet = report.plan.unmet if isinstance(report, Report) else ()
    refused = (*report.plan.rejections, *unmet)
    return next((rejection.hint for rejection in refused if rejection.hint), _status_command(run))


def _status_command(run: ReportedRun) -> str:
    noun = "rotate" if run.command.startswith("rotate") else "change"
    return f"gpuops {noun} status --vcenter {quote(run.vcenter)}"


def _next_after_death(run: ReportedRun) -> str:
    """Return the commands that show the state and finish the run."""
    if run.command == "rotate day":  # it continues an interrupted run, or starts one if the run died at its start
        return_command = f"gpuops rotate day --yes --vcenter {quote(run.vcenter)}"
        return f"{_status_command(run)}; {return_command} brings back the desktops that are still away"
    noun = "rotate" if run.command.startswith("rotate") else "change"
    return f"{_status_command(run)}; gpuops {noun} resume --yes --vcenter {quote(run.vcenter)} finishes the run"
