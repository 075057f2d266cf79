"""Run ML VMs on GPUs that desktops do not need, at any hour, for `rotate watch`.

The policy reserves free slots for desktops. ML VMs are started on the slots beyond that, and stopped or suspended
before a desktop finds no slot.

Each look is one bulk read. The watch acts through the same runs as nights: ML VMs are started by a run that takes VMs,
with markers, journal, lease and a guard before each step, and stopped by a restore of these VMs alone. So after a watch
was killed, `rotate resume`, `rotate day` and the next watch can handle everything it left.

Between two looks it waits until vCenter reports a change, at most for a set time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NoReturn

from gpuops.advise.forecast import SLOT, Forecast, forecast
from gpuops.errors import GpuopsError, Locked, LoginRefused, NotConnected, StateDamaged, UsageError
from gpuops.execute.past.past_runs import FollowedNights
from gpuops.execute.rotation.night_extension import desktop_use
from gpuops.execute.rotation.rotation import restore, resume, rotate
from gpuops.execute.rotation.rotation_lock import WatchState, alone, keep, load
from gpuops.execute.rotation.rotation_run import SpareNow
from gpuops.execute.runs import ROTATION_RUNS, RunKind
from gpuops.execute.site import Site, agreed, catalog_of
from gpuops.execute.state.service_manager import BEGUN, GOES_ON, tell_systemd
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation_policy import GivesWayBy, Policy, SpareRule
from gpuops.model.time_text import format_stamp
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.spare import SlotHistory, kept_states, suspendable_ml_vms
from gpuops.plan.rotation.nights.watch_look import WatchReport, look_at
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts

EVERY_S: Final = 3600.0
"""How often the store is read anew. A forecast goes by earlier weeks, which an hour does not change."""


@dataclass(slots=True)
class PoolForecasts:
    """The forecasts of the pools of one policy whose `ready` follows one."""

    policy: Policy
    site: Site
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    read_at: datetime | None = None
    """By vCenter's clock, which the store uses; None = not read yet."""
    read_s: float = 0.0

    def count_expected(self) -> dict[str, int]:
        """Return how many desktops of each pool must run now, by pool name; pools without measurements are missing."""
        ready_ahead_of = {pool.name: pool.ready_ahead for pool in self.policy.pools if pool.ready_ahead is not None}
        if not ready_ahead_of:
            return {}
        if self.read_at is None or self.site.passed_s() - self.read_s >= EVERY_S:
            self._read()
        assert self.read_at is not None, "it was read"
        # vCenter's time now: its time at the last read, and what has passed since by this machine's monotonic clock
        now = self.read_at + timedelta(seconds=self.site.passed_s() - self.read_s)
        counts = {
            name: self.forecasts[name].desktops_to_run(now, now + ready_ahead.ahead)
            for name, ready_ahead in ready_ahead_of.items()
            if ready_ahead is not None and name in self.forecasts
        }
        # a forecast without measurements for these hours has no count
        return {name: count for name, count in counts.items() if count is not None}

    def _read(self) -> None:
        """Read the store and make the forecasts anew. If the store is damaged, say so: then only `at_least` applies."""
        inventory = self.site.vcenter.inventory()
        inventory = self.site.vcenter.with_tags(inventory) if self.policy.needs_tags else inventory
        now = inventory.taken_at
        self.read_at, self.read_s = now, self.site.passed_s()
        try:
            histories = desktop_use(self.site, inventory, self.policy)
        except StateDamaged as damaged:
            self.site.say(f"{damaged.line}; no desktop comes back by a forecast, `at_least` holds")
            histories = {}
        self.forecasts = {
            pool.name: forecast(
                histories[pool.name],
                now,
                now + pool.ready_ahead.ahead + timedelta(seconds=EVERY_S) + SLOT,
                pool.ready_ahead.zone,
            )
            for pool in self.policy.pools
            if pool.ready_ahead is not None and pool.name in histories
        }


