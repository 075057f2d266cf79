"""The kinds of run in journals, and the nights that a journal holds with their policies and VMs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from gpuops.config.policy import parse_policy
from gpuops.errors import PolicyError, Refused, UsageError
from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.orders import MovesOrder, load_change_order
from gpuops.execute.lease.lease import RunLease, lease_during_run
from gpuops.execute.site import Site
from gpuops.execute.site.ports import Vcenter
from gpuops.execute.state.lock import rotating
from gpuops.model.nights.ml_queue import GuestCommand
from gpuops.model.nights.night_record import LockHolder, Original
from gpuops.model.nights.rotation_policy import LATE, Limits, Policy
from gpuops.model.stored import to_stored
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.abandonment import Missed, is_back, missed
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.rotation.power_moments import was_restarted_since_night
from gpuops.plan.rotation.taken_vms import possible_copies, vms_of
from gpuops.plan.rotation.witness import Witness, find_original_vm, judge_vcenter, key_of


class RunKind(StrEnum):
    """The kinds of run of a rotation and of a watch. Their names are stored in journals."""

    NIGHT = "rotate night"
    WATCH = "rotate watch"
    """Starts of a watch on slots beyond the reserve. A restore of single VMs stops ML VMs for desktops."""
    DAY = "rotate day"
    RESTORE = "rotate restore"
    """A return of some VMs, at any hour; the other VMs still belong to the night."""

    @property
    def takes(self) -> bool:
        """Whether the run may take GPUs; all other runs only bring VMs back."""
        return self in (RunKind.NIGHT, RunKind.WATCH)


ROTATION_RUNS = tuple(RunKind)
CHANGE: Final = "change"
"""The kind of run of a rolling change or a defrag, in journals."""
EXCLUSIVE_RUNS: Final = (*ROTATION_RUNS, CHANGE)
"""A vCenter has at most one of these at a time."""
RESUME: Final = "gpuops rotate resume"
RESUME_CHANGE: Final = "gpuops change resume"
CUT_OFF_HINT: Final = f"{RESUME} finishes it, or gpuops rotate day"
"""The commands that finish a night or a return that was cut off."""


def left_open_runs(journal: Journal | None, site: Site) -> tuple[LockHolder | None, tuple[Run, ...]]:
    """Return the process that rotates now, or None, and the runs that did not end.

    A run holds the lock from its first line in the journal to its last. So a run that is open before and after a moment
    in which the lock was free was cut off.
    """
    runs = journal.open_runs(ROTATION_RUNS) if journal else ()
    holder = rotating(site.state_dir, site.vcenter.uuid)
    if journal is None or holder is not None or not runs:
        return holder, runs
    still_open = {run.id for run in journal.open_runs(ROTATION_RUNS)}
    return None, tuple(run for run in runs if run.id in still_open)


def morning_first(kind: RunKind, left_open: Sequence[Run]) -> None:
    """Raise Refused if a night would begin before a return that was cut off: it would take the same VMs again."""
    cut_off = next((run for run in left_open if not RunKind(run.kind).takes), None)
    if kind.takes and cut_off is not None:
        run_noun = "morning" if cut_off.kind == RunKind.DAY else "restore"
        raise Refused(
            f"the {run_noun} that began at {format_zoned_minute(cut_off.started)} did not end", hint=CUT_OFF_HINT
        )


class NightVms:
    """The originals of one vCenter in its journal: VMs of nights, as they were before the night."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def save(self, originals: Sequence[Original], run: Run | None = None) -> None:
        """Save the state that the return must restore, and that the policy of this run applies to the return.

        A VM that is already saved for this night is not changed.
        """
        self._journal.save([_body(original) for original in originals], run)

    def save_marked(self, original: Original) -> None:
        """Save a VM that is known to be taken by its marker alone."""
        self._journal.save([{**_body(original), "taken": True}])

    def save_adopted(self, originals: Sequence[Original], run: Run) -> None:
        """Save VMs that a night of another vCenter took, with everything from its journal."""
        self._journal.save([_adopted_body(original) for original in originals], run)

    def record_return(self, original: Original) -> None:
        """Record that the VM was seen in its state before the night."""
        self._journal.record_return(original.night, original.vm)

    def all(self, night: str | None = None, *, returned: bool = False) -> tuple[Original, ...]:
        """Return the saved VMs that are not returned yet; with `night`, also the returned ones of that night.

        `returned`: also the returned VMs of every night that the journal remembers.
        """
        state, now = self._journal.state, self._journal.clock()
        originals = [
            Original(
                night=saved.night,
                role=saved.role,
                vm=saved.vm,
                uuid=saved.uuid,
                name=saved.name,
                host=saved.host,
                profiles=saved.profiles,
                gpu_modes=saved.gpu_modes,
                # a step that certainly failed did not take the VM; any other intent may have taken it
                taken=state.takes.get(key, 0) > 0,
                stopped=saved.stopped,
                returned=saved.returned is not None,
                drs=saved.drs,
                suspended_at=saved.suspended_at,
                started_at=saved.started_at,
                unsure=key in state.lost and now - state.lost[key] < LATE,
                policy=_readable_policy(saved.policy, self._journal) if saved.policy else None,
                leases=frozenset(state.leases.get(saved.night, ())),
                given_up=saved.returned is not None and saved.vm in state.given_up,
                closes_late=key in state.lost_closes and now - state.lost_closes[key] < LATE,
                gated_as=machine if closed_gates > 0 else None,
            )
            for key, saved in state.originals.items()
            for closed_gates, machine in [state.gates.get(key, (0, ""))]
            if saved.returned is None or saved.night == night or returned
        ]
        return tuple(sorted(originals, key=lambda original: (original.night, original.name)))


