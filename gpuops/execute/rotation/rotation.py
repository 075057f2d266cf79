"""Runs a rotation under the lock and the journal: settles what a killed run left, plans, and acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpuops.errors import GpuopsError, NotConnected, PolicyError, StateDamaged, UsageError
from gpuops.execute.jobs.night_jobs import with_jobs
from gpuops.execute.jobs.nightly import stop_and_report
from gpuops.execute.journal import Journal
from gpuops.execute.journal.runs_seen import BegunSince
from gpuops.execute.lease.lease_set import for_night, for_return
from gpuops.execute.rotation.asked_first import asked_first
from gpuops.execute.rotation.required import require_broker, require_markers_seen, require_mode
from gpuops.execute.rotation.rotation_lock import locked_journal, nobody_rotates, without_journal
from gpuops.execute.rotation.rotation_run import RotationRun
from gpuops.execute.rotation.setup import require_setup
from gpuops.execute.rotation.spare_now import NOTHING_KNOWN, SpareNow
from gpuops.execute.rotation.watch_state import refuse_beside_watch
from gpuops.execute.runs.exclusion import no_change_open
from gpuops.execute.runs.nights import (
    NightVms,
    known_originals,
    last_policy,
    own_policy,
    policies_of,
    remembered_policy,
)
from gpuops.execute.runs.run_kind import EXCLUSIVE_RUNS, ROTATION_RUNS, RunKind, morning_first
from gpuops.execute.site import WITHOUT_GUESTS, Consent, Site, agreed, catalog_of, once_agreed
from gpuops.execute.site.vcenter_wait import VcenterWait
from gpuops.model.nights.rotation import Policy
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
    """Suspends the idle desktops that the policy selects and starts the ML VMs that fit in their place.

    Returns what was planned and what became of it. `unattended`: nobody watches, so that a policy without windows is
    refused unless it says `windows: any`. `by_timer`: outside its hours there is nothing to do. `asks` as for `rotate`.
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
    """Stops the ML VMs that the night started and resumes every desktop that it suspended.

    Each under the policy of its night. `policy` speaks for what the journal does not know; None, or one that cannot be
    read, which `plan.unmet` then says = that of the last night does. Exit code 4 when a desktop could not be returned:
    `plan.unmet` and the failed outcomes name each, with its reason and one safe command.
    `by_timer`: while a window is open and nothing is due there is nothing to do.
    """
    if by_timer and (why := _not_yet_due(policy, site)):
        return _nothing_due(why, site, apply=apply)
    if apply and asks:
        consent = once_agreed(consent, lambda _: stop_and_report(site))
    elif apply:
        stop_and_report(site)
    return rotate(RunKind.DAY, policy, site, apply=apply, consent=consent, asks=asks)


def _out_of_hours(policy: Policy, site: Site) -> str:
    """Why a timer's call of a night comes outside its hours; empty = it does not."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        durations = Durations.of(journal.durations() if journal else {})
    refused = refuse_closed_window(policy, site.clock(), durations)
    return refused.rule if refused is not None and refused.by_the_hour else ""


def _not_yet_due(policy: Policy | PolicyError | None, site: Site) -> str:
    """Why a timer's call of a return has nothing to do yet; empty = it has. A return is due where the journal or a
    policy cannot be read: the return itself says so, and brings back what vCenter's markers name."""
    now = site.clock()
    try:
        with site.journal_to_read(site.vcenter.uuid, returning=True) as journal:
            said = policy if isinstance(policy, Policy) else last_policy(journal)
            originals = NightVms(journal).all() if journal is not None else ()
            over = journal.ended_nights() if journal is not None else frozenset()
            durations = Durations.of(journal.durations() if journal else {})
            lost = journal is not None and journal.lost is not None
    except (StateDamaged, PolicyError):
        return ""
    nights = open_nights(said, originals, over, now)
    if not nights or said is None or lost:
        return ""
    return not_yet_due(nights, said, originals, site.vcenter.inventory(), durations, now)


