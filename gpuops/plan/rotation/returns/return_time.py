"""When the return must begin, host by host, and how long it waits for a vCenter that does not answer or for a run that
hangs. `bounds.py` and `day.py` call it, and `execute` where a return finds the lock held.

    deadline - (rounds of stops x (checkpoint grace + stop) + rounds of resumes x resume x 1.5 + 5 min), 45 min at least

`stop` and `resume` are 99th percentiles of what was measured. A round is as many operations as may be in flight at
once: on the host, on a datastore and in all; the limit that needs the most rounds decides. All ML VMs stop before the
first desktop resumes, so every host waits for all of them. Where the policy wants a canary, one desktop comes first,
alone.

Example: 10 desktops of a host, 4 at once, 3 minutes each; 2 ML VMs that stop at once within 10 minutes, checkpoints
included. Rounds of resumes: 3. Kept: 10 + 3 x 3 x 1.5 + 5 = 28.5 minutes, so 45.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from math import ceil
from typing import Final, TypeVar

from gpuops.model.nights.night_record import LockHolder, Original, Role
from gpuops.model.nights.rotation import MorningOrder, Policy
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import RETURN_FLOOR, Night
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND

Key = TypeVar("Key", bound=tuple[str, str, str])

ENOUGH_MEASURED: Final = 20
"""From this number of measurements of one host on, only these are used; with fewer, those of all hosts."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds that steps took, by (name of the kind of step, host). Empty = nothing was ever measured."""

    seconds: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, recorded: Mapping[Key, Sequence[float]]) -> Durations:
        """The durations that a journal recorded by (kind of step, profiles, host)."""
        by_kind_and_host: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for (kind, _, host), seconds in recorded.items():
            by_kind_and_host[kind, host] += seconds
        return cls({key: tuple(seconds) for key, seconds in by_kind_and_host.items()})

    def p99_s(self, kind: str, host: str | None, otherwise: float) -> float:
        """The seconds within which 99 of 100 such steps on this host end; of few measurements the longest."""
        here = self.seconds.get((kind, host or ""), ())
        return _p99(here if len(here) >= ENOUGH_MEASURED else self._everywhere(kind), otherwise)

    def _everywhere(self, kind: str) -> list[float]:
        return [second for (name, _), seconds in self.seconds.items() if name == kind for second in seconds]


