"""What a rotation policy says about desktops, ML VMs and the night."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import Meta

from gpuops.errors import UsageError
from gpuops.model.desktops.evidence import BY_DEFAULT, Source
from gpuops.model.file_keys import NOT_IN_FILE, Key, Mistaken, Reads, Text
from gpuops.model.measurements.measurement import CPU_MHZ
from gpuops.model.nights.fair_share import FairShare
from gpuops.model.nights.ml_queue import GuestCommand, MlStop, QueuedVm
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.time_text import format_clock, format_minute, format_minute_id
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.window import Night, Window, moments
from gpuops.model.workloads.job_rules import JobRules

_SHARE: Final = re.compile(r"(100|[1-9]?[0-9])%")
LATE: Final = timedelta(minutes=10)
"""For so long after its reply and its task were lost a change may still come; our own figure, vCenter promises none."""


class DirectPath(StrEnum):
    """What a night does with idle desktops that have a DirectPath device: they cannot be suspended."""

    LEAVE = "leave"
    SHUT_DOWN_GUEST = "shut-down-guest"
    """The guest is asked to shut down, never powered off; the morning powers the desktop on."""


class Mode(StrEnum):
    """The source of the GPUs of a night."""

    SUSPEND_DESKTOPS = "suspend-desktops"
    SPARE_CAPACITY = "spare-capacity"
    """No night: at any hour, from free capacity that is not kept for desktops (`rotate watch`)."""


class Broker(StrEnum):
    """The connection broker that keeps users away from desktops while a night takes them."""

    NONE = "none"
    """No broker: a desktop qualifies only in a pool that is declared parked."""
    HORIZON = "horizon"
    """The Connection Server of the target. `rotate night` puts desktops of pools that are not parked into maintenance
    mode there before it takes them; `rotate day` takes them out of it when they are back."""


class DrsOverride(StrEnum):
    """Whether DRS is kept off the ML VMs of a night."""

    NONE = "none"
    MANUAL = "manual"


class MorningOrder(StrEnum):
    """Which desktops come back first."""

    CANARY_FIRST = "canary-first"
    """One desktop of each host first, so that a host that takes none back shows before all of them wait for it."""
    LARGEST_FIRST = "largest-first"


_COUNTER = re.compile(r"[a-zA-Z0-9]+(\.[a-zA-Z0-9]+)+\.(average|latest|summation|maximum|minimum|none)")
"""`net.usage.average`: group, name and rollup of a counter (vSphere API reference, PerfCounterInfo)."""

MOST_S = 3300
"""A host keeps the samples of one hour (vSphere API reference, PerformanceManager); the newest come late.

