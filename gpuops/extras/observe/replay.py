"""Replays nights on stored measurements: which desktops would have been suspended, and whether use came back. Pure.

Each desktop is judged by `idleness`, the function that plans and guards use, at the end of each step of five minutes
while the night may suspend desktops. Limits of a replay, and inferences:

* The store has no consoles, sessions, questions or tasks of the past. A rule is therefore narrowed to its counters and
  to the readings of nvidia-smi; its other sources are unknown, and not required. The CPU use "now" is in the last
  sample of the counter. Whether use came back is seen by counters only, because nvidia-smi is read every 20 minutes. A
  caller that knows the sessions of the past can pass them.
* The store has no power states. A VM with samples in a step ran in it (our inference: a VM that is off has none).
  Without samples it is unknown whether it ran.
* A window has no gap if samples cover all of its steps completely and the highest value of each is known. If vCenter's
  own averages reach the limit, the desktop was busy. If they are below it, its use is unknown: the highest value may
  have been above the limit.
* `for_s` is rounded up to complete steps. A night checks `for_s` when it plans and `go_on_s` just before it suspends a
  desktop; at the same moment the first includes the second.
* Each desktop is suspended once a night. A pool's floor and limits, room on datastores and the queue are not replayed:
  the replay suspends all idle desktops, so it is an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpuops.advise.idle import Use, idleness, vgpu_use_at
from gpuops.model.desktops.evidence import SESSION_SOURCES, SessionCount, Source
from gpuops.model.measurements.measurement import (
    CPU_MHZ,
    VGPU_USE,
    VM_COUNTERS,
    CounterSeries,
    CounterWindow,
    Measured,
    Span,
)
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.window import Night

STEP: Final = timedelta(minutes=5)
SOON_STEPS: Final = 2
"""If use comes back within these steps (ten minutes) after a suspend, the desktop was not really idle: a false idle."""
_NOTHING: Final = timedelta(0)

Series = Mapping[str, CounterSeries]
Sessions = Mapping[Source, SessionCount]


class UnknownUse(StrEnum):
    """Why it is unknown whether a desktop was used."""

    NOT_OBSERVED = "not-observed"
    """`gpuops observe` did not run."""
    NO_SAMPLES = "no-samples"
    """The desktop has no samples: it was off, or its host was not connected."""
    COUNTER_MISSING = "counter-missing"
    """A counter in the rule of its pool has no samples."""
    ONLY_AVERAGES = "averages-alone"
    """Only vCenter's own averages are known, which have no highest value."""
    SAMPLES_MISSING = "samples-missing"
    """Some samples of a step are missing."""
    NVIDIA_SMI_MISSING = "nvidia-smi-missing"
    """Its counters are known, but its pool also requires a reading by nvidia-smi, which is missing."""


@dataclass(frozen=True, slots=True)
class DesktopNight:
    """The outcome of one night for one desktop."""

    use: Use
    """Idle = it would have been suspended. Unknown = it would not, because at some time its use was unknown."""
    because: UnknownUse | None = None
    """The most frequent reason for unknown use."""
    harvested: timedelta = _NOTHING
    """The time in which it certainly ran unused, from the suspend until use came back or it was due back."""
    unseen: timedelta = _NOTHING
    """The part of that span in which its use is unknown."""
    false_idle: timedelta | None = None
    """The time until use came back, in complete steps; None = not within `SOON_STEPS`, as far as is known."""
    unwatched: bool = False
    """Whether it is unknown if use came back within `SOON_STEPS`."""
    used_later: bool = False
    """Whether use came back later, before it was due back."""
    taken_at: datetime | None = None
    """When it would have been suspended; None = it would not."""


