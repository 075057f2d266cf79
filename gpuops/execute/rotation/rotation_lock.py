"""The locks of a rotation: this machine's lock file, the lock of a watch, and `rotate unlock` for the lease.

A vCenter has one rotation of this machine at a time, and a rotation is kept apart from a watch. The lock file needs no
unlocking: the kernel releases it when its process ends.

A return first ends a run that hangs. Only the process that holds the lock is signalled. It is opened as a pidfd before
it is checked, it must belong to this user, and the kernel must report that it locks this file. A process id that was
reused meanwhile is never signalled.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gpuops.config.policy import parse_policy
from gpuops.errors import LeaseReverted, Locked, PolicyError, Refused, StateDamaged, UsageError
from gpuops.execute.journal import Journal
from gpuops.execute.lease.lease import when_reverted
from gpuops.execute.lease.lock_vm import LockVm, highest_number, owner
from gpuops.execute.runs import RunKind, remembered_policy
from gpuops.execute.site import Site
from gpuops.execute.state.lock import LockedBy, locked, rotating, vcenter_lock
from gpuops.execute.state.state_dir import append, prepare_state_dir, refuse_writable
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_private
from gpuops.model.nights.night_record import LockHolder
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import command
from gpuops.plan.core.plan import Report
from gpuops.plan.core.rejection import some_names
from gpuops.plan.rotation.lease_rules import (
    Lease,
    Numbered,
    holder_of,
    is_fresh,
    lease_holder_text,
    release_lease,
    reverted_lock_vm,
)
from gpuops.plan.rotation.nights.watch_look import shared_vms
from gpuops.plan.rotation.returns.return_time import ends_at, holder_advice, holder_text

GRACE_S: Final = 60.0
"""How long a process may take to end after SIGTERM."""
KILLED_S: Final = 10.0
"""How long the kernel may take to end a process after SIGKILL."""


def end_hung_run(holder: LockHolder, site: Site) -> bool:
    """End the process that holds the lock if it hangs or its night is over. Return whether it has ended."""
    now, hung_at = site.clock(), ends_at(holder)
    if holder.pid is None or holder.pid == os.getpid() or hung_at is None or now < hung_at:
        return False
    try:
        # the signals go to this process even if it ends and another one gets its pid
        process = os.pidfd_open(holder.pid)
    except OSError:  # it has ended by itself
        return True
    try:
        if not _holds_lock(holder.pid, vcenter_lock(site.state_dir, site.vcenter.uuid)):
            return False
        run_text = holder_text(holder, now)
        _report_signal(site, f"{run_text}: gpuops ends it, so that desktops can come back", holder, "SIGTERM")
        if _ends_after_signal(process, signal.SIGTERM, GRACE_S):
            return True
        _report_signal(site, f"pid {holder.pid} did not end within {GRACE_S:.0f} s: gpuops kills it", holder, "SIGKILL")
        return _ends_after_signal(process, signal.SIGKILL, KILLED_S)
    finally:
        os.close(process)


def _holds_lock(pid: int, lock: Path) -> bool:
    """Return whether the process belongs to this user and holds an exclusive lock on the file."""
    try:
        proc_dir, lock_stat = Path(f"/proc/{pid}"), lock.stat()
        is_our_process = proc_dir.stat().st_uid == os.geteuid()
        return is_our_process and any(
            _has_locked(descriptor, proc_dir / "fdinfo" / descriptor.name, lock_stat)
            for descriptor in (proc_dir / "fd").iterdir()
        )
    except OSError:
        return False


def _has_locked(opened: Path, fdinfo: Path, lock_stat: os.stat_result) -> bool:
    """Return whether this open descriptor of a process is the lock file, exclusively locked (proc_pid_fdinfo(5))."""
    with suppress(OSError):
        opened_stat = opened.stat()
        if (opened_stat.st_dev, opened_stat.st_ino) == (lock_stat.st_dev, lock_stat.st_ino):
            lines = fdinfo.read_text(encoding="ascii", errors="replace").splitlines()
            return any("FLOCK" in line and "WRITE" in line for line in lines if line.startswith("lock:"))
    return False


def _ends_after_signal(process: int, number: signal.Signals, within_s: float) -> bool:
    """Send the signal to the process (a pidfd), and return whether it has ended within this time."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)
    return bool(select.select([process], [], [], within_s)[0])  # readable once it has ended


