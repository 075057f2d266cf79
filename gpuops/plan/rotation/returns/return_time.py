"""Computes when a return must begin, and finds returns that are not due yet or overdue.

`bounds.py` and `day.py` use the moment at which the return must begin on each host, and `execute` how long a return
waits for a vCenter that does not answer or for a run that hangs. The moment is

    deadline - (rounds of stops x (checkpoint grace + stop) + rounds of resumes x resume x 1.5 + 5 min), 45 min at least

`stop` and `resume` are 99th percentiles of measured durations. A round is as many operations as may be in flight at
once: per host, per datastore and in total; the limit that needs the most rounds decides. All ML VMs stop before the
first desktop resumes, so every host waits for all of them. If the policy asks for a canary, one desktop resumes alone
first.

Example: 10 desktops of a host, 4 at once, 3 minutes each; 2 ML VMs that stop at once within 10 minutes, checkpoints
included. Rounds of resumes: 3. Needed: 10 + 3 x 3 x 1.5 + 5 = 28.5 minutes, so 45 are reserved.

A return that is not due yet: timers repeat every week, so some calls of `rotate day` come while a window is open: on
the weekday of a holiday, or where the clocks of the machine and those of the policy change on different days. Such a
call would end the night. `execute` therefore calls `open_nights` before it takes the lock.

An overdue return: the nights of a vCenter took VMs and have closed, and no return is recorded since. A return that
fails reports it itself. `overdue` finds that no return began: the target was removed from every configuration file, the
cron line is missing, or no runner is left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from math import ceil
from typing import Final, TypeVar

from gpuops.model.nights.night_record import LockHolder, Original, Role
from gpuops.model.nights.rotation_policy import MorningOrder, Policy
from gpuops.model.time_text import format_minute, format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import RETURN_FLOOR, Night
from gpuops.plan.core.rejection import some_names
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, vms_of

Key = TypeVar("Key", bound=tuple[str, str, str])

ENOUGH_MEASURED: Final = 20
"""With at least this many measurements of a host, only these are used; with fewer, those of all hosts."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Measured seconds of steps, by (name of the kind of step, host). Empty = nothing was measured yet."""

    seconds: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, recorded: Mapping[Key, Sequence[float]]) -> Durations:
        """Return the durations that a journal recorded by (kind of step, profiles, host)."""
        by_kind_and_host: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for (kind, _, host), seconds in recorded.items():
            by_kind_and_host[kind, host] += seconds
        return cls({key: tuple(seconds) for key, seconds in by_kind_and_host.items()})

    def p99_s(self, kind: str, host: str | None, unmeasured_s: float) -> float:
        """Return the seconds within which 99 of 100 such steps on this host end (nearest rank), or `unmeasured_s`
        if none was measured. With few measurements this is the longest one.

        >>> durations = Durations({("ResumeVm", "host-1"): (40.0, 55.0)})
        >>> durations.p99_s("ResumeVm", "host-2", 180.0), durations.p99_s("SuspendVm", "host-1", 300.0)
        (55.0, 300.0)
        """
        seconds = self.seconds.get((kind, host or ""), ())
        if len(seconds) < ENOUGH_MEASURED:
            everywhere = (on_host for (name, _), on_host in self.seconds.items() if name == kind)
            seconds = tuple(chain.from_iterable(everywhere))
        return _p99(seconds, unmeasured_s)


def _p99(seconds: Iterable[float], unmeasured_s: float) -> float:
    """Return the 99th percentile by nearest rank, or `unmeasured_s` for no measurements."""
    ordered = sorted(seconds)
    return ordered[ceil(0.99 * len(ordered)) - 1] if ordered else unmeasured_s


SLOWER_THAN_EVER: Final = 1.5
MARGIN: Final = timedelta(minutes=5)
UNMEASURED_RESUME_S: Final = 180.0
UNMEASURED_POWER_OFF_S: Final = 60.0
"""Assumed while nothing was measured: longer than any duration that we have seen."""