def _body(original: Original) -> dict[str, Any]:
    """Return the body of the record that saves this VM."""
    return {
        "night": original.night,
        "vm": original.vm,
        "role": str(original.role),
        "uuid": original.uuid,
        "name": original.name,
        "host": original.host,
        "profiles": list(original.profiles),
        **({"drs": str(original.drs)} if original.drs is not None else {}),
        **({"gpu_modes": dict(original.gpu_modes)} if original.gpu_modes else {}),
        **({"owner": to_stored(original.owner)} if original.owner is not None else {}),
    }


def _adopted_body(original: Original) -> dict[str, Any]:
    suspended, started = original.suspended_at, original.started_at
    return {
        **_body(original),
        "taken": True,
        **({"suspended": suspended.isoformat()} if suspended is not None else {}),
        **({"started": started.isoformat()} if started is not None else {}),
        **({"stopped": True} if original.stopped else {}),
        **({"gate": original.gated_as} if original.gated_as is not None else {}),
    }


def note_later_starts(originals: Iterable[Original], inventory: Inventory, vcenter: Vcenter) -> tuple[Original, ...]:
    """Return the originals, with `stopped` set for ML VMs that another user started after they had stopped.

    Such a VM no longer belongs to its night.
    vCenter's history is read only for VMs that show a later start than that of their night.
    """
    return tuple(
        replace(original, stopped=True)
        if original.started_at is not None
        and not (original.returned or original.stopped)
        and any(
            was_restarted_since_night(original, vm) and vcenter.started_by_others(vm.ref, original.started_at)
            for vm in vms_of(original, inventory)
        )
        else original
        for original in originals
    )


def own_policy(text: str, journal: Journal | None) -> Policy:
    """Return the policy of this text in the journal. Raises PolicyError.

    If other machines can write the journal, commands that no policy file of this machine contains are removed: a user
    who can write to the database must not be able to run a command in a guest.
    """
    return _parse_cached(
        text, journal.own_commands() if journal is not None and journal.own_commands is not None else None
    )


@lru_cache(maxsize=16)
def _parse_cached(text: str, own_commands: frozenset[GuestCommand] | None) -> Policy:
    """Parse the policy once for all VMs of a night."""
    policy = parse_policy(text, "the journal", accepted_before=True)
    return policy if own_commands is None else policy.with_commands(own_commands)


