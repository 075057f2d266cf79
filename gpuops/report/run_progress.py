"""Shows how far a run is, and sums up an ended run in one line, for `--quiet` and notices.

`RunProgress` counts the desktops that `rotate night` suspends or `rotate day` brings back, and after the last of them
the ML VMs; steps that set markers or DRS are not counted. A run with neither counts its steps. `gpuops.console` draws
the progress and reads the clock.

The end of `rotate day` is estimated by its pace: if 12 of 40 desktops are back 6 minutes after the first one was
started, the remaining 28 take 14 minutes. ML VMs stop before that, so their time is not part of the pace. If a desktop
hangs, the estimated end moves later as time passes.

`run_line` and `change_line` return the line of an ended run: its outcome, what failed, and the next command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.model.time_text import format_clock, format_minute, format_stopwatch
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import (
    AnyStep,
    CloneVm,
    CloseGate,
    CreateVm,
    OpenGate,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.plan.hosts.change.rolling_plan import ChangeReport
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.returns.day import RotateDay
from gpuops.plan.rotation.returns.restore import RestoreVms
from gpuops.plan.rotation.returns.return_time import night_due
from gpuops.report.hosts.change_view import change_summary, host_name
from gpuops.report.layout import Text, shortened
from gpuops.report.plan_text import outcomes_counted, summary
from gpuops.report.step_changes import vm_name
from gpuops.report.text import count

ENDED_FOR_ESTIMATE: Final = 3
"""The number of desktops that must have ended before an end is estimated: the first of a host comes back alone."""

NAMED_VMS: Final = 4
"""The number of VMs in flight that are named; the others are counted."""

VERBS_IN_FLIGHT: Final[Mapping[type[Step], str]] = {
    ReconfigureVm: "changing",
    RelocateVm: "moving",
    PowerOnVm: "starting",
    ResumeVm: "resuming",
    SuspendVm: "suspending",
    PowerOffVm: "powering off",
    ShutDownGuest: "shutting down",
    RunInGuest: "running the hook of",
    SetVmDrs: "setting DRS of",
    SetAttribute: "marking",
    CloseGate: "keeping users from",
    OpenGate: "letting users in to",
    CloneVm: "cloning",
    CreateVm: "creating",
    PowerOffForRemoval: "powering off",
    RemoveVm: "removing",
}
"""The verb for each kind of step in flight."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Steps of some kinds, and how many of them have ended."""

    label: str
    kinds: tuple[type[Step], ...]
    """Empty = all kinds."""
    total: int = 0
    completed_steps: int = 0
    missed_steps: int = 0
    """Steps that were not done, and are not tried again in this run."""

    @property
    def remaining(self) -> int:
        return self.total - self.completed_steps - self.missed_steps

    def counts(self, step: Step) -> bool:
        return not self.kinds or isinstance(step, self.kinds)

    def with_plan(self, steps: Collection[Step]) -> Tally:
        """Return the tally with the number of steps that are planned and not completed yet."""
        return replace(self, total=self.completed_steps + sum(map(self.counts, steps)), missed_steps=0)

    def with_outcome(self, outcome: Outcome) -> Tally:
        if not self.counts(outcome.step):
            return self
        if outcome.verdict in (Verdict.DONE, Verdict.ALREADY):
            return replace(self, completed_steps=self.completed_steps + 1)
        return replace(self, missed_steps=self.missed_steps + 1)


