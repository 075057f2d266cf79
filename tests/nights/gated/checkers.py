"""Invariants of a gated night, checked with the pod's own records and the simulator's ledger.

GA no desktop is suspended under a session that the broker knew at the last look, or that it let in after the gate;
GB a session that began between the last look and the suspend has its desktop back at once;
GC no gate is closed when all is over, except for an admin's own maintenance, which no night ends;
GD no desktop is suspended whose gate was open when the suspend was sent, unless it was opened within the last look;
GE a broker that is away keeps no engine going round and round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.execute.journal.record import IntentState, Kind
from gpuops.execute.runs import RunKind
from gpuops.sim.core.ledger import Entry
from gpuops.sim.state.vm_state import Power
from tests.nights.gated.night import GatedPlayed
from tests.nights.gated.pod import ADMIN, BOTH, Stay
from tests.nights.judging.checkers import CHECKERS
from tests.nights.judging.doings import START, SUSPEND, effects, is_desktop, is_ours
from tests.nights.judging.limits import first_night_is_whole, fits_back, one_night, second_night_is_empty
from tests.nights.truths.reports import only_who_is_away_is_named
from tests.nights.truths.truths import closed_at_the_end

AT_ONCE: Final = timedelta(minutes=3)
"""From the end of the suspend to the end of the resume; a vCenter that is in trouble takes its time."""
LIST: Final = timedelta(seconds=10)
"""A list that arrives this late was requested earlier."""

_WITHOUT_TROUBLE: Final = (
    first_night_is_whole,
    second_night_is_empty,
    fits_back,
    closed_at_the_end,
    only_who_is_away_is_named,
)
"""What holds for nights in which nothing goes wrong, or no user comes: here users always come, and the broker is in
trouble."""

Checker = Callable[[GatedPlayed], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Cut:
    """A session that was there when its desktop was suspended, by us."""

    name: str
    stay: Stay
    looked_at: datetime | None
    suspended: Entry
    back_at: datetime | None

    @property
    def told(self) -> str:
        return f"{self.name} was suspended at {self.suspended.at:%H:%M:%S} under a session"

    @property
    def seen(self) -> bool:
        """Whether it was there at the last look."""
        return self.looked_at is not None and self.stay.shown_at < self.looked_at


def cuts(gated: GatedPlayed) -> list[Cut]:
    """Every session that was there when its desktop was suspended."""
    all_cuts = []
    ledger = list(gated.night.world.ledger)
    for number, entry in enumerate(ledger):
        if not (is_ours(entry) and entry.method == SUSPEND):
            continue
        suspends_before = [suspend for suspend in gated.suspends if suspend[0] == entry.moid and suspend[1] <= entry.at]
        same = (change for change in ledger[number + 1 :] if change.moid == entry.moid)
        back = next((change.at for change in same if change.after.get("power") == Power.ON), None)
        for stay in gated.pod.stays:
            looked_at = (suspends_before[-1][3] if stay.by_rdp else suspends_before[-1][2]) if suspends_before else None
            if stay.moid == entry.moid and stay.since <= entry.at and (stay.until is None or stay.until > entry.at):
                all_cuts.append(Cut(entry.name, stay, looked_at, entry, back))
    return all_cuts


def no_session_of_the_last_look_is_cut(gated: GatedPlayed) -> Iterator[str]:
    """GA: what was there at the last look keeps the desktop, by whichever way its user came."""
    for cut in cuts(gated):
        if cut.seen and not (cut.stay.by_rdp and gated.night.events):  # vCenter may have told old values, or none
            yield f"GA: {cut.told} of {cut.stay.since:%H:%M:%S}"


def who_came_between_is_back(gated: GatedPlayed) -> Iterator[str]:
    """GB: a session of the broker that began between the last look and the suspend has its desktop back at once; so has
    one by RDP where the operator's command sees it. Where vCenter refuses that, it was asked at once; a machine that
    somebody has destroyed meanwhile cannot be given back."""
    for cut in cuts(gated):
        untold = cut.stay.by_rdp and not gated.watched
        if untold or cut.seen or gated.night.events:
            continue
        late = cut.back_at is None or cut.back_at - cut.suspended.at > AT_ONCE
        if late and not (_refused_at_once(gated, cut) or _destroyed_at_once(gated, cut)):
            yield f"GB: {cut.told}, and back at {cut.back_at}"


def _refused_at_once(gated: GatedPlayed, cut: Cut) -> bool:
    """Whether its resume was asked for in time, and did not come about."""
    states = {record.body["op"]: record.body["state"] for record, _ in gated.night.kept if record.kind is Kind.SETTLED}
    return any(
        record.body["step"].get("ResumeVm", {}).get("vm") == cut.suspended.moid
        and timedelta() <= record.at - cut.suspended.at <= AT_ONCE
        and states.get(record.body["op"]) == IntentState.FAILED
        for record, _ in gated.night.kept
        if record.kind is Kind.INTENT
    )


def _destroyed_at_once(gated: GatedPlayed, cut: Cut) -> bool:
    """Whether the VM was gone before it had to be back."""
    return any(
        change.moid == cut.suspended.moid
        and change.method == "Destroy_Task"
        and timedelta() <= change.at - cut.suspended.at <= AT_ONCE
        for change in gated.night.world.ledger
    )


def nobody_is_kept_away(gated: GatedPlayed) -> Iterator[str]:
    """GC: only an admin's own maintenance is left, and gates of desktops that cannot be resumed in the simulator."""
    world = gated.night.world
    for moid in sorted(gated.gated_at_end):
        vm: Any = world.find(moid)
        if vm is not None and vm.state.power is not Power.ON and moid not in gated.night.left_behind:
            continue
        if gated.pod.owners.get(moid) not in (ADMIN, BOTH):
            yield f"GC: {gated.night.names.get(moid, moid)} is kept from users, and nothing is going on"


