"""Reads a rotation policy from its YAML file, checks it, and returns it as a `rotation_policy.Policy`.

`templates/policy.yaml` is the commented example; every key it shows is described there. A policy is decoded as the
classes below, which also check the rules between its keys.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, time, timedelta
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args
from zoneinfo import ZoneInfo

from msgspec import UNSET, Meta, UnsetType

from gpuops.config.date_text import parse_window
from gpuops.config.decoding import UNKNOWN_KEY, Section, WrongContent, decode, keys_at, was_accepted
from gpuops.config.windows import WindowSection, Zone, named_apart, refuse_overlapping
from gpuops.errors import PolicyError, UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.desktops.evidence import Source, names
from gpuops.model.file_keys import Before, Mistaken, Reads, Text
from gpuops.model.nights.fair_share import FairShare
from gpuops.model.nights.ml_queue import OF_THE_QUEUE, Checkpoint, MlStop, QueuedVm
from gpuops.model.nights.rotation_policy import (
    Broker,
    DefragRule,
    DirectPath,
    DrsOverride,
    IdleRule,
    Limits,
    Mode,
    MorningOrder,
    Policy,
    Pool,
    ReadyAhead,
    SpareRule,
)
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.time_text import format_clock
from gpuops.model.window import Window
from gpuops.model.workloads.job_rules import JobRules, is_pattern

SLOT_MINUTES = 15
"""A forecast has one value for each quarter of an hour: a desktop needs about as long to come back."""
MOST_AHEAD_MINUTES = 4 * 60
"""The limit of `ahead_min`; with more, desktops would run half a day without a user."""

_RequirableName = Literal["console", "cpu", "counters", "nvidia-smi", "sessions", "broker", "command"]
_REQUIRABLE = tuple(map(Source, get_args(_RequirableName)))
"""The evidence that a pool may require."""
_REQUIRABLE_SCHEMA: Final = {"enum": list(get_args(_RequirableName))}

NO_OWNER = "none"
ANY_TIME = "any"


def _requirable_source(value: Any) -> Source:
    """Return the source of this name. Raises Mistaken for a source without readings, with which no desktop is idle."""
    if value not in _REQUIRABLE:
        raise Mistaken(f"{str(value)!r} is not evidence that a pool can require", f"use some of {names(_REQUIRABLE)}")
    return Source(value)


class EvidenceSection(Section):
    """What must be known of a desktop of the pool, and be idle; anything else can keep it, and no more."""

    required: Annotated[
        tuple[
            Annotated[Source, Reads(_requirable_source, Annotated[Any, Meta(extra_json_schema=_REQUIRABLE_SCHEMA)])],
            ...,
        ],
        Meta(min_length=1),
    ]


class ReadySection(Section):
    """How many desktops of the pool stay ready for users; with `ahead_min` as many as a forecast asks for, too."""

    at_least: Annotated[int, Meta(ge=0)] = 0
    ahead_min: Annotated[int, Meta(ge=SLOT_MINUTES, le=MOST_AHEAD_MINUTES)] | None = None
    zone: Zone | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.zone is not UNSET and self.ahead_min is None:
            raise Mistaken("`zone` needs a forecast (`ahead_min`)", "add ahead_min: 60, or leave `zone` out")

    def ahead(self) -> ReadyAhead | None:
        if self.ahead_min is None:
            return None
        return ReadyAhead(timedelta(minutes=self.ahead_min), self.zone or ZoneInfo("UTC"))


def _ready_mapping(value: Any) -> Any:
    """Return the mapping of a `ready` key; a number alone stands for `at_least`. Raises Mistaken."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"at_least": value}
    if isinstance(value, dict):
        return value
    raise Mistaken(f"{value!r} is neither a number of desktops nor a forecast", _READY_HINT)


_READY_HINT = "write a number such as 10, or {at_least: 2, ahead_min: 60}"
_Ready = Annotated[ReadySection, Before(_ready_mapping, int | ReadySection)]