def _readable_policy(text: str, journal: Journal) -> Policy | None:
    """Return the policy; None if this version cannot read it, so that the given policy applies."""
    try:
        return own_policy(text, journal)
    except PolicyError:
        return None


def policies_of(journal: Journal | None) -> tuple[Policy, ...]:
    """Return the policies of open nights."""
    originals = NightVms(journal).all() if journal is not None else ()
    return tuple(dict.fromkeys(original.policy for original in originals if original.policy is not None))


def lock_vms_of(journal: Journal | None) -> frozenset[str]:
    """Return the names of the lock VMs in the journal: those of open nights, and those whose lease a run has held."""
    if journal is None:
        return frozenset()
    named = {policy.lock_vm for policy in policies_of(journal) if policy.lock_vm is not None}
    return frozenset(named.union(journal.state.lease_numbers))


def known_originals(journal: Journal | None, policy: Policy, now: datetime) -> tuple[Original, ...]:
    """Return the originals of open nights and of the present night; empty without a journal."""
    if journal is None:
        return ()
    return NightVms(journal).all(policy.night(now) if policy.windows else None)


def last_policy(journal: Journal | None) -> Policy | None:
    """Return the policy of the last night, or None. The lease on its lock VM keeps rotations of other machines away."""
    text = journal.last_policy(RunKind.NIGHT) if journal is not None else None
    return own_policy(text, journal) if text else None


def remembered_policy(journal: Journal | None) -> Policy:
    """Return the policy of the last night. Raises UsageError if there is no night, or the error of a lost journal."""
    policy = last_policy(journal)
    if policy is None and journal is not None and journal.lost is not None:
        raise journal.lost
    if policy is None:
        raise UsageError("no night in the journal of this vCenter", hint="add --policy FILE")
    return policy


def note_witnesses(originals: Iterable[Original], inventory: Inventory, vcenter: Vcenter) -> tuple[Original, ...]:
    """Return the originals with later starts by other users, and with what in vCenter contradicts the journal."""
    originals_with_starts = note_later_starts(originals, inventory, vcenter)
    still_open = [original for original in originals_with_starts if not (original.returned or original.given_up)]
    without_history = [Witness(original, find_original_vm(original, inventory)) for original in still_open]
    witnesses = [_with_history(witness, vcenter) for witness in without_history]
    contradictions = judge_vcenter(witnesses).contradictions
    if not contradictions:
        return originals_with_starts
    open_keys = {key_of(original) for original in still_open}
    return tuple(
        replace(original, contradiction=contradictions.get(key_of(original), ""))
        if key_of(original) in open_keys
        else original
        for original in originals_with_starts
    )


def _with_history(witness: Witness, vcenter: Vcenter) -> Witness:
    """Return the witness with what vCenter's task history shows about its VM, if the witness asks about a moment."""
    moment = witness.moment_to_search
    if moment is None or witness.vm is None:
        return witness
    ref = witness.vm.ref
    has_task = vcenter.has_power_task_near(ref, moment)
    if has_task is False and witness.vm.power is PowerState.ON:
        has_task = vcenter.started_by_this_login(ref, moment)
    return replace(witness, has_task=has_task)


def with_creation_of_strangers(
    inventory: Inventory, policy: Policy | None, originals: Sequence[Original], vcenter: Vcenter
) -> Inventory:
    """Return the snapshot with the creation times of VMs whose marker names a night that did not save them."""
    strangers = possible_copies(policy, originals, inventory)
    return vcenter.with_creation(inventory, strangers) if strangers else inventory


def still_given_up(journal: Journal | None, site: Site, inventory: Inventory | None = None) -> tuple[Missed, ...]:
    """Return the hosts and VMs that were given up and are not back. Reads vCenter only if the journal has any."""
    given_up_vms = journal.given_up() if journal is not None else ()
    return missed(given_up_vms, inventory or site.vcenter.inventory()) if given_up_vms else ()


