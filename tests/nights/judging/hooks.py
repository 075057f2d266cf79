"""Hooks: before an ML VM that a night started is stopped, its guest is given the time to keep its work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuops.execute.journal.record import Kind
from gpuops.sim.core.ledger import Entry
from tests.nights.judging.doings import OFF, SHUT_DOWN, START, chosen_as, effects, is_desktop
from tests.nights.playing.played import Played
from tests.nights.world.worlds import HOOK

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