def _owner_or_none(owner: Any) -> Any:
    """Return the mark, None for `none`. Raises Mistaken for an empty key or another text."""
    if owner is None:
        raise Mistaken("is empty", _OWNER_HINT)
    if isinstance(owner, str) and owner != NO_OWNER:
        raise Mistaken(f"{owner!r} is not a mark", _OWNER_HINT)
    return None if owner == NO_OWNER else owner


class PoolSection(Section):
    """One pool."""

    name: Text
    parked: bool
    select: Selector
    idle: IdleRule
    evidence: EvidenceSection | None = None
    floor: Annotated[int, Meta(ge=0)] = 0
    ready: _Ready = ReadySection()
    owner: Annotated[Mark | None, Before(_owner_or_none, Mark | Literal["none"])] | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    directpath: DirectPath = DirectPath.LEAVE

    def __post_init__(self) -> None:
        if self.owner is UNSET and not was_accepted():
            raise Mistaken(f"pool {self.name!r} has no `owner`: the mark that its desktops' owners set", _OWNER_HINT)

    def pool(self) -> Pool:
        return Pool(
            name=self.name,
            select=self.select,
            idle=self.idle.requiring(frozenset(self.evidence.required)) if self.evidence is not None else self.idle,
            parked=self.parked,
            floor=self.floor,
            ready=self.ready.at_least,
            ready_ahead=self.ready.ahead(),
            owner=self.owner or None,
            priority=self.priority,
            directpath=self.directpath,
        )


_OWNER_HINT = "write `owner: {attribute: gpuops.owner}`, or `owner: none` if only this file selects desktops"


Choice = TypeVar("Choice", bound=StrEnum)


def _check_queued(queued: QueuedVm) -> QueuedVm:
    """Return the same entry of the queue. Raises Mistaken for keys that do not fit together."""
    if (queued.vm is None) == (queued.vms is None):
        raise Mistaken("give either `vm` or `vms`")
    for name in queued.names:
        if is_pattern(name) and not name.strip("*?"):
            raise Mistaken(f"{name!r} would start every VM", "use a narrower pattern, such as `ml-*`")
    if queued.count is not None and not is_pattern(queued.names[0]) and queued.count > len(queued.names):
        raise Mistaken(
            f"`count` is {queued.count}, but the entry names only {len(queued.names)} VMs",
            "name more VMs, or a pattern: `ml-*`",
        )
    return queued


def _check_rules(rules: JobRules) -> JobRules:
    """Return the same rules. Raises Mistaken if they name no VM and no template."""
    if not rules.names:
        raise Mistaken("no VM can run jobs", "add `vms`, or a `template` to clone them from")
    return rules


class MlSection(Section):
    """The queue whole."""

    queue: tuple[Annotated[QueuedVm, Reads(_check_queued, QueuedVm)], ...] = ()
    stop: MlStop = MlStop()
    checkpoint: Checkpoint = Checkpoint()
    jobs: Annotated[JobRules, Reads(_check_rules, JobRules)] | None = None

    def __post_init__(self) -> None:
        names = [name for queued in self.queue for name in queued.names]
        names += self.jobs.vms if self.jobs is not None else []
        repeated_names = sorted({name for name in names if names.count(name) > 1})
        if repeated_names:
            raise Mistaken(f"the queue names the VM {repeated_names[0]!r} twice", "name each VM in one entry")

        if self.jobs is not None and not self.stop.then_off:
            raise Mistaken(
                "`jobs` excludes `then: leave-running`: VMs of jobs are powered off in the morning",
                "write `then: power-off`",
            )

    def queued(self) -> tuple[QueuedVm, ...]:
        """Return the entries with their checkpoints, and one for all VMs of jobs: so `rotate day` knows these VMs."""
        entries = tuple(
            replace(queued, checkpoint=self.checkpoint) if queued.checkpoint is OF_THE_QUEUE else queued
            for queued in self.queue
        )
        if self.jobs is None:
            return entries
        rules = self.jobs
        entry_for_jobs = QueuedVm(
            vms=rules.names, relocate=rules.relocate, priority=rules.priority, minimum_run=rules.minimum_run,
            for_jobs=True
        )  # fmt: skip
        return (*entries, entry_for_jobs)