@dataclass(frozen=True, slots=True)
class Load:
    """The desktops that a morning has to bring back and the ML VMs that it has to stop, counted by host ref."""

    desktops: Mapping[str | None, int]
    on_datastore: Mapping[str, int]
    """Datastore ref -> number of desktops with files on it."""
    datastores: Mapping[str | None, frozenset[str]]
    """Host ref -> datastores of its desktops."""
    ml_vms: Mapping[str | None, int]
    checkpoint_grace_s: int = 0
    """The longest time that one of the ML VMs may take to save its work."""

    @classmethod
    def of(cls, desktops: Iterable[Vm], ml_hosts: Iterable[str | None], checkpoint_grace_s: int = 0) -> Load:
        """Return the load of these desktops, and of ML VMs on these hosts."""
        by_host: Counter[str | None] = Counter()
        by_store: Counter[str] = Counter()
        stores: defaultdict[str | None, set[str]] = defaultdict(set)
        for vm in desktops:
            by_host[vm.host] += 1
            by_store.update(vm.datastores)
            stores[vm.host].update(vm.datastores)
        used = {host: frozenset(refs) for host, refs in stores.items()}
        return cls(by_host, by_store, used, Counter(ml_hosts), checkpoint_grace_s)


@dataclass(frozen=True, slots=True)
class ReturnTime:
    """When the return of a load must begin. A pure function of its fields."""

    policy: Policy
    durations: Durations
    deadline: datetime

    def of(self, host: str | None, load: Load) -> datetime:
        """Return when the return must begin; from then on nothing is taken on the host. UTC, whole seconds."""
        return (self.deadline - self.reserve(host, load)).replace(microsecond=0)

    def reserve(self, host: str | None, load: Load) -> timedelta:
        """Return how much time is reserved for returning the load."""
        return max(RETURN_FLOOR, self.time_needed(host, load))

    def time_needed(self, host: str | None, load: Load) -> timedelta:
        """Return the longest time that returning the load can take."""
        unmeasured_s = self.policy.ml_stop.grace_s + UNMEASURED_POWER_OFF_S
        stop_s = max((self.durations.p99_s("ShutDownGuest", ref, unmeasured_s) for ref in load.ml_vms), default=0.0)
        resume_s = self.durations.p99_s("ResumeVm", host, UNMEASURED_RESUME_S)
        stops = self.stop_rounds(load)
        resumes = self._resume_rounds(host, load)
        measured = timedelta(seconds=stops * (load.checkpoint_grace_s + stop_s) + resumes * resume_s * SLOWER_THAN_EVER)
        return measured + MARGIN

    def stop_rounds(self, load: Load) -> int:
        """Return the number of rounds in which the ML VMs stop, with as many at once as the policy allows."""
        limits, counts_by_host = self.policy.limits, load.ml_vms.values()
        most_on_a_host = max(counts_by_host, default=0)
        return max(ceil(most_on_a_host / limits.per_host), ceil(sum(counts_by_host) / limits.in_flight))

    def _resume_rounds(self, host: str | None, load: Load) -> int:
        """Return the number of rounds in which the desktops of the host resume, by the limit that needs the most
        rounds."""
        limits, on_host = self.policy.limits, load.desktops.get(host, 0)
        if not on_host:
            return 0
        # Other hosts resume desktops from the same datastores at the same time, so all of these count.
        on_store = max((load.on_datastore[ref] for ref in load.datastores[host]), default=0)
        rounds = max(
            ceil(on_host / limits.per_host),
            ceil(on_store / limits.per_datastore),
            ceil(sum(load.desktops.values()) / limits.in_flight),
        )
        needs_canary_round = self.policy.morning is MorningOrder.CANARY_FIRST and on_host > 1
        return rounds + needs_canary_round


def longest_checkpoint_s(policy: Policy, originals: Iterable[Original]) -> int:
    """Return the longest checkpoint grace, in seconds, of the ML VMs of this policy and of the originals' policies.

    The policy may have changed since the ML VMs were started: their checkpoints take as long as the policy of their
    night allows.
    """
    policies = dict.fromkeys([policy, *(original.policy for original in originals if original.policy is not None)])
    return max((queued.checkpoint.grace_s for policy_of_vm in policies for queued in policy_of_vm.ml), default=0)


WAITS_PAST_DUE: Final = timedelta(hours=1)
"""How long a return keeps waiting after its desktops are due; without a window, its total wait."""


