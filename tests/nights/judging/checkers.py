"""Checkers: what must hold of every night, on the simulator's ledger alone. Each names its invariant.

Numbers are those of the protocol: I1 every desktop is back or named, I2 no session is cut, I4 a second run is empty,
I6/I14 how much is in flight, I7 whose VMs are touched, I11 no suspended state is discarded, I13 the floor, I17 a
desktop that came back is left alone, I19 sessions, I20 the window. What journal and reports say is checked in
`promises`, what a night never does, and what it does not do when nothing goes wrong, in `limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.model.nights.night_record import Role, parse_marker
from gpuops.model.nights.rotation_policy import Pool
from gpuops.plan.core.plan import Verdict
from gpuops.plan.rotation.nights.night_refusals import BACK_BY_THEMSELVES
from gpuops.sim.core.ledger import Entry
from gpuops.sim.state.vm_state import Power
from tests.nights.at_once.machines import one_at_a_time, one_holder, under_a_lease
from tests.nights.at_once.several import Several
from tests.nights.judging import limits, ml_vms, promises
from tests.nights.judging.doings import (
    CALL,
    MARK,
    MOVE,
    OFF,
    SHUT_DOWN,
    START,
    chosen_as,
    clones,
    effects,
    is_desktop,
    let_go,
    not_back,
    takes,
    takings,
    told_late,
)
from tests.nights.playing.played import OVERRIDE, Played
from tests.nights.truths.truths import TRUTHS
from tests.nights.world.worlds import CLOSES, DAY, EVENING

DEFINE = "AddCustomFieldDef"
"""The first marker in a vCenter defines its attribute; it is on no VM."""

FRESH: Final = timedelta(minutes=2)
LOOK_S: Final = 30.0
"""A step by an older look is not sent."""
UNSEEN: Final = ("A9", "A10", "A11", "A12", "N2", "V4", "V5", "V6", "C1", "C5", "C8")
"""What may hide that a desktop runs, or that it is of its pool."""

UNREACHABLE: Final = ("T12", "T13", "N7")
"""What may keep a run from logging out."""

Checker = Callable[[Played], Iterator[str]]


def desktops_back(night: Played) -> Iterator[str]:
    """I1: every desktop that we suspended runs again, or the last report names it, or a person gave it up; no other
    desktop is named.

    What becomes of a desktop after it was back is no longer ours to tell.
    """
    ours = {entry.moid for entry in effects(night) if takes(entry)} | night.left_over
    report = night.last
    named = _named_vms(night)
    for moid in sorted(not_back(list(night.world.ledger)) - named - let_go(night) - night.given_up):
        vm: Any = night.world.find(moid)
        yield f"I1: {night.names.get(moid)} is {vm.state.power if vm else 'gone'}, and the morning does not name it"
    for moid in sorted(named - ours - night.doubtful - night.strays):
        if is_desktop(night, moid):
            yield f"I1: {night.names.get(moid)} is named, and was never suspended by us"
    nothing_known = night.site.several is Several.POLICIES and not list(effects(night))
    if report is None and not nothing_known:  # a return that names no policy goes by what the journal knows
        yield "I1: there is no report in the morning"


def _named_vms(night: Played) -> set[str]:
    """The VMs (refs) that the last report says are not as they were."""
    if night.last is None:
        return set()
    bad = (Verdict.FAILED, Verdict.UNKNOWN, Verdict.SKIPPED)
    by_name = {name: moid for moid, name in night.names.items()}
    last = [report for report in (night.last, night.last_elsewhere) if report is not None]
    unmet = {by_name.get(unmet_vm.subject, unmet_vm.subject) for report in last for unmet_vm in report.plan.unmet}
    return unmet | {outcome.step.vm for report in last for outcome in report.outcomes if outcome.verdict in bad}


def no_session_is_cut(night: Played) -> Iterator[str]:
    """I2: without a broker there is one call between the last look and the suspend; a session older than that is
    never cut."""
    for moid, since, at in _unseen_for_long(night, night.cut_sessions):
        yield f"I2: {night.names.get(moid)} was suspended {at - since} after its user sat down"


def what_is_withdrawn_stays(night: Played) -> Iterator[str]:
    """I7: a desktop that was opted out, or whose owner's mark was taken off, is not taken from the next look on."""
    for moid, since, at in _unseen_for_long(night, night.in_spite):
        yield f"I7: {night.names.get(moid)} was suspended {at - since} after it had been withdrawn"


def only_the_queue_starts(night: Played) -> Iterator[str]:
    """I7: an ML VM that was renamed out of the queue is not started or moved from the next look on."""
    queue = {name for queued in night.site.policy.ml for name in queued.names}
    started = [entry for entry in effects(night, START, MOVE) if not is_desktop(night, entry.moid)]
    renamed: dict[str, datetime] = {}
    late: list[tuple[str, datetime, datetime]] = []
    for change in night.world.ledger:
        name = change.after.get("name")
        if name is not None and change.moid in night.names:
            if name in queue:
                renamed.pop(change.moid, None)
            else:
                renamed[change.moid] = change.at
        elif change.moid in renamed and change in started:
            asked_at = night.asked.get(change.operation_id, change.at)
            late.append((change.moid, renamed[change.moid], asked_at))
    for moid, since, at in _unseen_for_long(night, late):
        yield f"I7: {night.names[moid]} was started {at - since} after it had been renamed out of the queue"