SHORTEST_S: Final = 10.0
"""Shortest time between two looks; all changes in that time are handled by one look."""
LONGEST_S: Final = 300.0
"""Longest time between two looks if vCenter reports no change."""
AWAY_S: Final = 30.0
"""Pause before vCenter, or a lock, is tried again."""
SLICE_S: Final = 15.0
"""During a wait, how often systemd's watchdog is notified."""
DEFRAG_EVERY_S: Final = 600.0
"""How often the moves of the policy's `defrag` are planned: one move each time, so that no look waits for several."""
AFTER_FAILURE_S: Final = 900.0
"""Pause before a VM that did not start, or did not stop, is tried again."""


@dataclass(slots=True)
class Watch:
    """One watch, from its start to its end."""

    policy: Policy
    rule: SpareRule
    site: Site
    state: WatchState
    history: SlotHistory = field(default_factory=SlotHistory)
    tried: dict[str, tuple[float, str]] = field(default_factory=dict)
    """VM ref -> when its start or stop failed, and why."""
    suspend_failed_s: float | None = None
    """When suspending an ML VM last failed. For `AFTER_FAILURE_S` after that, ML VMs are stopped instead."""
    ahead: PoolForecasts = field(init=False)
    past: FollowedNights = field(default_factory=FollowedNights)
    defrag_tried_s: float | None = None
    """When `move_vm` last called its function; None = not yet."""

    def __post_init__(self) -> None:
        self.ahead = PoolForecasts(self.policy, self.site)

    def look(self) -> WatchReport:
        """Look once and act on it. Raises the errors of a rotation."""
        self._settle()
        report = rotate(RunKind.WATCH, self.policy, self.site, apply=False, consent=agreed, spare=self._known_now())
        request, before = report.request, report.before
        assert isinstance(request, RotateNight), "what a watch plans"
        rule = self._rule_now()
        looked = look_at(request, rule, report.plan, before, catalog_of(before), before.taken_at)
        # an ML VM whose stop failed a short time ago is not stopped again yet
        gives_way = tuple(giving for giving in looked.gives.vms if giving.taken_vm.original.vm not in self.tried)
        looked = replace(looked, gives=replace(looked.gives, vms=gives_way))
        self.history = self.history.after(self.site.passed_s(), looked.states, self.rule.calm_s)
        self._note_finished(looked.ended, before)
        # the ML VMs that are stopped or suspended so that desktops get their GPUs
        gives = [giving.taken_vm for giving in looked.gives.vms]
        returned = (*gives, *looked.back.stops, *looked.back.desktops, *looked.ended)
        outcomes: tuple[Outcome, ...] = ()
        if returned:  # starts wait for the next look, which sees the GPUs that this return frees or needs
            names = tuple(dict.fromkeys(f"moid:{taken_vm.original.vm}" for taken_vm in returned))
            running = [*gives, *looked.back.stops]
            spare = SpareNow(suspends=suspendable_ml_vms(rule, running, before, catalog_of(before)))
            outcomes = restore(self.policy, self.site, names, apply=True, spare=spare).outcomes
        elif looked.starts:
            outcomes = rotate(
                RunKind.WATCH, self.policy, self.site, apply=True, consent=agreed, spare=self._known_now()
            ).outcomes
        self._note_tried(outcomes)
        return WatchReport(looked, before, outcomes)

    def move_vm(self, make_one_move: Callable[[], None]) -> None:
        """Make one move of the policy's `defrag` if a window of it is open, every `DEFRAG_EVERY_S`."""
        rule, now_s = self.policy.defrag, self.site.passed_s()
        if rule is None or rule.window_at(self.site.clock()) is None:
            return
        if self.defrag_tried_s is None or now_s - self.defrag_tried_s >= DEFRAG_EVERY_S:
            self.defrag_tried_s = now_s
            make_one_move()

    def _settle(self) -> None:
        """Finish a run that was cut off, of this watch or of a return under this policy, like `rotate resume`."""
        with self.site.journal_to_read(self.site.vcenter.uuid) as journal:
            left_open = journal.open_runs(ROTATION_RUNS) if journal is not None else ()
        if left_open:
            resume(self.site, unattended=True)

    def _known_now(self) -> SpareNow:
        """Return what the next run needs to know from earlier looks."""
        now_s = self.site.passed_s()
        self.tried = {ref: attempt for ref, attempt in self.tried.items() if now_s - attempt[0] < AFTER_FAILURE_S}
        not_yet = {ref: f"tried {int(now_s - at) // 60} min ago: {why}" for ref, (at, why) in self.tried.items()}
        lowest = self.history.lowest(now_s, self.rule.calm_s)
        return SpareNow(lowest, not_yet, frozenset(self.state.finished), self.ahead.count_expected(), past=self.past)

    def _rule_now(self) -> SpareRule:
        """Return the policy's rule, with stopping instead of suspending for a while after a suspend failed."""
        failed_s = self.suspend_failed_s
        if failed_s is None or self.site.passed_s() - failed_s >= AFTER_FAILURE_S:
            return self.rule
        return replace(self.rule, give_way=GivesWayBy.STOP)

    def _note_tried(self, outcomes: tuple[Outcome, ...]) -> None:
        for outcome in outcomes:
            if isinstance(outcome.step, SuspendVm) and outcome.step.gives_way and outcome.verdict is not Verdict.DONE:
                self.suspend_failed_s = self.site.passed_s()
            elif isinstance(outcome.step, PowerOnVm | ShutDownGuest) and outcome.verdict is not Verdict.DONE:
                self.tried[outcome.step.vm] = (self.site.passed_s(), outcome.reason)

    def _note_finished(self, ended: tuple[TakenVm, ...], inventory: Inventory) -> None:
        """Note the ML VMs that finished their work, and drop the note of those that run again.

        An ML VM has finished if gpuops started it, it is powered off, and gpuops did not stop it.
        """
        finished_uuids = [
            taken_vm.original.uuid or taken_vm.original.vm for taken_vm in ended if _has_finished(taken_vm)
        ]
        running = {vm.instance_uuid or vm.ref for vm in inventory.vms.values() if vm.power is PowerState.ON}
        now = format_stamp(self.site.clock())
        finished = {**self.state.finished, **dict.fromkeys(finished_uuids, now)}
        finished = {uuid: at for uuid, at in finished.items() if uuid not in running}
        if finished != self.state.finished:
            self.state = replace(self.state, finished=finished)
            keep(self.site, self.state)