def _window_of_text(text: str) -> Window:
    try:
        return parse_window(text)
    except UsageError as error:
        raise Mistaken(error.message.removeprefix("--window: "), error.hint or "") from None


class DefragSection(Section):
    """The moves that `rotate watch` and runners make without an admin."""

    budget: Annotated[int, Meta(ge=1)]
    windows: Annotated[tuple[Annotated[Window, Reads(_window_of_text, Text)], ...], Meta(min_length=1, max_length=50)]


class MorningSection(Section):
    """How desktops come back."""

    order: MorningOrder = MorningOrder.CANARY_FIRST


def _only(choice: type[Choice], reason: str) -> Reads:
    """Return the reader of a key that accepts only these choices; its error names the other text and the reason."""

    def check(value: Any) -> Any:
        if value not in tuple(choice):
            raise Mistaken(f"{str(value)!r} is not supported: {reason}", f"use {' or '.join(choice)}")
        return choice(value)

    schema = {"enum": list(choice), "description": str(choice.__doc__)}
    return Reads(check, Annotated[Any, Meta(extra_json_schema=schema)])


_PoolWithOwner = Annotated[
    PoolSection, Meta(extra_json_schema={"required": ["name", "parked", "select", "idle", "owner"]})
]
"""A pool whose JSON Schema requires `owner`. The class itself does not: a policy in a journal may lack it."""
_NO_BROKER = "gpuops can close the gates of desktops only at these brokers"
_WINDOWS_HINT = "give a list of windows, or write `windows: any` for every hour of every day"
_LOCK_VM_HINT = "name a small VM for it that stays off; gpuops rotate init creates it"
_NO_OTHER_MODE = "gpuops uses the GPUs that desktops leave free at night, or spare capacity at any hour"
_Windows = Annotated[tuple[WindowSection, ...], Meta(min_length=1, max_length=50)]


def _list_or_any(windows: Any) -> Any:
    """Return the same content. Raises Mistaken for a text that is not `any`; a list is decoded later."""
    if isinstance(windows, str) and windows != ANY_TIME:
        raise Mistaken(f"{windows!r} is not a list of windows", _WINDOWS_HINT)
    return windows


