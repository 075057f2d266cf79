"""Tells what nights have taken, where it is now, and which run rotates; it only reads, and reports what is damaged."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from gpuops.config.policy import parse_policy
from gpuops.errors import StateDamaged
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.lease import lease_on
from gpuops.execute.lease.lock_vm import highest_number
from gpuops.execute.past.overdue_vcenters import overdue_vcenters
from gpuops.execute.rotation.installed_timers import timer_misfits
from gpuops.execute.runs.given_up import still_given_up
from gpuops.execute.runs.nights import NightVms
from gpuops.execute.runs.run_kind import RunKind, left_open_runs
from gpuops.execute.runs.witnesses import note_witnesses, with_creation_of_strangers
from gpuops.execute.site import Site
from gpuops.model.nights.night_record import LockHolder
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.lease import NO_NUMBER
from gpuops.plan.rotation.status import RotationStatus
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, marker_of, taken_vms


def status(
    site: Site, policy: Policy | None = None, now: Inventory | None = None, policy_file: Path | None = None
) -> RotationStatus:
    """What the nights that are not over have taken, and where each VM is now; `now` None = it is read. `policy_file`:
    that of the policy, whose timers are looked at.

    Without a policy, by the one that the last night in the journal ran under. By vCenter's markers alone where the
    journal cannot be read (`RotationStatus.journal_lost`).
    """
    now = now or site.vcenter.inventory()
    with site.journal_to_read(now.vcenter, returning=True) as journal:
        holder, left_open, unreadable = _runs(journal, site)
        text = journal.last_policy(RunKind.NIGHT) if journal else None
        if policy is None and text:
            policy = parse_policy(text, "the journal", accepted_before=True)
        if policy:
            now = site.tagged(now, policy)
        originals = note_witnesses(NightVms(journal).all(returned=True), now, site.vcenter) if journal else ()
        now = with_creation_of_strangers(now, policy, originals, site.vcenter)
        found = taken_vms(policy, originals, now)
        if not text:
            found = tuple(replace(mine, command=_with_policy(mine.command)) for mine in found)
        skipped = _skipped(journal, policy, site.clock())
        lock_vm = policy.lock_vm if policy else None
        highest = highest_number(lock_vm, (policy,), journal, now) if policy and lock_vm else NO_NUMBER
        lost = unreadable or (journal.lost if journal else None)
        shown = {mine.original.vm for mine in found}
        given_up = tuple(each for each in still_given_up(journal, site, now) if each.given.ref not in shown)
    lease, trouble = lease_on(site, lock_vm, now, highest) if lock_vm else (None, "")
    last = left_open[-1] if left_open and holder is None else None
    doing = next((run.kind for run in left_open if holder is not None and run.pid == holder.pid), None)
    damaged = list[StateDamaged]()
    overdue = () if lost else overdue_vcenters(site.state_dir, site.journal_url, site.clock, damaged=damaged.append)
    return RotationStatus(
        vcenter=now.vcenter,
        policy=policy.name if policy else None,
        remembered=bool(text),
        marker=marker_of(policy),
        under_way=holder,
        doing=doing,
        cut_off=last.kind if last else None,
        cut_off_since=last.started if last else None,
        vms=found,
        lock_vm=lock_vm,
        lease=lease,
        lock_trouble=trouble,
        given_up=given_up,
        skipped=skipped,
        journal_lost=lost.message if lost else "",
        names={ref: host.name for ref, host in now.hosts.items()},
        overdue=overdue,
        overdue_unknown=tuple(each.message for each in damaged),
        timers=timer_misfits(policy, site, policy_file),
    )


def _with_policy(command: str) -> str:
    """The command of a machine that remembers no night, and so no policy to go by."""
    return f"{command} --policy FILE" if command == RETURN_COMMAND else command


def _runs(journal: Journal | None, site: Site) -> tuple[LockHolder | None, tuple[Run, ...], StateDamaged | None]:
    """Who rotates, what was cut off, and why that cannot be told."""
    try:
        return *left_open_runs(journal, site), None
    except StateDamaged as damaged:
        return None, (), damaged


def _skipped(journal: Journal | None, policy: Policy | None, now: datetime) -> tuple[str, ...]:
    """The nights of the policy that are to come, or open, and are not taken."""
    if journal is None or policy is None or not policy.windows:
        return ()
    return tuple(sorted(night for night in journal.skipped_nights(policy.name) if night >= policy.night(now)))
