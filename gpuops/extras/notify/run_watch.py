"""Watches runs: enters a run in the outbox when it begins, adds its notice when it ends, and sends it after the work.

Nothing here changes what a run does, returns or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from gpuops.errors import GpuopsError, PolicyError, StateDamaged
from gpuops.execute.site.site import NoticeWay
from gpuops.extras.notify.outbox import BegunRun, Outbox, new_run_id
from gpuops.extras.notify.sending import send_once, send_waiting
from gpuops.extras.notify.view import (
    ReportedRun,
    notice_of_death,
    notice_of_error,
    notice_of_overdue,
    notice_of_report,
    notice_of_unit,
    notice_text,
)
from gpuops.model.notice import Notice, NoticeKind, NoticeText, Receipt
from gpuops.plan.core.plan import Report
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.rotation.returns.return_time import Overdue

Reported = TypeVar("Reported", bound="Report[Any] | ChangeReport")
Connected = TypeVar("Connected")
Consent = Callable[[Any], None]
NOT_SENT: Final = "the next run sends them again, or run gpuops notify flush"
_EXIT_STATUS_OF_FILE_ERROR: Final = str(PolicyError.exit_code)
_COMMANDS_OF_UNITS: Final = ("rotate night", "rotate day")
"""The commands of the units that the role `gpuops_schedule` installs."""


class RunWatch:
    """Watches one run: its entry in the outbox, and its notice."""

    def __init__(self, way: NoticeWay, command: str) -> None:
        self._way = way
        self._outbox = Outbox(way.state_dir)
        self.run = ReportedRun(new_run_id(), way.settings.vcenter, command)
        self._begun: BegunRun | None = None
        self._outbox_error: StateDamaged | None = None
        self.is_declined = False
        self.is_agreed = False

    def begin(self) -> None:
        """Enter the run in the outbox, and add notices of runs that died."""
        try:
            add_death_notices(self._way, self._outbox)
            self._begun = self._outbox.begin(self.run, self._way.clock())
        except StateDamaged as damaged:
            self._outbox_error = damaged

    def wrap_consent(self, consent: Consent) -> Consent:
        """Return a consent that also notes the answer of the admin: a declined run causes no notice."""

        def noting_consent(report: Any) -> None:
            self.is_declined = True
            consent(report)  # raises if the admin declines
            self.is_declined, self.is_agreed = False, True

        return noting_consent

    def end(self, notice: Notice | None) -> None:
        """Remove the run from the outbox, add its notice and send the waiting notices. None = the run has no notice."""
        text, at = notice_text(notice) if notice is not None else None, self._way.clock()
        try:
            if self._outbox_error is not None:  # the outbox could not be used at the beginning: send without it
                raise self._outbox_error
            if self._begun is not None:
                self._outbox.end(self._begun, self.run.vcenter, text, at, self._way.settings.entries)
            elif text is not None:  # `begin` was not called
                self._outbox.put(self.run.vcenter, text, at, self._way.settings.entries)
            _report_refusals(self._way, send_waiting(self._way, self._outbox))
        except StateDamaged as damaged:
            self._send_without_outbox(text, damaged)
        except GpuopsError as error:
            self._way.say(f"notices were not sent: {error.line}")

    def cut_off(self) -> None:
        """End the watch without a notice: the run was interrupted, or `run_watched` watches the rest of it.

        If the admin agreed to changes, the run stays in the outbox, and the next run sends a notice that it died.
        """
        if self._begun is None:
            return
        try:
            if self.is_agreed:
                self._begun.release()
            else:
                self._outbox.end(self._begun, self.run.vcenter, None, self._way.clock(), ())
        except StateDamaged:
            self._begun.release()

    def _send_without_outbox(self, text: NoticeText | None, damaged: StateDamaged) -> None:
        """Send the notice directly: receivers may get it twice, but they do not miss it."""
        if self._begun is not None:
            self._begun.release()
        self._way.say(damaged.line)
        if text is None:
            return
        try:
            _report_refusals(self._way, send_once(self._way, text))
        except GpuopsError as error:
            self._way.say(f"notices were not sent: {error.line}")


def run_watched(way: NoticeWay, command: str, run: Callable[..., Reported], *, consent: Consent) -> Reported:
    """Return or raise what `run` returns or raises; its notice is sent afterwards."""
    watch = RunWatch(way, command)
    watch.begin()
    try:
        report = run(consent=watch.wrap_consent(consent))
    except Exception as error:
        watch.end(None if watch.is_declined else notice_of_error(error, watch.run, way.clock()))
        raise
    except BaseException:
        watch.cut_off()
        raise
    watch.end(notice_of_report(report, watch.run, way.clock()))
    return report


def connect_watched(way: NoticeWay, command: str, connect: Callable[[], Connected]) -> Connected:
    """Return or raise what `connect` returns or raises.

    A notice is sent if it raises an error, and by the next run if the process dies while it connects.
    """
    watch = RunWatch(way, command)
    watch.begin()
    try:
        connected = connect()
    except Exception as error:
        watch.end(notice_of_error(error, watch.run, way.clock()))
        raise
    except BaseException:
        watch.cut_off()
        raise
    watch.cut_off()
    return connected


def send_failure(way: NoticeWay, command: str, error: GpuopsError) -> None:
    """Send the notice of a run that failed before it connected to a vCenter."""
    watch = RunWatch(way, command)
    watch.end(notice_of_error(error, watch.run, way.clock()))


def send_overdue(way: NoticeWay, overdue: Overdue) -> None:
    """Send the notice of a vCenter whose return is overdue, unless it was sent today."""
    RunWatch(way, "rotate day").end(notice_of_overdue(overdue, way.clock()))


def add_death_notices(way: NoticeWay, outbox: Outbox) -> int:
    """Add a notice for each run of this target that did not end and whose process has ended; return their number."""
    dead_runs = outbox.find_dead_runs(way.settings.vcenter)
    for begun in dead_runs:
        at = way.clock()
        text = notice_text(notice_of_death(begun.run, begun.began, at))
        outbox.end(begun, begun.run.vcenter, text, at, way.settings.entries)
    return len(dead_runs)


def flush(way: NoticeWay) -> tuple[Receipt, ...]:
    """Send the waiting notices, with new ones about runs that died, and return the receipt of each receiver.

    If systemd's `OnFailure=` started this, and no run has reported the failure of its unit, add a notice about the
    unit. Raises StateDamaged, and UsageError without apprise.
    """
    outbox = Outbox(way.state_dir)
    death_count = add_death_notices(way, outbox)
    failed_unit, at = _failed_unit(way.environ), way.clock()
    if failed_unit is not None and not death_count and not _has_reported_today(way, outbox, at):
        text = notice_text(notice_of_unit(way.settings.vcenter, *failed_unit, at))
        outbox.put(way.settings.vcenter, text, at, way.settings.entries)
    return send_waiting(way, outbox)


def _has_reported_today(way: NoticeWay, outbox: Outbox, at: datetime) -> bool:
    """Return whether the unit failed because a file cannot be read, and its run sent a notice about that today."""
    if _exit_status(way.environ) != _EXIT_STATUS_OF_FILE_ERROR:
        return False
    runs = (ReportedRun("", way.settings.vcenter, command) for command in _COMMANDS_OF_UNITS)
    notices = (notice_of_error(PolicyError(""), run, at) for run in runs)
    return any(notice is not None and outbox.knows(notice.key) for notice in notices)


def send_test(way: NoticeWay) -> tuple[Receipt, ...]:
    """Send a test notice to each receiver. Raises UsageError without apprise."""
    headline = "test: notices of this vCenter arrive here"
    notice = Notice(NoticeKind.TEST, way.settings.vcenter, (new_run_id(),), way.clock(), headline)
    return send_once(way, notice_text(notice))


def _failed_unit(environ: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return unit, invocation and result, as systemd passes them to the unit of `OnFailure=`.

    None = no unit failed, or its run has sent a notice itself, as it does before it ends with exit code 3 to 7.
    """
    unit, invocation = environ.get("MONITOR_UNIT"), environ.get("MONITOR_INVOCATION_ID")
    if not unit or not invocation:
        return None
    code, status = environ.get("MONITOR_EXIT_CODE", ""), environ.get("MONITOR_EXIT_STATUS", "")
    if _exit_status(environ) in ("3", "4", "5", "6", "7"):
        return None
    outcome = environ.get("MONITOR_SERVICE_RESULT", "") or "failed"
    return unit, invocation, f"{outcome} ({code} {status})" if code else outcome


def _exit_status(environ: Mapping[str, str]) -> str:
    return environ.get("MONITOR_EXIT_STATUS", "") if environ.get("MONITOR_EXIT_CODE") == "exited" else ""


def _report_refusals(way: NoticeWay, receipts: tuple[Receipt, ...]) -> None:
    """Print a line about the receivers that did not accept the notices."""
    refusals = [f"{receipt.receiver}: {receipt.trouble}" for receipt in receipts if receipt.trouble]
    if refusals:
        way.say(f"notices not accepted by {'; '.join(refusals)}; {NOT_SENT}")
