"""Keeps a rolling change and a rotation apart: one lock, one lease, and a refusal while the other is open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuops.errors import Refused
from gpuops.execute.journal import Journal, Run
from gpuops.execute.runs.nights import NightVms
from gpuops.execute.runs.run_kind import CHANGE, CUT_OFF_HINT, RESUME_CHANGE, ROTATION_RUNS
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.plan import Rejection
from gpuops.plan.rotation.taken_vms import vms_of


def open_change(journal: Journal | None) -> Run | None:
    """The change that has not ended; None = there is none."""
    runs = journal.open_runs((CHANGE,)) if journal is not None else ()
    return runs[-1] if runs else None


def no_change_open(journal: Journal | None) -> None:
    """Raises Refused while a change is cut off or has stopped: its hosts are not as they were."""
    run = open_change(journal)
    if run is not None:
        raise Refused(
            f"the change of hosts that began at {format_zoned_minute(run.started)} did not end",
            hint=f"gpuops change status shows it; {RESUME_CHANGE} or gpuops change abort ends it",
        )


def no_rotation_open(journal: Journal | None) -> None:
    """Raises Refused while a night or a morning is cut off."""
    runs = journal.open_runs(ROTATION_RUNS) if journal is not None else ()
    if runs:
        raise Refused(
            f"the {runs[-1].kind.removeprefix('rotate ')} that began at {format_zoned_minute(runs[-1].started)} "
            "did not end",
            hint=CUT_OFF_HINT,
        )


def in_rotation(journal: Journal | None, hosts: Iterable[str], inventory: Inventory) -> Iterator[Rejection]:
    """A refusal for each VM of these hosts that a night has taken and no morning has returned."""
    wanted = set(hosts)
    for original in NightVms(journal).all() if journal is not None else ():
        there = wanted.intersection((original.host, *(vm.host for vm in vms_of(original, inventory))))
        for host in sorted(there) if original.taken else ():
            hint = "gpuops rotate day brings it back; change the host then"
            yield Rejection(
                inventory.hosts[host].name, f"{original.name} is in the rotation of night {original.night}", hint=hint
            )
