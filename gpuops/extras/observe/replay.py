"""Replays nights on stored measurements: which desktops would have been taken, and whether use came back. Pure.

Each desktop is judged by `idleness`, the function that plans and guards ask, at the end of each step of five minutes of
the hours in which a night takes desktops. What of this is inferred, or cannot be replayed:

* A store has neither consoles, sessions, questions nor tasks of the past, so a rule is narrowed to its counters and to
  what nvidia-smi told: the others of its sources are unknown, and not required. The CPU that is used now is in the last
  sample of the counter. Whether use came back is seen by counters alone: nvidia-smi is asked every 20 minutes.
  Where a caller knows the sessions of the past, which no store does, each look goes by them, too.
* A store keeps no power state. A VM of which a step has samples ran in it (our inference: a VM that is off has none);
  of one without, whether it ran is unknown.
* A window without a gap is made of steps that samples cover as a whole, with a highest that is known. What vCenter's
  own averages show to be used is busy, and what they show below a limit is unknown: the highest may have been above it.
* `for_s` is rounded up to whole steps. A night asks for `for_s` when it plans and for `go_on_s` just before it takes a
  desktop: at one moment the first includes the second.
* Each desktop is taken once a night. A pool's floor, limits, room on datastores and the queue are not replayed: all
  that is idle is taken, which is the most that a night could have had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from gpuops.advise.evidence import Use, vgpu_use_at
from gpuops.advise.idle import idleness
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
from gpuops.model.nights.rotation import IdleRule, Policy, Pool
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.window import Night

STEP: Final = timedelta(minutes=5)
SOON_STEPS: Final = 2
"""Use that comes back in so many steps after a suspend, ten minutes, was not gone: a false idle."""
_NOTHING: Final = timedelta(0)

Series = Mapping[str, CounterSeries]
Sessions = Mapping[Source, SessionCount]


class Untold(StrEnum):
    """Why it is unknown whether a desktop was used."""

    NOT_OBSERVED = "not-observed"
    """`gpuops observe` did not run."""
    NO_SAMPLES = "no-samples"
    """It has none: it was off, or its host was away."""
    COUNTER_MISSING = "counter-missing"
    """It has samples, and none of a counter that its pool goes by."""
    AVERAGES_ALONE = "averages-alone"
    """Only vCenter's own averages are known, which have no highest value."""
    SAMPLES_MISSING = "samples-missing"
    """Some samples of a step are missing."""
    NVIDIA_SMI_MISSING = "nvidia-smi-missing"
    """Its counters are there, and what its pool requires of its host's nvidia-smi is not."""


@dataclass(frozen=True, slots=True)
class DesktopNight:
    """What one night would have done with one desktop."""

    use: Use
    """Idle = it would have been taken. Unknown = it would not, and at some time it was unknown whether it was used."""
    because: Untold | None = None
    """Why it is unknown: what holds for the most of the night."""
    harvested: timedelta = _NOTHING
    """From the suspend until use came back, or it was due back, as far as it is known to have run unused."""
    unseen: timedelta = _NOTHING
    """The part of that while of which nothing is known."""
    false_idle: timedelta | None = None
    """Within which time use came back, in whole steps; None = not within `SOON_STEPS`, as far as is known."""
    unwatched: bool = False
    """Whether it is unknown if use came back so soon."""
    used_later: bool = False
    """Whether use came back after that, before it was due back."""
    taken_at: datetime | None = None
    """When it would have been; None = it would not."""


@dataclass(frozen=True, slots=True)
class PoolNight:
    """What one night would have had of one pool."""

    night: Night
    desktops: tuple[DesktopNight, ...]

    @property
    def taken(self) -> int:
        return sum(desktop.use is Use.IDLE for desktop in self.desktops)

    @property
    def busy(self) -> int:
        return sum(desktop.use is Use.BUSY for desktop in self.desktops)

    @property
    def unknown(self) -> Mapping[Untold, int]:
        """Return how many, by the reason, in the order of reasons."""
        counts = Counter(desktop.because for desktop in self.desktops)
        return {why: counts[why] for why in Untold if counts[why]}

    @property
    def harvested(self) -> timedelta:
        return sum((desktop.harvested for desktop in self.desktops), _NOTHING)

    @property
    def unseen(self) -> timedelta:
        return sum((desktop.unseen for desktop in self.desktops), _NOTHING)

    @property
    def false_idle(self) -> tuple[timedelta, ...]:
        """Within which time use came back, the soonest first."""
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
    """That are in it today, and may be taken."""
    left_out: int
    """That are in it today, and that no night takes, whether they are idle or not."""
    not_replayed: frozenset[Source]
    """What the pool requires, and a store does not have."""
    users_kept_away: bool
    """Whether it is parked or gated; of another pool a night takes nothing, and this is what it would gain."""
    nights: tuple[PoolNight, ...] = ()
    refusal: str = ""
    """Why it cannot be replayed; empty = it can."""
    next_move: str = ""


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