@dataclass(frozen=True, slots=True)
class PoolNight:
    """The outcome of one night for one pool."""

    night: Night
    desktops: tuple[DesktopNight, ...]

    @property
    def taken(self) -> int:
        return sum(desktop.use is Use.IDLE for desktop in self.desktops)

    @property
    def busy(self) -> int:
        return sum(desktop.use is Use.BUSY for desktop in self.desktops)

    @property
    def unknown(self) -> Mapping[UnknownUse, int]:
        """Return the number of desktops with unknown use by reason, in the order of `UnknownUse`."""
        counts = Counter(desktop.because for desktop in self.desktops)
        return {why: counts[why] for why in UnknownUse if counts[why]}

    @property
    def harvested(self) -> timedelta:
        return sum((desktop.harvested for desktop in self.desktops), _NOTHING)

    @property
    def unseen(self) -> timedelta:
        return sum((desktop.unseen for desktop in self.desktops), _NOTHING)

    @property
    def false_idle(self) -> tuple[timedelta, ...]:
        """Return the times of false idles, the shortest first."""
        return tuple(sorted(desktop.false_idle for desktop in self.desktops if desktop.false_idle is not None))

    @property
    def unwatched(self) -> int:
        return sum(desktop.unwatched for desktop in self.desktops)

    @property
    def used_later(self) -> int:
        return sum(desktop.used_later for desktop in self.desktops)


@dataclass(frozen=True, slots=True)
class PoolReplay:
    """A pool, and each night of it."""

    pool: str
    desktops: int
    """Desktops that are in the pool today and may be suspended."""
    left_out: int
    """Desktops in the pool today that no night suspends, even if they are idle."""
    not_replayed: frozenset[Source]
    """The sources that the rule of the pool requires and the store lacks."""
    users_kept_away: bool
    """Whether the pool is parked or gated. Nights suspend no desktops of others: the replay shows a possible gain."""
    nights: tuple[PoolNight, ...] = ()
    refusal: str = ""
    """Why it cannot be replayed; empty = it can."""
    next_move: str = ""
    """The next step after a refusal."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The nights of a policy, replayed."""

    vcenter: str
    policy: str
    since: datetime
    until: datetime
    nights: tuple[Night, ...]
    pools: tuple[PoolReplay, ...]
    gaps: tuple[Span, ...]
    """The hours needed for the nights in which `gpuops observe` did not run."""
    gone: int
    """The number of measured VMs and hosts that are no longer in vCenter: the pool of such a VM is not known."""


def complete_nights(policy: Policy, since: datetime, until: datetime) -> tuple[Night, ...]:
    """Return the nights of the policy's windows that opened since then, and that are over."""
    nights = []
    night = policy.next_night(since - timedelta.resolution)
    while night is not None and night.back_by <= until:
        nights.append(night)
        night = policy.next_night(night.opens)
    return tuple(nights)


def refusal(pool: Pool) -> tuple[str, str] | None:
    """Return why this pool cannot be replayed, and the next step; None = it can."""
    if not pool.idle.for_s:
        return (
            "its `idle` rule has no for_s, so it uses only current values, which are not stored",
            "add for_s: 3300 to `idle` of the pool in a copy of the policy, for 55 minutes of performance counters",
        )
    lacking = sorted(pool.idle.limits.keys() - set(VM_COUNTERS))
    if lacking:
        return (
            f"gpuops observe does not store {', '.join(lacking)}",
            f"remove it from `idle.counters` in a copy of the policy; gpuops observe stores {', '.join(VM_COUNTERS)}",
        )
    return None


def not_replayed(rule: IdleRule) -> frozenset[Source]:
    """Return the sources that the rule requires and the store lacks. CPU use is in the last sample of its counter."""
    return rule.needed - {Source.COUNTERS, Source.CPU, Source.NVIDIA_SMI}


def series_of(rule: IdleRule) -> frozenset[str]:
    """Return the names of the series that a replay of this rule needs."""
    return frozenset(rule.limits) | ({VGPU_USE} if rule.vgpu_below_percent is not None else frozenset())


def hours_of(night: Night, rule: IdleRule) -> Span:
    """Return the span of the series that a replay of this night needs: from the first window to the last false idle."""
    begin = night.opens - _steps_of(rule) * STEP - STEP  # one more, because the night may open within a step
    return Span(begin, night.back_by + SOON_STEPS * STEP)