def _nothing_due(why: str, site: Site, *, apply: bool) -> Report:
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
    """One run of a rotation. What the journal knows is returned under the policy of its night: `policy` speaks for the
    rest, and without one that of the last night in the journal.

    `only`: names of the VMs that a restore is of. `markers_alone`: what was taken is told by vCenter alone. `asks`: the
    consent waits for somebody's answer, so it is asked for before the lock is taken. `clears`: a restore only clears
    the markers of its VMs.

    A policy that cannot be read is raised, unless nights are to be returned that are under policies of their own.
    Where a VM of a cluster does not start, those of it that did are stopped again.
    """

    site.said_policy = policy if isinstance(policy, Policy) else None

    def run(apply: bool, consent: Consent) -> Report:
        if asks and kind.takes:
            nobody_rotates(site)  # said before somebody thinks it over
        return _one_run(
            kind,
            policy,
            site,
            apply=apply,
            consent=consent,
            only=only,
            markers_alone=markers_alone,
            unattended=unattended,
            spare=spare,
            clears=clears,
        )

    cut_off = _starts_cut_off(site) if apply and kind.takes else {}
    report = asked_first(run, consent) if apply and asks else run(apply, consent)
    halves = half_started(report.outcomes, report.before, cut_off) if kind.takes else ()
    return _stopped_again(report, halves, policy, site) if halves else report


def _starts_cut_off(site: Site) -> Mapping[str, bool]:
    """By VM (ref), whether it was started by a night that did not end."""
    with site.journal_to_read(site.vcenter.uuid) as journal:
        nights = [run for run in journal.open_runs(ROTATION_RUNS) if RunKind(run.kind).takes] if journal else []
        return {vm: well for night in nights for vm, well in journal.starts_of(night).items()} if journal else {}


def _stopped_again(
    report: Report, halves: Sequence[HalfStarted], policy: Policy | PolicyError | None, site: Site
) -> Report:
    """The report with what became of the VMs of these clusters that had started."""
    warnings = list(map(str, halves))
    names = tuple(f"moid:{vm.ref}" for each in halves for vm in each.started)
    try:
        stopped = restore(policy, site, names, apply=True)
    except GpuopsError as error:  # what the night did is told all the same
        warnings.append(f"they run on: {error.line}; gpuops rotate restore --vm NAME stops them")
    else:
        report = replace(report, outcomes=(*report.outcomes, *stopped.outcomes), after=stopped.after or report.after)
    return replace(report, plan=replace(report.plan, warnings=(*report.plan.warnings, *warnings)))


