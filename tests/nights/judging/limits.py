"""Limits: what a night must not do whatever goes wrong, and what it must not do when nothing goes wrong at all.

I3 no start is asked for that cannot be, I4 a second run is empty, I7 no VM is moved and no override of DRS changed that
must not be, I8 an ML VM has its grace, I9 nothing is taken when the return must begin, I12 who was taken fits back, I14
how much is in flight on a host, I21 nothing is taken while the clocks are far apart, I23 when all is well again
everybody comes back, and DRS does what it did before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from gpuops.execute.journal.record import IntentState, Kind
from gpuops.execute.runs import RunKind
from gpuops.model.nights.rotation_policy import DrsOverride
from gpuops.model.window import RETURN_FLOOR
from gpuops.plan.core.plan import Verdict
from gpuops.plan.rotation.nights.night_refusals import MOST_CLOCK_DIFFERENCE
from gpuops.sim.core.ledger import Entry
from gpuops.sim.state.vm_state import Power
from tests.nights.at_once.machines import PAUSED
from tests.nights.at_once.several import Several, second_machine
from tests.nights.faults.schedule import CALLS, SESSIONS
from tests.nights.judging.doings import (
    CALL,
    MOVE,
    OFF,
    START,
    chosen_as,
    effects,
    is_desktop,
    is_ours,
    machine_of,
    not_back,
    takes,
    takings,
    told_late,
)
from tests.nights.playing.played import OVERRIDE, Played
from tests.nights.world.direct import METHODS
from tests.nights.world.worlds import CLOSES, DAY, EVENING

FEWEST_FAILED: Final = 3
OF_OURS: Final = frozenset(
    {*CALLS, *SESSIONS, "T8", "T12", "T13", "N7", "K1", "K2", "K3", "K5", "K7", "K10", "H1", "H4"}
)
"""Faults of our calls and our process, and users at desktops: no GPU fails, and no other machine acts."""
NO_ROOM: Final = ("InsufficientGraphicsResourcesFault", "InsufficientMemoryResourceFault", "NoCompatibleHost")


def on_host(night: Played) -> Iterator[str]:
    """I14: never more on one host at once than the policy says; a VM that somebody moves meanwhile is not counted."""
    allowed = night.site.policy.limits.per_host
    if night.most_on_host > allowed and not any(event.fault in ("C1", "C3", "C4") for event in night.events):
        yield f"I14: {night.most_on_host} effects in flight on one host, {allowed} allowed"


def stays_where_it_is(night: Played) -> Iterator[str]:
    """I7: only a VM of the queue that may be moved is moved, and a desktop comes back where it is registered."""
    may_move = {queued.names[0] for queued in night.site.policy.ml if queued.relocate}
    for entry in effects(night, MOVE):
        if chosen_as(night, entry.moid) not in may_move:
            yield f"I7: {entry.name} was moved, and the policy does not let it"
    pauses = list(night.stood)
    for entry in effects(night, START):
        moves = is_desktop(night, entry.moid, entry.name) and "host" in entry.after
        if moves and not _just_moved(night, entry, pauses):
            yield f"I7: {entry.name} came back on another host than the one it was on"


def _just_moved(night: Played, start: Entry, pauses: list[tuple[datetime, datetime]]) -> bool:
    """Whether it was moved when its resume had been asked for, or where vCenter still showed it where it was: between
    the last look and that there is one call. Of a machine that was paused meanwhile one request may have been past its
    check: that pause is taken out."""
    asked_at = night.asked.get(start.operation_id, start.at)
    moves = [
        change.at for change in night.world.ledger if change.moid == start.moid and change.method == "MigrateVM_Task"
    ]
    if any(asked_at - told_late(night) <= at <= start.at for at in moves):
        return True
    for since, until in pauses:
        if until <= asked_at <= until + CALL and any(since - CALL <= at <= until for at in moves):
            pauses.remove((since, until))
            return True
    return False


def in_time(night: Played) -> Iterator[str]:
    """I9: nothing is asked to be taken in the time that the return needs at the least. Of a machine that was paused one
    request may have been past its check."""
    pauses = list(night.stood)
    for entry in takings(night):
        asked_at = night.asked.get(entry.operation_id, entry.at)
        paused = next(
            (pause for pause in pauses if _in_time(pause[0]) and pause[1] <= asked_at <= pause[1] + CALL), None
        )
        if not _in_time(asked_at) and paused is not None:
            pauses.remove(paused)
        elif not _in_time(asked_at):
            yield f"I9: {entry.method} on {entry.name} was asked for at {asked_at:%H:%M}, the return had begun"


def _in_time(moment: datetime) -> bool:
    return (moment - EVENING) % DAY <= CLOSES - EVENING - RETURN_FLOOR


def nobody_left_behind(night: Played) -> Iterator[str]:
    """I23: when nothing goes wrong any more, every VM that the simulator would let resume has been resumed, unless an
    admin gave it up.
    """
    for moid in sorted(not_back(list(night.world.ledger)) & night.left_behind - night.given_up):
        yield f"I23: {night.names.get(moid)} could be running again, and is not"


def ml_stops(night: Played) -> Iterator[str]:
    """I23: an ML VM that only we started stops in the morning, unless the policy says otherwise or a
    person gave it up. One with a task that hangs takes no other, and is named."""
    if not night.site.policy.ml_stop.then_off:
        return
    failed = (
        {outcome.step.vm for outcome in night.last.outcomes if outcome.verdict is Verdict.FAILED}
        if night.last
        else set()
    )
    started: dict[str, str] = {}
    for change in night.world.ledger:
        if change.after.get("power") == Power.ON:
            started[change.moid] = change.operation_id
    for moid, op in sorted(started.items()):
        vm: Any = night.world.find(moid)
        if moid in night.given_up or not op or is_desktop(night, moid):
            continue
        if vm is None or (moid in failed and night.world.tasks.running(vm) is not None):
            continue
        if vm.state.power is Power.ON:
            yield f"I23: {night.names.get(moid)} was started by the night and still runs"


def fits(night: Played) -> Iterator[str]:
    """I3: if no one else moves or starts VMs, vCenter refuses no start for want of room: no ML VM's in
    the evening, and no desktop's in the morning, but where the policy leaves ML VMs running that their guests do not
    stop, or where the machine that returns first finds desktops of the other one: what that one has started is not its
    own to stop, and after a revert of the lock VM two machines may have had leases of one number."""
    machines = night.site.several in (Several.APART, Several.TWINS)
    if machines or any(event.fault not in OF_OURS for event in night.events) or _others_moved_or_started(night):
        return
    leave = not night.site.policy.ml_stop.then_off
    history: list[Any] = list(night.world.tasks.history())
    for task in history:
        fault = type(task.error).__name__.rpartition(".")[2]
        if task.name != START or not task.call.operation_id or fault not in NO_ROOM:
            continue
        if not (leave and is_desktop(night, task.entity.moid)):
            yield f"I3: {task.entity.name} was to start where it has no room"


def _others_moved_or_started(night: Played) -> bool:
    """Return whether another login moved or started VMs; the events of the night need not name it (situations/)."""
    states_by_others = (change.after for change in night.world.ledger if not is_ours(change))
    return any("host" in after or after.get("power") == Power.ON for after in states_by_others)


def fits_back(night: Played) -> Iterator[str]:
    """I12: where nothing goes wrong, every desktop that was taken is back by the end of the window; where the policy
    leaves ML VMs running that their guests do not stop, their desktops are not."""
    if night.events or not night.site.policy.ml_stop.then_off:
        return
    in_time = [change for change in night.world.ledger if change.at <= CLOSES]
    for moid in sorted(not_back(in_time)):
        yield f"I12: {night.names.get(moid)} did not fit back, and nothing had gone wrong"


def second_night_is_empty(night: Played) -> Iterator[str]:
    """I4: a night run begun once more, where nothing goes wrong, does nothing; and each ends with a report."""
    if night.events:
        return
    failed = [f"{name} ended with {ended}" for name, ended, _ in night.calls if ended not in ("done", "refused")]
    if failed:
        if night.site.several is not Several.POLICIES or list(effects(night)):  # a journal without any night
            yield f"I4: nothing had gone wrong, and {failed[0]}"
        return
    runs = list(zip(night.calls, night.told, strict=True))
    for ((name, _, at), _), ((before, _, since), _) in zip(runs[1:], runs, strict=False):
        effects_then = [entry for entry in effects(night) if since < entry.at <= at]
        if name == before and name.startswith(RunKind.NIGHT) and effects_then:
            first = effects_then[0]
            yield f"I4: a second run had {len(effects_then)} effects, {first.method} on {first.name} was the first"


def first_night_is_whole(night: Played) -> Iterator[str]:
    """I4: where nothing goes wrong, the evening does each step that it planned; a wrong clock of the other machine is
    something."""
    second = night.site.several in (Several.APART, Several.TWINS)
    if night.events or (second and not second_machine(night.seed).is_right):
        return
    begun = (name for name, ended, _ in night.calls if ended in ("done", "refused"))
    for name, (report, _) in zip(begun, night.told, strict=False):
        undone = [outcome for outcome in report.outcomes if outcome.verdict is not Verdict.DONE]
        if name.startswith(RunKind.NIGHT) and undone:
            yield f"I4: nothing had gone wrong, and {undone[0].step} was {undone[0].verdict}: {undone[0].reason}"


def failures_stop_it(night: Played) -> Iterator[str]:
    """I25: when a tenth of what a night planned has failed, and three steps at least, nothing more is taken in it. What
    vCenter was never asked for is no failure."""
    asked_ops = {op for op, _, _ in night.asks}
    nights: dict[str, tuple[int, str]] = {}
    """By run: its machine and its night; each machine knows its own failures."""
    of: dict[str, tuple[int, str]] = {}
    planned, ended, failed = (Counter[tuple[int, str]]() for _ in range(3))
    for record, _ in night.kept:
        body, mine = record.body, nights.get(record.run)
        if record.kind is Kind.BEGUN and body["night"] is not None:
            mine = nights[record.run] = night.kept_on.get(id(record), 0), body["night"]
            planned[mine] = max(planned[mine], ended[mine] + body.get("steps", 0))
        elif record.kind is Kind.INTENT and mine is not None:
            of[body["op"]] = mine
            if "SuspendVm" in body["step"] and failed[mine] >= max(FEWEST_FAILED, planned[mine] / 10):
                yield f"I25: {body['step']} was asked for when {failed[mine]} of {planned[mine]} steps had failed"
        elif record.kind is Kind.SETTLED and body["op"] in of:
            mine = of.pop(body["op"])
            ended[mine] += 1
            # what a killed run had not sent yet is no failure of the night
            counts = body["state"] in (IntentState.FAILED, IntentState.UNKNOWN) and body.get("counts", True)
            failed[mine] += counts
            if counts and body["op"] not in asked_ops and not _somebody_asked(night, body["op"], record.at):
                yield f"I25: {body['op']} counts as failed ({body['reason']}), and was never asked for"


def _somebody_asked(night: Played, op: str, until: datetime) -> bool:
    """Whether vCenter had a task of such a step of the VM when it was settled: it is taken for the step's own."""
    intent = next(
        kept_record for kept_record, _ in night.kept if kept_record.kind is Kind.INTENT and kept_record.body["op"] == op
    )
    [(kind, step)] = intent.body["step"].items()
    names = {kept_record.__name__: name for kept_record, name in METHODS.items()}
    return any(
        task.name == names.get(kind) and (task.entity.moid == step["vm"] or kind == "SetVmDrs")
        for task in night.world.tasks.history()
        if task.queued_at <= until and (task.ended_at is None or task.ended_at >= intent.at - CALL)
    )


