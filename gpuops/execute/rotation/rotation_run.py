"""One run of a rotation (night, day, restore or watch): settle a killed run, plan, execute, close what was returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.errors import NotConnected, PartlyDone, PolicyError, Refused, StateDamaged
from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.journal_reads import RunsSeen
from gpuops.execute.lease.lease_set import NO_LEASE, LeaseSet, VmLeases
from gpuops.execute.past.every_vcenter import nights_elsewhere
from gpuops.execute.past.past_runs import FollowedNights
from gpuops.execute.rotation.night_extension import by_owners
from gpuops.execute.runs import (
    RESUME,
    ROTATION_RUNS,
    NightVms,
    RunKind,
    end_cut_off_moves,
    known_originals,
    left_open_runs,
    morning_first,
    note_later_starts,
    note_returned,
    note_witnesses,
    with_creation_of_strangers,
)
from gpuops.execute.site import Consent, Site, catalog_of
from gpuops.execute.site.policy_reads import with_gates
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_in_snapshot, settle_open
from gpuops.execute.steps.step_queue import HUNG_S
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.history import PastNight
from gpuops.model.nights.night_record import LockHolder, Original, Role
from gpuops.model.nights.rotation_policy import GivesWayBy, Limits, Policy, strictest
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Plan, Report, Verdict, refuse
from gpuops.plan.core.privileges import way_back
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, Step, SuspendVm, VmChange
from gpuops.plan.rotation.lease_rules import KEY
from gpuops.plan.rotation.ml_queue.team_shares import free_gpus
from gpuops.plan.rotation.nights.bounds import refuse_without_hours
from gpuops.plan.rotation.nights.desktops import other_open_policies
from gpuops.plan.rotation.nights.guard import Guard
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.night_refusals import NO_STEP_COUNTS, ahead_by
from gpuops.plan.rotation.nights.spare import Key
from gpuops.plan.rotation.returns.day import RotateDay, add_advice, hooks_of, is_returned
from gpuops.plan.rotation.returns.foreign_nights import lock_vm_of, policies_under, refuse_nights_elsewhere
from gpuops.plan.rotation.returns.restore import RestoreVms
from gpuops.plan.rotation.returns.return_time import Durations
from gpuops.plan.rotation.taken_vms import is_gone, vms_of
from gpuops.plan.rotation.witness import is_another_vcenter, key_of, refuse_another_vcenter


@dataclass(frozen=True, slots=True)
class SpareNow:
    """What a watch has found out in its earlier looks, for one of its runs."""

    lowest: Mapping[Key, int] = field(default_factory=dict)
    """The fewest free slots during the calm time, by profile and cluster or host."""
    not_yet: Mapping[str, str] = field(default_factory=dict)
    """VM ref -> why a waiting ML VM is not started now."""
    finished: frozenset[str] = frozenset()
    """Instance uuids (or refs) of ML VMs that ended by themselves."""
    expected: Mapping[str, int] = field(default_factory=dict)
    """Pool -> how many of its desktops must run, by a forecast."""
    suspends: frozenset[str] = frozenset()
    """ML VMs (refs) that a restore of this watch suspends with their memory instead of stopping them."""
    past: FollowedNights | None = None
    """The nights read from its journal so far; None = read the journal from its first record when needed."""


NOTHING_KNOWN: Final = SpareNow()
"""For a run that is resumed without its watch: it starts nothing."""


@dataclass(frozen=True, slots=True)
class RotationRun:
    """One run: its kind, policy and site, and `now`, the same moment for all its steps."""

    kind: RunKind
    policy: Policy
    site: Site
    now: datetime
    only: tuple[str, ...] = ()
    markers_alone: bool = False
    leases: LeaseSet | None = None
    """None for a run that only plans."""
    other_policies: tuple[Policy, ...] = ()
    """The policies of open nights: their limits apply as well."""
    unread: PolicyError | None = None
    """Why the given policy cannot be read."""
    unattended: bool = False
    """Whether it runs without an admin: a night then needs a policy with windows or `windows: any`."""
    spare: SpareNow = NOTHING_KNOWN
    """What a watch knows from its earlier looks."""
    runs_seen: RunsSeen | None = None
    """The runs that had begun before it read vCenter; None for a run that only plans."""
    clears: bool = False
    """Whether a restore only clears the markers of its VMs."""

    def look(self, journal: Journal) -> Report:
        """Return the plan, from vCenter's state and the journal.

        If the steps of a return need a lease that this run does not hold, take the lease and plan again.
        """
        while True:
            originals = self._originals(journal)
            before, ahead = self._read_inventory()
            before = with_creation_of_strangers(before, self.policy, originals, self.site.vcenter)
            originals = note_witnesses(originals, before, self.site.vcenter)
            report = self._make_report(before, originals, journal, ahead)
            if not self._takes_new_leases(report):
                return report

    def _takes_new_leases(self, report: Report) -> bool:
        """Take the leases that the steps of a return need. Return whether any of them is new to this run."""
        if self.leases is None or not isinstance(report.request, RotateDay | RestoreVms):
            return False
        lock_vm_of_vm = report.request.lock_vms(report.before)
        names = {name for step in report.plan.steps if (name := lock_vm_of_vm.get(step.vm)) is not None}
        policies = (self.policy, *self.other_policies)
        return self.leases.take({name: policies_under(name, policies, self.policy) for name in names})

    def _read_inventory(self) -> tuple[Inventory, timedelta | None]:
        """Return the inventory, and how far vCenter's clock is ahead of ours; None if they need not agree."""
        asked_at = self.site.clock() if self.site.same_time else None
        before = self.site.vcenter.inventory()
        ahead = ahead_by(before.taken_at, asked_at, self.site.clock()) if asked_at is not None else None
        # tags and counters select what to take; a return must also work if vCenter does not answer for them
        return self.site.read_for_policy(before, self.policy) if self.kind.takes else before, ahead

    def look_only(self, journal: Journal | None) -> Report:
        """Return the plan as `look` does, but change nothing: open steps of a run that was cut off are settled in the
        plan only."""
        read_inventory, ahead = self._read_inventory()
        before = with_creation_of_strangers(read_inventory, self.policy, self._originals(journal), self.site.vcenter)
        originals = note_witnesses(self._originals(journal), before, self.site.vcenter)
        holder, left_open = self._left_open(journal)
        if holder is None:
            morning_first(self.kind, left_open)
        intents = [intent for run in left_open for intent in journal.open_intents(run)] if journal else []
        foreseen = settle_in_snapshot(self.site.vcenter, intents, before, catalog_of(before))
        report = self._make_report(
            foreseen.inventory,
            tuple(
                # its step did not happen, so no night has taken it
                replace(original, taken=False)
                if {vm.ref for vm in vms_of(original, before)} & foreseen.undone
                else original
                for original in originals
            ),
            journal,
            ahead,
        )
        plan = report.plan
        warnings: tuple[str, ...] = ()
        if holder:
            warnings = (f"{holder} is rotating this vCenter: until it ends, gpuops would refuse this run",)
        plan = replace(plan, because=(*plan.because, *foreseen.notes), warnings=(*plan.warnings, *warnings))
        return replace(report, plan=plan)

    def _left_open(self, journal: Journal | None) -> tuple[LockHolder | None, tuple[Run, ...]]:
        """Return `left_open_runs`; a return continues without the holder if the lock file is damaged."""
        try:
            return left_open_runs(journal, self.site)
        except StateDamaged as damaged:
            if self.kind.takes or journal is None:
                raise
            journal.unlocked = damaged
            return None, journal.open_runs(ROTATION_RUNS)

    def _make_report(
        self, before: Inventory, originals: tuple[Original, ...], journal: Journal | None, ahead: timedelta | None
    ) -> Report:
        """Plan the run on this inventory, and add the refusals and warnings that the planner cannot know.

        `ahead`: how far vCenter's clock is ahead of ours; None if they need not agree.
        """
        takes = self.kind.takes
        request = self._request(originals, journal, ahead)
        plan = request.plan(before, catalog_of(before), self.now)
        if takes and is_another_vcenter(originals, before):
            plan = refuse(refuse_another_vcenter(originals, before))
        if takes:
            added_warnings = (*self._warn_of_unusable_hooks(plan, before), *self._warn_without_hours())
            plan = replace(plan, warnings=(*plan.warnings, *added_warnings))
        if self.kind is RunKind.DAY:
            plan = self._with_nights_elsewhere(plan, originals, before)
        if self.unread is not None:
            plan = replace(plan, unmet=(*plan.unmet, _refuse_unread_policy(self.unread)))
        # a return with a step that the login may not do still brings back the other desktops; the step reports it
        return Report(
            request,
            before,
            self.site.check_privileges(plan, before, self._later_steps(plan, before)) if takes else plan,
        )

    def _with_nights_elsewhere(self, plan: Plan, originals: Sequence[Original], before: Inventory) -> Plan:
        """Return the plan, naming the VMs in this vCenter that nights of other vCenters took."""
        damaged = list[StateDamaged]()
        nights = nights_elsewhere(self.site, damaged=damaged.append)
        unread = tuple(
            f"{error.message}: gpuops cannot tell whether VMs of its nights are in this vCenter" for error in damaged
        )
        refusals = refuse_nights_elsewhere(nights, originals, before)
        because = () if refusals else plan.because  # `because` states that no night has taken anything
        return replace(plan, unmet=(*plan.unmet, *refusals), warnings=(*plan.warnings, *unread), because=because)

    def _warn_of_unusable_hooks(self, plan: Plan, before: Inventory) -> tuple[str, ...]:
        """Return a warning for each ML VM whose checkpoint hook the return cannot run.

        The night prints it, while an admin can still repair the hook.
        """
        refusals = ((hook, self.site.vcenter.no_way_in(hook)) for hook in hooks_of(self.policy, plan.steps, before))
        return tuple(
            f"{before.vm(hook.vm).name}: its checkpoint hook cannot be run: {why} (gpuops help policy)"
            for hook, why in refusals
            if why is not None
        )

    def _warn_without_hours(self) -> tuple[str, ...]:
        """Return the warning of a run that only plans if a timer's `rotate night` would refuse the policy."""
        refusal = refuse_without_hours(self.policy) if self.leases is None else None
        return (refusal.line,) if refusal is not None else ()

    def _request(
        self, originals: tuple[Original, ...], journal: Journal | None, ahead: timedelta | None
    ) -> RotateNight | RotateDay | RestoreVms:
        """Return the planner's request, with what the journal knows. `ahead` as for `_make_report`."""
        measured = Durations.of(journal.durations() if journal else {})
        elsewhere = dict(self.leases.elsewhere) if self.leases is not None else {}
        match self.kind:
            case RunKind.WATCH:
                setbacks = journal.setbacks() if journal else {}
                number = self._lease_number
                return RotateNight(
                    self.policy, originals, measured, step_counts=setbacks, clock_ahead=ahead, lease=number,
                    lowest=self.spare.lowest, not_yet=self.spare.not_yet, finished=self.spare.finished,
                    expected=self.spare.expected, gave_way=_suspended_for_desktops(journal), past=self._past(journal),
                )  # fmt: skip
            case RunKind.NIGHT:
                skipped = journal.skipped_nights(self.policy.name) if journal else frozenset()
                setbacks = journal.setbacks() if journal else {}
                ended_nights = journal.ended_nights() if journal else frozenset()
                number = self._lease_number
                # a run that only plans is not refused for it: it prints a warning
                unattended = self.unattended and self.leases is not None
                return RotateNight(
                    self.policy, originals, measured, skipped, setbacks, ahead, ended_nights, number,
                    unattended=unattended, past=self._past(journal),
                )  # fmt: skip
            case RunKind.DAY:
                return RotateDay(self.policy, originals, measured, elsewhere)
            case RunKind.RESTORE:
                day = RotateDay(self.policy, originals, measured, elsewhere, self.spare.suspends)
                return RestoreVms(day, self.only, self.clears)

    def _past(self, journal: Journal | None) -> tuple[PastNight, ...]:
        """Return the past nights if the policy shares GPUs by past use; empty otherwise."""
        if self.policy.fair_share is None:
            return ()
        return by_owners(tuple((self.spare.past or FollowedNights()).nights(journal)), self.site)

    @property
    def _lease_number(self) -> int | None:
        """The number of the lease that this run holds; None if it holds no lease."""
        numbers = [number for _, number in self.leases.numbered] if self.leases is not None else []
        return numbers[0] if numbers else None

    def _later_steps(self, plan: Plan, before: Inventory) -> tuple[Step, ...]:
        """Return the later steps that this login must be able to do: those of the return, and writes of the lease."""
        lock_vms = [vm.ref for vm in before.vms.values() if vm.name == self.policy.lock_vm]
        planned_hooks = hooks_of(self.policy, plan.steps, before)
        hooks = [hook for hook in planned_hooks if self.site.vcenter.no_way_in(hook) is None]
        spare = self.policy.spare
        suspends = spare is not None and spare.give_way is GivesWayBy.SUSPEND
        starts = [step.vm for step in plan.steps if isinstance(step, PowerOnVm)] if suspends else []
        return_steps = (*way_back(plan.steps), *(SuspendVm(ref, gives_way=True) for ref in starts))
        return (*return_steps, *hooks, *(ReconfigureVm(ref, VmChange(extra_config={KEY: ""})) for ref in lock_vms))

    def _originals(self, journal: Journal | None) -> tuple[Original, ...]:
        """Return the saved VMs that this run has to know; empty if it goes by markers alone."""
        if self.markers_alone or journal is None:
            return ()
        if not self.kind.takes:
            return NightVms(journal).all(returned=True)  # a VM that is back by the journal is no other machine's VM
        return known_originals(journal, self.policy, self.now)

    def settle(self, left_open: Sequence[Run], journal: Journal) -> tuple[Outcome, ...]:
        """Return the outcomes of the steps that runs left open. A step that did not happen is planned again.

        A night also ends a defragmentation that was cut off.
        """
        if self.kind.takes:
            end_cut_off_moves(self.site, journal)
        if not left_open:
            return ()
        before = self.site.vcenter.inventory()
        limit_s = self._limits.step_timeout_s
        # a task that hangs must not delay the return of the other desktops
        timeout_s = limit_s if self.kind.takes else min(limit_s, HUNG_S)
        executors = [VmExecutor(self.site.vcenter, journal, run, before, gates=self.site.gates) for run in left_open]
        outcomes = [outcome for executor in executors for outcome in settle_open(executor, timeout_s=timeout_s)]
        return tuple(outcome for outcome in outcomes if outcome.verdict is not Verdict.FAILED)

    def do(self, report: Report, journal: Journal, left_open: Sequence[Run], consent: Consent) -> Report:
        """Execute the plan. Return the report with the outcome of each step and the inventory afterwards.

        The run is open in the journal from before the first step until after the last one.
        """
        if not (report.plan.feasible and report.plan.steps):
            after = self._close_returned(report, journal)
            self._end(left_open, journal)
            return replace(report, after=after)
        consent(report)
        # begun before the runs that were cut off are ended: a crash in between leaves a run open, which is resumed
        run = self._begin(report, journal)
        self._end(left_open, journal)
        plan, night = report.plan, self.kind.takes
        # shown to other processes: a return may end this run after that time
        if plan.not_after and journal.hold is not None:
            journal.hold.takes_until(min(plan.not_after.values()))
        # the guard continues the counts of earlier runs of this night
        counts_so_far = journal.setbacks().get(run.night or "", NO_STEP_COUNTS)
        taken_desktops, catalog = self._taken_earlier(run, journal, report.before), catalog_of(report.before)
        known_originals = report.request.originals if isinstance(report.request, RotateNight) else ()
        guard = (
            Guard(
                self.policy.to_go_on,
                counts_so_far,
                catalog,
                plan.not_after,
                taken_desktops,
                other_open_policies(self.policy, known_originals),
            )
            if night
            else None
        )
        executor = VmExecutor(
            self.site.vcenter,
            journal,
            run,
            report.before,
            guard=guard,
            leases=self._vm_leases(report),
            passed_s=self.site.passed_s,
            same_time=self.site.same_time,
            sources=self.site.sources,
            gates=self.site.gates,
            vgpu_use=self.site.vgpu_use,
        )
        try:
            outcomes = execute(
                plan, executor, self._limits, self.site.progress, returning=not night, in_flight=self.site.in_flight
            )
        except (NotConnected, PartlyDone) as lost:
            lost.then_finish(RESUME)
            raise
        except Refused as refused:  # a privilege was withdrawn during the run: earlier steps are done
            partly_done = PartlyDone(refused.message)
            partly_done.then_finish(RESUME)
            raise partly_done from refused
        if self.leases is not None:
            self.leases.require_one_left()
        after = self._close_returned(report, journal, executor)
        journal.end(run)
        if night:
            return replace(report, outcomes=outcomes, after=executor.inventory)
        originals = NightVms(journal).all(returned=True)
        return replace(report, outcomes=add_advice(outcomes, after, originals, is_named=bool(self.only)), after=after)

    def _ends_nights_of(self, original: Original) -> bool:
        """Return whether a return of this VM closes its record.

        `rotate day` closes the records of nights. Every return closes those of a watch, which may start the VM again.
        """
        return self.kind is RunKind.DAY or (original.policy or self.policy).spare is not None

    def _may_close(self, original: Original) -> bool:
        """Return whether no other machine holds the lease under which this VM is returned."""
        lock_vm = lock_vm_of(original.policy or self.policy, self.policy)
        return self.leases is None or lock_vm not in self.leases.elsewhere

    def _vm_leases(self, report: Report) -> VmLeases:
        """Return the lease of each step of the plan."""
        if self.leases is None:
            return NO_LEASE
        if isinstance(report.request, RotateDay | RestoreVms):
            return self.leases.for_vms(report.request.lock_vms(report.before))
        return self.leases.for_all_vms

    def _taken_earlier(self, run: Run, journal: Journal, inventory: Inventory) -> frozenset[str]:
        """Return the desktops (refs) that earlier runs of this night took."""
        tonight = NightVms(journal).all(run.night)
        originals = [
            original
            for original in tonight
            if original.night == run.night and original.taken and original.role is not Role.ML
        ]
        return frozenset(vm.ref for original in originals for vm in vms_of(original, inventory))

    def _end(self, runs: Sequence[Run], journal: Journal) -> None:
        """End the runs that were cut off: this run continues them. A restore ends only restores of the same VMs."""
        for run in runs:
            if self.kind is not RunKind.RESTORE or (run.kind == RunKind.RESTORE and {*run.vms} <= {*self.only}):
                journal.end(run, cut_off=True)

    def _begin(self, report: Report, journal: Journal) -> Run:
        """Write the run, and the state that the return must restore, to the journal before the first step."""
        request = report.request
        night = request.night(report.before, self.now) if isinstance(request, RotateNight) else None
        run = journal.begin(
            self.kind,
            night=night,
            policy=self.policy.text,
            policy_digest=self.policy.digest,
            vms=self.only,
            steps=len(report.plan.steps) if night is not None else 0,
            leases=self.leases.numbered if self.leases is not None else (),
            free_gpus=free_gpus(report.plan.steps, report.before, catalog_of(report.before)) if night else None,
            known_runs=self.runs_seen,
        )
        if isinstance(request, RotateNight):
            NightVms(journal).save(request.originals_of(report.plan, report.before, self.now), run)
        return run

    @property
    def _limits(self) -> Limits:
        """The limits of the policy; for a return, the strictest limits of all nights that it returns."""
        limits = self.policy.limits
        return limits if self.kind.takes else strictest((limits, *(policy.limits for policy in self.other_policies)))

    def _close_returned(self, report: Report, journal: Journal, executor: VmExecutor | None = None) -> Inventory:
        """Close the records of the VMs that are back. Return the inventory after the run.

        `executor`: that of the run; its latest look is used if it read all these VMs after the last step.

        Only a return closes them: a desktop that someone woke during the night still belongs to that night. A VM that
        was deleted from vCenter is named by every return of its night, in case an admin misses one; the next night
        closes its record.
        """
        originals = NightVms(journal).all()
        if self.kind.takes:
            tonight = report.request.night(report.before, self.now) if isinstance(report.request, RotateNight) else ""
            removed_originals = [
                original for original in originals if original.night != tonight and is_gone(original, report.before)
            ]
            if not (report.plan.feasible and removed_originals):
                return report.before
            if not is_another_vcenter(note_witnesses(originals, report.before, self.site.vcenter), report.before):
                for original in removed_originals:
                    NightVms(journal).record_return(original)
            return report.before
        refs = {original.vm for original in originals} | {step.vm for step in report.plan.steps}
        refs |= {vm.ref for original in originals for vm in vms_of(original, report.before)}
        if executor is not None and refs <= executor.just_read:
            after = executor.inventory
        else:
            after = self.site.vcenter.observe(report.before, refs)
        drs_vms = {vm.ref for original in originals if original.drs is not None for vm in vms_of(original, after)}
        after = self.site.vcenter.with_drs(after, drs_vms) if drs_vms else after
        machine_of_vm = {
            vm.ref: original.gated_as or ""
            for original in originals
            if original.gated_as is not None
            for vm in vms_of(original, after)
        }
        after = with_gates(after, machine_of_vm, self.site.gates)
        judged_originals = self._with_contradictions(report, originals)
        if is_another_vcenter(judged_originals, report.before):
            return after  # no record is closed by another vCenter (`plan.rotation.witness`)
        # contradictions to the journal were found before this run changed anything
        contradicting = {key_of(original) for original in judged_originals if original.contradiction}
        for original in note_later_starts(originals, after, self.site.vcenter):
            if key_of(original) in contradicting:
                continue
            if self._ends_nights_of(original) and self._may_close(original) and is_returned(original, after):
                NightVms(journal).record_return(original)
        note_returned(journal, after)
        return after

    def _with_contradictions(self, report: Report, originals: Sequence[Original]) -> Sequence[Original]:
        """Return the originals with their contradictions to the journal before this return changed anything.

        A return that follows markers alone looks for them only here.
        """
        if self.markers_alone:
            return note_witnesses(originals, report.before, self.site.vcenter)
        day = report.request.day if isinstance(report.request, RestoreVms) else report.request
        return day.originals if isinstance(day, RotateDay) else ()


def _refuse_unread_policy(why: PolicyError) -> Rejection:
    rule = f"{why.message}: VMs that are not in the journal were looked for with the policy of the last night"
    return Rejection("--policy", rule, hint=why.hint)


def _suspended_for_desktops(journal: Journal | None) -> tuple[Original, ...]:
    """Return the ML VMs that a watch suspended for desktops and that gpuops has not started since."""
    originals = NightVms(journal).all(returned=True) if journal is not None else ()
    return tuple(original for original in originals if original.role is Role.ML and original.suspended_at is not None)
