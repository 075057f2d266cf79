"""The sections of a policy file put together, with pools and limits, and what must hold between them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, time, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar, cast, get_args
from zoneinfo import ZoneInfo

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.config import JsonDict

from gpuops.config.sections.fair_share import FairShareSection
from gpuops.config.sections.queue import MlSection
from gpuops.config.sections.section import MarkSection, Section, SelectSection, Text, accepted_before, mistake
from gpuops.config.sections.spare import SpareSection
from gpuops.config.sections.windows import WindowSection, Zone, named_apart, refuse_overlapping
from gpuops.model.desktops.evidence import Source, names
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation import (
    Broker,
    DirectPath,
    DrsOverride,
    IdleRule,
    Limits,
    Mode,
    MorningOrder,
    Pool,
    ReadyAhead,
)
from gpuops.model.window import Window

_COUNTER = re.compile(r"[a-zA-Z0-9]+(\.[a-zA-Z0-9]+)+\.(average|latest|summation|maximum|minimum|none)")
"""`net.usage.average`: group, name and rollup of a counter (vSphere API reference, PerfCounterInfo)."""

MOST_S = 3300
"""A host keeps the samples of one hour (vSphere API reference, PerformanceManager); the newest come late.

Also `for_s` of a pool that requires counters and does not say how long."""

LEAST_MINUTES = 15
"""Of a disconnected session: the broker's clock and vCenter's may be minutes apart. Our own figure."""
MOST_MINUTES = 90 * 24 * 60

SLOT_MINUTES = 15
"""A forecast is made of quarters of an hour; the desktops that come back within one need about as long."""
MOST_AHEAD_MINUTES = 4 * 60
"""The farthest that `ahead_min` may look; farther, desktops would run half a day for nobody."""

VGPU_BELOW_PERCENT = 5
"""`vgpu_below_percent` of a pool that requires nvidia-smi and says none. Our own figure."""

_Askable = Literal["console", "cpu", "counters", "nvidia-smi", "sessions", "broker", "command"]
_ASKABLE = tuple(map(Source, get_args(_Askable)))
"""What a pool may require."""

NO_OWNER = "none"
ANY_TIME = "any"


class IdleSection(Section):
    """When a desktop of the pool counts as idle."""

    cpu_below_mhz: int = Field(ge=1)
    for_s: int = Field(default=0, ge=0, le=MOST_S)
    counters: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    go_on_s: int = Field(default=IdleRule(1).go_on_s, ge=60, le=MOST_S)
    disconnected_session_timeout_minutes: int | None = Field(default=None, ge=LEAST_MINUTES, le=MOST_MINUTES)
    vgpu_below_percent: int | None = Field(default=None, ge=1, le=100)

    @model_validator(mode="after")
    def _over_a_while(self) -> IdleSection:
        for name in self.counters:
            if _COUNTER.fullmatch(name) is None:
                raise mistake(f"{name!r} is the name of no counter", "write group, name and rollup: net.usage.average")
        if self.counters and not self.for_s:
            raise mistake("`counters` are looked at over a while, and none is said", "add for_s: 3300, for 55 minutes")
        return self

    def rule(self, required: frozenset[Source] | None) -> IdleRule:
        for_s = self.for_s or (MOST_S if Source.COUNTERS in (required or ()) else 0)
        counters = tuple(sorted(self.counters.items()))
        minutes = self.disconnected_session_timeout_minutes
        timeout_s = minutes * 60 if minutes is not None else None
        vgpu_below = self.vgpu_below_percent
        if vgpu_below is None and Source.NVIDIA_SMI in (required or ()):
            vgpu_below = VGPU_BELOW_PERCENT
        return IdleRule(self.cpu_below_mhz, for_s, counters, required, self.go_on_s, timeout_s, vgpu_below)


def _askable(value: Any) -> Source:
    """The source of that name. One that nothing delivers is refused: its pool would never give up a desktop."""
    if value not in _ASKABLE:
        raise mistake(f"{str(value)!r} is no evidence that can be required", f"say some of {names(_ASKABLE)}")
    return Source(value)


class EvidenceSection(Section):
    """What must be known of a desktop of the pool, and be idle; anything else can keep it, and no more."""

    required: list[Annotated[Source, BeforeValidator(_askable, json_schema_input_type=_Askable)]] = Field(min_length=1)


class ReadySection(Section):
    """How many desktops of the pool stay ready for users; with `ahead_min` as many as a forecast asks for, too."""

    at_least: int = Field(default=0, ge=0)
    ahead_min: int | None = Field(default=None, ge=SLOT_MINUTES, le=MOST_AHEAD_MINUTES)
    zone: Zone = "UTC"

    @model_validator(mode="after")
    def _zone_of_a_forecast(self) -> ReadySection:
        if "zone" in self.model_fields_set and self.ahead_min is None:
            raise mistake("`zone` is that of a forecast, and there is none", "add ahead_min: 60, or leave `zone` out")
        return self

    def ahead(self) -> ReadyAhead | None:
        if self.ahead_min is None:
            return None
        return ReadyAhead(timedelta(minutes=self.ahead_min), ZoneInfo(self.zone))


def _number_alone(value: Any) -> Any:
    """A number alone is `at_least`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"at_least": value}
    if isinstance(value, dict):
        return value
    raise mistake(f"{value!r} is neither a number of desktops nor a forecast", _SAY_READY)


