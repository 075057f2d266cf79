"""Nights that are doctored in what happened to ML VMs: their hooks, their ends, and the teams that own them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from gpuops.model.nights.rotation_policy import DrsOverride
from gpuops.sim.core.ledger import Entry
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.state.vm_state import Power
from tests.nights.doctored.nights import Doctor, after, first, night_with_teams, with_ledger
from tests.nights.faults.event import Event
from tests.nights.judging.doings import CLONE, MARK, OFF, SHUT_DOWN, START, effects, is_desktop
from tests.nights.judging.ml_vms import RUN, teams_of
from tests.nights.playing.night import play
from tests.nights.playing.played import OVERRIDE, Played


def without_hooks(night: Played) -> Played:
    """No hook ever ran."""
    return with_ledger(night, [change for change in night.world.ledger if change.method != RUN])


def with_short_hooks(night: Played) -> Played:
    """Each hook began a second before its VM was stopped."""
    stops = {change.moid: change.at for change in night.world.ledger if change.method == "ShutdownGuest"}
    late = timedelta(seconds=1)
    entries = [
        replace(change, at=stops[change.moid] - late) if change.method == RUN else change
        for change in night.world.ledger
    ]
    return with_ledger(night, entries)


def never_asked(night: Played) -> Played:
    records = [(record, length) for record, length in night.kept if "RunInGuest" not in record.body.get("step", {})]
    return replace(night, kept=records, events=(Event("T1"),), told=[])


def kept_off(*, desktop: bool) -> Doctor:
    """DRS is kept off a VM in the end."""

    def doctor_night(night: Played) -> Played:
        start = first(night, START, desktop=desktop)
        override = replace(
            start, method=OVERRIDE, before={"overrides": {}}, after={"overrides": {start.moid: "manual"}}
        )
        return with_ledger(night, [*night.world.ledger, override])

    return doctor_night


def came_in_the_night(night: Played, *, at_first: bool) -> Played:
    """An ML VM was made anew in the night, renamed before it was first touched or once it was started, and deleted. DRS
    was kept off it."""
    vm = first(night, START, desktop=False)
    names = {moid: name for moid, name in night.names.items() if moid != vm.moid}
    override = replace(vm, moid="c", name="c", method=OVERRIDE, before={"overrides": {}},
                       after={"overrides": {vm.moid: "manual"}})  # fmt: skip
    entries: list[Entry] = []
    for change in night.world.ledger:
        renamed = change.moid == vm.moid and (at_first or change.sequence > vm.sequence)
        entries.append(replace(change, name="renamed") if renamed else change)
        entries += [override] if change is vm else []
    policy = replace(night.site.policy, drs_override=DrsOverride.MANUAL)
    played = with_ledger(night, entries, names=names, site=replace(night.site, policy=policy))
    played.world.find = lambda moid: None if moid == vm.moid else night.world.find(moid)  # type: ignore[method-assign]
    return played


def renamed_at_first(night: Played) -> Played:
    """What was touched was called otherwise before anything was done to it."""
    return came_in_the_night(night, at_first=True)


def late_and_made_anew(night: Played) -> Played:
    """No hook was tried, and each VM that was recreated in the night is reported as late."""
    names = {moid: name for moid, name in night.names.items() if name.startswith("desktop-")}
    report, length = night.told[-1]
    queue = [queued.names[0] for queued in night.site.policy.ml]
    warnings = tuple(f"{name}: 0 s to save its work, not 240 s: the return is late" for name in queue)
    reports = (replace(report, plan=replace(report.plan, warnings=warnings)), length)
    return replace(never_asked(night), names=names, told=[reports])


def left_running(night: Played) -> Played:
    start = first(night, START, desktop=False)
    on: Any = SimpleNamespace(state=SimpleNamespace(power=Power.ON))
    night = with_ledger(night, list(night.world.ledger))
    night.world.find = lambda moid: on if moid == start.moid else None  # type: ignore[method-assign]
    return night


def powered_off_in_its_grace(night: Played) -> Played:
    shutdown = first(night, "ShutdownGuest", desktop=False)
    return with_ledger(night, [*night.world.ledger, replace(shutdown, method=OFF)])


def stopped_elsewhere_without_its_marker(night: Played) -> Played:
    """By another machine, which knows no more of the night than the markers say."""
    started = {entry.operation_id for entry in effects(night, START) if not is_desktop(night, entry.moid)}
    changes_kept = [
        change for change in night.world.ledger if change.method != MARK and change.operation_id not in started
    ]
    return with_ledger(
        night, changes_kept, sent_by={op_id: (-1, half, at) for op_id, (_, half, at) in night.sent_by.items()}
    )


def started_by_somebody_before_it_is_stopped(night: Played) -> Played:
    """An ML VM of the night powers itself off, and its user starts it, minutes before it is stopped."""
    ledger = list(night.world.ledger)
    [stop, *_] = [entry for entry in effects(night, OFF, SHUT_DOWN) if not is_desktop(night, entry.moid)]
    at = ledger.index(stop)
    off, on = {"power": "poweredOff"}, {"power": "poweredOn"}
    minutes_before = stop.at - timedelta(minutes=5)
    theirs = replace(stop, method=START, operation_id="", at=minutes_before, before=off, after=on)
    return with_ledger(night, [*ledger[:at], theirs, *ledger[at:]])


def started_when_it_was_not_queued_any_more(night: Played) -> Played:
    start = first(night, START, desktop=False)
    at = start.at - timedelta(minutes=5)
    renamed = replace(start, at=at, operation_id="", method="Rename_Task", before={}, after={"name": "retired"})
    return with_ledger(night, [renamed, *night.world.ledger])


TEAMS = ("red", "green", "blue")


def with_teams(night: Played, teams: dict[str, object]) -> Played:
    """The policy says this of them."""
    written = json.loads(night.site.policy.text)
    text = json.dumps({**written, "fair_share": {**written["fair_share"], "teams": teams}})
    return replace(night, site=replace(night.site, policy=replace(night.site.policy, text=text)))


def with_team_limit(limit: str) -> Doctor:
    """No team may have anything."""
    return lambda night: with_teams(
        night_with_teams(), {team: {"at_most": {limit: 0}} for team in (*TEAMS, "(no owner)")}
    )


def the_first_come_last(night: Played) -> Played:
    """The weights are such that each VM that started had a team with far more than that of one that stayed."""
    stays = {
        moid
        for report, _ in night_with_teams().told
        for choice in report.plan.choices
        for moid, name in night_with_teams().names.items()
        if name == choice.subject and "fair share:" in choice.reason
    }
    teams = teams_of(night_with_teams())
    least = sorted(teams[moid] for moid in stays)[0]
    return with_teams(
        night_with_teams(), {team: {"weight": 1000 if team == least else 0.001} for team in (*TEAMS, "(no owner)")}
    )


def stays_for_nothing(night: Played) -> Played:
    """No report says why the VM waits."""
    reports = [
        (replace(report, plan=replace(report.plan, choices=tuple(
            replace(choice, reason=choice.reason if choice.chosen else "") for choice in report.plan.choices))), length)
        for report, length in night_with_teams().told
    ]  # fmt: skip
    return replace(night_with_teams(), told=reports)


def stops_a_clone(night: Played) -> Played:
    """Somebody clones an ML VM, and the return stops the clone."""
    cloned = {"moid": "vm-0", "name": "ml-01-copy"}
    with_clone = after(START, desktop=False, **cloned, method=CLONE, operation_id="", before={}, after={})(night)
    return after(OFF, desktop=False, **cloned)(with_clone)


def names_no_clone(night: Played) -> Played:
    """A VM that carries a marker turns out to be a clone."""
    marked = play(night.seed, [Event("V14", rules_of("V14", {"target": "ml-*", "at_s": 3600.0}))])
    key = marked.world.custom_fields.define(marked.site.policy.marker)
    clone = next(vm for vm in marked.world.by_type("VirtualMachine") if vm.name.endswith("-copy"))
    clone.set_attribute(key, "2026-11-02 ml")
    assert marked.last is not None
    return replace(marked, last=replace(marked.last, plan=replace(marked.last.plan, unmet=())))