def _has_finished(taken_vm: TakenVm) -> bool:
    original = taken_vm.original
    ours = original.role is Role.ML and original.taken and not original.stopped
    return ours and taken_vm.whereabouts is Whereabouts.BACK


def watch_once(policy: Policy, site: Site) -> WatchReport:
    """Return what a watch would see now, and do if the slots had been free for long enough. Changes nothing."""
    rule, report = _plan_once(policy, site)
    assert isinstance(report.request, RotateNight), "what a watch plans"
    look = look_at(report.request, rule, report.plan, report.before, catalog_of(report.before), report.before.taken_at)
    return WatchReport(look, report.before)


def planned_once(policy: Policy, site: Site) -> tuple[RotateNight, Inventory, datetime]:
    """Return the request, the inventory and the moment of one look that changes nothing."""
    _, report = _plan_once(policy, site)
    assert isinstance(report.request, RotateNight), "what a watch plans"
    return report.request, report.before, site.clock()


def _plan_once(policy: Policy, site: Site) -> tuple[SpareRule, Report]:
    rule = _rule_of(policy)
    inventory = site.read_for_policy(site.vcenter.inventory(), policy)
    free = {state.key: state.free for state in kept_states(rule, inventory, catalog_of(inventory))}
    state = load(site)
    finished = frozenset(state.finished) if state is not None else frozenset[str]()
    spare = SpareNow(free, finished=finished, expected=PoolForecasts(policy, site).count_expected())
    return rule, rotate(RunKind.WATCH, policy, site, apply=False, consent=agreed, spare=spare)


