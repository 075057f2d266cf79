"""Runs a rotation under the lock and the journal: settles what a killed run left, plans, and acts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from gpuops.config.policy import parse_policy
from gpuops.errors import Locked, NotConnected, PolicyError, Refused, UsageError
from gpuops.execute.journal import Journal
from gpuops.execute.journal.runs_seen import BegunSince
from gpuops.execute.lease.lease_set import for_night, for_return
from gpuops.execute.rotation.hung_run import end_hung_run
from gpuops.execute.rotation.rotation_run import NOTHING_KNOWN, RotationRun, SpareNow
from gpuops.execute.rotation.setup import require_setup
from gpuops.execute.rotation.watch_state import refuse_beside_watch
from gpuops.execute.runs.exclusion import no_change_open
from gpuops.execute.runs.nights import known_originals, policies_of, remembered_policy
from gpuops.execute.runs.run_kind import EXCLUSIVE_RUNS, ROTATION_RUNS, RunKind, morning_first
from gpuops.execute.site import Consent, Site, agreed, catalog_of
from gpuops.execute.site.vcenter_wait import VcenterWait
from gpuops.execute.state.lock import LockedBy, rotating
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import LockHolder, Policy
from gpuops.plan.core.outcome import Outcome, Report
from gpuops.plan.core.plan import Plan
from gpuops.plan.rotation.desktops import Survey
from gpuops.plan.rotation.night import RotateNight
from gpuops.plan.rotation.return_time import holder_advice, holder_text, waits_until

NOTHING_CUT_OFF: Final = Plan(because=("no run was cut off",))

NO_JOURNAL: Final = Plan(
    because=("this machine has no journal of any run", "gpuops rotate status shows what vCenter's markers name")
)


def rotate_night(
    policy: Policy, site: Site, *, apply: bool, consent: Consent = agreed, unattended: bool = False
) -> Report:
    """Suspends the idle desktops that the policy selects and starts the ML VMs that fit in their place.

    Returns what was planned and what became of it. `unattended`: nobody watches, so that a policy without windows is
    refused unless it says `windows: any`.
    """
    return rotate(RunKind.NIGHT, policy, site, apply=apply, consent=consent, unattended=unattended)


def rotate_day(policy: Policy | PolicyError | None, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """Stops the ML VMs that the night started and resumes every desktop that it suspended.

    Each under the policy of its night. `policy` speaks for what the journal does not know; None, or one that cannot be
    read, which `plan.unmet` then says = that of the last night does. Exit code 4 when a desktop could not be returned:
    `plan.unmet` and the failed outcomes name each, with its reason and one safe command.
    """
    return rotate(RunKind.DAY, policy, site, apply=apply, consent=consent)


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
) -> Report:
    """One run of a rotation. What the journal knows is returned under the policy of its night: `policy` speaks for the
    rest, and without one that of the last night in the journal.

    `only`: names of the VMs that a restore is of. `markers_alone`: what was taken is told by vCenter alone.

    A policy that cannot be read is raised, unless nights are to be returned that are under policies of their own.
    """
    unread = policy if isinstance(policy, PolicyError) else None
    if kind.takes and isinstance(policy, Policy):
        require_mode(kind, policy)
        require_setup(policy, site.vcenter)
        _require_broker(policy, site)
    # only taking needs a journal: without one, a morning goes by vCenter's markers
    returning = not kind.takes
    if not apply:
        with site.journal_to_read(site.vcenter.uuid, returning=returning) as journal:
            if not returning:
                no_change_open(journal)
            obeyed, nights = _obeyed(policy, journal, returning=returning)
            this_run = RotationRun(
                kind, obeyed, site, site.clock(), only, markers_alone, others=nights, unread=unread, spare=spare
            )
            report = this_run.look_only(journal)
            if kind is RunKind.NIGHT:
                refuse_beside_watch(obeyed, report.before, site)
            return _without_journal(report, journal)
    with _locked_journal(site, kind) as journal:
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
        return _without_journal(report, journal)


def require_mode(kind: RunKind, policy: Policy) -> None:
    """Raises UsageError where nights are asked for under a policy of spare capacity, or the other way round."""
    if (kind is RunKind.WATCH) is (policy.spare is not None):
        return
    other = RunKind.WATCH if kind is RunKind.NIGHT else RunKind.NIGHT
    hint = f"gpuops {other} --policy FILE --dry-run, or another policy (gpuops help watch)"
    raise UsageError(f"policy {policy.name} says `mode: {policy.mode}`: {kind} takes nothing under it", hint=hint)


def _require_broker(policy: Policy, site: Site) -> None:
    """Raises UsageError where the policy needs a gate and there is no broker."""
    if policy.gates and site.gates is None:
        raise UsageError(
            f"policy {policy.name} says `broker: {policy.broker}`, and no connection broker is configured",
            hint="put [targets.NAME.broker] into the configuration file (gpuops help broker)",
        )


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


@contextmanager
def _locked_journal(site: Site, kind: RunKind) -> Iterator[Journal]:
    """The journal, under the lock. A return ends a run of this machine that hangs, or a night that is over, first.

    Raises Locked with what that run does, and from when on a return ends it.
    """
    returning = not kind.takes
    with ExitStack() as stack:
        for again in (False, True):
            changing = site.locked_journal(site.vcenter.uuid, alone=True, returning=returning, doing=kind.value)
            try:
                journal = stack.enter_context(changing)
                break
            except LockedBy as held:
                if again or not returning or not end_hung_run(held.holder, site):
                    raise locked_out(held.holder, site) from held
        yield journal


def locked_out(holder: LockHolder, site: Site) -> Locked:
    """What is said where another run of this machine holds the lock."""
    now = site.clock()
    message = f"{holder_text(holder, now)} is changing this vCenter: nothing is cut off"
    return Locked(message, hint=holder_advice(holder, now))


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


def resume(site: Site, *, apply: bool = True, consent: Consent = agreed, unattended: bool = False) -> Report:
    """Finishes the night or day that was cut off, under the policy it began with; an empty plan when none was.

    Raises Locked while a run is under way: what it has not done yet is not cut off.
    """
    with site.journal_to_read(site.vcenter.uuid) as journal:
        left_open = journal.open_runs(ROTATION_RUNS) if journal else ()
    if not left_open:
        nothing = NOTHING_CUT_OFF if journal else NO_JOURNAL
        return Report(None, site.vcenter.inventory(), nothing, applied=apply)
    holder = rotating(site.state_dir, site.vcenter.uuid)
    if holder is not None:
        raise locked_out(holder, site)
    last = left_open[-1]
    return rotate(
        RunKind(last.kind),
        parse_policy(last.policy, "the journal", accepted_before=True),
        site,
        apply=apply,
        consent=consent,
        only=last.vms,
        unattended=unattended,
    )


def restore(
    policy: Policy | PolicyError | None,
    site: Site,
    vms: tuple[str, ...] = (),
    *,
    from_markers: bool = False,
    apply: bool,
    consent: Consent = agreed,
    spare: SpareNow = NOTHING_KNOWN,
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
        _markers_can_be_seen(policy, site)
    kind = RunKind.RESTORE if vms else RunKind.DAY
    return rotate(kind, policy, site, apply=apply, consent=consent, only=vms, markers_alone=from_markers, spare=spare)


def _markers_can_be_seen(policy: Policy, site: Site) -> None:
    """Raises Refused where no VM can carry the marker: that nothing is marked then says nothing."""
    if policy.marker not in site.vcenter.defined_attributes():
        raise Refused(
            f"no custom attribute is called {policy.marker}, or this login does not see it: nothing tells what is away",
            hint="say the policy of that night, and log in as who ran it",
        )


def may_take(policy: Policy, site: Site, inventory: Inventory) -> Survey:
    """Which of the desktops in this inventory a night under the policy could suspend, as they are now."""
    now = site.clock()
    with site.journal_to_read(inventory.vcenter) as journal:
        request = RotateNight(policy, known_originals(journal, policy, now))
    seen = site.judged(inventory, policy)
    return request.may_take(seen, catalog_of(seen), now)


def _without_journal(report: Report, journal: Journal | None) -> Report:
    """The report of a run that outlived its journal, or the file of its lock, says so; any other as it is."""
    warnings = _outlived(journal) if journal is not None else ()
    if not warnings:
        return report
    plan = replace(report.plan, warnings=(*report.plan.warnings, *warnings))
    return replace(report, plan=plan, journal_lost=True)


def _outlived(journal: Journal) -> tuple[str, ...]:
    unlocked, lost = journal.hold.damaged if journal.hold is not None else journal.unlocked, journal.lost
    warnings = []
    if unlocked is not None and (lost is None or lost.message != unlocked.message):
        warnings.append(f"{unlocked.line}: no lock keeps another gpuops of this machine away for certain")
    if lost is not None:
        why = lost.message
        warnings.append(f"{why}: went by vCenter's markers; no night begins before it is repaired or moved aside")
    return tuple(warnings)