def _owner_is_required(schema: JsonDict) -> None:
    """A pool without `owner` is refused, though the field has a default: for texts that were accepted before."""
    schema["required"] = ["owner", *cast("list[JsonValue]", schema["required"])]


_SAY_READY = "such as 10, or {at_least: 2, ahead_min: 60}"
_Ready = Annotated[ReadySection, BeforeValidator(_number_alone, json_schema_input_type=int | ReadySection)]


class PoolSection(Section):
    """One pool."""

    model_config = ConfigDict(json_schema_extra=_owner_is_required)

    name: Text
    parked: bool
    select: SelectSection
    idle: IdleSection
    evidence: EvidenceSection | None = None
    floor: int = Field(default=0, ge=0)
    ready: _Ready = ReadySection()
    owner: MarkSection | None = None
    priority: int = Field(default=0, ge=-1000, le=1000)
    directpath: DirectPath = Field(default=DirectPath.LEAVE, strict=False)

    @field_validator("owner", mode="before", json_schema_input_type=MarkSection | Literal["none"])
    @classmethod
    def _none_is_said(cls, value: Any) -> Any:
        if value is None:
            raise mistake("is empty", _SAY_OWNER)
        if isinstance(value, str) and value != NO_OWNER:
            raise mistake(f"{value!r} is no mark", _SAY_OWNER)
        return None if value == NO_OWNER else value

    @model_validator(mode="after")
    def _second_key(self, info: ValidationInfo) -> PoolSection:
        if "owner" not in self.model_fields_set and not accepted_before(info):
            raise mistake(f"pool {self.name!r} has no `owner`: the mark that its desktops' owners set", _SAY_OWNER)
        return self

    def pool(self) -> Pool:
        return Pool(
            name=self.name,
            select=self.select.selector(),
            idle=self.idle.rule(frozenset(self.evidence.required) if self.evidence is not None else None),
            parked=self.parked,
            floor=self.floor,
            ready=self.ready.at_least,
            ready_ahead=self.ready.ahead(),
            owner=self.owner.mark() if self.owner else None,
            priority=self.priority,
            directpath=self.directpath,
        )


_SAY_OWNER = "owner: {attribute: gpuops.owner}, or `owner: none` if this file alone may select"


Choice = TypeVar("Choice", bound=StrEnum)


class LimitsSection(Section):
    """How much at once, and how much in all."""

    in_flight: int = Field(default=Limits().in_flight, ge=1, le=256)
    per_host: int = Field(default=Limits().per_host, ge=1, le=64)
    per_datastore: int = Field(default=Limits().per_datastore, ge=1, le=256)
    step_timeout_s: int = Field(default=Limits().step_timeout_s, ge=30, le=6 * 3600)
    desktops: int | None = Field(default=None, ge=0)
    desktops_per_host: int | None = Field(default=None, ge=0)

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


class MorningSection(Section):
    """How desktops come back."""

    order: Annotated[MorningOrder, Field(strict=False)] = MorningOrder.CANARY_FIRST


def _only(choice: type[Choice], why: str) -> BeforeValidator:
    """One of the choices; another is refused by its name."""

    def check(value: Any) -> Any:
        if value not in tuple(choice):
            raise mistake(f"{str(value)!r} is not supported: {why}", f"say {' or '.join(choice)}")
        return choice(value)

    return BeforeValidator(check)


_NO_BROKER = "gpuops closes no gate at another broker"
_SAY_WINDOWS = "give a list of them, or `windows: any` where every hour of every day is meant"
_A_LOCK = "name a small VM for it that stays off; gpuops rotate init makes it"
_NO_OTHER_MODE = "gpuops takes what nights free, or what is spare"
_Windows = Annotated[list[WindowSection], Field(min_length=1, max_length=50)]