def gaps(observed: Sequence[Span], periods: Iterable[Span]) -> tuple[Span, ...]:
    """Return the parts of the periods that were not observed.

    Both arguments are in order of time. Periods may overlap; what they have in common is returned once.
    """
    unobserved = []
    covered_until: datetime | None = None
    for period in periods:
        begin = period.begin if covered_until is None else max(period.begin, covered_until)
        covered_until = period.until
        for span in observed:
            if span.until <= begin or span.begin >= period.until:
                continue
            if span.begin > begin:
                unobserved.append(Span(begin, span.begin))
            begin = max(begin, span.until)
        if begin < period.until:
            unobserved.append(Span(begin, period.until))
    return tuple(unobserved)


def desktop_night(
    vm: Vm,
    rule: IdleRule,
    night: Night,
    series: Series,
    observed: Sequence[Span],
    sessions: Callable[[datetime], Sessions] | None = None,
) -> DesktopNight:
    """Return the outcome of this night for this desktop: suspended at the first moment at which it was idle, or not.

    `series`: its series in `hours_of` the night, all with the same begin. `sessions`: returns the sessions at a moment,
    from all sources that the rule requires; None = they are unknown.
    """
    # `_after_suspend` judges by this rule whether use came back: nvidia-smi is read too rarely for it
    counters_only = replace(rule, required=frozenset({Source.COUNTERS}), vgpu_below_percent=None)
    record = _Record(vm, counters_only, replace(counters_only, for_s=int(STEP.total_seconds())), series)
    known_sources = {Source.COUNTERS, Source.NVIDIA_SMI, *(SESSION_SOURCES if sessions is not None else ())}
    # of the sources that the rule requires, only those that are known here
    known_rule = replace(rule, required=(rule.needed & known_sources) | {Source.COUNTERS})
    reasons: Counter[UnknownUse] = Counter()
    for last_step in range(_steps_of(rule) - 1, record.steps):  # from the first step with a complete period of the rule
        moment = record.end_of(last_step)
        if not night.takes_at(moment):
            continue
        use = record.use(last_step, known_rule, sessions(moment) if sessions is not None else None)
        if use is Use.IDLE:
            return replace(_after_suspend(record, last_step, night), taken_at=moment)
        if use is Use.UNKNOWN:
            reasons[record.why_unknown(last_step, observed, known_rule)] += 1
    if not reasons:
        return DesktopNight(Use.BUSY)
    return DesktopNight(Use.UNKNOWN, max(UnknownUse, key=lambda reason: reasons[reason]))  # the most frequent reason


def _after_suspend(record: _Record, suspended: int, night: Night) -> DesktopNight:
    """Return the outcome for a desktop that would have been suspended at the end of the step `suspended`.

    Looks for the first step in which it was in use again, up to the moment at which it is due back, and at least for
    `SOON_STEPS`. Before that step, idle time is harvested, and time with unknown use is `unseen`.
    """
    harvested = unseen = _NOTHING
    unwatched = False  # whether the use of some step within `SOON_STEPS` is unknown
    at = suspended + 1
    end = min(record.steps, max(at + SOON_STEPS, record.step_at(night.back_by)))
    while at < end:
        idle = _idle_steps(record, at, end)
        harvested += _time_before(night.back_by, record, at, at + idle)
        at += idle
        if at == end:
            break
        # in this step it was in use, or its use is unknown
        is_soon = at - suspended <= SOON_STEPS
        if record.use(at, record.one_step) is Use.BUSY:
            within = (at - suspended) * STEP if is_soon else None  # a later use is no false idle
            unwatched = unwatched and not is_soon
            return DesktopNight(Use.IDLE, None, harvested, unseen, within, unwatched, used_later=not is_soon)
        unseen += _time_before(night.back_by, record, at, at + 1)
        unwatched = unwatched or is_soon
        at += 1
    return DesktopNight(Use.IDLE, None, harvested, unseen, None, unwatched)


def _idle_steps(record: _Record, first_step: int, end: int) -> int:
    """Return for how many steps in a row the desktop was idle, from `first_step` on and before `end`.

    A desktop that is idle for n steps is also idle for fewer, so this is a binary search: a night has over 100 steps.
    """
    if record.use(first_step, record.one_step) is not Use.IDLE:
        return 0
    low, high = 1, end - first_step
    middle = high  # tried first: most desktops stay idle until they are due
    while low < high:
        rule = replace(record.rule, for_s=middle * int(STEP.total_seconds()))
        if record.use(first_step + middle - 1, rule) is Use.IDLE:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def _time_before(due: datetime, record: _Record, first_step: int, end: int) -> timedelta:
    """Return how much of the steps from `first_step` to before `end` lies before the desktop is due back."""
    begin = record.end_of(first_step) - STEP
    return max(_NOTHING, min(begin + (end - first_step) * STEP, due) - begin)