Also `for_s` of a pool that requires counters and does not say how long."""

LEAST_MINUTES = 15
"""Of a disconnected session: the broker's clock and vCenter's may be minutes apart. Our own figure."""
MOST_MINUTES = 90 * 24 * 60

VGPU_BELOW_PERCENT = 5
"""`vgpu_below_percent` of a pool that requires nvidia-smi and says none. Our own figure."""

_Minutes = Annotated[int, Reads(lambda minutes: minutes * 60, Annotated[int, Meta(ge=LEAST_MINUTES, le=MOST_MINUTES)])]


def _named_counters(limits: dict[str, int]) -> tuple[tuple[str, int], ...]:
    for name in limits:
        if _COUNTER.fullmatch(name) is None:
            raise Mistaken(
                f"{name!r} is not the name of a performance counter", "write group, name and rollup: net.usage.average"
            )
    return tuple(sorted(limits.items()))


@dataclass(frozen=True, slots=True)
class IdleRule:
    """When a desktop counts as idle, beside the signs of use that always keep it."""

    cpu_below_mhz: Annotated[int, Meta(ge=1)]
    """A desktop that uses this much CPU or more is not idle."""
    for_s: Annotated[int, Meta(ge=0, le=MOST_S)] = 0
    """So long before the look it must have used less, in every sample; 0 = at the look alone."""
    counters: Annotated[tuple[tuple[str, int], ...], Reads(_named_counters, dict[str, Annotated[int, Meta(ge=1)]])] = ()
    """Other performance counters, and what each must have stayed below for as long, in its own unit."""
    required: Annotated[frozenset[Source] | None, NOT_IN_FILE] = None
    """The sources that must be known, and idle; None = the pool names none. Every other source can only veto."""
    go_on_s: Annotated[int, Meta(ge=60, le=MOST_S)] = 300
    """Replaces `for_s` in the last check of a desktop that the plan found idle, just before it is taken."""
    disconnected_timeout_s: Annotated[_Minutes | None, Key("disconnected_session_timeout_minutes")] = None
    """A session that is disconnected for longer does not keep its desktop; None = any session keeps it."""
    vgpu_below_percent: Annotated[int, Meta(ge=1, le=100)] | None = None
    """A desktop whose vGPU is used so much or more is not idle, by its host's own nvidia-smi; None = that is not asked.
    """

    def __post_init__(self) -> None:
        if self.counters and not self.for_s:
            raise Mistaken(
                "`counters` need `for_s`, the period that samples are read for", "add for_s: 3300, for 55 minutes"
            )

    def requiring(self, sources: frozenset[Source]) -> IdleRule:
        """Return the rule that requires these sources, with default limits where the pool has none."""
        for_s = self.for_s or (MOST_S if Source.COUNTERS in sources else 0)
        vgpu_below = self.vgpu_below_percent
        if vgpu_below is None and Source.NVIDIA_SMI in sources:
            vgpu_below = VGPU_BELOW_PERCENT
        return replace(self, required=sources, for_s=for_s, vgpu_below_percent=vgpu_below)

    @property
    def limits(self) -> Mapping[str, int]:
        """Return the limit by counter that every sample of the last `for_s` seconds must be below."""
        return {CPU_MHZ: self.cpu_below_mhz, **dict(self.counters)} if self.for_s else {}

    @property
    def needed(self) -> frozenset[Source]:
        """Return the sources that must be known, and idle: by default CPU and console, and with `for_s` counters."""
        if self.required is not None:
            return self.required
        return BY_DEFAULT | {Source.COUNTERS} if self.for_s else BY_DEFAULT

    @property
    def to_go_on(self) -> IdleRule:
        """Return the rule for a desktop that the plan found idle: a shorter `for_s`, the rest unchanged."""
        return self if self.for_s <= self.go_on_s else replace(self, for_s=self.go_on_s)


@dataclass(frozen=True, slots=True)
class ReadyAhead:
    """The rule that desktops of a pool run before their users come, by a forecast (`advise/forecast.py`)."""

    ahead: timedelta
    """At every moment as many desktops run as are expected to be in use at once within this time."""
    zone: tzinfo = UTC
    """The time zone of the users."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Desktops that may be suspended at night."""

    name: str
    select: Selector
    idle: IdleRule
    parked: bool = False
    """The policy states that no user gets a desktop of this pool at night; without it, or a gate, none is taken."""
    gated: bool = False
    """Whether gpuops puts each desktop into maintenance mode at the broker before it takes it."""
    floor: int = 0
    """So many desktops of the pool stay running."""
    ready: int = 0
    """So many desktops of the pool stay ready for users: they run, are unused, and their gates are open."""
    ready_ahead: ReadyAhead | None = None
    """The rule that keeps more of them running; None = no such rule."""
    owner: Mark | None = None
    """The second key: owners put it on a desktop. None = the policy alone selects."""
    priority: int = 0
    """Desktops of the pool with the lower priority are taken first."""
    directpath: DirectPath = DirectPath.LEAVE
    is_taken_tonight: bool = True
    """Whether the window of this night names the pool, or names none (`Policy.at_night`)."""

    @property
    def users_kept_away(self) -> bool:
        """Return whether no user gets a desktop while it is taken; otherwise gpuops takes no desktop of the pool."""
        return self.parked or self.gated