def _one_run(
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
    unread = policy if isinstance(policy, PolicyError) else None
    if kind.takes and isinstance(policy, Policy):
        require_mode(kind, policy)
        require_setup(policy, site.vcenter)
        require_broker(policy, site)
        policy = with_jobs(policy.at_night(site.clock()), site)
    # only taking needs a journal: without one, a morning goes by vCenter's markers
    returning = not kind.takes
    if not apply:
        with site.journal_to_read(site.vcenter.uuid, returning=returning) as journal:
            if not returning:
                no_change_open(journal)
            obeyed, nights = _obeyed(policy, journal, returning=returning)
            this_run = RotationRun(
                kind,
                obeyed,
                site,
                site.clock(),
                only,
                markers_alone,
                others=nights,
                unread=unread,
                spare=spare,
                clears=clears,
            )
            report = this_run.look_only(journal)
            if kind is RunKind.NIGHT:
                refuse_beside_watch(obeyed, report.before, site)
            return without_journal(report, journal)
    with locked_journal(site, kind) as journal:
        if not returning:
            no_change_open(journal)
        obeyed, nights = _obeyed(policy, journal, returning=returning)
        warned: dict[str, None] = {}
        """What was warned of, that of a plan which an outage cut short too: what was done under it stays done."""

        def run_once() -> Report:
            seen = journal.runs_seen(EXCLUSIVE_RUNS)
            left_open = journal.open_runs(ROTATION_RUNS)
            morning_first(kind, left_open)
            leasing = (
                for_return(site, journal, obeyed, () if markers_alone else nights)
                if returning
                else for_night(site, journal, obeyed)
            )
            with leasing as leases:
                this_run = RotationRun(
                    kind,
                    obeyed,
                    site,
                    site.clock(),
                    only,
                    markers_alone,
                    leases,
                    nights,
                    unread,
                    unattended,
                    spare,
                    seen,
                    clears,
                )
                settled = this_run.settle(left_open, journal)
                report = this_run.look(journal)
                if kind is RunKind.NIGHT:
                    refuse_beside_watch(obeyed, report.before, site)
                try:
                    done = this_run.do(report, journal, left_open, consent)
                finally:
                    warned.update(dict.fromkeys((*report.plan.warnings, *leases.warnings)))
            plan = replace(report.plan, warnings=tuple(warned))
            return replace(done, plan=plan, outcomes=(*settled, *done.outcomes), applied=True)

        def return_once() -> Report:
            try:
                return run_once()
            except BegunSince:  # it looks again: a return keeps nobody away for a run that began beside it
                return run_once()

        report = (
            _waiting_for_vcenter(return_once, _latest((*nights, obeyed), site), site, journal)
            if returning
            else run_once()
        )
        return without_journal(report, journal)


def _obeyed(
    said: Policy | PolicyError | None, journal: Journal | None, *, returning: bool
) -> tuple[Policy, tuple[Policy, ...]]:
    """The policy that speaks for what the journal does not know, and those of the nights that are returned."""
    nights = policies_of(journal) if returning else ()
    if isinstance(said, PolicyError) and not nights:
        raise said
    return said if isinstance(said, Policy) else remembered_policy(journal), nights


def _latest(policies: Sequence[Policy], site: Site) -> Policy:
    """That by which a return waits the longest for a vCenter that is away."""
    now = site.clock()
    return max(policies, key=lambda policy: waits_until(policy, now))


def _waiting_for_vcenter(run_once: Callable[[], Report], policy: Policy, site: Site, journal: Journal) -> Report:
    """What a return comes to that waits for a vCenter that is away, and then goes on as one that was cut off does."""

    def pause(seconds: float) -> None:
        journal.alive()
        site.pause(seconds)

    vcenter_wait = VcenterWait(policy, site.clock, pause, site.say)
    watching, so_far = site.progress, list[Outcome]()
    before_it_went: tuple[Outcome, ...] = ()

    def noted(outcome: Outcome) -> None:
        so_far.append(outcome)
        watching(outcome)

    site.progress = noted
    while True:
        try:
            report = run_once()
        except NotConnected as away:
            vcenter_wait.until_back(away, site.vcenter.inventory)
            before_it_went = tuple(so_far)
        else:
            site.progress = watching
            return replace(report, outcomes=(*before_it_went, *report.outcomes))


def resume(
    site: Site,
    *,
    apply: bool = True,
    consent: Consent = agreed,
    unattended: bool = False,
    asks: bool = False,
) -> Report:
    """Finishes the night or day that was cut off, under the policy it began with; an empty plan when none was.

    A return goes on without a login to guests; a night raises why there is none (`Site.no_guests`).
    Raises Locked while a run is under way: what it has not done yet is not cut off.
    """
    with site.journal_to_read(site.vcenter.uuid) as journal:
        left_open = journal.open_runs(ROTATION_RUNS) if journal else ()
        policy = own_policy(left_open[-1].policy, journal) if left_open else None
    if not left_open:
        nothing = NOTHING_CUT_OFF if journal else NO_JOURNAL
        return Report(None, site.vcenter.inventory(), nothing, applied=apply)
    nobody_rotates(site)
    last = left_open[-1]
    kind, no_guests = RunKind(last.kind), site.no_guests
    if kind.takes and no_guests is not None:
        raise no_guests
    report = rotate(
        kind,
        policy,
        site,
        apply=apply,
        consent=consent,
        only=last.vms,
        unattended=unattended,
        asks=asks,
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
    """Brings back now what nights took: all of it, or the VMs of these names alone.

    `from_markers` goes by vCenter's markers and by no journal; raises UsageError then without a policy. An ML VM that
    is not named runs on: a desktop that finds no room beside it is named, with who holds the GPUs (exit code 4).
    """
    if from_markers and isinstance(policy, PolicyError):
        raise policy
    if from_markers and policy is None:
        raise UsageError("--from-markers knows no night's policy", hint="say the policy of that night: --policy FILE")
    if not all(vms):
        raise UsageError("--vm: the name is empty", hint="gpuops rotate status lists the VMs of a night")
    if from_markers and isinstance(policy, Policy):
        require_markers_seen(policy, site)
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
    """Clears the markers of these VMs and does nothing else to them: copies, and VMs whose marker cannot be read.

    `policy` says which custom attribute holds markers; None = that of the last night. Refused for a VM of an open night
    of the journal.
    """
    return rotate(RunKind.RESTORE, policy, site, apply=apply, consent=consent, only=vms, asks=asks, clears=True)


def may_take(policy: Policy, site: Site, inventory: Inventory) -> Survey:
    """Which of the desktops in this inventory a night under the policy could suspend, as they are now."""
    now = site.clock()
    with site.journal_to_read(inventory.vcenter) as journal:
        request = RotateNight(policy.at_night(now), known_originals(journal, policy, now))
    seen = site.judged(inventory, policy)
    return request.may_take(seen, catalog_of(seen), now)