def whole_nights(policy: Policy, since: datetime, until: datetime) -> tuple[Night, ...]:
    """Return the nights of the policy's windows that opened since then, and that are over."""
    nights = []
    night = policy.next_night(since - timedelta.resolution)
    while night is not None and night.back_by <= until:
        nights.append(night)
        night = policy.next_night(night.opens)
    return tuple(nights)


def refusal(pool: Pool) -> tuple[str, str] | None:
    """Return why this pool cannot be replayed, and the next move; None = it can."""
    if not pool.idle.for_s:
        return (
            "it goes by what is at the look alone, which no store has",
            "add for_s: 3300 to its `idle`, for 55 minutes of performance counters",
        )
    lacking = sorted(pool.idle.limits.keys() - set(VM_COUNTERS))
    if lacking:
        return (
            f"what is measured has no {', '.join(lacking)}",
            f"leave it out of `idle.counters` in a copy of the policy; kept are {', '.join(VM_COUNTERS)}",
        )
    return None


def not_replayed(rule: IdleRule) -> frozenset[Source]:
    """Return what the rule requires, and a store does not have.

    The CPU used now is in the last sample of the counter.
    """
    return rule.needed - {Source.COUNTERS, Source.CPU, Source.NVIDIA_SMI}


def series_of(rule: IdleRule) -> frozenset[str]:
    """Return the series of a desktop that a replay of this rule goes by."""
    return frozenset(rule.limits) | ({VGPU_USE} if rule.vgpu_below_percent is not None else frozenset())


def hours_of(night: Night, rule: IdleRule) -> Span:
    """Of which time the series of a desktop must tell: from what the first look goes by to what follows the last."""
    begin = night.opens - _steps_of(rule) * STEP - STEP
    return Span(begin, night.back_by + SOON_STEPS * STEP)


def gaps(observed: Sequence[Span], periods: Iterable[Span]) -> tuple[Span, ...]:
    """Return the parts of what is asked for that were not observed. Both are in order."""
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
    """What this night would have done with this desktop, by its series of the night's `hours_of`, all of one begin.

    `sessions`: what the sources of sessions told at a moment; all that the rule requires. None = that is not known.
    """
    counters_alone = replace(rule, required=frozenset({Source.COUNTERS}), vgpu_below_percent=None)
    record = _Record(vm, counters_alone, replace(counters_alone, for_s=int(STEP.total_seconds())), series)
    known_sources = {Source.COUNTERS, Source.NVIDIA_SMI, *(SESSION_SOURCES if sessions is not None else ())}
    narrowed = replace(rule, required=(rule.needed & known_sources) | {Source.COUNTERS})
    reasons: Counter[Untold] = Counter()
    for last in range(_steps_of(rule) - 1, record.steps):
        moment = record.end_of(last)
        if not night.takes_at(moment):
            continue
        use = record.use(last, narrowed, sessions(moment) if sessions is not None else None)
        if use is Use.IDLE:
            return replace(_after_suspend(record, last, night), taken_at=moment)
        if use is Use.UNKNOWN:
            reasons[record.why_unknown(last, observed, narrowed)] += 1
    if not reasons:
        return DesktopNight(Use.BUSY)
    return DesktopNight(Use.UNKNOWN, max(Untold, key=lambda why: reasons[why]))


def _after_suspend(record: _Record, suspended: int, night: Night) -> DesktopNight:
    """Return what became of a desktop that would have been taken at the end of this step, by its counters."""
    harvested = unseen = _NOTHING
    unwatched = False
    at = suspended + 1
    end = min(record.steps, max(at + SOON_STEPS, record.step_at(night.back_by)))
    while at < end:
        idle = _idle_steps(record, at, end)
        harvested += _before(night.back_by, record, at, at + idle)
        at += idle
        if at == end:
            break
        soon = at - suspended <= SOON_STEPS
        if record.use(at, record.one_step) is Use.BUSY:
            within = (at - suspended) * STEP if soon else None
            return DesktopNight(Use.IDLE, None, harvested, unseen, within, unwatched and not soon, used_later=not soon)
        unseen += _before(night.back_by, record, at, at + 1)
        unwatched = unwatched or soon
        at += 1
    return DesktopNight(Use.IDLE, None, harvested, unseen, None, unwatched)