def waits_until(policy: Policy | None, now: datetime) -> datetime:
    """Return when a return stops waiting for a vCenter that does not answer; `now` = at once.

    The open night whose desktops are due last decides. `policy`: None = it is not known.
    """
    if policy is None or not policy.windows:
        return now + WAITS_PAST_DUE
    due = [night.back_by + WAITS_PAST_DUE for window in policy.windows for night in window.nights_begun(now)]
    return max([now, *due])


def night_due(policy: Policy, originals: Iterable[Original], now: datetime) -> Night | None:
    """Return the night whose desktops are due next, or the latest one if all are overdue.

    None if no window has such a night. If desktops are away, only their nights are considered. Otherwise these are the
    latest opened night of each window.
    """
    away_originals = [
        original
        for original in originals
        if original.role is not Role.ML and not (original.returned or original.given_up)
    ]
    nights = {
        night for original in away_originals for night in nights_called(original.night, original.policy or policy)
    }
    if not away_originals:
        nights = {night for window in policy.windows for night in window.nights_begun(now)[:1]}
    to_come = [night for night in nights if night.back_by >= now]
    if to_come:
        return min(to_come, key=lambda night: night.back_by)
    return max(nights, key=lambda night: night.back_by, default=None)


def nights_called(name: str, policy: Policy) -> list[Night]:
    """Return the policy's nights with this name; if none has it and the name is a date, all nights of that date.

    Empty if no window has the night: `rotate night` was run without windows, or the windows have changed.
    """
    day_text, _, clock = name.partition("T")
    try:
        day = date.fromisoformat(day_text)
    except ValueError:
        return []
    nights = [night for window in policy.windows if (night := window.night_of(day)) is not None]
    return [night for night in nights if night.id == name] or ([] if clock else nights)


HANGS_AFTER: Final = timedelta(minutes=20)
"""A run that has shown no sign of life for this long hangs: none of its own waits takes this long."""
HANGS_AFTER_DUE: Final = timedelta(minutes=5)
"""The same limit for a night whose return must begin."""
FINISHES_WITHIN: Final = timedelta(minutes=15)
"""How long after its return was due a `rotate night` may still wait for the steps that it has sent."""
_NIGHT: Final = "rotate night"
_STATUS: Final = "gpuops rotate status shows it"


def ends_at(holder: LockHolder) -> datetime | None:
    """Return when a return may end the run that holds the lock, unless the run shows another sign of life.

    None = a return never ends it, because it is not a run of a rotation. A night that knows when its return must begin
    is not ended before then, even if it is silent for long. Ending a run harms no desktop: its tasks continue in
    vCenter, and the return settles them with the journal of the run.
    """
    last_sign = holder.seen or holder.since
    if holder.pid is None or last_sign is None or not holder.doing:
        return None
    if holder.doing != _NIGHT or holder.until is None:
        return last_sign + HANGS_AFTER
    # Once its return is due, it may wait for its last steps, but neither silently nor without limit.
    return max(holder.until, min(last_sign + HANGS_AFTER_DUE, holder.until + FINISHES_WITHIN))


def holder_text(holder: LockHolder, now: datetime) -> str:
    """Return who holds the lock, what the run does and when it last showed a sign of life, as far as that is known."""
    last_sign = holder.seen or holder.since
    if not holder.doing or last_sign is None:
        return f"{holder}"
    minutes = int((now - last_sign).total_seconds()) // 60
    return f"{holder} ({holder.doing}, last sign of life {minutes} min ago)"


def holder_advice(holder: LockHolder, now: datetime) -> str:
    """Return what to do if another run holds the lock and this one may not end it."""
    if holder.pid is None:
        return f"wait for it to end; {_STATUS}"
    ends = ends_at(holder)
    if ends is None:
        return f"wait for pid {holder.pid} to end; if it hangs, run `kill {holder.pid}`: nothing is lost by that"
    automatic = f"from {format_minute(ends.astimezone(UTC))} UTC on {RETURN_COMMAND} ends it by itself, if it hangs"
    return f"wait for pid {holder.pid} to end; {automatic}; to end it sooner: kill {holder.pid}, then {RETURN_COMMAND}"


_BETWEEN_CALLS: Final = timedelta(minutes=10)
"""Time between two calls of a timer. If a return is due before the next call, this call begins it."""