@dataclass(frozen=True, slots=True)
class _Record:
    """The measurements of one desktop, step by step."""

    vm: Vm
    rule: IdleRule
    one_step: IdleRule
    """The same rule for a window of one step."""
    series: Series

    @property
    def steps(self) -> int:
        return len(self.series[CPU_MHZ].steps)

    def end_of(self, step: int) -> datetime:
        return self.series[CPU_MHZ].begin + (step + 1) * STEP

    def step_at(self, moment: datetime) -> int:
        """Return the first step that begins then or later."""
        return -((self.series[CPU_MHZ].begin - moment) // STEP)

    def use(self, last_step: int, rule: IdleRule, sessions: Sessions | None = None) -> Use:
        """Return the use of the desktop that this rule would have found at the end of the step `last_step`."""
        count, at = _steps_of(rule), self.end_of(last_step)
        ran = any(self.series[name].steps[last_step] is not None for name in rule.limits)
        window_by_counter = {
            name: _window(self.series[name].steps[last_step - count + 1 : last_step + 1], at) for name in rule.limits
        }
        windows = {name: window for name, window in window_by_counter.items() if window is not None}
        # only a VM that is on, on a connected host, has samples; without samples both are unknown
        power = PowerState.ON if ran else None
        connected = True if ran else None
        smi = self.series.get(VGPU_USE) if rule.vgpu_below_percent is not None else None
        use = vgpu_use_at(at, replace(smi, steps=smi.steps[: last_step + 1])) if smi is not None else None
        past_vm = Vm(
            self.vm.ref,
            self.vm.name,
            power=power,
            connected=connected,
            counters=windows,
            sessions=sessions,
            vgpu_use=use,
        )
        return idleness(past_vm, rule).use

    def why_unknown(self, last_step: int, observed: Sequence[Span], rule: IdleRule) -> UnknownUse:
        """Return why `use` is unknown by this rule at the end of `last_step`: what is missing in the newest gap."""
        for step in range(last_step, last_step - _steps_of(self.rule), -1):
            measurements = [self.series[name].steps[step] for name in self.rule.limits]
            if all(measurement is None for measurement in measurements):
                end = self.end_of(step)
                was_observed = any(span.begin < end and span.until > end - STEP for span in observed)
                return UnknownUse.NO_SAMPLES if was_observed else UnknownUse.NOT_OBSERVED
            if any(measurement is None for measurement in measurements):
                return UnknownUse.COUNTER_MISSING
            if any(measurement is not None and measurement.highest is None for measurement in measurements):
                return UnknownUse.ONLY_AVERAGES
            if not all(_is_complete(measurement) for measurement in measurements):
                return UnknownUse.SAMPLES_MISSING
        if Source.NVIDIA_SMI in rule.needed:
            return UnknownUse.NVIDIA_SMI_MISSING
        raise AssertionError("a verdict is unknown although nothing is missing")


def _window(steps: Sequence[Measured | None], as_of: datetime) -> CounterWindow | None:
    """Return the newest part of these steps without a gap, as vCenter would have shown it; None = no samples."""
    # where the highest is unknown, the average: if that reaches the limit, the highest does too
    highest = [step.average if step.highest is None else step.highest for step in steps if step is not None]
    if not highest:
        return None
    complete = 0  # the number of complete steps in a row, back from the newest one
    while complete < len(steps) and _is_complete(steps[-1 - complete]):
        complete += 1
    return CounterWindow(max(highest), as_of - complete * STEP, as_of, as_of)


def _is_complete(step: Measured | None) -> bool:
    return step is not None and step.highest is not None and step.covered >= 1


def _steps_of(rule: IdleRule) -> int:
    """Return `for_s` of the rule in steps, rounded up."""
    return -(-rule.for_s // int(STEP.total_seconds()))