def _p99(seconds: Iterable[float], otherwise: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(seconds)
    return ordered[ceil(0.99 * len(ordered)) - 1] if ordered else otherwise


SLOWER_THAN_EVER: Final = 1.5
MARGIN: Final = timedelta(minutes=5)
UNMEASURED_RESUME_S: Final = 180.0
UNMEASURED_POWER_OFF_S: Final = 60.0
"""What is assumed where nothing was measured yet: longer than any that we have seen."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a morning has to return: desktops to bring back and ML VMs to stop, counted by host ref."""

    desktops: Mapping[str | None, int]
    on_datastore: Mapping[str, int]
    """Desktops whose files are on it."""
    datastores: Mapping[str | None, frozenset[str]]
    """Those that the desktops of a host are on."""
    ml_vms: Mapping[str | None, int]
    checkpoint_grace_s: int = 0
    """The longest that any of the ML VMs may take to keep its work."""

    @classmethod
    def of(cls, desktops: Iterable[Vm], ml_hosts: Iterable[str | None], checkpoint_grace_s: int = 0) -> Load:
        """The load of these desktops, and of ML VMs on these hosts."""
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
        """How long is kept for returning the load."""
        return max(RETURN_FLOOR, self.needed(host, load))

    def needed(self, host: str | None, load: Load) -> timedelta:
        """How long returning the load takes at the most."""
        unmeasured_s = self.policy.ml_stop.grace_s + UNMEASURED_POWER_OFF_S
        stop_s = max((self.durations.p99_s("ShutDownGuest", ref, unmeasured_s) for ref in load.ml_vms), default=0.0)
        resume_s = self.durations.p99_s("ResumeVm", host, UNMEASURED_RESUME_S)
        stops = self.stop_rounds(load)
        resumes = self._resume_rounds(host, load)
        needed = timedelta(seconds=stops * (load.checkpoint_grace_s + stop_s) + resumes * resume_s * SLOWER_THAN_EVER)
        return needed + MARGIN

    def stop_rounds(self, load: Load) -> int:
        """The rounds in which the ML VMs stop, as many at once as the policy allows."""
        limits, numbers = self.policy.limits, load.ml_vms.values()
        most = max(numbers, default=0)
        return max(-(-most // limits.per_host), -(-sum(numbers) // limits.in_flight))

    def _resume_rounds(self, host: str | None, load: Load) -> int:
        """The rounds in which the host's desktops resume, by the limit that needs the most of them."""
        limits, here = self.policy.limits, load.desktops.get(host, 0)
        if not here:
            return 0
        # other hosts resume desktops from the same datastores at the same time, so these are counted in all
        on_store = max((load.on_datastore[ref] for ref in load.datastores[host]), default=0)
        rounds = max(
            -(-here // limits.per_host),
            -(-on_store // limits.per_datastore),
            -(-sum(load.desktops.values()) // limits.in_flight),
        )
        canary = self.policy.morning is MorningOrder.CANARY_FIRST and here > 1
        return rounds + canary


def longest_checkpoint_s(policy: Policy, originals: Iterable[Original]) -> int:
    """Return the longest checkpoint grace, in seconds, of the ML VMs of this policy and of the originals' policies.

    The policy may have changed since the ML VMs were started: their checkpoints take as long as the policy of their
    night allows.
    """
    policies = dict.fromkeys([policy, *(each.policy for each in originals if each.policy is not None)])
    return max((queued.checkpoint.grace_s for obeyed in policies for queued in obeyed.ml), default=0)


WAITS_PAST_DUE: Final = timedelta(hours=1)
"""How long a return goes on waiting after its desktops are due; without a window, how long it waits in all."""


def waits_until(policy: Policy | None, now: datetime) -> datetime:
    """The moment at which a return stops waiting for a vCenter that does not answer; `now` = at once.

    Of the nights that have opened, the one whose desktops are due last decides. `policy` None = it is not known.
    """
    if policy is None or not policy.windows:
        return now + WAITS_PAST_DUE
    due = [night.back_by + WAITS_PAST_DUE for window in policy.windows for night in window.nights_begun(now)]
    return max([now, *due])


def night_due(policy: Policy, originals: Iterable[Original], now: datetime) -> Night | None:
    """Return the night whose desktops are due next, or the latest one if all are overdue; None = no window has it.

    If desktops are away, only their nights are considered. Otherwise these are the latest opened night of each window.
    """
    away = [each for each in originals if each.role is not Role.ML and not (each.returned or each.given_up)]
    found = {night for each in away for night in nights_called(each.night, each.policy or policy)}
    if not away:
        found = {night for window in policy.windows for night in window.nights_begun(now)[:1]}
    to_come = [night for night in found if night.back_by >= now]
    if to_come:
        return min(to_come, key=lambda night: night.back_by)
    return max(found, key=lambda night: night.back_by, default=None)


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
"""A run that has given no sign of life for so long hangs: none of its own waits takes so long."""
HANGS_AFTER_DUE: Final = timedelta(minutes=5)
"""The same for a night whose return must begin."""
FINISHES_WITHIN: Final = timedelta(minutes=15)
"""How long after its return was due a `rotate night` may still wait for the steps that it has sent."""
_NIGHT: Final = "rotate night"
_STATUS: Final = "gpuops rotate status shows it"


def ends_at(holder: LockHolder) -> datetime | None:
    """The moment from which a return ends the run that holds the lock, unless it gives another sign of life.

    None = a return never ends it: it is no run of a rotation. A night that knows when its return must begin is left
    alone until then, however long it is silent. Ending a run harms no desktop: what it has sent goes on in vCenter, and
    the return settles that by the run's journal.
    """
    last = holder.seen or holder.since
    if holder.pid is None or last is None or not holder.doing:
        return None
    if holder.doing != _NIGHT or holder.until is None:
        return last + HANGS_AFTER
    return max(holder.until, min(last + HANGS_AFTER_DUE, holder.until + FINISHES_WITHIN))


def holder_text(holder: LockHolder, now: datetime) -> str:
    """Who holds the lock, what the run does and when it last gave a sign of life, as far as that is known."""
    last = holder.seen or holder.since
    if not holder.doing or last is None:
        return f"{holder}"
    minutes = int((now - last).total_seconds()) // 60
    return f"{holder} ({holder.doing}, last sign of life {minutes} min ago)"


def holder_advice(holder: LockHolder, now: datetime) -> str:
    """What somebody can do who finds the lock held and may not end that run."""
    if holder.pid is None:
        return f"wait for it to end; {_STATUS}"
    at = ends_at(holder)
    if at is None:
        return f"wait for pid {holder.pid} to end; where it hangs, `kill {holder.pid}` ends it: nothing is lost by that"
    by_itself = f"from {at.astimezone(UTC):%Y-%m-%d %H:%M UTC} on {RETURN_COMMAND} ends it by itself, if it hangs"
    return f"wait for pid {holder.pid} to end; {by_itself}; sooner: kill {holder.pid}, then {RETURN_COMMAND}"
