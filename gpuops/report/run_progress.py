"""The progress of a run for a terminal: counted in desktops, with the steps in flight and the estimated end.

`rotate night` counts the desktops that it suspends, `rotate day` those that are back. After the last of them, ML VMs
are counted. A run with neither counts its steps. `gpuops.cli` draws the progress and reads the clock.

The end of `rotate day` is estimated by its pace: if 12 of 40 desktops are back 6 minutes after the first one was
started, the remaining 28 take 14 minutes. ML VMs stop before that, so their time is not part of the pace. If a desktop
hangs, the estimated end moves later as time passes.

A run in one line, as `--quiet` and notices print it: its outcome, what failed, and the next command.

A rotation is counted in desktops and ML VMs; steps that set markers or DRS are not counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.model.time_text import format_clock, format_minute, format_stopwatch
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Rejection, Report, Verdict
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

BASIS: Final = 3
"""The number of desktops that must have ended before an end is estimated: the first of a host comes back alone."""

SHOWN: Final = 4
"""The number of VMs in flight that are named; the others are counted."""

DOING: Final[Mapping[type[Step], str]] = {
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
    returns: bool = False
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
        """Return the tally that the bar shows: the first unfinished one, or else the first with any steps."""
        of_vms = self.tallies[:-1]
        unfinished = (tally for tally in of_vms if tally.remaining)
        return next(unfinished, None) or next((tally for tally in of_vms if tally.total), self.tallies[-1])

    def remaining_s(self, now_s: float) -> float | None:
        """Return how long the remaining desktops take at the pace so far. Return None if too few have ended for an
        estimate, or if no desktop remains."""
        desktops = self.tallies[0]
        ended = desktops.completed_steps + desktops.missed_steps
        if not self.returns or self.paced_from_s is None or ended < BASIS or not desktops.remaining:
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
    due = (
        night_due(rotation_request.policy, rotation_request.originals, now)
        if isinstance(rotation_request, RotateDay)
        else None
    )
    return RunProgress(
        tuple(tally.with_plan(steps) for tally in tallies),
        report.before,
        earlier.began_s if earlier is not None else now_s,
        returns=isinstance(rotation_request, RotateDay),
        back_by=due.back_by.astimezone(due.zone) if due is not None else None,
    )


def progress_lines(progress: RunProgress, now_s: float, now: datetime, width: int) -> tuple[str, ...]:
    """Return the lines below the bar, each at most `width` columns wide where possible."""
    missed = sum(tally.missed_steps for tally in progress.tallies[:-1]) or progress.shown_tally.missed_steps
    not_done = [f"{missed} not done"] if missed else []
    return (*not_done, *_end(progress, now_s, now), *_in_flight(progress, now_s, width))


def _end(progress: RunProgress, now_s: float, now: datetime) -> Iterator[str]:
    """Yield `ETA 05:41, back_by 07:00 CET`, as far as it is known. Without `back_by`, times are shown in the zone of
    `now`."""
    due, remaining_s = progress.back_by, progress.remaining_s(now_s)
    local_now = now.astimezone(due.tzinfo) if due is not None else now
    eta = _next_minute(local_now + timedelta(seconds=remaining_s)) if remaining_s is not None else None
    if due is None:
        if eta is not None:
            yield f"ETA {_clock(eta, local_now)} {eta.tzname()}"
        return
    back_by = f"back_by {_clock(due, local_now)} {due.tzname()}"
    if eta is not None:
        ends = f"ETA {_clock(eta, local_now)}"
        yield f"late: {ends} is after {back_by}" if eta > due else f"{ends}, {back_by}"
    # the first tally counts desktops: back_by is about these
    elif progress.tallies[0].remaining:
        yield f"late: {back_by} is past" if local_now > due else back_by


def _next_minute(moment: datetime) -> datetime:
    """Return the moment rounded up to a minute, so that the shown end is never too early."""
    whole = moment.replace(second=0, microsecond=0)
    return whole if whole == moment else whole + timedelta(minutes=1)


def _clock(moment: datetime, now: datetime) -> str:
    """Return the time of day, with the date if it is not today: `05:41`."""
    return format_clock(moment) if moment.date() == now.date() else format_minute(moment)


def _in_flight(progress: RunProgress, now_s: float, width: int) -> Iterator[str]:
    """Yield a line for each VM in flight, the longest first."""
    longest = sorted(progress.in_flight, key=lambda under_way: under_way.since_s)
    for under_way in longest[:SHOWN]:
        doing, duration = DOING[type(under_way.step)], format_stopwatch(now_s - under_way.since_s)
        name = shortened(vm_name(under_way.step.vm, progress.before), width - len(f"  {doing}  {duration}"))
        yield f"  {doing} {name} {duration}"
    if len(longest) > SHOWN:
        yield f"  and {len(longest) - SHOWN} more"


_AT_NIGHT: Final = {
    SuspendVm: ("desktop", "suspended"),
    ShutDownGuest: ("desktop", "shut down"),
    PowerOnVm: ("ML VM", "started"),
    ResumeVm: ("desktop", "resumed"),
    PowerOffVm: ("ML VM", "powered off"),
}
_IN_THE_MORNING: Final = {
    ResumeVm: ("desktop", "resumed"),
    PowerOnVm: ("desktop", "powered on"),
    ShutDownGuest: ("ML VM", "shut down"),
    PowerOffVm: ("ML VM", "powered off"),
    SuspendVm: ("desktop", "suspended"),
}


def deeds_line(report: Report[Any]) -> str:
    """Return `4 desktops suspended, 3 ML VMs started, 1 step failed`; if a run did none of these, its closing line."""
    # a deed is a noun and a participle: ("desktop", "suspended")
    deed_counts = Counter(
        _deed_of_step(report, outcome.step) for outcome in report.outcomes if outcome.verdict is Verdict.DONE
    )
    phrases = [
        f"{count(deed_counts[deed], deed[0])} {deed[1]}" for deed in _deed_words(report).values() if deed_counts[deed]
    ]
    if not phrases:
        return summary(report)
    failures = outcomes_counted([outcome for outcome in report.outcomes if outcome.verdict not in _GOOD], "step")
    return ", ".join([*phrases, failures] if failures else phrases)


def deeds_named(report: Report[Any]) -> Iterator[str]:
    """Yield `vdi-07: suspended` for each VM that was changed."""
    for outcome in report.outcomes:
        deed = _deed_of_step(report, outcome.step)
        vm = report.before.vms.get(outcome.step.vm) if deed is not None else None
        if outcome.verdict is Verdict.DONE and deed is not None and vm is not None:
            yield f"{vm.name}: {deed[1]}"


_GOOD: Final = frozenset({Verdict.DONE, Verdict.ALREADY})


def _deed_words(report: Report[Any]) -> dict[type[Any], tuple[str, str]]:
    """Return the words for the steps of a rotation; for other runs, such as a defrag, return none."""
    if isinstance(report.request, RotateNight):
        return _AT_NIGHT
    return _IN_THE_MORNING if isinstance(report.request, RotateDay | RestoreVms) else {}


def _deed_of_step(report: Report[Any], step: object) -> tuple[str, str] | None:
    """Return the words for one step, or None."""
    if isinstance(step, SuspendVm) and step.gives_way:
        return "ML VM", "suspended"
    return _deed_words(report).get(type(step)) if isinstance(step, Step) else None


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
    failed = [_name(outcome.step, report) for outcome in report.outcomes if outcome.verdict in _BAD]
    hints = [refusal.hint for refusal in refusals if refusal.hint]
    if failed and kind in _AFTER_FAILURE:
        hints.append(_AFTER_FAILURE[kind])
    unmet = [rejection.subject for rejection in report.plan.unmet]
    names = list(dict.fromkeys([*unmet, *failed]))
    return _line(kind.replace("-", " "), deeds_line(report), report.plan.rejections, names, hints)


def change_line(report: ChangeReport) -> Text:
    """Return the line for a rolling change of hosts."""
    refused = report.plan.rejections
    hints = [*report.afterwards, *(refusal.hint for refusal in refused if refusal.hint)]
    failed = [host_name(outcome, report) for outcome in report.outcomes if outcome.verdict in _BAD]
    return _line(report.verb, change_summary(report), refused, failed, hints)


def _name(step: object, report: Report[AnyStep]) -> str:
    ref = str(getattr(step, "vm", None) or getattr(step, "host", ""))
    entity = report.before.vms.get(ref) or report.before.hosts.get(ref)
    return entity.name if entity is not None else ref


def _line(verb: str, headline: str, rejections: Iterable[Rejection], names: list[str], hints: list[str]) -> Text:
    parts = [f"{verb}: {headline}", *map(str, rejections)]
    if names:
        parts.append(f"not done: {', '.join(names)}")
    if hints:
        parts.append(f"next: {hints[0]}")
    return Text("; ".join(parts), "bold")