_NIGHT: Final = (Tally("desktops suspended", (SuspendVm, ShutDownGuest)), Tally("ML VMs started", (PowerOnVm,)))
_ML_STOPS: Final = (ShutDownGuest, PowerOffVm, SuspendVm)
_MORNING: Final = (Tally("desktops back", (ResumeVm, PowerOnVm)), Tally("ML VMs stopped", _ML_STOPS))
_STEPS: Final = Tally("steps", ())


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """A step in flight, and the moment when it was first seen in flight, in seconds on the clock of `now_s`."""

    step: Step
    since_s: float


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of one run. Each change makes a new instance."""

    tallies: tuple[Tally, ...]
    """The last tally counts all steps."""
    before: Inventory
    began_s: float
    is_return: bool = False
    """Whether it brings desktops back."""
    back_by: datetime | None = None
    """When they are due, in the zone of the policy; None = not known."""
    in_flight: tuple[StepUnderWay, ...] = ()
    paced_from_s: float | None = None
    """When the first desktop was in flight."""

    def with_outcome(self, outcome: Outcome) -> RunProgress:
        """Return the progress after a step has ended."""
        in_flight = tuple(under_way for under_way in self.in_flight if under_way.step.vm != outcome.step.vm)
        tallies = tuple(tally.with_outcome(outcome) for tally in self.tallies)
        return replace(self, tallies=tallies, in_flight=in_flight)

    def with_in_flight(self, steps: Sequence[Step], now_s: float) -> RunProgress:
        """Return the progress with exactly these steps in flight."""
        since_s = {(type(under_way.step), under_way.step.vm): under_way.since_s for under_way in self.in_flight}
        in_flight = tuple(StepUnderWay(step, since_s.get((type(step), step.vm), now_s)) for step in steps)
        paced_from_s = self.paced_from_s
        if paced_from_s is None and any(map(self.tallies[0].counts, steps)):
            paced_from_s = now_s
        return replace(self, in_flight=in_flight, paced_from_s=paced_from_s)

    @property
    def shown_tally(self) -> Tally:
        """Return the tally that the bar shows: the first of VMs that is unfinished or has steps, else all steps."""
        vm_tallies = self.tallies[:-1]
        unfinished = (tally for tally in vm_tallies if tally.remaining)
        return next(unfinished, None) or next((tally for tally in vm_tallies if tally.total), self.tallies[-1])

    def remaining_s(self, now_s: float) -> float | None:
        """Return how long the remaining desktops take at the pace so far.

        None if too few have ended for an estimate, no desktop remains, or the run brings no desktops back.
        """
        desktops = self.tallies[0]
        ended = desktops.completed_steps + desktops.missed_steps
        if not self.is_return or self.paced_from_s is None or ended < ENDED_FOR_ESTIMATE or not desktops.remaining:
            return None
        return desktops.remaining * (now_s - self.paced_from_s) / ended


def start_progress(report: Report, now_s: float, now: datetime, earlier: RunProgress | None = None) -> RunProgress:
    """Return the progress of a run that is about to act. `earlier` is the progress of the same run before an outage of
    vCenter interrupted it."""
    request, steps = report.request, report.plan.steps
    # a restore is shown as the return that it carries out
    rotation_request = request.day if isinstance(request, RestoreVms) else request
    if earlier is not None:
        tallies = earlier.tallies
    elif isinstance(rotation_request, RotateDay):
        tallies = (*_MORNING, _STEPS)
    else:
        tallies = (*_NIGHT, _STEPS) if isinstance(rotation_request, RotateNight) else (_STEPS,)
    due = None
    if isinstance(rotation_request, RotateDay):
        due = night_due(rotation_request.policy, rotation_request.originals, now)
    return RunProgress(
        tuple(tally.with_plan(steps) for tally in tallies),
        report.before,
        earlier.began_s if earlier is not None else now_s,
        is_return=isinstance(rotation_request, RotateDay),
        back_by=due.back_by.astimezone(due.zone) if due is not None else None,
    )


def progress_lines(progress: RunProgress, now_s: float, now: datetime, width: int) -> tuple[str, ...]:
    """Return the lines below the bar, each at most `width` columns wide where possible."""
    missed = sum(tally.missed_steps for tally in progress.tallies[:-1]) or progress.shown_tally.missed_steps
    not_done = [f"{missed} not done"] if missed else []
    return (*not_done, *_estimated_end(progress, now_s, now), *_lines_in_flight(progress, now_s, width))


def _estimated_end(progress: RunProgress, now_s: float, now: datetime) -> Iterator[str]:
    """Yield `ETA 05:41, back_by 07:00 CET`, or the part of it that is known; without `back_by` in the zone of `now`."""
    due, remaining_s = progress.back_by, progress.remaining_s(now_s)
    local_now = now.astimezone(due.tzinfo) if due is not None else now
    eta = _next_minute(local_now + timedelta(seconds=remaining_s)) if remaining_s is not None else None
    if due is None:
        if eta is not None:
            yield f"ETA {_clock_or_date(eta, local_now)} {eta.tzname()}"
        return
    back_by = f"back_by {_clock_or_date(due, local_now)} {due.tzname()}"
    if eta is not None:
        eta_text = f"ETA {_clock_or_date(eta, local_now)}"
        yield f"late: {eta_text} is after {back_by}" if eta > due else f"{eta_text}, {back_by}"
    # the first tally counts desktops: back_by is about these
    elif progress.tallies[0].remaining:
        yield f"late: {back_by} is past" if local_now > due else back_by


def _next_minute(moment: datetime) -> datetime:
    """Return the moment rounded up to a minute, so that the shown end is never too early."""
    minute = moment.replace(second=0, microsecond=0)
    return minute if minute == moment else minute + timedelta(minutes=1)


def _clock_or_date(moment: datetime, now: datetime) -> str:
    """Return the time of day, with the date if it is not today: `05:41`."""
    return format_clock(moment) if moment.date() == now.date() else format_minute(moment)


def _lines_in_flight(progress: RunProgress, now_s: float, width: int) -> Iterator[str]:
    """Yield a line for each of `NAMED_VMS` VMs in flight, the longest first, and the number of the others."""
    longest_first = sorted(progress.in_flight, key=lambda under_way: under_way.since_s)
    for under_way in longest_first[:NAMED_VMS]:
        verb, duration = VERBS_IN_FLIGHT[type(under_way.step)], format_stopwatch(now_s - under_way.since_s)
        name = shortened(vm_name(under_way.step.vm, progress.before), width - len(f"  {verb}  {duration}"))
        yield f"  {verb} {name} {duration}"
    if len(longest_first) > NAMED_VMS:
        yield f"  and {len(longest_first) - NAMED_VMS} more"


_NIGHT_PHRASES: Final = {
    SuspendVm: ("desktop", "suspended"),
    ShutDownGuest: ("desktop", "shut down"),
    PowerOnVm: ("ML VM", "started"),
    ResumeVm: ("desktop", "resumed"),
    PowerOffVm: ("ML VM", "powered off"),
}
_DAY_PHRASES: Final = {
    ResumeVm: ("desktop", "resumed"),
    PowerOnVm: ("desktop", "powered on"),
    ShutDownGuest: ("ML VM", "shut down"),
    PowerOffVm: ("ML VM", "powered off"),
    SuspendVm: ("desktop", "suspended"),
}


def changed_vms_line(report: Report[Any]) -> str:
    """Return `4 desktops suspended, 3 ML VMs started, 1 step failed`; if a run did none of these, its closing line."""
    phrase_counts = Counter(
        _phrase_of_step(report, outcome.step) for outcome in report.outcomes if outcome.verdict is Verdict.DONE
    )
    # a phrase is a noun and a participle: ("desktop", "suspended")
    parts = [
        f"{count(phrase_counts[phrase], phrase[0])} {phrase[1]}"
        for phrase in _phrases_of_run(report).values()
        if phrase_counts[phrase]
    ]
    if not parts:
        return summary(report)
    failures = outcomes_counted([outcome for outcome in report.outcomes if outcome.verdict not in _GOOD], "step")
    return ", ".join([*parts, failures] if failures else parts)


def changed_vms(report: Report[Any]) -> Iterator[str]:
    """Yield `vdi-07: suspended` for each VM that was changed."""
    for outcome in report.outcomes:
        phrase = _phrase_of_step(report, outcome.step)
        vm = report.before.vms.get(outcome.step.vm) if phrase is not None else None
        if outcome.verdict is Verdict.DONE and phrase is not None and vm is not None:
            yield f"{vm.name}: {phrase[1]}"


_GOOD: Final = frozenset({Verdict.DONE, Verdict.ALREADY})


def _phrases_of_run(report: Report[Any]) -> dict[type[Any], tuple[str, str]]:
    """Return the phrase for each kind of step of a rotation; for other runs, such as a defrag, return none."""
    if isinstance(report.request, RotateNight):
        return _NIGHT_PHRASES
    return _DAY_PHRASES if isinstance(report.request, RotateDay | RestoreVms) else {}


def _phrase_of_step(report: Report[Any], step: object) -> tuple[str, str] | None:
    """Return the phrase for one step, or None."""
    if isinstance(step, SuspendVm) and step.gives_way:  # an ML VM, also at night, when other suspends are of desktops
        return "ML VM", "suspended"
    return _phrases_of_run(report).get(type(step)) if isinstance(step, Step) else None


_BAD: Final = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED)
_AFTER_FAILURE: Final = {
    "rotate-night": "gpuops rotate status",
    "rotate-day": "gpuops rotate day",
    "rotate-resume": "gpuops rotate day",
    "rotate-restore": "gpuops rotate day",
}
"""The command that shows or repeats what a rotation could not do."""


def run_line(report: Report[AnyStep], kind: str) -> Text:
    """Return the line for a run: `rotate day: 11 desktops resumed, 1 step failed; not done: vdi-07; next: COMMAND`.

    `kind` is the kind of the JSON document, such as `rotate-day`.
    """
    refusals: list[Rejection] = [*report.plan.rejections, *report.plan.unmet]
    failed_names = [_name_of_target(outcome.step, report) for outcome in report.outcomes if outcome.verdict in _BAD]
    hints = [refusal.hint for refusal in refusals if refusal.hint]
    if failed_names and kind in _AFTER_FAILURE:
        hints.append(_AFTER_FAILURE[kind])
    unmet_names = [rejection.subject for rejection in report.plan.unmet]
    names = list(dict.fromkeys([*unmet_names, *failed_names]))
    return _join_line(kind.replace("-", " "), changed_vms_line(report), report.plan.rejections, names, hints)


def change_line(report: ChangeReport) -> Text:
    """Return the line for a rolling change of hosts."""
    rejections = report.plan.rejections
    hints = [*report.afterwards, *(rejection.hint for rejection in rejections if rejection.hint)]
    failed_names = [host_name(outcome, report) for outcome in report.outcomes if outcome.verdict in _BAD]
    return _join_line(report.verb, change_summary(report), rejections, failed_names, hints)


def _name_of_target(step: object, report: Report[AnyStep]) -> str:
    """Return the name of the VM or host that the step changes; its id if the snapshot lacks it."""
    ref = str(getattr(step, "vm", None) or getattr(step, "host", ""))
    entity = report.before.vms.get(ref) or report.before.hosts.get(ref)
    return entity.name if entity is not None else ref


def _join_line(verb: str, headline: str, rejections: Iterable[Rejection], names: list[str], hints: list[str]) -> Text:
    parts = [f"{verb}: {headline}", *map(str, rejections)]
    if names:
        parts.append(f"not done: {', '.join(names)}")
    if hints:
        parts.append(f"next: {hints[0]}")
    return Text("; ".join(parts), "bold")
