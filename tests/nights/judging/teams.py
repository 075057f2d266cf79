"""I29: no start takes a team over what it may have. I30: of VMs that are alike none starts before one of a team that
had less for its weight, and each that stays has a reason.

Told from the simulator's ledger, its attributes and the policy's text alone: nothing here counts as gpuops does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.plan.core.plan import Report
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.sim.core.ledger import Entry
from gpuops.sim.state.vm_state import Power
from tests.nights.judging.doings import START, effects, is_desktop, is_ours
from tests.nights.playing.played import Played
from tests.nights.world.worlds import CLOSES, DAY, EVENING

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
