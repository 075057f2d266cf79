"""ML VMs, and VMs that no night started.

I8 before an ML VM that a night started is stopped, its guest is given the time to keep its work; I18 a night does not
stop a VM that it did not start, and the VMs on the GPUs of a desktop that could not come back are named; I29 no start
takes a team over what it may have; I30 of VMs that are alike none starts before one of a team that had less for its
weight, and each that stays has a reason; I31 a clone is left alone.

The fair shares of teams are told from the simulator's ledger, its attributes and the policy's text alone: nothing there
counts as gpuops does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.errors import Trouble
from gpuops.execute.journal.record import Kind
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import ResumeVm
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.returns.day import RotateDay
from gpuops.plan.rotation.taken_vms import marker_of
from gpuops.sim.core.ledger import Entry
from gpuops.sim.state.vm_state import Power
from tests.nights.judging.doings import (
    MARK,
    OFF,
    SHUT_DOWN,
    START,
    chosen_as,
    clones,
    effects,
    is_desktop,
    is_ours,
    machine_of,
    takes,
)
from tests.nights.playing.played import Played
from tests.nights.world.worlds import CLOSES, DAY, EVENING, HOOK

RUN = "StartProgramInGuest"


def work_is_kept(night: Played) -> Iterator[str]:
    """I8: where nothing goes wrong, a guest that has a hook ran it to its end, or for as long as it was given."""
    if night.events or not _has_hooks(night):
        return
    limits_s = _limits_s(night)
    for stop, started in _stops(night):
        vm: Any = night.world.find(stop.moid)
        run = next((entry for entry in effects(night, RUN) if started < entry.sequence < stop.sequence
                    and entry.moid == stop.moid), None)  # fmt: skip
        program = (
            next((program for program in vm.state.template.programs if program.path == HOOK), None) if vm else None
        )
        if program is None or (run is None and _told_late(night, stop.moid)):
            continue
        if run is None:
            yield f"I8: {stop.name} was stopped, and its hook had not run"
            continue
        had_s = (stop.at - run.at).total_seconds()
        wanted_s = min(limits_s[run.operation_id], program.takes_s if program.takes_s is not None else float("inf"))
        if had_s < wanted_s:
            yield f"I8: {stop.name} was stopped {had_s:.0f} s after its hook began, which had {wanted_s:.0f} s"


def asked_to_keep(night: Played) -> Iterator[str]:
    """I8: whatever goes wrong, a guest's hook is tried before its VM stops, or a report says that it is too late."""
    if not night.events or not _has_hooks(night) or any(event.fault == "K3" for event in night.events):
        return
    tried = dict(_tried_hooks(night))
    for stop, _ in _stops(night):
        if tried.get(stop.moid, stop.sequence) >= stop.sequence and not _told_late(night, stop.moid):
            yield f"I8: {stop.name} was stopped, and its hook was not even tried"


def _has_hooks(night: Played) -> bool:
    return any(queued.checkpoint.hook is not None for queued in night.site.policy.ml)


def _stops(night: Played) -> Iterator[tuple[Entry, int]]:
    """What ended an ML VM that we had started, the first time; with the place of its start in the ledger."""
    started: dict[str, int] = {}
    for entry in effects(night, START, SHUT_DOWN, OFF):
        if is_desktop(night, entry.moid, entry.name):
            continue
        if entry.method == START:
            started[entry.moid] = entry.sequence
        elif entry.moid in started:
            yield entry, started.pop(entry.moid)


def _tried_hooks(night: Played) -> Iterator[tuple[str, int]]:
    """(VM, length of the ledger then) of each intent of a hook, the last one first."""
    for record, length in reversed(night.kept):
        if record.kind is Kind.INTENT and "RunInGuest" in record.body["step"]:
            yield record.body["step"]["RunInGuest"]["vm"], length


def _limits_s(night: Played) -> Mapping[str, float]:
    """op id -> how long the hook had."""
    return {
        record.body["op"]: record.body["step"]["RunInGuest"]["limit_s"]
        for record, _ in night.kept
        if record.kind is Kind.INTENT and "RunInGuest" in record.body["step"]
    }


def _told_late(night: Played, moid: str) -> bool:
    """Whether a morning said that there is no time for it, or ended without a word."""
    name = chosen_as(night, moid)
    has_warning = any(
        warning.startswith(f"{name}: 0 s ") for report, _ in night.told for warning in report.plan.warnings
    )
    return has_warning or any(ended not in ("done", "refused") for _, ended, _ in night.calls)


_GPUS: Final = {"nvidia_a40-48c": 1.0, "nvidia_a40-24c": 0.5}
_HOUR: Final = timedelta(hours=1)
_EXACT_H: Final = 0.5
"""GPU-hours: starts come some minutes after their plan, and what a return sees is noted some minutes later."""


def _fair_share(night: Played) -> dict[str, Any] | None:
    """What the policy says of teams, as it is written; None = nothing."""
    if night.site.policy.fair_share is None:
        return None
    fair_share: dict[str, Any] = json.loads(night.site.policy.text)["fair_share"]
    return fair_share