def _report_signal(site: Site, line: str, holder: LockHolder, signal_name: str) -> None:
    """Show the line to the admin, and append the signal to the audit log."""
    site.say(line)
    facts = {"pid": holder.pid, "doing": holder.doing, "signal": signal_name, "uid": os.getuid()}
    with suppress(StateDamaged):  # an audit line that cannot be written does not stop a return
        append(site.state_dir, site.clock().isoformat(timespec="seconds"), "run-ended", **facts)


@contextmanager
def locked_journal(site: Site, kind: RunKind) -> Iterator[Journal]:
    """Yield the journal, locked. A return first ends a run of this machine that hangs or whose night is over.

    Raises Locked with what the other run does, and when a return will end it.
    """
    returning = not kind.takes
    with ExitStack() as stack:
        for second_try in (False, True):
            journal_block = site.locked_journal(site.vcenter.uuid, alone=True, returning=returning, doing=kind.value)
            try:
                journal = stack.enter_context(journal_block)
                break
            except LockedBy as held:
                if second_try or not returning or not end_hung_run(held.holder, site):
                    raise locked_out(held.holder, site) from held
        yield journal


def require_no_rotation(site: Site) -> None:
    """Raise Locked if another run of this machine holds the lock."""
    holder = rotating(site.state_dir, site.vcenter.uuid)
    if holder is not None:
        raise locked_out(holder, site)


def locked_out(holder: LockHolder, site: Site) -> Locked:
    """Return the error for a lock that another run of this machine holds."""
    now = site.clock()
    message = f"{holder_text(holder, now)} is changing this vCenter: it is not interrupted"
    return Locked(message, hint=holder_advice(holder, now))


def add_lost_journal_warnings(report: Report, journal: Journal | None) -> Report:
    """Return the report, with a warning if the journal or the lock file was lost during the run."""
    warnings = _warn_of_lost_files(journal) if journal is not None else ()
    if not warnings:
        return report
    plan = replace(report.plan, warnings=(*report.plan.warnings, *warnings))
    return replace(report, plan=plan, journal_lost=True)


def _warn_of_lost_files(journal: Journal) -> tuple[str, ...]:
    """Return the warnings for a lock file or a journal that could not be used."""
    unlocked, lost = journal.hold.damaged if journal.hold is not None else journal.unlocked, journal.lost
    warnings = []
    if unlocked is not None and (lost is None or lost.message != unlocked.message):
        warnings.append(f"{unlocked.line}: another gpuops on this machine may run at the same time")
    if lost is not None:
        why = lost.message
        warnings.append(
            f"{why}: gpuops went by vCenter's markers; no night begins before the journal is repaired or moved aside"
        )
    return tuple(warnings)


_SCHEMA: Final = 1
_MOST_REMEMBERED: Final = 1000
"""How many VMs that ended by themselves are remembered; the latest are kept."""
_STOP_WATCH: Final = "stop the watch first (systemctl stop gpuops-watch), or leave these VMs to one of the two policies"


@dataclass(frozen=True, slots=True)
class WatchState:
    """The saved state of one watch."""

    policy: str
    """The text of its policy."""
    finished: dict[str, str] = field(default_factory=dict)
    """Instance uuid (or ref) of each ML VM that ended by itself -> when that was seen."""


def load(site: Site) -> WatchState | None:
    """Return the saved state of the last watch of this vCenter; None if there is no file that can be trusted."""
    try:
        document = parse_json(
            read_bytes(_path(site.state_dir, site.vcenter.uuid), error=StateDamaged, check=refuse_writable)
        )
        if document["schema_version"] != _SCHEMA:
            return None
        finished = {str(uuid): str(moment) for uuid, moment in document["finished"].items()}
        return WatchState(str(document["policy"]), finished)
    except (*NOT_PARSED, AttributeError, StateDamaged):
        return None


def keep(site: Site, state: WatchState) -> None:
    """Save the state. Raises StateDamaged, and UsageError for a directory that cannot be used."""
    latest = dict(sorted(state.finished.items(), key=lambda uuid_and_moment: uuid_and_moment[1])[-_MOST_REMEMBERED:])
    document: dict[str, Any] = {"schema_version": _SCHEMA, "policy": state.policy, "finished": latest}
    prepare_state_dir(site.state_dir)
    write_private(_path(site.state_dir, site.vcenter.uuid), json.dumps(document, indent=2) + "\n")


@contextmanager
def alone(site: Site, now: datetime) -> Iterator[None]:
    """Keep other watches of this machine away from the vCenter inside the block. Raises Locked."""
    try:
        with locked(site.state_dir, _lock_of(site), now, alone=True, doing="rotate watch"):
            yield
    except LockedBy as held:
        raise Locked(
            f"{held.holder} watches this vCenter already",
            hint="a vCenter has one watch: put both policies into one file",
        ) from held


