"""Run a rotation with the lock and the journal: settle the steps of a killed run, plan, then execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from gpuops.errors import GpuopsError, NotConnected, PolicyError, StateDamaged, UsageError
from gpuops.execute.journal import Journal
from gpuops.execute.journal.journal_reads import BegunSince
from gpuops.execute.lease.lease_set import for_night, for_return
from gpuops.execute.rotation.night_extension import add_to_queue, before_return
from gpuops.execute.rotation.night_setup import require_broker, require_mode, require_readable_markers, require_setup
from gpuops.execute.rotation.rotation_lock import (
    add_lost_journal_warnings,
    locked_journal,
    refuse_beside_watch,
    require_no_rotation,
)
from gpuops.execute.rotation.rotation_run import NOTHING_KNOWN, RotationRun, SpareNow
from gpuops.execute.runs import (
    EXCLUSIVE_RUNS,
    ROTATION_RUNS,
    NightVms,
    RunKind,
    known_originals,
    last_policy,
    morning_first,
    no_change_open,
    own_policy,
    policies_of,
    remembered_policy,
)
from gpuops.execute.site import WITHOUT_GUESTS, Consent, Site, agreed, catalog_of, once_agreed
from gpuops.execute.site.agreement import ask_until_agreed, no_step_more
from gpuops.execute.site.vcenter_wait import VcenterWait
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Outcome, Plan, Report
from gpuops.plan.rotation.ml_queue.whole_clusters import HalfStarted, half_started
from gpuops.plan.rotation.nights.bounds import refuse_closed_window
from gpuops.plan.rotation.nights.desktops import Survey
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.returns.return_time import Durations, not_yet_due, open_nights, waits_until

NOTHING_CUT_OFF: Final = Plan(because=("no run was cut off",))

NO_JOURNAL: Final = Plan(
    because=("this machine has no journal of any run", "gpuops rotate status shows what vCenter's markers name")
)


def rotate_night(
    policy: Policy,
    site: Site,
    *,
    apply: bool,
    consent: Consent = agreed,
    unattended: bool = False,
    by_timer: bool = False,
    asks: bool = False,
) -> Report:
    """Suspend the idle desktops that the policy selects and start the ML VMs that fit in their place.

    Returns the plan and the outcome of each step. `unattended`: no admin watches the run, so a policy without windows
    is refused unless it has `windows: any`. `by_timer`: do nothing outside the hours of the policy. `asks` as for
    `rotate`.
    """
    if by_timer and (why := _out_of_hours(policy, site)):
        return _nothing_due(why, site, apply=apply)
    return rotate(RunKind.NIGHT, policy, site, apply=apply, consent=consent, unattended=unattended, asks=asks)


def rotate_day(
    policy: Policy | PolicyError | None,
    site: Site,
    *,
    apply: bool,
    consent: Consent = agreed,
    by_timer: bool = False,
    asks: bool = False,
) -> Report:
    """Stop the ML VMs that the night started and resume every desktop that it suspended.

    Each VM is returned under the policy of its night. `policy` applies to VMs that are not in the journal. If it is
    None or cannot be read, the policy of the last night applies; `plan.unmet` reports a policy that cannot be read.
    Exit code 4 if a desktop could not be returned: `plan.unmet` and the failed outcomes name it, with the reason and
    one safe command. `by_timer`: do nothing while a window is open and no return is due.
    """
    if by_timer and (why := _not_yet_due(policy, site)):
        return _nothing_due(why, site, apply=apply)
    if apply and asks:
        consent = once_agreed(consent, lambda _: before_return(site))
    elif apply:
        before_return(site)
    return rotate(RunKind.DAY, policy, site, apply=apply, consent=consent, asks=asks)


def _out_of_hours(policy: Policy, site: Site) -> str:
    """Return why a timer's `rotate night` is outside the hours of the policy; empty = it is inside."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        durations = Durations.of(journal.durations() if journal else {})
    refused = refuse_closed_window(policy, site.clock(), durations)
    return refused.rule if refused is not None and refused.by_the_hour else ""


