"""`rotate watch`: at any hour, ML VMs run on what is free beyond what the policy keeps for desktops, and give way
before desktops miss it.

Each look is one bulk read. What follows from it is done by the runs that nights are made of: starts by a run that
takes, with marks, journal, lease and a guard before each step; giving way by a restore of these VMs alone. So a watch
that is killed has left nothing that `rotate resume`, `rotate day` and its own next start do not know of.

Between two looks it waits for vCenter to tell of a change, and looks again anyhow after a while.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NoReturn

from gpuops.errors import GpuopsError, Locked, LoginRefused, NotConnected, StateDamaged, UsageError
from gpuops.execute.past.followed_nights import FollowedNights
from gpuops.execute.rotation.rotation import restore, resume, rotate
from gpuops.execute.rotation.spare_now import SpareNow
from gpuops.execute.rotation.watch_forecast import PoolForecasts
from gpuops.execute.rotation.watch_state import WatchState, alone, keep, load
from gpuops.execute.runs.run_kind import ROTATION_RUNS, RunKind
from gpuops.execute.site import Site, agreed, catalog_of
from gpuops.execute.state.service_manager import BEGUN, GOES_ON, tell_systemd
from gpuops.model.nights.night_record import Role
from gpuops.model.nights.rotation import GivesWayBy, Policy, SpareRule
from gpuops.model.time_text import format_stamp
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Outcome, Report, Verdict
from gpuops.plan.core.steps import PowerOnVm, ShutDownGuest, SuspendVm
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.spare import GivesWay, SlotHistory, kept_states, suspendable_ml_vms
from gpuops.plan.rotation.nights.watch_look import WatchLook, WatchReport, look_at
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts

SHORTEST_S: Final = 10.0
"""Between two looks: what changes meanwhile is seen by one."""
LONGEST_S: Final = 300.0
"""After so long it looks again although vCenter told of no change."""
AWAY_S: Final = 30.0
"""Before vCenter, or a lock, is tried again."""
SLICE_S: Final = 15.0
"""Of a wait: so often systemd is told that it goes on."""
AFTER_FAILURE_S: Final = 900.0
"""Before a VM that did not start, or did not stop, is tried again."""


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
    """When an ML VM could not be suspended: for a while those that give way are stopped. Desktops come first."""
    ahead: PoolForecasts = field(init=False)
    past: FollowedNights = field(default_factory=FollowedNights)

    def __post_init__(self) -> None:
        self.ahead = PoolForecasts(self.policy, self.site)

    def look(self) -> WatchReport:
        """Looks once, and does what follows. Raises the errors of a rotation."""
        self._settle()
        report = rotate(RunKind.WATCH, self.policy, self.site, apply=False, consent=agreed, spare=self._now())
        request, before = report.request, report.before
        assert isinstance(request, RotateNight), "what a watch plans"
        rule = self._rule_now()
        looked = look_at(request, rule, report.plan, before, catalog_of(before), before.taken_at)
        looked = replace(looked, gives=replace(looked.gives, vms=self._not_tried_lately(looked)))
        self.history = self.history.after(self.site.passed_s(), looked.states, self.rule.calm_s)
        self._note_finished(looked.ended, before)
        gives = [each.taken_vm for each in looked.gives.vms]
        returned = (*gives, *looked.back.stops, *looked.back.desktops, *looked.ended)
        outcomes: tuple[Outcome, ...] = ()
        if returned:
            names = tuple(dict.fromkeys(f"moid:{each.original.vm}" for each in returned))
            running = [*gives, *looked.back.stops]
            spare = SpareNow(suspends=suspendable_ml_vms(rule, running, before, catalog_of(before)))
            outcomes = restore(self.policy, self.site, names, apply=True, spare=spare).outcomes
        elif looked.starts:
            outcomes = self._start().outcomes
        self._note_tried(outcomes)
        return WatchReport(looked, before, outcomes)

    def _start(self) -> Report:
        return rotate(RunKind.WATCH, self.policy, self.site, apply=True, consent=agreed, spare=self._now())

    def _settle(self) -> None:
        """Ends a run that was cut off, of this watch or of a return that this policy took part in, as `rotate resume`
        does."""
        with self.site.journal_to_read(self.site.vcenter.uuid) as journal:
            left_open = journal.open_runs(ROTATION_RUNS) if journal is not None else ()
        if left_open:
            resume(self.site, unattended=True)

    def _now(self) -> SpareNow:
        """What earlier looks tell the next run."""
        now_s = self.site.passed_s()
        self.tried = {ref: told for ref, told in self.tried.items() if now_s - told[0] < AFTER_FAILURE_S}
        not_yet = {ref: f"tried {int(now_s - at) // 60} min ago: {why}" for ref, (at, why) in self.tried.items()}
        lowest = self.history.lowest(now_s, self.rule.calm_s)
        return SpareNow(lowest, not_yet, frozenset(self.state.finished), self.ahead.expected(), past=self.past)

    def _rule_now(self) -> SpareRule:
        """The policy's rule; nothing is suspended under it a while after that has failed."""
        failed_s = self.suspend_failed_s
        if failed_s is None or self.site.passed_s() - failed_s >= AFTER_FAILURE_S:
            return self.rule
        return replace(self.rule, give_way=GivesWayBy.STOP)

    def _not_tried_lately(self, looked: WatchLook) -> tuple[GivesWay, ...]:
        """Those that give way, but for those that would not stop a moment ago."""
        return tuple(each for each in looked.gives.vms if each.taken_vm.original.vm not in self.tried)

    def _note_tried(self, outcomes: tuple[Outcome, ...]) -> None:
        for outcome in outcomes:
            if isinstance(outcome.step, SuspendVm) and outcome.step.gives_way and outcome.verdict is not Verdict.DONE:
                self.suspend_failed_s = self.site.passed_s()
            elif isinstance(outcome.step, PowerOnVm | ShutDownGuest) and outcome.verdict is not Verdict.DONE:
                self.tried[outcome.step.vm] = (self.site.passed_s(), outcome.reason)

    def _note_finished(self, ended: tuple[TakenVm, ...], inventory: Inventory) -> None:
        """An ML VM that was started and is off, and that nobody of ours has stopped, has done its work; one that runs
        again has more of it."""
        done = [each.original.uuid or each.original.vm for each in ended if _has_finished(each)]
        running = {vm.instance_uuid or vm.ref for vm in inventory.vms.values() if vm.power is PowerState.ON}
        now = format_stamp(self.site.clock())
        finished = {**self.state.finished, **dict.fromkeys(done, now)}
        finished = {uuid: at for uuid, at in finished.items() if uuid not in running}
        if finished != self.state.finished:
            self.state = replace(self.state, finished=finished)
            keep(self.site, self.state)