def teams_of(night: Played) -> dict[str, str]:
    """ML VM (ref) -> its team."""
    key = next(
        (key for key, custom_field in night.world.custom_fields.fields.items() if custom_field.name == "team"), -1
    )
    vms: list[Any] = [night.world.find(moid) for moid in night.names if not is_desktop(night, moid)]
    return {vm.moid: vm.state.attributes.get(key, "") or "(no owner)" for vm in vms if vm is not None}


def _gpus(night: Played, moid: str) -> float:
    vm: Any = night.world.find(moid)
    return sum(_GPUS[backing.type_name] for backing in vm.state.vgpus)


def _runs(ledger: Sequence[Entry], teams: dict[str, str], now: datetime) -> Iterator[tuple[str, datetime, datetime]]:
    """(ML VM, from when, until when) each ran, until now."""
    since: dict[str, datetime] = {}
    for change in ledger:
        if change.moid not in teams or "power" not in change.after:
            continue
        if change.after["power"] == Power.ON:
            since.setdefault(change.moid, change.at)
        elif change.moid in since:
            yield change.moid, since.pop(change.moid), change.at
    yield from ((moid, at, now) for moid, at in since.items())


def _hours(
    night: Played, ledger: Sequence[Entry], now: datetime, worth: Callable[[float], float] = lambda age: 1.0
) -> dict[str, float]:
    """Team -> its GPU-hours until now, minute by minute, each worth what its age in days says."""
    teams = teams_of(night)
    hours_by_team = dict.fromkeys(teams.values(), 0.0)
    for moid, begins, ends in _runs(ledger, teams, now):
        minutes = int((ends - begins) / timedelta(minutes=1))
        middle = (begins + timedelta(minutes=minute, seconds=30) for minute in range(minutes))
        hours_by_team[teams[moid]] += _gpus(night, moid) * sum(worth((now - at) / DAY) for at in middle) / 60
    return hours_by_team


def _closes(at: datetime) -> datetime:
    return CLOSES + (at - EVENING) // DAY * DAY


def teams_within_limits(night: Played) -> Iterator[str]:
    """I29: at each start the team's VMs that run are within its GPUs, and its hours, if all of them run until desktops
    are due, within those of a week."""
    shared = _fair_share(night)
    if shared is None:
        return
    teams, ledger = teams_of(night), list(night.world.ledger)
    for start in effects(night, START):
        if start.moid not in teams:
            continue
        team, before = teams[start.moid], ledger[: ledger.index(start) + 1]
        limits = shared["teams"].get(team, {}).get("at_most", {})
        on = {moid for moid, _, ends in _runs(before, teams, CLOSES + 9 * DAY) if ends > CLOSES + 8 * DAY}
        gpus = sum(_gpus(night, moid) for moid in on if teams[moid] == team)
        if gpus > limits.get("gpus", gpus):
            yield f"I29: {start.name} was started, and team {team} has {gpus:g} GPUs of {limits['gpus']:g}"
        hours_left = (_closes(start.at) - start.at) / _HOUR
        hours = _hours(night, before, start.at)[team] + gpus * hours_left
        if hours > limits.get("gpu_hours_per_week", hours) + _EXACT_H:
            most = limits["gpu_hours_per_week"]
            yield f"I29: {start.name} was started, and team {team} may come to {hours:.1f} GPU-hours of {most:g}"


def fair_order_kept(night: Played) -> Iterator[str]:
    """I30: a VM that would find room and stays is not passed by one like it whose team had more for its weight."""
    if _fair_share(night) is None:
        return
    for report, _ in night.told:
        if isinstance(report.request, RotateNight) and report.plan.feasible and report.plan.choices:
            changes_seen = [change for change in night.world.ledger if change.at <= report.before.taken_at]
            yield from _order_of(night, report, changes_seen)


def _order_of(night: Played, report: Report, ledger: Sequence[Entry]) -> Iterator[str]:
    shared = _fair_share(night) or {}
    now = report.before.taken_at
    half_life = shared.get("half_life_days", 7)
    used = _hours(night, _as_seen(night, ledger), now, lambda age: 0.5 ** (age / half_life))
    teams, names = teams_of(night), {night.names[moid]: moid for moid in teams_of(night)}
    hours_left = (_closes(now) - now) / _HOUR
    for moid, _, ends in _runs(ledger, teams, now):
        if ends == now:
            used[teams[moid]] += _gpus(night, moid) * hours_left
    entries = {entry["vm"]: entry for entry in json.loads(night.site.policy.text)["ml"]["queue"]}
    choices = {choice.subject: choice for choice in report.plan.choices if choice.subject in names}
    waiting = [name for name in entries if name in choices and _waits(choices[name].reason)]
    level: dict[str, float] = {}
    for name in waiting:
        team = teams[names[name]]
        weight = shared["teams"].get(team, {}).get("weight", 1)
        level[name] = used[team] / weight
        used[team] += _gpus(night, names[name]) * hours_left
    for name in waiting:
        if choices[name].chosen:
            continue
        if not choices[name].reason:
            yield f"I30: {name} stays without a reason"
        if not choices[name].reason.startswith("does not fit") or not entries[name]["relocate"]:
            continue
        alike = (
            waiting_vm
            for waiting_vm in waiting
            if choices[waiting_vm].chosen and _like(night, names[waiting_vm], names[name])
        )
        for rival in alike:
            if level[rival] > level[name] + _EXACT_H:
                yield f"I30: {rival} starts before {name}: {level[rival]:.1f} GPU-hours a weight, {level[name]:.1f}"