def open_nights(
    policy: Policy | None, originals: Iterable[Original], begun_returns: Collection[str], now: datetime
) -> tuple[Night, ...]:
    """Return the open nights that a `rotate day` called by a timer must not end yet; empty if a return may begin.

    A return may begin as soon as it is due for one VM that is away: at `returns_from` of its night, by the policy of
    that night, or by `policy` if that is unknown. It is due at once if no window of that policy has the night, or if
    the night is one of `begun_returns`, the names of the nights whose return has begun.
    """
    nights: dict[Night, None] = {}  # each once, in order
    for original in originals:
        if not original.taken or original.returned or original.given_up:
            continue
        policy_of_night = original.policy or policy
        called = nights_called(original.night, policy_of_night) if policy_of_night is not None else []
        if not called or original.night in begun_returns:
            return ()
        nights.update(dict.fromkeys(called))
    tonight = policy.night_at(now) if policy is not None else None
    if tonight is not None and tonight.id not in begun_returns:
        nights[tonight] = None
    return tuple(nights) if all(now < night.returns_from for night in nights) else ()


def not_yet_due(
    nights: Iterable[Night],
    policy: Policy,
    originals: Iterable[Original],
    inventory: Inventory,
    durations: Durations,
    now: datetime,
) -> str:
    """Return why the return of these open nights need not begin yet; empty if it must begin now.

    It must begin at `returns_from`, or earlier if bringing back all desktops that are away takes longer by the measured
    `durations`. `nights` must not be empty.
    """
    away_originals = [
        original for original in originals if original.taken and not (original.returned or original.given_up)
    ]
    vms = [(original, vm) for original in away_originals for vm in vms_of(original, inventory)[:1]]
    desktops = [vm for original, vm in vms if original.role is not Role.ML]
    ml_hosts = (vm.host for original, vm in vms if original.role is Role.ML)
    load = Load.of(desktops, ml_hosts, longest_checkpoint_s(policy, away_originals))
    due: dict[Night, datetime] = {}
    for night in nights:
        return_time = ReturnTime(policy, durations, night.back_by)
        # The next call of the timer would be too late for a return that must begin before it.
        begins = (return_time.of(vm.host, load) - _BETWEEN_CALLS for vm in desktops)
        due[night] = min([night.returns_from, *begins])
    first_due = min(due, key=lambda night: due[night])
    if now >= due[first_due]:
        return ""
    begins_at = format_zoned_minute(due[first_due].astimezone(first_due.zone))
    return f"night {first_due.id} is open, and its return begins at {begins_at}"


NO_RETURN_FOR: Final = timedelta(minutes=30)
"""Time after the closing, and after the last record of a return. Runners and cron try every ten minutes."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """One vCenter whose VMs are overdue, according to its journal."""

    vcenter: str
    """Its instance uuid, the only name in a journal."""
    vms: tuple[str, ...]
    """Names of the VMs that are not known to be back."""
    closed: datetime
    """When the first of their nights closed."""
    last_return: datetime | None
    """When a return last wrote to the journal; None = there is no record of a return."""

    def __str__(self) -> str:
        since = f"since {format_zoned_minute(self.last_return)}" if self.last_return is not None else "ever"
        return (
            f"vCenter {self.vcenter}: {some_names(self.vms)} not back; the night closed at "
            f"{format_zoned_minute(self.closed)}, and no return is recorded {since}"
        )

    @property
    def next_move(self) -> str:
        """The next command."""
        return "run `gpuops rotate day --yes --vcenter TARGET` with the target of this vCenter"


def overdue(vcenter: str, originals: Sequence[Original], last_return: datetime | None, now: datetime) -> Overdue | None:
    """Return the VMs of this vCenter whose night has closed without a return.

    None if all of them are back, or if no policy says when their night closes.
    """
    # A record from the future comes from a machine whose clock is wrong: it must not hide an overdue return, hence
    # abs().
    if last_return is not None and abs(now - last_return) < NO_RETURN_FOR:
        return None
    closing_by_name: dict[str, datetime] = {}
    for original in originals:
        if original.policy is None or not original.taken or original.returned or original.given_up:
            continue
        closings = [night.closes for night in nights_called(original.night, original.policy)]
        if closings and now - max(closings) >= NO_RETURN_FOR:
            closing_by_name[original.name] = max(closings)
    if not closing_by_name:
        return None
    return Overdue(vcenter, tuple(sorted(closing_by_name)), min(closing_by_name.values()), last_return)