def _not_yet_due(policy: Policy | PolicyError | None, site: Site) -> str:
    """Return why a timer's `rotate day` has nothing to do yet; empty = a return is due.

    A return is always due if the journal or a policy cannot be read: it reports that, and brings back the VMs that
    vCenter's markers name.
    """
    now = site.clock()
    try:
        with site.journal_to_read(site.vcenter.uuid, returning=True) as journal:
            obeyed_policy = policy if isinstance(policy, Policy) else last_policy(journal)
            originals = NightVms(journal).all() if journal is not None else ()
            ended_nights = journal.ended_nights() if journal is not None else frozenset()
            durations = Durations.of(journal.durations() if journal else {})
            is_journal_lost = journal is not None and journal.lost is not None
    except (StateDamaged, PolicyError):
        return ""
    nights = open_nights(obeyed_policy, originals, ended_nights, now)
    if not nights or obeyed_policy is None or is_journal_lost:
        return ""
    return not_yet_due(nights, obeyed_policy, originals, site.vcenter.inventory(), durations, now)


def _nothing_due(why: str, site: Site, *, apply: bool) -> Report:
    """Return the report of a timer's call that does nothing, for this reason."""
    return Report(None, site.vcenter.inventory(), Plan(because=(why,)), applied=apply)


def rotate(
    kind: RunKind,
    policy: Policy | PolicyError | None,
    site: Site,
    *,
    apply: bool,
    consent: Consent,
    only: tuple[str, ...] = (),
    markers_alone: bool = False,
    unattended: bool = False,
    spare: SpareNow = NOTHING_KNOWN,
    asks: bool = False,
    clears: bool = False,
) -> Report:
    """Run one rotation and return its report.

    VMs in the journal are returned under the policy of their night. `policy` applies to all other VMs; if it is None,
    the policy of the last night in the journal applies.

    `only`: names of the VMs to restore. `markers_alone`: find the taken VMs only by vCenter's markers.
    `asks`: the consent waits for an admin's answer, so ask for it before the lock is taken. `clears`: only clear the
    markers of the VMs to restore.

    Raises the error of a policy that cannot be read, unless nights with policies of their own are to be returned.
    If one VM of a cluster does not start, the VMs of that cluster that did start are stopped again.
    """
    site.said_policy = policy if isinstance(policy, Policy) else None

    if asks and kind.takes:
        require_no_rotation(site)  # refuse before the admin is asked
    run = partial(
        _run_once_locked,
        kind,
        policy,
        site,
        only=only,
        markers_alone=markers_alone,
        unattended=unattended,
        spare=spare,
        clears=clears,
    )

    def ask_if_it_changes_anything(report: Report) -> None:
        if report.deeds:
            consent(report)

    cut_off = _starts_cut_off(site) if apply and kind.takes else {}
    if apply and asks:
        report = ask_until_agreed(
            run(apply=False, consent=agreed),
            ask_if_it_changes_anything,
            lambda agreement: run(apply=True, consent=agreement.require),
            covers=lambda agreed_report, current: no_step_more(agreed_report.plan.steps, current.plan.steps),
        )
    else:
        report = run(apply=apply, consent=consent)
    half_clusters = half_started(report.outcomes, report.before, cut_off) if kind.takes else ()
    return _stop_half_started(report, half_clusters, policy, site) if half_clusters else report