def _as_seen(night: Played, ledger: Sequence[Entry]) -> list[Entry]:
    """The ledger with each VM that stopped by itself off from when a return saw that: until then it counts."""
    returns = [report.before.taken_at for report, _ in night.told if not isinstance(report.request, RotateNight)]
    entries = []
    for change in ledger:
        by_itself = not is_ours(change) and change.after.get("power", Power.ON) != Power.ON
        at = (
            min((return_at for return_at in returns if return_at >= change.at), default=None)
            if by_itself
            else change.at
        )
        entries += [] if at is None else [replace(change, at=at)]
    return sorted(entries, key=lambda entry: entry.at)


def _waits(reason: str) -> bool:
    """Whether it is of a VM that waited for a start: the others are off the queue of this night."""
    return reason.startswith(("starts on", "does not fit", "team ")) or not reason


def _like(night: Played, first_vm: str, second_vm: str) -> bool:
    return _gpus(night, first_vm) == _gpus(night, second_vm)


QUEUED: Final = timedelta(seconds=45)
"""So long a step may stand in vCenter's queue before it is taken back."""


def others_are_left(night: Played) -> Iterator[str]:
    """I18: the morning stops only a VM that its night started, and once: a start after that, or after it powered itself
    off, is not the night's. On another machine, which has no journal of that night, only one that carries its marker.
    """
    started: set[str] = set()
    marked: dict[str, int] = {}
    """By the machine that did it."""
    anew: dict[str, datetime] = {}
    """Time after a foreign start: a request sent shortly before may have waited in vCenter's queue behind it."""
    for change in night.world.ledger:
        if change.method == START and not is_ours(change) and change.before.get("power") == Power.OFF:
            started.discard(change.moid)
            anew[change.moid] = change.at
        if not is_ours(change) or night.is_lock_vm(change.moid) or change.method not in (START, OFF, SHUT_DOWN, MARK):
            continue
        machine = machine_of(night, change)
        if change.method == MARK and change.after.get(night.site.policy.marker):
            marked[change.moid] = machine
        elif change.method == MARK:
            marked.pop(change.moid, None)
        elif change.method == START:
            started.add(change.moid)
        elif (
            change.moid in anew
            and timedelta() < anew[change.moid] - night.asked.get(change.operation_id, change.at) < QUEUED
        ):
            continue
        elif not takes(change) and change.moid not in started and marked.get(change.moid, machine) == machine:
            yield f"I18: {change.name} was stopped, and no night had started it"
        else:
            started.discard(change.moid)


def clones_are_left(night: Played) -> Iterator[str]:
    """I31: a clone that somebody made in the night is not started, stopped, suspended or moved; the last morning names
    it if it carries a marker in the attribute of that morning's policy."""
    cloned = clones(night)
    for change in night.world.ledger:
        if change.moid in cloned and is_ours(change) and change.method != MARK:
            yield f"I31: {change.method} on {change.name}, a clone that somebody made"
    if not cloned or night.last is None or not isinstance(night.last.request, RotateDay):
        return
    named = {unmet.subject for unmet in night.last.plan.unmet}
    key = night.world.custom_fields.define(marker_of(night.last.request.policy))
    for moid, name in cloned.items():
        vm: Any = night.world.find(moid)
        if vm is not None and key in vm.attributes and name not in named:
            yield f"I31: {name} is a clone with a marker, and the morning does not name it"


def blockers_are_named(night: Played) -> Iterator[str]:
    """I18: in the end, a desktop that could not come back is named with all VMs on the GPUs of its host, unless another
    task on the desktop was in the way.
    """
    if night.last is None:
        return
    for outcome in night.last.outcomes:
        if (
            isinstance(outcome.step, ResumeVm)
            and outcome.verdict is Verdict.FAILED
            and outcome.trouble is not Trouble.BUSY
        ):
            vm: Any = night.world.find(outcome.step.vm)
            for name in sorted(_on_its_gpus(vm)) if vm is not None else ():
                if name not in outcome.reason:
                    yield f"I18: {vm.name} did not come back, and {name}, which is in its way, is not named"


def _on_its_gpus(vm: Any) -> set[str]:
    return {running_vm.name for running_vm in vm.host().running_vms() if running_vm.state.seats}