class PolicyFile(Section):
    """The file whole."""

    version: Literal[1]
    name: Text
    mode: Annotated[Mode, _only(Mode, _NO_OTHER_MODE)] = Mode.SUSPEND_DESKTOPS
    broker: Annotated[Broker, _only(Broker, _NO_BROKER)] = Broker.NONE
    spare: SpareRule | None = None
    pools: Annotated[tuple[_PoolWithOwner, ...], Meta(min_length=1)] = ()
    ml: MlSection = MlSection()
    window: WindowSection | None = None
    windows: Annotated[_Windows | Literal["any"] | None, Before(_list_or_any, _Windows | Literal["any"] | None)] = None
    morning: MorningSection = MorningSection()
    drs_override: DrsOverride = DrsOverride.NONE
    user_wins: bool = False
    fair_share: FairShare | None = None
    defrag: DefragSection | None = None
    opt_out: Mark = Mark(attribute="gpuops.opt-out")
    marker: Text = "gpuops.rotation"
    lock_vm: Text | None = None
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        self._check_mode()
        self._check_forecasts()
        self._check_names_of_pools()
        self._check_windows()
        self._check_marker()
        self._check_lock_vm()
        self.queue()  # raises Mistaken for a deadline without a day or a zone

    def _check_mode(self) -> None:
        if (self.mode is Mode.SPARE_CAPACITY) is (self.spare is None):
            raise Mistaken("`mode: spare-capacity` and `spare` need each other", "give both or neither")
        if self.spare is not None and (self.windows is not None or self.window is not None):
            raise Mistaken("spare capacity is used at any hour, not only in `windows`", "remove `windows`")
        if self.spare is not None and self.ml.jobs is not None:
            raise Mistaken("`mode: spare-capacity` runs no `jobs`: only nights do", "remove `jobs`")
        if not self.pools and (self.spare is None or self.spare.take_idle):
            raise Mistaken("`pools` is missing or empty: no desktop would be taken", "add the pools of desktops")

    def _check_forecasts(self) -> None:
        forecast_pool = next((pool for pool in self.pools if pool.ready.ahead_min is not None), None)
        if forecast_pool is not None and (self.spare is None or not self.spare.take_idle):
            raise Mistaken(
                f"`ready` of pool {forecast_pool.name!r} follows a forecast, which only a watch of desktops uses",
                "give a number of desktops, or set `mode: spare-capacity` with `take_idle: true`",
            )

    def _check_names_of_pools(self) -> None:
        names = [pool.name for pool in self.pools]
        repeated_names = sorted({name for name in names if names.count(name) > 1})
        if repeated_names:
            raise Mistaken(f"two pools are called {repeated_names[0]!r}", "give each pool a name of its own")

    def _check_windows(self) -> None:
        if self.window is not None and self.windows is not None:
            raise Mistaken("`window` and `windows` exclude each other", "put all windows under `windows`")
        windows = self.all_windows()
        if not was_accepted():
            refuse_overlapping([*windows, *self.defrag_windows()])
        if self.defrag is not None and self.any_time:
            raise Mistaken(
                "`defrag` and `windows: any` exclude each other: no VM is moved while a night takes VMs",
                "give the nights `windows`, or leave `defrag` out",
            )
        pools = {pool.name for pool in self.pools}
        unknown = sorted({name for window in windows for name in window.pools} - pools)
        if unknown:
            raise Mistaken(
                f"`pools` of a window names {unknown[0]!r}, but no pool has this name", "use a name from `pools`"
            )

    def _check_marker(self) -> None:
        marks = [mark for pool in self.pools for mark in (pool.owner, *pool.select.marks) if mark]
        if self.marker in {mark.attribute for mark in (self.opt_out, *marks)} and not was_accepted():
            raise Mistaken(
                f"the marker {self.marker!r} is an attribute that people set: `rotate night` would overwrite it",
                "remove `marker`, or name an attribute that nothing else uses",
            )

    def _check_lock_vm(self) -> None:
        if self.lock_vm in {name for queued in self.ml.queued() for name in queued.names} and not was_accepted():
            raise Mistaken(f"`lock_vm: {self.lock_vm}` is also a VM of the queue", _LOCK_VM_HINT)

    def all_pools(self) -> tuple[Pool, ...]:
        """Return the pools. With a broker, pools that are not parked are gated, and their sessions must be known."""
        return tuple(self._gated_by_broker(section.pool()) for section in self.pools)

    def _gated_by_broker(self, pool: Pool) -> Pool:
        """Return the pool, gated if the policy has a broker that assigns its desktops."""
        if self.broker is Broker.NONE or pool.parked:
            return pool
        idle = replace(pool.idle, required=pool.idle.needed | {Source.BROKER})
        return replace(pool, gated=True, idle=idle)

    @property
    def any_time(self) -> bool:
        """Whether the policy has `windows: any`."""
        return self.windows == ANY_TIME

    def all_windows(self) -> tuple[Window, ...]:
        """Return the windows of `windows`, or the one of `window`; none for `windows: any`."""
        sections = self.windows if isinstance(self.windows, tuple) else ()
        if not sections and self.window is not None:
            sections = (self.window,)
        return named_apart([section.window() for section in sections])

    def defrag_windows(self) -> tuple[Window, ...]:
        return self.defrag.windows if self.defrag is not None else ()

    def queue(self) -> tuple[QueuedVm, ...]:
        """Return the entries of the queue, each deadline in the zone of the windows."""
        return tuple(self._with_zone(queued) for queued in self.ml.queued())

    def _with_zone(self, queued: QueuedVm) -> QueuedVm:
        """Return the entry, its deadline in the zone of the windows. Raises Mistaken if date or zone are missing."""
        windows = self.all_windows()
        zones = {str(window.zone): window.zone for window in windows}
        match queued.deadline:
            case datetime() as moment if moment.tzinfo is None:
                if len(zones) != 1:
                    raise Mistaken(
                        f"deadline {moment} of {queued.label} needs a time zone: the windows do not have exactly one",
                        "write it as 2026-11-24T06:00+01:00",
                    )
                return replace(queued, deadline=moment.replace(tzinfo=next(iter(zones.values()))))
            case time() if not windows:
                raise Mistaken(
                    f"deadline {format_clock(queued.deadline)} of {queued.label} needs a date: there are no windows",
                    "add `windows`, or write it as 2026-11-24T06:00+01:00",
                )
            case _:
                return queued