def _starts_cut_off(site: Site) -> Mapping[str, bool]:
    """Return VM ref -> whether its start succeeded, for the starts of nights that did not end."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        if journal is None:
            return {}
        nights = [run for run in journal.open_runs(ROTATION_RUNS) if RunKind(run.kind).takes]
        return {vm: succeeded for night in nights for vm, succeeded in journal.starts_of(night).items()}


def _stop_half_started(
    report: Report, half_clusters: Sequence[HalfStarted], policy: Policy | PolicyError | None, site: Site
) -> Report:
    """Stop the VMs of these clusters that did start. Return the report with the outcomes of these stops."""
    warnings = list(map(str, half_clusters))
    names = tuple(f"moid:{vm.ref}" for half_cluster in half_clusters for vm in half_cluster.started)
    try:
        stopped = restore(policy, site, names, apply=True)
    except GpuopsError as error:  # the report of the night is returned in any case
        warnings.append(f"these VMs keep running: {error.line}; gpuops rotate restore --vm NAME stops one of them")
    else:
        report = replace(report, outcomes=(*report.outcomes, *stopped.outcomes), after=stopped.after or report.after)
    return replace(report, plan=replace(report.plan, warnings=(*report.plan.warnings, *warnings)))


def _run_once_locked(
    kind: RunKind,
    policy: Policy | PolicyError | None,
    site: Site,
    *,
    apply: bool,
    consent: Consent,
    only: tuple[str, ...],
    markers_alone: bool,
    unattended: bool,
    spare: SpareNow,
    clears: bool,
) -> Report:
    """Plan once under the lock and execute the plan; without `apply`, only plan, without a lock."""
    unread = policy if isinstance(policy, PolicyError) else None
    if kind.takes and isinstance(policy, Policy):
        require_mode(kind, policy)
        require_setup(policy, site.vcenter)
        require_broker(policy, site)
        policy = add_to_queue(policy.at_night(site.clock()), site)
    # only a run that takes VMs needs a journal: without one, a return follows vCenter's markers
    returning = not kind.takes
    new_run = partial(
        RotationRun, kind, site=site, only=only, markers_alone=markers_alone, unread=unread, spare=spare, clears=clears
    )
    if not apply:
        with site.journal_to_read(site.vcenter.uuid, returning=returning) as journal:
            if not returning:
                no_change_open(journal)
            obeyed, nights = _policies_to_obey(policy, journal, returning=returning)
            report = new_run(policy=obeyed, now=site.clock(), other_policies=nights).look_only(journal)
            if kind is RunKind.NIGHT:
                refuse_beside_watch(obeyed, report.before, site)
            return add_lost_journal_warnings(report, journal)
    with locked_journal(site, kind) as journal:
        if not returning:
            no_change_open(journal)
        obeyed, nights = _policies_to_obey(policy, journal, returning=returning)
        warnings: dict[str, None] = {}
        """All warnings so far. Those of a plan that an outage cut short are kept: its finished steps stay done."""

        def run_once() -> Report:
            """Take the leases, settle the steps of runs that were cut off, plan, and execute the plan."""
            runs_seen = journal.runs_seen(EXCLUSIVE_RUNS)
            left_open = journal.open_runs(ROTATION_RUNS)
            morning_first(kind, left_open)
            lease_block = (
                for_return(site, journal, obeyed, () if markers_alone else nights)
                if returning
                else for_night(site, journal, obeyed)
            )
            with lease_block as leases:
                this_run = new_run(
                    policy=obeyed, now=site.clock(), leases=leases, other_policies=nights, unattended=unattended,
                    runs_seen=runs_seen,
                )  # fmt: skip
                settled = this_run.settle(left_open, journal)
                report = this_run.look(journal)
                if kind is RunKind.NIGHT:
                    refuse_beside_watch(obeyed, report.before, site)
                try:
                    run_report = this_run.do(report, journal, left_open, consent)
                finally:
                    warnings.update(dict.fromkeys((*report.plan.warnings, *leases.warnings)))
            plan = replace(report.plan, warnings=tuple(warnings))
            return replace(run_report, plan=plan, outcomes=(*settled, *run_report.outcomes), applied=True)

        def return_once() -> Report:
            try:
                return run_once()
            except BegunSince:  # another run began after the plan was made: plan again instead of failing the return
                return run_once()

        report = _wait_for_vcenter(return_once, (*nights, obeyed), site, journal) if returning else run_once()
        return add_lost_journal_warnings(report, journal)


def _policies_to_obey(
    policy: Policy | PolicyError | None, journal: Journal | None, *, returning: bool
) -> tuple[Policy, tuple[Policy, ...]]:
    """Return the policy for VMs that are not in the journal, and the policies of the nights that are returned."""
    nights = policies_of(journal) if returning else ()
    if isinstance(policy, PolicyError) and not nights:
        raise policy
    return policy if isinstance(policy, Policy) else remembered_policy(journal), nights


def _wait_for_vcenter(
    run_once: Callable[[], Report], policies: Sequence[Policy], site: Site, journal: Journal
) -> Report:
    """Do `run_once`; while vCenter cannot be reached, wait for it as long as any of the policies allows, and try again.

    Each try is like `rotate resume`: it settles the open steps and plans again. The report has the outcomes of all.
    """
    now = site.clock()
    longest_waiting = max(policies, key=lambda policy: waits_until(policy, now))

    def pause(seconds: float) -> None:
        journal.alive()
        site.pause(seconds)

    vcenter_wait = VcenterWait(longest_waiting, site.clock, pause, site.say)
    report_progress, outcomes_so_far = site.progress, list[Outcome]()
    outcomes_before_outage: tuple[Outcome, ...] = ()

    def note_outcome(outcome: Outcome) -> None:
        outcomes_so_far.append(outcome)
        report_progress(outcome)

    site.progress = note_outcome
    while True:
        try:
            report = run_once()
        except NotConnected as error:
            vcenter_wait.until_back(error, site.vcenter.inventory)
            outcomes_before_outage = tuple(outcomes_so_far)
        else:
            site.progress = report_progress
            return replace(report, outcomes=(*outcomes_before_outage, *report.outcomes))


def resume(
    site: Site, *, apply: bool = True, consent: Consent = agreed, unattended: bool = False, asks: bool = False
) -> Report:
    """Finish the run that was cut off, under the policy it began with. Without such a run, return an empty plan.

    Without a login to guests, a run that brings VMs back continues with a warning. A run that takes VMs raises the
    reason why there is no login (`Site.no_guests`).
    Raises Locked while a run is under way: its remaining steps are not cut off.
    """
    with site.journal_to_read(site.vcenter.uuid) as journal:
        left_open = journal.open_runs(ROTATION_RUNS) if journal else ()
        policy = own_policy(left_open[-1].policy, journal) if left_open else None
    if not left_open:
        empty_plan = NOTHING_CUT_OFF if journal else NO_JOURNAL
        return Report(None, site.vcenter.inventory(), empty_plan, applied=apply)
    require_no_rotation(site)
    last_run = left_open[-1]
    kind, no_guests = RunKind(last_run.kind), site.no_guests
    if kind.takes and no_guests is not None:
        raise no_guests
    report = rotate(
        kind, policy, site, apply=apply, consent=consent, only=last_run.vms, unattended=unattended, asks=asks
    )
    warnings = (f"{no_guests.line}: {WITHOUT_GUESTS}",) if no_guests is not None else ()
    return replace(report, plan=replace(report.plan, warnings=(*report.plan.warnings, *warnings)))


def restore(
    policy: Policy | PolicyError | None,
    site: Site,
    vms: tuple[str, ...] = (),
    *,
    from_markers: bool = False,
    apply: bool,
    consent: Consent = agreed,
    spare: SpareNow = NOTHING_KNOWN,
    asks: bool = False,
) -> Report:
    """Bring back now all VMs that nights took, or only the VMs of these names.

    `from_markers`: follow vCenter's markers and ignore the journal; raises UsageError if no policy is given. An ML VM
    that is not named keeps running. A desktop that does not fit next to it is reported, with the VMs that hold the GPUs
    (exit code 4).
    """
    if from_markers and isinstance(policy, PolicyError):
        raise policy
    if from_markers and policy is None:
        raise UsageError(
            "--from-markers needs a policy: markers do not contain one",
            hint="add the policy of that night: --policy FILE",
        )
    if not all(vms):
        raise UsageError(
            "--vm: the name is empty", hint="give the name of a VM; gpuops rotate status lists those of a night"
        )
    if from_markers and isinstance(policy, Policy):
        require_readable_markers(policy, site)
    kind = RunKind.RESTORE if vms else RunKind.DAY
    return rotate(
        kind, policy, site, apply=apply, consent=consent, only=vms, markers_alone=from_markers, spare=spare, asks=asks
    )


def clear_marker(
    policy: Policy | None,
    site: Site,
    vms: tuple[str, ...],
    *,
    apply: bool,
    consent: Consent = agreed,
    asks: bool = False,
) -> Report:
    """Clear the markers of these VMs and change nothing else: for copies, and for VMs whose marker cannot be read.

    `policy` names the custom attribute that holds markers; None = the policy of the last night. A VM of an open night
    of the journal is refused.
    """
    return rotate(RunKind.RESTORE, policy, site, apply=apply, consent=consent, only=vms, asks=asks, clears=True)


def survey_desktops(policy: Policy, site: Site, inventory: Inventory) -> Survey:
    """Return which desktops in this inventory a night under the policy could suspend now, and which not."""
    now = site.clock()
    with site.journal_to_read(inventory.vcenter) as journal:
        request = RotateNight(policy.at_night(now), known_originals(journal, policy, now))
    judged_inventory = site.read_for_policy(inventory, policy)
    return request.survey_desktops(judged_inventory, catalog_of(judged_inventory), now)