def _unseen_for_long(
    night: Played, suspended: Sequence[tuple[str, datetime, datetime]]
) -> Iterator[tuple[str, datetime, datetime]]:
    """Those that were suspended long after what spoke against it could be seen, which is later where vCenter told old
    values. Of a machine that was paused meanwhile one request may have been past its check."""
    pauses_left = list(night.stood)
    for moid, since, at in suspended:
        paused = next(
            (pause for pause in pauses_left if pause[0] - CALL <= since <= pause[1] <= at <= pause[1] + CALL), None
        )
        if paused is not None:
            pauses_left.remove(paused)
        elif at - since > CALL + told_late(night):
            yield moid, since, at


def who_works_is_left(night: Played) -> Iterator[str]:
    """I2: a desktop that was used in the evening, and is all night, is never taken, whatever can be read of it."""
    for entry in effects(night):
        if takes(entry) and entry.moid in night.busy:
            yield f"I2: {entry.name} was taken, and somebody worked with it"


def second_is_empty(night: Played) -> Iterator[str]:
    """I4: the morning after the last one has nothing to do."""
    if night.second:
        yield f"I4: a second morning had {night.second} effects"


def in_flight(night: Played) -> Iterator[str]:
    """I14: never more effects at once than the policy says."""
    allowed = night.site.policy.limits.in_flight
    if night.most_in_flight > allowed:
        yield f"I14: {night.most_in_flight} effects in flight, {allowed} allowed"


def only_ours(night: Played) -> Iterator[str]:
    """I7: taking touches what the policy selects, returning what a night has marked or taken, whatever it is called by
    then; nothing else is touched. A clone may lose the marker that it has of its source."""
    queue = {queued.names[0] for queued in night.site.policy.ml}
    ours, cloned = set(night.left_over), clones(night)
    for entry in effects(night):
        name = chosen_as(night, entry.moid)
        if entry.method in (DEFINE, OVERRIDE) or entry.moid in night.asked_for:
            continue
        if entry.moid in cloned and entry.method == MARK:
            continue
        if name not in queue and not name.startswith("desktop-"):
            yield f"I7: {entry.method} on {entry.name}, which no policy selects"
        elif name not in queue and entry.moid not in night.takeable:
            yield f"I7: {entry.method} on {name}, which has not both keys, or has opted out"
        elif _returns(night, entry) and entry.moid not in ours:
            yield f"I7: {entry.method} on {name}, which no night has marked or taken"
        ours.add(entry.moid)


def _returns(night: Played, entry: Entry) -> bool:
    """Whether it is what a morning does with such a VM."""
    return entry.method == START if is_desktop(night, entry.moid, entry.name) else entry.method in (OFF, SHUT_DOWN)


def nothing_discarded(night: Played) -> Iterator[str]:
    """I11: no suspended desktop is powered off, and none that was shown to be off at the last look is booted."""
    for entry in effects(night, OFF, START):
        power_before = entry.before.get("power")
        if entry.method == OFF and power_before == Power.SUSPENDED:
            yield f"I11: {entry.name} was powered off while suspended"
        booted = entry.method == START and power_before == Power.OFF and is_desktop(night, entry.moid, entry.name)
        if booted and not _is_to_be_shut_down(night, entry) and not _just_powered_off(night, entry):
            yield f"I11: {entry.name} was booted"


def _is_to_be_shut_down(night: Played, start: Entry) -> bool:
    """Whether a night marked it as a desktop whose guest is shut down: nothing of it can be discarded, and it is
    unknown whether its guest was faster or its host crashed.
    """
    marker = night.site.policy.marker
    before = (change for change in night.world.ledger if change.moid == start.moid and change.sequence < start.sequence)
    marks = [parse_marker(str(change.after[marker])) for change in before if marker in change.after]
    return any(marked is not None and marked.role is Role.SHUT_DOWN for marked in marks)


def _just_powered_off(night: Played, start: Entry) -> bool:
    """Whether others powered it off when it was about to be resumed: of several that are sent at once the look before
    all of them is a few calls old, and what it showed may have been older, where vCenter told old values."""
    asked_at = night.asked.get(start.operation_id, start.at)
    since = asked_at - timedelta(seconds=LOOK_S) - told_late(night)
    off = (change for change in night.world.ledger if change.after.get("power") == Power.OFF)
    offs = [change.at for change in off if change.moid == start.moid]
    return any(since <= at <= start.at for at in offs)


def floor_holds(night: Played) -> Iterator[str]:
    """I13: a suspend leaves as many desktops of the pool running as its floor says, on facts a minute old at most."""
    for pool in night.site.pools:
        yield from _floor_of(pool, night)