def _has_finished(taken_vm: TakenVm) -> bool:
    original = taken_vm.original
    ours = original.role is Role.ML and original.taken and not original.stopped
    return ours and taken_vm.whereabouts is Whereabouts.BACK


def watch_once(policy: Policy, site: Site) -> WatchReport:
    """What a watch would find now, and do if it had been calm for long enough; nothing is changed."""
    rule, report = _report_once(policy, site)
    assert isinstance(report.request, RotateNight), "what a watch plans"
    look = look_at(report.request, rule, report.plan, report.before, catalog_of(report.before), report.before.taken_at)
    return WatchReport(look, report.before)


def planned_once(policy: Policy, site: Site) -> tuple[RotateNight, Inventory, datetime]:
    """What such a look plans, on what it saw, and when."""
    _, report = _report_once(policy, site)
    assert isinstance(report.request, RotateNight), "what a watch plans"
    return report.request, report.before, site.clock()


def _report_once(policy: Policy, site: Site) -> tuple[SpareRule, Report]:
    rule = _rule_of(policy)
    seen = site.judged(site.vcenter.inventory(), policy)
    free = {state.key: state.free for state in kept_states(rule, seen, catalog_of(seen))}
    state = load(site)
    finished = frozenset(state.finished) if state is not None else frozenset[str]()
    spare = SpareNow(free, finished=finished, expected=PoolForecasts(policy, site).expected())
    return rule, rotate(RunKind.WATCH, policy, site, apply=False, consent=agreed, spare=spare)


def watch_for_ever(
    policy: Policy,
    site: Site,
    told: Callable[[WatchReport], None],
    looked: Callable[[], None] | None = None,
) -> NoReturn:
    """Looks whenever something changed, and tells of each look; `looked` is called when one has ended.

    A vCenter that is away, and another run that holds the lock, are tried again. Ends by the exception of a signal, a
    login that is refused, a journal that is damaged. Raises Locked where another watch of this machine runs, or a night
    holds VMs that this policy means; UsageError for a policy of nights.
    """
    rule = _rule_of(policy)
    with alone(site, site.clock()):
        before = load(site)
        finished = before.finished if before is not None else {}
        watch = Watch(policy, rule, site, WatchState(policy.text, finished))
        keep(site, watch.state)
        _refuse_beside_nights(policy, site)
        tell_systemd(BEGUN)
        longest_s = shortest = min(max(SHORTEST_S, float(rule.calm_s)), LONGEST_S)
        begun = False
        while True:
            began_s, acted = site.passed_s(), True
            try:
                found = watch.look()
                acted, begun = bool(found.outcomes), True
                told(found)
                if looked is not None:
                    looked()
            except (LoginRefused, StateDamaged):
                raise
            except GpuopsError as error:
                if not begun and not isinstance(error, NotConnected | Locked):
                    raise
                site.say(f"{error.line}; tried again in {AWAY_S:.0f} s")
                site.pause(AWAY_S)
            changed = _wait(site, longest_s)
            longest_s = shortest if changed or acted else min(2 * longest_s, LONGEST_S)
            site.pause(max(0.0, SHORTEST_S - (site.passed_s() - began_s)))


def _wait(site: Site, timeout_s: float) -> bool:
    """Whether vCenter told of a change within the time."""
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
    """Raises UsageError for a policy of nights."""
    if policy.spare is None:
        raise UsageError(
            f"policy {policy.name} says `mode: {policy.mode}`: rotate watch takes nothing under it",
            hint="say `mode: spare-capacity` and `spare` (gpuops help watch)",
        )
    return policy.spare


def _refuse_beside_nights(policy: Policy, site: Site) -> None:
    """Raises Locked while a night holds VMs that this policy means."""
    report = rotate(RunKind.WATCH, policy, site, apply=False, consent=agreed)
    request = report.request
    assert isinstance(request, RotateNight), "what a watch plans"
    held = [each for each in request.away_vms(report.before) if not request.keeps_taken(request.policy.name, each)]
    if held:
        first = held[0].original
        raise Locked(
            f"night {first.night} has taken {first.name}, which policy {policy.name} means too",
            hint="gpuops rotate day ends that night; start the watch then",
        )