@dataclass(frozen=True, slots=True)
class KeptSlots:
    """The vGPUs of one profile that are kept free for desktops, in each cluster and on each host outside clusters."""

    profile: str
    count: int = 0
    percent: int = 0
    """Instead of a count: a share of the vGPUs of the profile that run there and could run; rounded up."""

    @classmethod
    def parse(cls, profile: str, amount: int | str) -> KeptSlots:
        """Return the slots for the amount in a policy: `4`, or `10%`."""
        return cls(profile, amount) if isinstance(amount, int) else cls(profile, percent=int(amount.removesuffix("%")))

    def of(self, running: int, free: int) -> int:
        """Return how many are kept free where so many run and so many could still start."""
        return max(self.count, -(-self.percent * (running + free) // 100))  # -(-a // b) rounds up

    def __str__(self) -> str:
        return f"{self.profile}={self.percent}%" if self.percent else f"{self.profile}={self.count}"


class GivesWayBy(StrEnum):
    """What `rotate watch` does with an ML VM whose GPUs desktops need."""

    STOP = "stop"
    """Its guest shuts down; it starts anew when there is room."""
    SUSPEND = "suspend"
    """It is suspended with its memory if possible, and resumed when there is room on its host."""


def _number_or_share(amount: Any) -> int | str:
    """Return a number of vGPUs, or a share of them such as `10%`. Raises Mistaken."""
    if isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0:
        return amount
    if isinstance(amount, str) and _SHARE.fullmatch(amount):
        return amount
    raise Mistaken(f"{amount!r} is neither a number of vGPUs nor a share of them", 'write it as 4, or as "10%"')


_Kept = Annotated[
    int | str, Reads(_number_or_share, Annotated[Any, Meta(extra_json_schema={"type": ["integer", "string"]})])
]
_AllKept = Annotated[dict[Text, _Kept], Meta(min_length=1)]


def _all_slots(amounts: dict[str, int | str]) -> tuple[KeptSlots, ...]:
    slots = tuple(KeptSlots.parse(profile, amount) for profile, amount in amounts.items())
    if not any(slot.count or slot.percent for slot in slots):
        raise Mistaken("nothing is kept free for desktops", "write how many vGPUs of a profile stay free: {a40-8q: 4}")
    return slots


@dataclass(frozen=True, slots=True)
class SpareRule:
    """The definition of spare capacity, and the delay before it is used."""

    keep_free: Annotated[tuple[KeptSlots, ...], Reads(_all_slots, _AllKept)]
    calm_s: Annotated[int, Meta(ge=0, le=24 * 3600)] = 300
    """So long there must have been room, and no ML VM stopped for desktops, before an ML VM is started."""
    take_idle: bool = False
    """Whether idle desktops are suspended for ML VMs, under all rules of a night; otherwise no desktop is touched."""
    give_way: GivesWayBy = GivesWayBy.STOP


@dataclass(frozen=True, slots=True)
class DefragRule:
    """How many VMs gpuops may move by itself to make fragmented GPU memory usable again, and when."""

    budget: int
    """So many moves in one window, at most; moves by `gpuops defrag` count too."""
    windows: tuple[Window, ...]

    def window_at(self, now: datetime) -> Night | None:
        """Return the hours of the window that is open at this moment; None = no window is open."""
        open_hours = (window.night_at(now) for window in self.windows)
        return next((hours for hours in open_hours if hours is not None), None)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for steps at the same time, for desktops of a night, and for the duration of one step."""

    in_flight: Annotated[int, Meta(ge=1, le=256)] = 8
    per_host: Annotated[int, Meta(ge=1, le=64)] = 4
    step_timeout_s: Annotated[int, Meta(ge=30, le=6 * 3600)] = 1800
    per_datastore: Annotated[int, Meta(ge=1, le=256)] = 8
    """Suspends and resumes at once whose files are on one datastore."""
    desktops: Annotated[int, Meta(ge=0)] | None = None
    """So many desktops are taken in one night, at most; None = as many as the queue needs."""
    desktops_per_host: Annotated[int, Meta(ge=0)] | None = None


def strictest(limits: Iterable[Limits]) -> Limits:
    """Return the strictest of these limits; a step has the longest of their times."""
    all_limits = tuple(limits)
    return Limits(
        in_flight=min(limit.in_flight for limit in all_limits),
        per_host=min(limit.per_host for limit in all_limits),
        step_timeout_s=max(limit.step_timeout_s for limit in all_limits),
        per_datastore=min(limit.per_datastore for limit in all_limits),
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """One rotation policy, as `templates/policy.yaml` describes it."""

    name: str
    pools: tuple[Pool, ...]
    ml: tuple[QueuedVm, ...] = ()
    ml_stop: MlStop = field(default_factory=MlStop)
    jobs: JobRules | None = None
    """How its nights run jobs in containers; None = they run none."""
    windows: tuple[Window, ...] = ()
    """Empty = `rotate night` may run at any time, and each one after a finished one is a new night."""
    any_time: bool = False
    """Whether the policy has `windows: any`; without it, unattended nights need windows."""
    opt_out: Mark = field(default_factory=lambda: Mark(attribute="gpuops.opt-out"))
    """A desktop that carries it is never taken, whatever else holds."""
    lock_vm: str | None = None
    """Name of the VM that carries the lease, which keeps runs on several machines apart; None = no lock VM."""
    marker: str = "gpuops.rotation"
    """The custom attribute that gpuops sets on a VM that it takes, and clears when the VM is back."""
    limits: Limits = Limits()
    morning: MorningOrder = MorningOrder.CANARY_FIRST
    mode: Mode = Mode.SUSPEND_DESKTOPS
    spare: SpareRule | None = None
    """Set only if the mode is `spare-capacity`."""
    broker: Broker = Broker.NONE
    drs_override: DrsOverride = DrsOverride.NONE
    user_wins: bool = False
    """Whether ML VMs are stopped for a desktop that a user asks for by name."""
    fair_share: FairShare | None = None
    """How teams share what the queue gets; None = the queue knows no teams."""
    defrag: DefragRule | None = None
    """When VMs are moved to make fragmented GPU memory usable again; None = only by `gpuops defrag`."""
    digest: str = ""
    """SHA-256 of the file."""
    text: str = field(default="", repr=False)
    """The file's own text: kept with the night, so that the morning obeys the same policy."""

    @property
    def commands(self) -> frozenset[GuestCommand]:
        """Return the commands that a return runs in guests before it stops them."""
        return frozenset(queued.checkpoint.hook for queued in self.ml if queued.checkpoint.hook is not None)

    def with_commands(self, allowed_hooks: Collection[GuestCommand]) -> Policy:
        """Return the same policy with only these commands of guests."""
        queue = (replace(queued, checkpoint=queued.checkpoint.within(allowed_hooks)) for queued in self.ml)
        return replace(self, ml=tuple(queue))

    @property
    def gates(self) -> bool:
        """Return whether one of its pools is gated at the broker."""
        return any(pool.gated for pool in self.pools)

    def pool_of(self, vm: Vm) -> Pool | None:
        """Return the first pool that selects the VM."""
        return next((pool for pool in self.pools if pool.select.selects(vm)), None)

    def in_folder(self, vm: Vm) -> bool:
        """Return whether the VM is inside a folder that a pool names, whatever its name and marks."""
        return any(pool.select.in_folder(vm) for pool in self.pools)

    def at_night(self, now: datetime) -> Policy:
        """Return the policy of the night of this moment: it takes no desktop of pools that the window leaves out."""
        night = self.night_at(now)
        if night is None or not night.pools:
            return self
        pools = (replace(pool, is_taken_tonight=pool.name in night.pools) for pool in self.pools)
        return replace(self, pools=tuple(pools))

    def night_at(self, now: datetime) -> Night | None:
        """Return the night of the windows that this moment is in; None = it is outside the windows."""
        nights = (window.night_at(now) for window in self.windows)
        return min((night for night in nights if night is not None), key=lambda night: night.opens, default=None)

    def next_night(self, now: datetime) -> Night | None:
        """Return the first night that opens after this moment; None = none does within a year."""
        nights = (window.next_night(now) for window in self.windows)
        return min((night for night in nights if night is not None), key=lambda night: night.opens, default=None)

    def night(self, now: datetime) -> str:
        """Return the night's name: the local date of its evening; without a window, this minute."""
        night = self.night_at(now)
        if night is not None:
            return night.id
        if self.windows:
            return now.astimezone(self.windows[0].zone).date().isoformat()
        return format_minute_id(now)

    def moment(self, local: datetime) -> datetime:
        """Return the moment; one without an offset is read in the zone of the windows. Raises UsageError."""
        if local.tzinfo is not None:
            return local
        zone = self._zone(format_minute(local), f"add the offset: {local.isoformat(timespec='minutes')}Z, or +01:00")
        return moments(local.date(), local.time(), zone)[0]

    def next_at(self, clock: time, now: datetime) -> datetime:
        """Return the next moment at which clocks in the zone of the windows show this. Raises UsageError."""
        clock_text = format_clock(clock)
        zone = self._zone(clock_text, f"write the date and the offset: {now.date()}T{clock_text}Z, or +01:00")
        day = now.astimezone(zone).date()
        moments_shown = (moment for number in range(3) for moment in moments(day + timedelta(days=number), clock, zone))
        return next(moment for moment in moments_shown if moment >= now)

    def _zone(self, clock_text: str, hint: str) -> tzinfo:
        """Return the zone of the windows. Raises UsageError if there are no windows, or several zones."""
        zones = {str(window.zone): window.zone for window in self.windows}
        if len(zones) != 1:
            reason = f"the windows are in {', '.join(sorted(zones))}" if zones else "the policy has no windows"
            raise UsageError(f"{clock_text} needs a time zone: {reason}", hint=hint)
        return next(iter(zones.values()))

    @property
    def counters(self) -> frozenset[str]:
        """Return the performance counters that pools use."""
        return frozenset(name for pool in self.pools for name in pool.idle.limits)

    @property
    def counters_for_s(self) -> int:
        """Return how far back the samples go that pools use."""
        return max((pool.idle.for_s for pool in self.pools), default=0)

    def running_by_counters(self, vms: Iterable[Vm]) -> frozenset[str]:
        """Return the ids of the VMs that run, and whose pool uses performance counters."""
        return self._running(vms, lambda pool: pool.idle.for_s > 0) if self.counters_for_s else frozenset()

    def running_in_pools(self, vms: Iterable[Vm]) -> frozenset[str]:
        """Return the ids of the VMs that run and are in a pool: their sessions count."""
        return self._running(vms, lambda _: True)

    def by_vgpu_use(self, vms: Iterable[Vm]) -> frozenset[str]:
        """Return the ids of the VMs that run, and whose pool uses the vGPU utilization that nvidia-smi reports."""
        return self._running(vms, lambda pool: pool.idle.vgpu_below_percent is not None)

    def behind_gates(self, vms: Iterable[Vm]) -> frozenset[str]:
        """Return the ids of the VMs that run and are in a pool that is gated at the broker."""
        return self._running(vms, lambda pool: pool.gated)

    def _running(self, vms: Iterable[Vm], of_pool: Callable[[Pool], bool]) -> frozenset[str]:
        pools = ((vm, self.pool_of(vm)) for vm in vms if vm.power is PowerState.ON)
        return frozenset(vm.ref for vm, pool in pools if pool is not None and of_pool(pool))

    @property
    def to_go_on(self) -> Policy:
        """Return the policy for desktops that a plan found idle: pools that use counters need less time."""
        return replace(self, pools=tuple(replace(pool, idle=pool.idle.to_go_on) for pool in self.pools))

    @property
    def needs_tags(self) -> bool:
        keys = [mark for pool in self.pools for mark in (*pool.select.marks, pool.owner) if mark is not None]
        by_team = self.fair_share is not None and self.fair_share.by.needs_tags
        return by_team or any(mark.tag is not None for mark in (*keys, self.opt_out))