def _floor_of(pool: Pool, night: Played) -> Iterator[str]:
    running = {moid for moid in night.running if night.site.pool_of(night.names[moid]) is pool}
    left_at: list[datetime] = []
    """When others' doing took one out of those that run."""
    for change in night.world.ledger:
        power = change.after.get("power")
        if power is None or night.site.pool_of(night.names.get(change.moid, change.name)) is not pool:
            continue
        is_taking = takes(change)
        if power != Power.ON and change.moid in running and not is_taking:
            left_at.append(change.at)
        running = running | {change.moid} if power == Power.ON else running - {change.moid}
        if not is_taking:
            continue
        asked_at = night.asked.get(change.operation_id, change.at)
        unseen = sum(1 for at in left_at if at > asked_at - FRESH)
        if len(running) + unseen < pool.floor:
            yield f"I13: {change.name} was taken, {len(running)} run, the floor is {pool.floor}"


def who_came_back_stays(night: Played) -> Iterator[str]:
    """I17: a desktop that we took and others woke is not suspended again in that night.

    One that was started before we came near it had not come back: whether it may be taken is I2 and I7.
    """
    taken_vms: set[str] = set()
    woken: set[str] = set()
    for change in night.world.ledger:
        ours = change.operation_id.startswith("gpuops-")
        if change.after.get("power") == Power.ON and not ours and change.moid in taken_vms:
            woken.add(change.moid)
        elif takes(change):
            taken_vms.add(change.moid)
            if change.moid not in woken:
                continue
            yield f"I17: {change.name} was suspended again after somebody woke it"


def restless_pool_is_left(night: Played) -> Iterator[str]:
    """I17: once three desktops that we took run again by others' doing, and that can be seen, no more of their pool are
    suspended."""
    if any(event.fault in UNSEEN for event in night.events):
        return
    for pool in night.site.pools:
        yield from _restless_in(pool, night)


def _restless_in(pool: Pool, night: Played) -> Iterator[str]:
    taken_vms: set[str] = set()
    woken: dict[str, datetime] = {}
    for change in night.world.ledger:
        if night.site.pool_of(night.names.get(change.moid, change.name)) is not pool:
            continue
        power, ours = change.after.get("power"), change.operation_id.startswith("gpuops-")
        if takes(change):
            asked_at, back = night.asked.get(change.operation_id, change.at), sorted(woken.values())
            if len(back) >= BACK_BY_THEMSELVES and asked_at > back[BACK_BY_THEMSELVES - 1] + FRESH:
                yield f"I17: {change.name} was suspended, and {len(woken)} of its pool had come back by themselves"
            taken_vms.add(change.moid)
        if power == Power.ON and not ours and change.moid in taken_vms:
            woken[change.moid] = change.at
        elif power not in (None, Power.ON):
            woken.pop(change.moid, None)


def one_session(night: Played) -> Iterator[str]:
    """I19: a run has one session, and ends it; of a vCenter that cannot be reached the session ends when it idles."""
    if night.most_sessions > 1:
        yield f"I19: a run had {night.most_sessions} sessions at once"
    if night.sessions and not any(event.fault in UNREACHABLE for event in night.events):
        yield f"I19: a run left {night.sessions} sessions behind"


def inside_the_window(night: Played) -> Iterator[str]:
    """I20: nothing is asked to be taken before the window opens or after it closes."""
    for entry in takings(night):
        asked_at = night.asked.get(entry.operation_id, entry.at)
        if (asked_at - EVENING) % DAY > CLOSES - EVENING:
            yield f"I20: {entry.method} on {entry.name} at {asked_at:%H:%M}"


CHECKERS: Final[tuple[Checker, ...]] = (
    ml_vms.others_are_left,
    ml_vms.clones_are_left,
    ml_vms.blockers_are_named,
    desktops_back,
    no_session_is_cut,
    what_is_withdrawn_stays,
    only_the_queue_starts,
    who_works_is_left,
    second_is_empty,
    one_at_a_time,
    in_flight,
    only_ours,
    nothing_discarded,
    floor_holds,
    who_came_back_stays,
    restless_pool_is_left,
    one_session,
    inside_the_window,
    promises.journal_keeps,
    promises.intent_first,
    promises.failed_for_certain,
    promises.done_was_done,
    promises.each_step_is_told,
    promises.told_is_back,
    promises.told_with_a_command,
    promises.advice_gets_further,
    promises.marked,
    limits.on_host,
    limits.stays_where_it_is,
    limits.in_time,
    limits.nobody_left_behind,
    limits.ml_stops,
    limits.fits,
    limits.fits_back,
    limits.second_night_is_empty,
    limits.first_night_is_whole,
    limits.failures_stop_it,
    limits.one_night,
    limits.grace_is_kept,
    limits.only_the_queue,
    limits.put_back,
    ml_vms.work_is_kept,
    ml_vms.asked_to_keep,
    limits.nothing_on_a_wrong_clock,
    one_holder,
    under_a_lease,
    ml_vms.teams_within_limits,
    ml_vms.fair_order_kept,
    *TRUTHS,
)


def violations(night: Played) -> list[str]:
    """Everything that does not hold of this night, and the simulator's own bugs."""
    return [*(violation for checker in CHECKERS for violation in checker(night)), *night.world.bugs]