def note_returned(journal: Journal, inventory: Inventory) -> None:
    """Note in the journal which hosts and VMs that were given up are back."""
    returned = [given_up for given_up in journal.given_up() if is_back(given_up, inventory)]
    if returned:
        journal.record_back(returned)


@contextmanager
def locked_for_change(
    site: Site, vcenter: str, asking_policy: Policy | None = None
) -> Iterator[tuple[Journal, RunLease]]:
    """Yield the locked journal and the lease for a change that begins.

    `asking_policy`: the policy that asks for the change; None = an admin does, and the last night's lock VM is used.
    Raises Locked, and Refused while a change or a rotation is unfinished.
    """
    with site.locked_journal(vcenter, alone=True) as journal:
        no_change_open(journal)
        no_rotation_open(journal)
        policy = asking_policy or last_policy(journal)
        policies, lock_vm = ((policy,), policy.lock_vm) if policy else ((), None)
        with lease_during_run(site, lock_vm, journal, policies, returning=False) as lease:
            end_cut_off_moves(site, journal)
            yield journal, lease


def open_change(journal: Journal | None) -> Run | None:
    """Return the change that has not ended, or None."""
    runs = journal.open_runs((CHANGE,)) if journal is not None else ()
    return runs[-1] if runs else None


def _moves_of_running_vms(run: Run) -> bool:
    """Return whether the change is a defragmentation by vMotion alone.

    If it is cut off, each of its VMs runs, on its old host or on its new one, and nothing is half changed.
    """
    order = load_change_order(run.order)
    return isinstance(order, MovesOrder) and not any(move.powered_off for move in order.moves)


def end_cut_off_moves(site: Site, journal: Journal) -> None:
    """End a defragmentation that was cut off, so that it holds up no night and no change.

    First wait for a vMotion that is still in flight. The remaining moves are not made: a new plan is better than the
    rest of an old one. A change that is not a defragmentation by vMotion alone stays open.
    """
    run = open_change(journal)
    if run is None or not _moves_of_running_vms(run):
        return
    from gpuops.execute.steps.settle import settle_open  # with the planners: not for a look at the rotation
    from gpuops.execute.steps.vm_executor import VmExecutor

    executor = VmExecutor(site.vcenter, journal, run, site.vcenter.inventory(), passed_s=site.passed_s)
    settle_open(executor, timeout_s=Limits().step_timeout_s)
    journal.end(run, cut_off=True)


def no_change_open(journal: Journal | None) -> None:
    """Raise Refused while a change is cut off or has stopped: its hosts may be half changed.

    A cut-off defragmentation by vMotion alone is none of these: the caller ends it (`end_cut_off_moves`).
    """
    run = open_change(journal)
    if run is not None and not _moves_of_running_vms(run):
        raise Refused(
            f"the change of hosts that began at {format_zoned_minute(run.started)} did not end",
            hint=f"gpuops change status shows it; {RESUME_CHANGE} or gpuops change abort ends it",
        )


def no_rotation_open(journal: Journal | None) -> None:
    """Raise Refused while a night or a return is cut off."""
    runs = journal.open_runs(ROTATION_RUNS) if journal is not None else ()
    if runs:
        raise Refused(
            f"the {runs[-1].kind.removeprefix('rotate ')} that began at {format_zoned_minute(runs[-1].started)} "
            "did not end",
            hint=CUT_OFF_HINT,
        )


def in_rotation(journal: Journal | None, hosts: Iterable[str], inventory: Inventory) -> Iterator[Rejection]:
    """Yield a refusal for each VM on these hosts that a night took and that has not been returned."""
    host_refs = set(hosts)
    for original in NightVms(journal).all() if journal is not None else ():
        affected_hosts = host_refs.intersection((original.host, *(vm.host for vm in vms_of(original, inventory))))
        for host in sorted(affected_hosts) if original.taken else ():
            hint = "run gpuops rotate day first, which brings the VM back"
            yield Rejection(
                inventory.hosts[host].name, f"{original.name} is in the rotation of night {original.night}", hint=hint
            )
