"""Keep rolling changes and rotations apart: one lock, one lease, and a refusal while the other is open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpuops.errors import Refused
from gpuops.execute.journal import Journal, Run
from gpuops.execute.lease.lease import RunLease, lease_during_run
from gpuops.execute.runs.nights import NightVms, last_policy
from gpuops.execute.runs.run_kind import CHANGE, CUT_OFF_HINT, RESUME_CHANGE, ROTATION_RUNS
from gpuops.execute.site import Site
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Rejection
from gpuops.plan.rotation.taken_vms import vms_of


@contextmanager
def locked_for_change(site: Site, vcenter: str) -> Iterator[tuple[Journal, RunLease]]:
    """Yield the locked journal and the lease for a change that begins.

    Raises Locked, and Refused while a change or a rotation is unfinished.
    """
    with site.locked_journal(vcenter, alone=True) as journal:
        no_change_open(journal)
        no_rotation_open(journal)
        policy = last_policy(journal)
        policies, lock_vm = ((policy,), policy.lock_vm) if policy else ((), None)
        with lease_during_run(site, lock_vm, journal, policies, returning=False) as lease:
            yield journal, lease


def open_change(journal: Journal | None) -> Run | None:
    """Return the change that has not ended, or None."""
    runs = journal.open_runs((CHANGE,)) if journal is not None else ()
    return runs[-1] if runs else None


def no_change_open(journal: Journal | None) -> None:
    """Raise Refused while a change is cut off or has stopped: its hosts may be half changed."""
    run = open_change(journal)
    if run is not None:
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