def one_night(night: Played) -> Iterator[str]:
    """I20: when the return of a night has begun, nothing is taken any more in it: no desktop is suspended, and no ML VM
    is started."""
    if any(event.fault == PAUSED for event in night.events):
        return  # the return of another machine: this one's journal does not know of it
    began: dict[tuple[int, int], datetime] = {}
    """By machine, whose journal knows of its own returns, and by day."""
    left_over = set(night.left_over)
    for entry in effects(night):
        if entry.method != START and not takes(entry):
            continue
        asked_at = night.asked.get(entry.operation_id, entry.at)
        at = machine_of(night, entry), (asked_at - EVENING) // DAY
        if entry.method == START and entry.moid in left_over:
            left_over.remove(entry.moid)  # that is the return of an earlier night
        elif entry.method == START and is_desktop(night, entry.moid, entry.name):
            began[at] = min(began.get(at, asked_at), asked_at)
        elif asked_at > began.get(at, asked_at):
            yield f"I20: {entry.method} on {entry.name} in the night whose return had begun"


def grace_is_kept(night: Played) -> Iterator[str]:
    """I8: where nothing goes wrong, a guest that can be asked shuts down in its grace, and is never powered off."""
    leave = not night.site.policy.ml_stop.then_off
    for entry in effects(night, OFF):
        vm: Any = night.world.find(entry.moid)
        if is_desktop(night, entry.moid, entry.name) or vm is None:
            continue
        if leave:
            yield f"I8: {entry.name} was powered off, and the policy leaves it running"
        elif not night.events and vm.state.template.tools:
            yield f"I8: {entry.name} was powered off in its grace"


