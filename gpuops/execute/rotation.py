"""Rotation, done: settle what a killed run left, plan on what is, and only then act, under the lock and the journal."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from gpuops.config.policy import parse_policy
from gpuops.errors import UsageError
from gpuops.execute.doer import Doer
from gpuops.execute.executor import execute
from gpuops.execute.journal import Journal, Run
from gpuops.execute.originals import Originals
from gpuops.execute.resume import settle_open
from gpuops.execute.site import Consent, Site, catalog_of
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import Original, Policy
from gpuops.plan.outcome import Outcome, Report, Verdict
from gpuops.plan.rotation_day import RotateDay, explained, is_returned
from gpuops.plan.rotation_night import RotateNight
from gpuops.plan.rotation_ours import ours
from gpuops.plan.rotation_status import RotationStatus


class Half(StrEnum):
    """The two halves of a rotation; their names are kept in journals."""

    NIGHT = "rotate night"
    DAY = "rotate day"


HALVES = (Half.NIGHT, Half.DAY)


def rotate(half: Half, policy: Policy | None, site: Site, *, apply: bool, consent: Consent) -> Report:
    """One half of a rotation; without a policy, under that of the night in the journal."""
    before = site.vcenter.inventory()
    if not apply:
        with site.remembering(before.vcenter) as journal:
            policy = policy or _remembered_policy(journal)
            return _look(half, policy, _originals(journal, policy, site), _tagged(policy, site, before), site)
    with site.changing(before.vcenter, alone=True) as journal:
        policy = policy or _remembered_policy(journal)
        left_open = journal.open_runs(HALVES)
        settled = [outcome for run in left_open for outcome in _settle(run, journal, before, site, policy)]
        # What did not happen is planned anew below, and counts there.
        settled = [outcome for outcome in settled if outcome.verdict is not Verdict.FAILED]
        # Read again under the lock: what was read before may be from before another run.
        before = _tagged(policy, site, site.vcenter.inventory())
        report = _look(half, policy, _originals(journal, policy, site), before, site)
        return _do(half, policy, report, journal, left_open, settled, site, consent)


def resume(site: Site, *, apply: bool, consent: Consent) -> Report | None:
    """Finishes the half that was cut off, under the policy it began with; None = none was."""
    vcenter = site.vcenter.inventory().vcenter
    with site.remembering(vcenter) as journal:
        left_open = journal.open_runs(HALVES) if journal else ()
    if not left_open:
        return None
    last = left_open[-1]
    return rotate(Half(last.kind), parse_policy(last.policy, "the journal"), site, apply=apply, consent=consent)


def status(site: Site) -> RotationStatus:
    """What the nights that are not over have taken, and where each VM is now."""
    now = site.vcenter.inventory()
    with site.remembering(now.vcenter) as journal:
        left_open = journal.open_runs(HALVES) if journal else ()
        text = journal.last_policy() if journal else None
        policy = parse_policy(text, "the journal") if text else None
        if policy:
            now = _tagged(policy, site, now)
        found = ours(policy, Originals(journal).all() if journal else (), now)
    last = left_open[-1] if left_open else None
    return RotationStatus(
        vcenter=now.vcenter,
        policy=policy.name if policy else None,
        cut_off=last.kind if last else None,
        cut_off_since=last.started if last else None,
        vms=found,
        names={ref: host.name for ref, host in now.hosts.items()},
    )


def _look(half: Half, policy: Policy, originals: tuple[Original, ...], before: Inventory, site: Site) -> Report:
    request = RotateNight(policy, originals) if half is Half.NIGHT else RotateDay(policy, originals)
    return Report(request, before, request.plan(before, catalog_of(before), site.clock()))


def _do(
    half: Half,
    policy: Policy,
    report: Report,
    journal: Journal,
    left_open: Sequence[Run],
    settled: Sequence[Outcome],
    site: Site,
    consent: Consent,
) -> Report:
    outcomes: tuple[Outcome, ...] = ()
    if report.plan.feasible and report.plan.steps:
        consent(report)
        request = report.request
        night = request.night(report.before, site.clock()) if isinstance(request, RotateNight) else None
        run = journal.begin(half, night=night, policy=policy.text, policy_digest=policy.digest)
        _end(journal, left_open)
        if isinstance(request, RotateNight):
            Originals(journal).save(request.saved(report.plan, report.before, site.clock()))
        doer = Doer(site.vcenter, journal, run, report.before)
        outcomes = execute(report.plan, doer, policy.limits, site.progress)
        after = _close_returned(half, journal, report.before, site)
        outcomes = explained(outcomes, after) if half is Half.DAY else outcomes
        _end(journal, [run])
    else:
        _close_returned(half, journal, report.before, site)
        _end(journal, left_open)
    return Report(report.request, report.before, report.plan, (*settled, *outcomes), applied=True)


def _settle(run: Run, journal: Journal, before: Inventory, site: Site, policy: Policy) -> tuple[Outcome, ...]:
    return settle_open(Doer(site.vcenter, journal, run, before), timeout_s=policy.limits.step_timeout_s)


def _close_returned(half: Half, journal: Journal, before: Inventory, site: Site) -> Inventory:
    """Only a morning ends what a night took: a desktop that woke up at night is still of that night."""
    if half is Half.NIGHT:
        return before
    originals = Originals(journal).all()
    after = site.vcenter.observe(before, {original.vm for original in originals})
    for original in originals:
        # One that is gone has been named in this morning's report; nothing more can be done for it.
        if original.vm not in after.vms or is_returned(original, after):
            Originals(journal).returned(original)
    return after


def _end(journal: Journal, runs: Sequence[Run]) -> None:
    for run in runs:
        journal.end(run)


def _originals(journal: Journal | None, policy: Policy, site: Site) -> tuple[Original, ...]:
    if journal is None:
        return ()
    return Originals(journal).all(policy.night(site.clock()) if policy.window else None)


def _remembered_policy(journal: Journal | None) -> Policy:
    text = journal.last_policy() if journal else None
    if not text:
        raise UsageError("no night in the journal of this vCenter", hint="say the policy: --policy FILE")
    return parse_policy(text, "the journal")


def _tagged(policy: Policy, site: Site, inventory: Inventory) -> Inventory:
    return site.vcenter.with_tags(inventory) if policy.needs_tags else inventory