def watch_for_ever(
    policy: Policy,
    site: Site,
    report_look: Callable[[WatchReport], None],
    note_look_end: Callable[[], None] | None = None,
    make_one_move: Callable[[], None] | None = None,
) -> NoReturn:
    """Look at the VMs again and again, and act: when vCenter reports a change, else after a wait.

    The wait doubles while nothing happens. `report_look` gets each report, then `note_look_end` is called.
    `make_one_move` makes a move of the policy's `defrag`. After an error it looks again in `AWAY_S`; before the first
    look that succeeds, only NotConnected and Locked are tried again. A refused login, a damaged journal or the
    exception of a signal ends the watch. Raises Locked if another watch of this machine runs or a night holds VMs that
    this policy selects, UsageError for a policy of nights.
    """
    rule = _rule_of(policy)
    with alone(site, site.clock()):
        earlier_state = load(site)
        finished = earlier_state.finished if earlier_state is not None else {}
        watch = Watch(policy, rule, site, WatchState(policy.text, finished))
        keep(site, watch.state)
        _refuse_beside_nights(policy, site)
        tell_systemd(BEGUN)
        wait_s = shortest_wait_s = min(max(SHORTEST_S, float(rule.calm_s)), LONGEST_S)
        begun = False
        while True:
            began_s = site.passed_s()
            try:
                report = watch.look()
                begun = True
                report_look(report)
                if note_look_end is not None:
                    note_look_end()
                if make_one_move is not None:
                    watch.move_vm(make_one_move)
            except (LoginRefused, StateDamaged):
                raise
            except GpuopsError as error:
                if not begun and not isinstance(error, NotConnected | Locked):
                    raise
                site.say(f"{error.line}; tried again in {AWAY_S:.0f} s")
                site.pause(AWAY_S)
                wait_s = shortest_wait_s
            else:
                changed = wait_for_news(site, wait_s)
                wait_s = shortest_wait_s if changed or report.outcomes else min(2 * wait_s, LONGEST_S)
            site.pause(max(0.0, SHORTEST_S - (site.passed_s() - began_s)))


def wait_for_news(site: Site, timeout_s: float) -> bool:
    """Wait for a change. Return whether to look now: vCenter reported one, or could not be reached meanwhile."""
    until_s = site.passed_s() + timeout_s
    while (left_s := until_s - site.passed_s()) > 0:
        tell_systemd(GOES_ON)
        try:
            if site.vcenter.wait_for_change(min(SLICE_S, left_s)):
                return True
        except LoginRefused:
            raise
        except NotConnected as away:
            site.say(f"{away.line}; tried again in {AWAY_S:.0f} s")
            site.pause(AWAY_S)
            return True
    return False


def _rule_of(policy: Policy) -> SpareRule:
    """Return the policy's rule for spare capacity. Raises UsageError for a policy of nights."""
    if policy.spare is None:
        raise UsageError(
            f"policy {policy.name} has `mode: {policy.mode}`: rotate watch cannot use it",
            hint="set `mode: spare-capacity` and `spare` in the policy (gpuops help watch)",
        )
    return policy.spare


def _refuse_beside_nights(policy: Policy, site: Site) -> None:
    """Raise Locked while a night holds VMs that this policy selects."""
    report = rotate(RunKind.WATCH, policy, site, apply=False, consent=agreed)
    request = report.request
    assert isinstance(request, RotateNight), "what a watch plans"
    night_vms = [
        night_vm
        for night_vm in request.away_vms(report.before)
        if not request.keeps_taken(request.policy.name, night_vm)
    ]
    if night_vms:
        first_original = night_vms[0].original
        raise Locked(
            f"night {first_original.night} has taken {first_original.name}, which policy {policy.name} selects too",
            hint="gpuops rotate day ends that night; start the watch then",
        )