def _idle_steps(record: _Record, first: int, end: int) -> int:
    """In how many steps from the first on, before `end`, it was idle without a break.

    Idle in so many is idle in fewer: they are found by halves, since a night has over a hundred.
    """
    if record.use(first, record.one_step) is not Use.IDLE:
        return 0
    low, high = 1, end - first
    middle = high  # most stay idle until they are due
    while low < high:
        rule = replace(record.rule, for_s=middle * int(STEP.total_seconds()))
        if record.use(first + middle - 1, rule) is Use.IDLE:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def _before(due: datetime, record: _Record, first: int, end: int) -> timedelta:
    """Return how much of these steps lies before the moment at which the desktop is due."""
    begin = record.end_of(first) - STEP
    return max(_NOTHING, min(begin + (end - first) * STEP, due) - begin)


@dataclass(frozen=True, slots=True)
class _Record:
    """What is known of a desktop, step by step."""

    vm: Vm
    rule: IdleRule
    one_step: IdleRule
    """The same rule, for one step alone."""
    series: Series

    @property
    def steps(self) -> int:
        return len(self.series[CPU_MHZ].steps)

    def end_of(self, step: int) -> datetime:
        return self.series[CPU_MHZ].begin + (step + 1) * STEP

    def step_at(self, moment: datetime) -> int:
        """Return the first step that begins then or later."""
        return -((self.series[CPU_MHZ].begin - moment) // STEP)

    def use(self, last: int, rule: IdleRule, sessions: Sessions | None = None) -> Use:
        """Return the verdict at the end of this step."""
        count, at = _steps_of(rule), self.end_of(last)
        ran = any(self.series[name].steps[last] is not None for name in rule.limits)
        window_by_counter = {
            name: _window(self.series[name].steps[last - count + 1 : last + 1], at) for name in rule.limits
        }
        windows = {name: window for name, window in window_by_counter.items() if window is not None}
        power = PowerState.ON if ran else None
        connected = True if ran else None
        smi = self.series.get(VGPU_USE) if rule.vgpu_below_percent is not None else None
        use = vgpu_use_at(at, replace(smi, steps=smi.steps[: last + 1])) if smi is not None else None
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

    def why_unknown(self, last: int, observed: Sequence[Span], rule: IdleRule) -> Untold:
        """Return the newest thing that is missing for a verdict by this rule at the end of this step."""
        for step in range(last, last - _steps_of(self.rule), -1):
            measurements = [self.series[name].steps[step] for name in self.rule.limits]
            if all(measurement is None for measurement in measurements):
                end = self.end_of(step)
                looked = any(span.begin < end and span.until > end - STEP for span in observed)
                return Untold.NO_SAMPLES if looked else Untold.NOT_OBSERVED
            if any(measurement is None for measurement in measurements):
                return Untold.COUNTER_MISSING
            if any(measurement is not None and measurement.highest is None for measurement in measurements):
                return Untold.AVERAGES_ALONE
            if not all(_is_whole(measurement) for measurement in measurements):
                return Untold.SAMPLES_MISSING
        if Source.NVIDIA_SMI in rule.needed:
            return Untold.NVIDIA_SMI_MISSING
        raise AssertionError("a verdict is unknown although nothing is missing")


def _window(steps: Sequence[Measured | None], as_of: datetime) -> CounterWindow | None:
    """Return the newest of these steps as what a look at their end would have read; None = there is nothing."""
    # an average at the limit or above is one of a highest that is, too
    highest = [step.average if step.highest is None else step.highest for step in steps if step is not None]
    if not highest:
        return None
    whole = 0
    while whole < len(steps) and _is_whole(steps[-1 - whole]):
        whole += 1
    return CounterWindow(max(highest), as_of - whole * STEP, as_of, as_of)


def _is_whole(step: Measured | None) -> bool:
    return step is not None and step.highest is not None and step.covered >= 1


def _steps_of(rule: IdleRule) -> int:
    """`for_s` in whole steps."""
    return -(-rule.for_s // int(STEP.total_seconds()))