_HINT: Final = "templates/policy.yaml shows every key, with comments"


def load_policy(path: Path) -> Policy:
    """Return the policy in this file. Raises PolicyError with file, key, reason and the next step."""
    return parse_policy(read_text(path), str(path))


def policy_or_error(path: Path | None) -> Policy | PolicyError | None:
    """Return the policy in this file, or the error if it is not valid; None = no file was named.

    `rotate day` continues after the error: it brings back what the journal knows, without the policy.
    """
    try:
        return load_policy(path) if path is not None else None
    except PolicyError as unreadable:
        return unreadable


def parse_policy(text: str, name: str, *, accepted_before: bool = False) -> Policy:
    """Return the policy of a YAML text; errors call it `name`. Raises PolicyError.

    `accepted_before`: it is from the journal, so an older gpuops, which required fewer keys, may have accepted it.
    """
    content = parse_yaml(text, name)
    if not isinstance(content, dict):
        raise PolicyError(
            f"{name}: {'is empty' if content in (None, '') else 'is not a policy: it must consist of keys and values'}",
            hint=_HINT,
        )
    if "lending" in content:
        if not accepted_before:
            hint = "remove `lending`; `gpuops pool reclaim --server NAME` drains a server before a night"
            raise PolicyError(f"{name}: lending: this key is no longer supported", hint=hint)
        content = {key: section for key, section in content.items() if key != "lending"}
    try:
        policy_file = decode(PolicyFile, content, was_accepted=accepted_before)
    except WrongContent as error:
        message, hint = _most_telling(error)
        raise PolicyError(f"{name}: {message}", hint=hint) from error
    return Policy(
        name=policy_file.name,
        pools=policy_file.all_pools(),
        ml=policy_file.queue(),
        ml_stop=policy_file.ml.stop,
        jobs=policy_file.ml.jobs,
        windows=policy_file.all_windows(),
        any_time=policy_file.any_time,
        opt_out=policy_file.opt_out,
        marker=policy_file.marker,
        lock_vm=policy_file.lock_vm,
        limits=policy_file.limits,
        morning=policy_file.morning.order,
        mode=policy_file.mode,
        spare=policy_file.spare,
        broker=policy_file.broker,
        drs_override=policy_file.drs_override,
        user_wins=policy_file.user_wins,
        fair_share=policy_file.fair_share,
        defrag=DefragRule(policy_file.defrag.budget, policy_file.defrag.windows) if policy_file.defrag else None,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        text=text,
    )


def _most_telling(error: WrongContent) -> tuple[str, str]:
    """Return the message and the hint for the mistake to show; an unknown key gets a suggestion."""
    mistake = error.most_telling
    hint = mistake.hint or _HINT
    if mistake.reason == UNKNOWN_KEY:
        near = get_close_matches(str(mistake.place[-1]), keys_at(PolicyFile, mistake.place[:-1]), n=1)
        hint = f"did you mean `{near[0]}`? {_HINT}" if near else _HINT
    return error.describe(mistake, "the file"), hint