class PolicyFile(Section):
    """The file whole."""

    version: Literal[1]
    name: Text
    mode: Annotated[Mode, _only(Mode, _NO_OTHER_MODE)] = Mode.SUSPEND_DESKTOPS
    broker: Annotated[Broker, _only(Broker, _NO_BROKER)] = Broker.NONE
    spare: SpareSection | None = None
    pools: list[PoolSection] = Field(default_factory=list, min_length=1)
    ml: MlSection = MlSection()
    window: WindowSection | None = None
    windows: _Windows | None = None
    morning: MorningSection = MorningSection()
    drs_override: Annotated[DrsOverride, Field(strict=False)] = DrsOverride.NONE
    user_wins: bool = False
    fair_share: FairShareSection | None = None
    opt_out: MarkSection = MarkSection(attribute="gpuops.opt-out")
    marker: Text = "gpuops.rotation"
    lock_vm: Text | None = None
    limits: LimitsSection = LimitsSection()

    @field_validator("windows", mode="wrap", json_schema_input_type=_Windows | Literal["any"] | None)
    @classmethod
    def _any_is_said(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, str) and value != ANY_TIME:
            raise mistake(f"{value!r} is no list of windows", _SAY_WINDOWS)
        return [] if value == ANY_TIME else read(value)

    @model_validator(mode="after")
    def _spare_or_nights(self) -> PolicyFile:
        if (self.mode is Mode.SPARE_CAPACITY) is (self.spare is None):
            raise mistake("`mode: spare-capacity` and `spare` belong together", "say both of them, or neither")
        if self.spare is not None and (self.windows is not None or self.window is not None):
            raise mistake("spare capacity is used at any hour, not in `windows`", "leave out `windows`")
        if self.spare is not None and self.ml.jobs is not None:
            raise mistake("`jobs` are of nights: a watch runs none", "leave `jobs` out")
        if not self.pools and (self.spare is None or self.spare.take_idle):
            raise mistake("`pools` is missing or empty: no desktop would be taken", "say which desktops")
        return self

    @model_validator(mode="after")
    def _forecasts_are_followed(self) -> PolicyFile:
        ahead = next((pool for pool in self.pools if pool.ready.ahead_min is not None), None)
        if ahead is not None and (self.spare is None or not self.spare.take_idle):
            raise mistake(
                f"`ready` of pool {ahead.name!r} follows a forecast, and only a watch that takes desktops does",
                "give a number of desktops, or say `mode: spare-capacity` with `take_idle: true`",
            )
        return self

    @model_validator(mode="after")
    def _pools_once(self) -> PolicyFile:
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise mistake(f"the pool {twice[0]!r} is there twice", "give each pool a name of its own")
        return self

    @model_validator(mode="after")
    def _windows_apart(self, info: ValidationInfo) -> PolicyFile:
        if self.window is not None and self.windows is not None:
            raise mistake("`window` and `windows` are both there", "put all of them under `windows`")
        windows = self.all_windows()
        if not accepted_before(info):
            refuse_overlapping(windows)
        pools = {pool.name for pool in self.pools}
        unknown = sorted({name for window in windows for name in window.pools} - pools)
        if unknown:
            raise mistake(f"`pools` of a window names {unknown[0]!r}, and no pool is called so", "name one of `pools`")
        return self

    @model_validator(mode="after")
    def _marker_is_its_own(self, info: ValidationInfo) -> PolicyFile:
        marks = [mark for pool in self.pools for mark in (pool.owner, *pool.select.marks) if mark is not None]
        if self.marker in {mark.attribute for mark in (self.opt_out, *marks)} and not accepted_before(info):
            raise mistake(
                f"the marker {self.marker!r} is an attribute that people set: a night writes over it",
                "leave `marker` out, or name an attribute that nothing else uses",
            )
        return self

    @model_validator(mode="after")
    def _lock_vm_only_locks(self, info: ValidationInfo) -> PolicyFile:
        if self.lock_vm in {name for queued in self.ml.queued() for name in queued.names} and not accepted_before(info):
            raise mistake(f"the lock_vm {self.lock_vm!r} is a VM of the queue", _A_LOCK)
        return self

    @model_validator(mode="after")
    def _deadlines_mean_something(self) -> PolicyFile:
        self.queue()
        return self

    def all_pools(self) -> tuple[Pool, ...]:
        """The pools. One that is not parked is gated where there is a broker, and its sessions must then be known."""
        return tuple(self._gated(section.pool()) for section in self.pools)

    def _gated(self, pool: Pool) -> Pool:
        if self.broker is Broker.NONE or pool.parked:
            return pool
        idle = replace(pool.idle, required=pool.idle.needed | {Source.BROKER})
        return replace(pool, gated=True, idle=idle)

    @property
    def any_time(self) -> bool:
        """Whether it says `windows: any`; a list of none is refused."""
        return self.windows == []

    def all_windows(self) -> tuple[Window, ...]:
        sections = self.windows or ([self.window] if self.window is not None else [])
        return named_apart([section.window() for section in sections])

    def queue(self) -> tuple[QueuedVm, ...]:
        """The entries of the queue, each deadline in the zone of the windows."""
        return tuple(self._dated(queued) for queued in self.ml.queued())

    def _dated(self, queued: QueuedVm) -> QueuedVm:
        windows = self.all_windows()
        zones = {str(window.zone): window.zone for window in windows}
        match queued.deadline:
            case datetime() as moment if moment.tzinfo is None:
                if len(zones) != 1:
                    raise mistake(
                        f"deadline {moment} of {queued.label}: in which zone?", "write it as 2026-11-24T06:00+01:00"
                    )
                return replace(queued, deadline=moment.replace(tzinfo=next(iter(zones.values()))))
            case time() if not windows:
                raise mistake(
                    f"deadline {queued.deadline:%H:%M} of {queued.label}: of which day, without a window?",
                    "add `windows`, or write it as 2026-11-24T06:00+01:00",
                )
            case _:
                return queued
