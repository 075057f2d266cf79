"""Whole nights that are doctored in one place, and how: a ledger without an effect, or with one more."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from gpuops.sim.core.ledger import Entry
from tests.nights.judging.doings import MARK, MOVE, OFF, START, SUSPEND, is_desktop
from tests.nights.judging.ml_vms import RUN
from tests.nights.playing.night import play
from tests.nights.playing.played import Played
from tests.nights.situations.situations import SITUATIONS

SEED = 106
"""Of a night with desktops suspended, ML VMs moved, started, shut down and powered off."""
HOOKED = 2
"""Of a night whose ML VMs keep their work by hooks: one does, others fail, hang, or have no VMware Tools."""

Doctor = Callable[[Played], Played]


@cache
def quiet() -> Played:
    night = play(SEED, ())
    methods = [change.method for change in night.world.ledger]
    assert methods.count(SUSPEND) > 2, "there is something to doctor"
    assert {MOVE, MARK, START, OFF, "ShutdownGuest"} <= set(methods)
    return night


@cache
def night_with_hooks() -> Played:
    night = play(HOOKED, ())
    assert [change.method for change in night.world.ledger].count(RUN) > 2
    return night


@cache
def night_with_teams() -> Played:
    """Two nights of a full site that teams share."""
    return next(
        night
        for seed in range(7_100_000, 7_100_040, 2)
        if len(json.loads((night := SITUATIONS["Teams"](seed).play()).site.policy.text)["fair_share"]["teams"]) == 3
        and sum("fair share:" in choice.reason for report, _ in night.told for choice in report.plan.choices) > 3
    )


def with_ledger(night: Played, entries: list[Entry], **fields: Any) -> Played:
    """The night with another ledger, numbered anew."""
    ledger = [replace(entry, sequence=number) for number, entry in enumerate(entries, 1)]
    world: Any = SimpleNamespace(
        ledger=ledger,
        find=night.world.find,
        tasks=night.world.tasks,
        by_type=night.world.by_type,
        custom_fields=night.world.custom_fields,
        bugs=[],
    )
    return replace(night, world=world, **fields)


def first(night: Played, method: str, *, desktop: bool) -> Entry:
    return next(
        change for change in night.world.ledger if change.method == method and is_desktop(night, change.moid) == desktop
    )


def without(method: str, *, desktop: bool) -> Doctor:
    """The first such effect never was."""

    def doctor_night(night: Played) -> Played:
        removed_effect = first(night, method, desktop=desktop)
        return with_ledger(night, [change for change in night.world.ledger if change is not removed_effect])

    return doctor_night


def after(effect: str, *, desktop: bool, **changes: Any) -> Doctor:
    """One more effect right after the first such: the same, but for the changes."""

    def doctor_night(night: Played) -> Played:
        effect_before = first(night, effect, desktop=desktop)
        effect_added = replace(effect_before, **changes)
        entries = [
            entry
            for change in night.world.ledger
            for entry in ([change, effect_added] if change is effect_before else [change])
        ]
        return with_ledger(night, entries)

    return doctor_night
