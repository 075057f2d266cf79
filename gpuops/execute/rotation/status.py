"""Report the VMs that nights have taken, where they are now, and the run in progress. Only reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from gpuops.config.policy import parse_policy
from gpuops.errors import StateDamaged
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.lease import lease_on
from gpuops.execute.lease.lock_vm import highest_number
from gpuops.execute.past.every_vcenter import overdue_vcenters
from gpuops.execute.rotation.installed_timers import timer_misfits
from gpuops.execute.runs import (
    NightVms,
    RunKind,
    last_policy,
    left_open_runs,
    note_witnesses,
    still_given_up,
    with_creation_of_strangers,
)
from gpuops.execute.site import Site
from gpuops.model.nights.night_record import LockHolder, Role
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.lease_rules import NO_NUMBER
from gpuops.plan.rotation.night_status import NightStanding, RotationStatus
from gpuops.plan.rotation.returns.return_time import night_due
from gpuops.plan.rotation.taken_vms import RETURN_COMMAND, Whereabouts, marker_of, taken_vms


def status(
    site: Site, policy: Policy | None = None, inventory: Inventory | None = None, policy_file: Path | None = None
) -> RotationStatus:
    """Return the VMs that open nights have taken, and where each one is now.

    `policy` None = the policy of the last night in the journal. `inventory` None = read it. `policy_file`: the file of
    the policy, to check the installed timers. If the journal cannot be read (`RotationStatus.journal_lost`), only
    vCenter's markers are used.
    """
    inventory = inventory or site.vcenter.inventory()
    with site.journal_to_read(inventory.vcenter, returning=True) as journal:
        holder, left_open, unreadable = _read_runs(journal, site)
        text = journal.last_policy(RunKind.NIGHT) if journal else None
        if policy is None and text:
            policy = parse_policy(text, "the journal", accepted_before=True)
        if policy:
            inventory = site.read_tags(inventory, policy)
        originals = note_witnesses(NightVms(journal).all(returned=True), inventory, site.vcenter) if journal else ()
        inventory = with_creation_of_strangers(inventory, policy, originals, site.vcenter)
        night_vms = taken_vms(policy, originals, inventory)
        if not text:
            # without a policy in this machine's journal, the command that returns a VM needs the policy's file
            night_vms = tuple(
                replace(night_vm, command=f"{RETURN_COMMAND} --policy FILE")
                if night_vm.command == RETURN_COMMAND
                else night_vm
                for night_vm in night_vms
            )
        skipped = _skipped_nights(journal, policy, site.clock())
        lock_vm = policy.lock_vm if policy else None
        highest = highest_number(lock_vm, (policy,), journal, inventory) if policy and lock_vm else NO_NUMBER
        journal_error = unreadable or (journal.lost if journal else None)
        listed_refs = {night_vm.original.vm for night_vm in night_vms}
        given_up = tuple(vm for vm in still_given_up(journal, site, inventory) if vm.given.ref not in listed_refs)
    lease, trouble = lease_on(site, lock_vm, inventory, highest) if lock_vm else (None, "")
    last_cut_off = left_open[-1] if left_open and holder is None else None
    doing = next((run.kind for run in left_open if holder is not None and run.pid == holder.pid), None)
    damaged = list[StateDamaged]()
    overdue = (
        () if journal_error else overdue_vcenters(site.state_dir, site.journal_url, site.clock, damaged=damaged.append)
    )
    return RotationStatus(
        vcenter=inventory.vcenter,
        policy=policy.name if policy else None,
        remembered=bool(text),
        marker=marker_of(policy),
        under_way=holder,
        doing=doing,
        cut_off=last_cut_off.kind if last_cut_off else None,
        cut_off_since=last_cut_off.started if last_cut_off else None,
        vms=night_vms,
        lock_vm=lock_vm,
        lease=lease,
        lock_trouble=trouble,
        given_up=given_up,
        skipped=skipped,
        journal_lost=journal_error.message if journal_error else "",
        names={ref: host.name for ref, host in inventory.hosts.items()},
        overdue=overdue,
        overdue_unknown=tuple(error.message for error in damaged),
        timers=timer_misfits(policy, site, policy_file),
    )


def _read_runs(journal: Journal | None, site: Site) -> tuple[LockHolder | None, tuple[Run, ...], StateDamaged | None]:
    """Return the holder of the lock, the runs that were cut off, and the error if these cannot be read."""
    try:
        return *left_open_runs(journal, site), None
    except StateDamaged as damaged:
        return None, (), damaged


def _skipped_nights(journal: Journal | None, policy: Policy | None, now: datetime) -> tuple[str, ...]:
    """Return the skipped nights of the policy from tonight on."""
    if journal is None or policy is None or not policy.windows:
        return ()
    return tuple(sorted(night for night in journal.skipped_nights(policy.name) if night >= policy.night(now)))


def standing(site: Site, inventory: Inventory) -> NightStanding:
    """Return how many desktops open nights hold and when they are due back, by the same rules as `rotate status`.

    Reads the journal of this machine and the markers in the snapshot; sends no request to vCenter. Raises StateDamaged
    for a journal that cannot be read.
    """
    with site.journal_to_read(inventory.vcenter) as journal:
        policy = last_policy(journal)
        originals = NightVms(journal).all(returned=True) if journal is not None else ()
    night_vms = taken_vms(policy, originals, inventory)
    away_desktops = [
        night_vm
        for night_vm in night_vms
        if night_vm.whereabouts is Whereabouts.AWAY and night_vm.original.role is not Role.ML
    ]
    due = (
        night_due(policy, [night_vm.original for night_vm in away_desktops], site.clock())
        if policy is not None and away_desktops
        else None
    )
    return NightStanding(len(away_desktops), due.back_by if due is not None else None)