def the_admins_maintenance_is_left(gated: GatedPlayed) -> Iterator[str]:
    """GC: no night ends what an admin began."""
    for moid, at in gated.pod.wrongly_opened:
        yield f"GC: the maintenance of {gated.night.names.get(moid, moid)} by an admin was ended at {at:%H:%M:%S}"


def only_behind_a_gate(gated: GatedPlayed) -> Iterator[str]:
    """GD: from the last look to the suspend its gate is closed, but for who opens it meanwhile."""
    for moid, asked_at, looked_at, _ in gated.suspends:
        vm = gated.night.world.find(moid)
        if vm is None or looked_at is None:
            continue
        if not gated.pod.was_ever_in_maintenance(vm, looked_at - LIST, asked_at):
            yield f"GD: {gated.night.names.get(moid, moid)} was suspended at {asked_at:%H:%M:%S}, and its gate was open"


def nothing_spins(gated: GatedPlayed) -> Iterator[str]:
    """GE: where the engine has nothing to do, time passes."""
    if gated.spun:
        yield f"GE: {gated.spun}"


GATED: Final[tuple[Checker, ...]] = (
    no_session_of_the_last_look_is_cut,
    who_came_between_is_back,
    nobody_is_kept_away,
    the_admins_maintenance_is_left,
    only_behind_a_gate,
    nothing_spins,
)


def _gives_back(gated: GatedPlayed) -> bool:
    """Whether a night has resumed a desktop itself: that is no beginning of its return."""
    night = gated.night
    return any(
        is_desktop(night, entry.moid, entry.name) and night.sent_by[entry.operation_id][1] != RunKind.DAY
        for entry in effects(night, START)
        if entry.operation_id in night.sent_by
    )


def violations(gated: GatedPlayed) -> list[str]:
    """Everything that does not hold of this night, what must hold of any night, and the simulator's own bugs."""
    if gated.spun:
        return list(nothing_spins(gated))
    of_gates = [violation for checker in GATED for violation in checker(gated)]
    left_out = (*_WITHOUT_TROUBLE, one_night) if _gives_back(gated) else _WITHOUT_TROUBLE
    of_any = (checker for checker in CHECKERS if checker not in left_out)
    return [
        *of_gates,
        *(violation for checker in of_any for violation in checker(gated.night)),
        *gated.night.world.bugs,
    ]