def watching(site: Site) -> LockHolder | None:
    """Return the process that watches this vCenter on this machine, or None. Raises StateDamaged."""
    return rotating(site.state_dir, _lock_of(site))


def refuse_beside_watch(policy: Policy, inventory: Inventory, site: Site) -> None:
    """Raise Locked if a watch of this machine selects VMs of this policy too, or if that is unknown."""
    holder = watching(site)
    if holder is None:
        return
    state = load(site)
    try:
        watched = parse_policy(state.policy, "the watch", accepted_before=True) if state is not None else None
    except PolicyError:
        watched = None
    if watched is None:
        raise Locked(
            f"{holder} watches this vCenter, and its policy cannot be read",
            hint="stop the watch first (systemctl stop gpuops-watch)",
        )
    shared = shared_vms(policy, watched, inventory)
    if shared:
        names = some_names(sorted(vm.name for vm in shared))
        raise Locked(f"{holder} watches {names} under policy {watched.name}", hint=_STOP_WATCH)


def _lock_of(site: Site) -> str:
    """Return the name of the lock that keeps two watches of this machine apart."""
    return f"{site.vcenter.uuid}-watch"


def _path(state_dir: Path, vcenter: str) -> Path:
    return state_dir / f"{re.sub(r'[^A-Za-z0-9-]', '_', vcenter)}-watch.json"


def unlock(policy: Policy | None, site: Site, nonce: str | None, *, force: bool = False) -> Lease:
    """Release the lease with this nonce on the policy's lock VM in place of its holder, and return the lease.

    Use it if the run on the other machine is certainly dead; it is optional, since a lease expires by itself. Raises
    Refused if no run holds the lease or if its nonce differs, and names the holder. Raises Locked while the lease is
    fresh, unless `force` is set: a run that renewed it a moment ago is alive and may act without reading it again.

    For a lock VM that was reverted to a snapshot, `nonce` is the highest lease number that was seen. It is written to
    the VM as a released lease.
    """
    policy_option = " --policy FILE" if policy is not None else ""
    vm, highest = _find_lock_vm(policy, site)
    shown_lease = vm.look()
    revert = reverted_lock_vm(vm.name, shown_lease, highest)
    if revert is not None and holder_of(shown_lease, vm.seen.taken_at, ()) is None:
        if nonce != str(highest.number):
            raise LeaseReverted(revert, hint=when_reverted(highest))
        new_lease = Lease(owner(), "", highest.number, vm.seen.taken_at)
        _write_lease(vm, new_lease)
        return new_lease
    if shown_lease is None or not shown_lease.nonce:
        raise Refused(f"no run holds the lease on {vm.name}", hint="the next run can start")
    unlock_command = command("rotate unlock", id=shown_lease.nonce)
    if shown_lease.nonce != nonce:
        raise Refused(
            lease_holder_text(shown_lease), hint=f"if that run is certainly dead: {unlock_command}{policy_option}"
        )
    if is_fresh(shown_lease, vm.seen.taken_at) and not force:
        raise Locked(
            f"{lease_holder_text(shown_lease)}, and renewed it a moment ago: its run is alive, or died just now",
            hint=f"the lease expires by itself; if that run is certainly dead: {unlock_command} --force{policy_option}",
        )
    _write_lease(vm, release_lease(shown_lease, vm.seen.taken_at))
    return shown_lease


def _find_lock_vm(policy: Policy | None, site: Site) -> tuple[LockVm, Numbered]:
    """Return the lock VM of the policy (None = of the last night's policy) and the highest lease number seen.

    Raises UsageError for a policy without a lock VM.
    """
    with site.journal_to_read(site.vcenter.uuid, returning=policy is not None) as journal:
        policy = policy or remembered_policy(journal)
        if policy.lock_vm is None:
            raise UsageError(
                f"{policy.name}: the policy has no lock_vm, so there is no lease",
                hint="a lock of this machine needs no unlocking: it ends with its process (gpuops rotate status)",
            )
        vm = LockVm(site.vcenter, policy.lock_vm)
        return vm, highest_number(vm.name, (policy,), journal, vm.seen)


def _write_lease(vm: LockVm, lease: Lease) -> None:
    """Write a released lease to the lock VM. Raises Locked if another run or user changed the VM meanwhile."""
    if not vm.write(lease):
        raise Locked(
            f"the lease on {vm.name} could not be released: {vm.why}",
            hint="gpuops rotate status shows who holds it; try again",
        )
