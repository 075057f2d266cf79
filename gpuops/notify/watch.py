"""Watches runs: enters one in the outbox when it begins, puts its notice in when it ends, and sends after its work.

Nothing here changes what a run does, returns or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from gpuops.advise.diagnosis.answer import Diagnosed
from gpuops.errors import GpuopsError, PolicyError, StateDamaged
from gpuops.execute.site.notice_way import NoticeWay
from gpuops.model.notice import Notice, NoticeKind, NoticeText, Receipt
from gpuops.notify.outbox import BegunRun, Outbox, new_run_id
from gpuops.notify.sending import send_once, send_waiting
from gpuops.plan.core.plan import Report
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.rotation.returns.return_time import Overdue
from gpuops.report.notice import (
    ToldRun,
    notice_of_death,
    notice_of_diagnosis,
    notice_of_error,
    notice_of_overdue,
    notice_of_report,
    notice_of_unit,
    notice_text,
)

Reported = TypeVar("Reported", bound="Report[Any] | ChangeReport")
Connected = TypeVar("Connected")
Asked = Callable[[Any], None]
NOT_SENT: Final = "the next run, or gpuops notify flush, tries again"
_UNREADABLE: Final = str(PolicyError.exit_code)
_OF_UNITS: Final = ("rotate night", "rotate day")
"""What the units of the role `gpuops_schedule` run."""


class RunWatch:
    """One run that is watched."""

    def __init__(self, way: NoticeWay, command: str) -> None:
        self._way = way
        self._outbox = Outbox(way.state_dir)
        self.run = ToldRun(new_run_id(), way.settings.vcenter, command)
        self._begun: BegunRun | None = None
        self._trouble: StateDamaged | None = None
        self.declined = False
        self.agreed = False

    def begin(self) -> None:
        """Enters it, and tells of runs that died."""
        try:
            note_deaths(self._way, self._outbox)
            self._begun = self._outbox.begin(self.run, self._way.clock())
        except StateDamaged as damaged:
            self._trouble = damaged

    def asking(self, consent: Asked) -> Asked:
        """The same consent; a run that somebody did not agree to is told of to nobody."""

        def asked(report: Any) -> None:
            self.declined = True
            consent(report)
            self.declined, self.agreed = False, True

        return asked

    def ended(self, notice: Notice | None) -> None:
        """Takes it out, puts its notice in and sends what waits."""
        words, at = notice_text(notice) if notice is not None else None, self._way.clock()
        try:
            if self._trouble is not None:
                raise self._trouble
            if self._begun is not None:
                self._outbox.end(self._begun, self.run.vcenter, words, at, self._way.settings.entries)
            elif words is not None:
                self._outbox.put(self.run.vcenter, words, at, self._way.settings.entries)
            _tell(self._way, send_waiting(self._way, self._outbox))
        except StateDamaged as damaged:
            self._without_outbox(words, damaged)
        except GpuopsError as error:
            self._way.say(f"notices are not sent: {error.line}")

    def cut_off(self) -> None:
        """Somebody stopped it, or it goes on under a watch of its own: nothing is sent now. One that may have begun
        something is told of by the next run."""
        if self._begun is None:
            return
        try:
            if self.agreed:
                self._begun.let_go()
            else:
                self._outbox.end(self._begun, self.run.vcenter, None, self._way.clock(), ())
        except StateDamaged:
            self._begun.let_go()

    def _without_outbox(self, words: NoticeText | None, damaged: StateDamaged) -> None:
        """Better sent twice than not at all."""
        if self._begun is not None:
            self._begun.let_go()
        self._way.say(damaged.line)
        if words is None:
            return
        try:
            _tell(self._way, send_once(self._way, words))
        except GpuopsError as error:
            self._way.say(f"notices are not sent: {error.line}")


def watched(way: NoticeWay, command: str, consent: Asked, run: Callable[[Asked], Reported]) -> Reported:
    """What `run` returns, or raises; its notice is sent afterwards."""
    watch = RunWatch(way, command)
    watch.begin()
    try:
        report = run(watch.asking(consent))
    except Exception as error:
        watch.ended(None if watch.declined else notice_of_error(error, watch.run, way.clock()))
        raise
    except BaseException:
        watch.cut_off()
        raise
    watch.ended(notice_of_report(report, watch.run, way.clock()))
    return report


def connecting(way: NoticeWay, command: str, connect: Callable[[], Connected]) -> Connected:
    """What `connect` returns, or raises. A run that does not get as far as a vCenter is told of, also where it dies
    while it waits for one."""
    watch = RunWatch(way, command)
    watch.begin()
    try:
        connected = connect()
    except Exception as error:
        watch.ended(notice_of_error(error, watch.run, way.clock()))
        raise
    except BaseException:
        watch.cut_off()
        raise
    watch.cut_off()
    return connected


def tell_failure(way: NoticeWay, command: str, error: GpuopsError) -> None:
    """Sends the notice of a run that did not get as far as connecting to a vCenter."""
    watch = RunWatch(way, command)
    watch.ended(notice_of_error(error, watch.run, way.clock()))


def tell_diagnosis(way: NoticeWay, found: Diagnosed, least: float) -> None:
    """Sends the notice of components that are at least so probable (0 to 1), unless it was told today."""
    watch = RunWatch(way, "diagnose")
    watch.ended(notice_of_diagnosis(found, watch.run.vcenter, least, way.clock()))


def tell_overdue(way: NoticeWay, found: Overdue) -> None:
    """Sends the notice of a vCenter that nobody seems to return, unless it was told today."""
    RunWatch(way, "rotate day").ended(notice_of_overdue(found, way.clock()))


def note_deaths(way: NoticeWay, outbox: Outbox) -> int:
    """Puts a notice in for each run of this target that did not end and whose process is gone. How many there were."""
    found = outbox.died(way.settings.vcenter)
    for begun in found:
        at = way.clock()
        words = notice_text(notice_of_death(begun.run, begun.began, at))
        outbox.end(begun, begun.run.vcenter, words, at, way.settings.entries)
    return len(found)


def flush(way: NoticeWay) -> tuple[Receipt, ...]:
    """Sends what waits, and tells of runs that died; for `OnFailure=` of systemd also of the unit that failed.

    Raises StateDamaged, UsageError without apprise.
    """
    outbox = Outbox(way.state_dir)
    died = note_deaths(way, outbox)
    failed, at = _failed_unit(way.environ), way.clock()
    if failed is not None and not died and not _told_itself(way, outbox, at):
        words = notice_text(notice_of_unit(way.settings.vcenter, *failed, at))
        outbox.put(way.settings.vcenter, words, at, way.settings.entries)
    return send_waiting(way, outbox)


def _told_itself(way: NoticeWay, outbox: Outbox, at: datetime) -> bool:
    """Whether the unit was refused for a file that cannot be read, of which its run has told today."""
    if _exit_status(way.environ) != _UNREADABLE:
        return False
    runs = (ToldRun("", way.settings.vcenter, command) for command in _OF_UNITS)
    notices = (notice_of_error(PolicyError(""), run, at) for run in runs)
    return any(notice is not None and outbox.knows(notice.key) for notice in notices)


def send_test(way: NoticeWay) -> tuple[Receipt, ...]:
    """Sends a test to each receiver. Raises UsageError without apprise."""
    headline = "a test: notices of this vCenter arrive here"
    notice = Notice(NoticeKind.TEST, way.settings.vcenter, (new_run_id(),), way.clock(), headline)
    return send_once(way, notice_text(notice))


def _failed_unit(environ: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Unit, invocation and result, as systemd tells them to the unit of `OnFailure=`.

    None = none, or the run itself has told of it: by the exit codes 3 to 7 it ended in good order.
    """
    unit, invocation = environ.get("MONITOR_UNIT"), environ.get("MONITOR_INVOCATION_ID")
    if not unit or not invocation:
        return None
    code, status = environ.get("MONITOR_EXIT_CODE", ""), environ.get("MONITOR_EXIT_STATUS", "")
    if _exit_status(environ) in ("3", "4", "5", "6", "7"):
        return None
    result = environ.get("MONITOR_SERVICE_RESULT", "") or "failed"
    return unit, invocation, f"{result} ({code} {status})" if code else result


def _exit_status(environ: Mapping[str, str]) -> str:
    """That of the unit's process; empty = it was killed."""
    return environ.get("MONITOR_EXIT_STATUS", "") if environ.get("MONITOR_EXIT_CODE") == "exited" else ""


def _tell(way: NoticeWay, receipts: tuple[Receipt, ...]) -> None:
    wrong = [f"{receipt.receiver}: {receipt.trouble}" for receipt in receipts if receipt.trouble]
    if wrong:
        way.say(f"notices not accepted by {'; '.join(wrong)}; {NOT_SENT}")
