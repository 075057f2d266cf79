"""Tasks about pools of lent GPUs. The modules `gpu_lease` and `gpu_pool_info` call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuops.tasks.connection import ConnectionArguments, open_site
from gpuops.tasks.result import TaskResult, reasons_line

if TYPE_CHECKING:
    from gpuops.model.workloads.lease_book import GpuLease, LeaseBook
    from gpuops.plan.pool.answers import PoolAnswer
    from gpuops.plan.pool.members import ShareRequest

RETURNED: Final = "it was returned"
"""As the book says it of a lease that was given back."""


def gpu_lease(
    connection: ConnectionArguments,
    *,
    present: bool,
    client: str,
    memory: str | None = None,
    lasts: str | None = None,
    gpus: int = 1,
    within: str | None = None,
    pool: str | None = None,
    apply: bool,
) -> TaskResult:
    """The lease of that VM, lent or waiting, or given back.

    Raises UsageError for options that mean nothing, and whatever `gpuops pool` raises.
    """
    from gpuops.api import pool_lend, pool_return

    request = _request(client, memory, lasts, gpus, within) if present else None
    site, warnings = open_site(connection)
    with site:
        if request is not None:
            answer = pool_lend(pool, request, site, apply=apply)
        else:
            answer = pool_return(pool, client, site, apply=apply)
    return _answered(answer, client, warnings)


def gpu_pool_info(connection: ConnectionArguments, *, pool: str | None = None, ended: int = 0) -> TaskResult:
    """The pools of a vCenter, or the one of this name. Raises UsageError."""
    from gpuops.api import pool_show
    from gpuops.errors import UsageError
    from gpuops.report.workloads.pool import pools_document

    if ended < 0:
        raise UsageError(f"--ended {ended}: cannot be less than 0")
    site, warnings = open_site(connection)
    with site:
        found = pools_document(pool_show(pool, site, ended=ended))
    return TaskResult({"changed": False, "pools": found["pools"]}, warnings=tuple(warnings))


def _request(client: str, memory: str | None, lasts: str | None, gpus: int, within: str | None) -> ShareRequest:
    from datetime import timedelta

    from gpuops.config.pool_file import lease_time
    from gpuops.errors import UsageError
    from gpuops.model.workloads.workload import memory_mib
    from gpuops.plan.pool.members import ShareRequest

    if memory is None or lasts is None:
        raise UsageError("state=present needs memory and lasts", hint="memory: 8GiB, lasts: 4h")
    if gpus < 1:
        raise UsageError(f"--gpus {gpus}: cannot be less than 1")
    patience = None if within is None else timedelta() if within in ("0", "0m") else lease_time(within)
    return ShareRequest(client, memory_mib(memory), lease_time(lasts), gpus, patience)


def _answered(answer: PoolAnswer, client: str, warnings: list[str]) -> TaskResult:
    from gpuops.report.workloads.pool import pool_answer_document

    document = pool_answer_document(answer, f"pool-{answer.verb}")
    reasons = [*(each.line for each in answer.rejections), *answer.failed]
    lease = next((each for each in document["leases"] if each["id"] == answer.about), None)
    uuids = {each.wish.client_uuid for each in _touched(answer, client)}
    before, after = _held(answer.before, uuids), _held(answer.after, uuids)
    # one that ends is no longer the VM's, whether it is cut off already or not
    changed = not answer.rejections and before != after
    header = {"before_header": client, "after_header": client}
    return TaskResult(
        {
            "changed": changed,
            "diff": [{**header, "before": before, "after": after}] if changed else [],
            "reasons": reasons,
            "lease": lease,
            "answer": document,
        },
        answer.exit_code,
        reasons_line(reasons, "partly done" if answer.failed else "refused, nothing changed") if reasons else "",
        (*warnings, *answer.warnings),
    )


def _touched(answer: PoolAnswer, client: str) -> list[GpuLease]:
    """Leases of the VM that was asked about, by whichever name: a path or an id finds it too."""
    returned = [each for each in answer.leases if answer.verb == "return" and each.because == RETURNED]
    named = [each for each in answer.after.leases if each.client == client or each.id == answer.about]
    return [*returned, *named]


def _held(book: LeaseBook | None, uuids: set[str]) -> str:
    """What these VMs have or wait for, a line for each lease; without its id, which a dry run does not know."""
    from gpuops.model.workloads.lease_book import LeaseState

    def line(lease: GpuLease) -> str:
        return f"{lease.wish.gpus} x {lease.wish.memory_mib} MiB, {lease.state}\n"

    open_states = (LeaseState.ASKED, LeaseState.WAITING, LeaseState.LENT)
    leases = book.leases if book is not None else ()
    return "".join(line(each) for each in leases if each.wish.client_uuid in uuids and each.state in open_states)