def nothing_on_a_wrong_clock(night: Played) -> Iterator[str]:
    """I21: where the clocks are apart from the first login on, no desktop is suspended and no ML VM is started; and
    soon nothing more where somebody sets one while a night goes on."""
    for point, at in night.on_a_wrong_clock:
        yield f"I21: {point.removeprefix('before ')} at {at:%H:%M}, and the clocks had been apart for minutes"
    skews = [rule for event in night.events if event.fault == "K7" for rule in event.rules]
    if any(rule.at_s is not None for rule in skews):
        return
    # the last one to strike counts
    always = all(abs(rule.delay_s) > MOST_CLOCK_DIFFERENCE.total_seconds() for rule in skews)
    apart = always and any(rule.skip == 0 for rule in skews)
    for entry in takings(night) if apart else ():
        yield f"I21: {entry.method} on {entry.name}, and the time was unknown"


_NOT_DONE = (Verdict.FAILED, Verdict.UNKNOWN)


def only_the_queue(night: Played) -> Iterator[str]:
    """I7: an override that is changed is one of a VM of the queue, under a policy that wants them."""
    is_wanted = night.site.policy.drs_override is not DrsOverride.NONE
    queue = {queued.names[0] for queued in night.site.policy.ml}
    for entry in effects(night, OVERRIDE):
        before, after = entry.before["overrides"], entry.after["overrides"]
        changed = {ref for ref in {*before, *after} if before.get(ref) != after.get(ref)}
        for ref in sorted(changed):
            name = chosen_as(night, ref)
            if not is_wanted or name not in queue:
                yield f"I7: DRS of {name} was changed, and the policy does not want that"


def put_back(night: Played) -> Iterator[str]:
    """I23: when nothing goes wrong any more, DRS does with an ML VM that is back what it did before: here, as its
    cluster says. A cluster with a task that hangs takes no other, and the last return names the VM. With its host a VM
    that is added again has lost its override."""
    named = (
        {outcome.step.vm for outcome in night.last.outcomes if outcome.verdict in _NOT_DONE} if night.last else set()
    )
    overridden_vms: dict[str, set[str]] = {}
    for change in night.world.ledger:
        if change.method == OVERRIDE:
            overridden_vms[change.moid] = set(change.after["overrides"])
        elif "moid" in change.after:
            overridden_vms = {moid: refs - {change.moid} for moid, refs in overridden_vms.items()}
    for moid, ref in sorted((moid, ref) for moid, refs in overridden_vms.items() for ref in refs):
        vm: Any = night.world.find(ref)
        cluster: Any = night.world.find(moid)
        if ref in named and night.world.tasks.running(cluster) is not None:
            continue
        if vm is not None and vm.state.power is not Power.ON:
            yield f"I23: DRS is still kept off {chosen_as(night, ref)}"
