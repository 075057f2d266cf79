"""What `gpuops pool` prints: pools as they stand, and what became of a call."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from gpuops.model.lent_by_night import ServerNight
from gpuops.model.workloads.lease_book import GpuLease, LeaseState, LentShare, PoolServer
from gpuops.plan.core.command_line import command
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.pool.answers import PoolAnswer, ShownPool
from gpuops.plan.pool.lending import told
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, size, visible

_STYLES = {LeaseState.WAITING: "yellow", LeaseState.ENDING: "yellow", LeaseState.BROKEN: "bold red"}
_BOOK_ONLY = "this pool names no program: gpuops keeps the book, and sets up no guest"


def pools_text(found: tuple[ShownPool, ...]) -> Shown:
    """Pool by pool its GPUs, its leases, and the largest share that is idle."""
    if not found:
        return "no pool is there"
    lines: list[Shown] = []
    for each in found:
        pool = each.book.pool
        program = f"program {visible(pool.program)}" if pool.program is not None else "no program"
        lines.append(Text(f"{visible(pool.name)}: network {visible(pool.network)}, {program}", "bold"))
        lines.append(_gpus_table(each))
        lines += [_dead_line(server, pool.name) for server in each.book.servers if server.because]
        if each.book.leases:
            lines.append(_leases_table(each.book.leases))
        idle = f"largest idle share for {told(pool.longest)}: {size(each.largest_mib)} of one GPU"
        lines.append(idle)
    return lines


def _gpus_table(found: ShownPool) -> TextTable:
    table = TextTable("server", "host", "state", "GPU", "memory", "idle", right=(3, 4, 5))
    for server in found.book.servers:
        for gpu in server.gpus:
            idle = size(found.idle_mib[server.name, gpu.index])
            cells = (str(gpu.index), size(gpu.memory_mib), idle)
            table.add_row(visible(server.name), visible(server.host or "unknown"), server.state.value, *cells)
    return table


def _leases_table(leases: tuple[GpuLease, ...]) -> TextTable:
    table = TextTable("lease", "client", "owner", "state", "from", "until", "shares")
    for each in leases:
        state = Text(each.state.value, _STYLES.get(each.state, ""))
        moments = (_moment(each.begins_at), _moment(each.ends_at))
        table.add_row(each.id, visible(each.client), visible(each.wish.owner or "-"), state, *moments, _shares(each))
    return table


def _shares(lease: GpuLease) -> str:
    if not lease.shares:
        return f"{lease.wish.gpus} x {size(lease.wish.memory_mib)}"
    return ", ".join(f"{visible(each.server)}/{each.gpu} {size(each.memory_mib)}" for each in lease.shares)


def _moment(moment: datetime | None) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%MZ}" if moment is not None else "-"


def pool_answer_text(answer: PoolAnswer) -> Shown:
    """What was changed, or would be; every reason against it."""
    if answer.rejections:
        return [Text(visible(each.line), "red") for each in answer.rejections]
    lines: list[Shown] = [*_server_lines(answer), *map(_lease_line, answer.leases)]
    about = answer.after.lease(answer.about) if answer.about is not None else None
    if about is not None and about not in answer.leases:
        lines.append(Text(f"{visible(about.client)} has it already: {_lease_words(about)}", "bold"))
    elif not answer.changed:
        lines.append(Text(f"pool {visible(answer.after.pool.name)}: nothing to do", "bold"))
    lines += [Text(f"warning: {visible(line)}", "yellow") for line in answer.warnings]
    lines += [Text(f"failed: {visible(line)}", "bold red") for line in answer.failed]
    if answer.failed:
        lines.append(Text("the same again goes on, gpuops pool reclaim --due too", "dim"))
    if answer.verb == "lend" and answer.changed and answer.after.pool.program is None:
        lines.append(Text(_BOOK_ONLY, "dim"))
    if answer.changed and not answer.applied:
        lines.append(Text("dry run: nothing was changed", "dim"))
    return lines


def _server_lines(answer: PoolAnswer) -> Iterator[Shown]:
    pool = visible(answer.after.pool.name)
    if answer.deleted:
        yield Text(f"pool {pool} is deleted, with its leases that are over", "bold")
    elif answer.before is None:
        yield Text(f"pool {pool} is made: {count(len(answer.after.servers), 'server')}", "bold")
    elif answer.before.pool != answer.after.pool:
        yield Text(f"pool {pool} is changed to what its file says", "bold")
    for server in answer.servers:
        gpus = ", ".join(size(gpu.memory_mib) for gpu in server.gpus)
        yield f"server {visible(server.name)} on {visible(server.host or 'unknown')}: {server.state}, lends {gpus}"
    for server in answer.idle_servers:
        yield _dead_line(server, answer.after.pool.name)
    for name in answer.gone:
        yield f"server {visible(name)} leaves the pool"


def _dead_line(server: PoolServer, pool: str) -> Text:
    again = f"{command('pool reclaim', pool=pool, server=server.name)} --again"
    if server.because:
        return Text(visible(f"{server.name} {server.because}; it lends again after {again}"), "bold red")
    return Text(visible(f"{server.name} does not run, and lends nothing: power it on, then {again}"), "yellow")


def _lease_line(lease: GpuLease) -> Text:
    return Text(f"{visible(lease.client)}: {_lease_words(lease)}", _STYLES.get(lease.state, ""))


def _lease_words(lease: GpuLease) -> str:
    because = f" ({visible(lease.because)})" if lease.because else ""
    match lease.state:
        case LeaseState.LENT:
            return f"lease {lease.id}, {_shares(lease)}, until {_moment(lease.ends_at)}"
        case LeaseState.WAITING if lease.begins_at is None:
            return f"lease {lease.id} waits for {_shares(lease)}: no moment is in sight"
        case LeaseState.WAITING:
            return f"lease {lease.id} waits: {_shares(lease)}, expected from {_moment(lease.begins_at)}"
        case LeaseState.ENDING:
            return f"lease {lease.id}, {_shares(lease)}, ends at {_moment(lease.ends_at)}{because}"
        case LeaseState.ENDED | LeaseState.BROKEN | LeaseState.ASKED:
            return f"lease {lease.id} is {lease.state}{because}"


def pools_document(found: tuple[ShownPool, ...]) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "pool-show",
        "pools": [
            {
                "name": each.book.pool.name,
                "network": each.book.pool.network,
                "program": each.book.pool.program,
                "largest_idle_mib": each.largest_mib,
                "servers": [_server(server) for server in each.book.servers],
                "gpus": [
                    {"server": server, "gpu": gpu, "idle_mib": idle} for (server, gpu), idle in each.idle_mib.items()
                ],
                "leases": list(map(_lease, each.book.leases)),
            }
            for each in found
        ],
    }


def pool_answer_document(answer: PoolAnswer, kind: str) -> Document:
    """The same for programs; `kind` is the document's."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "pool": answer.after.pool.name,
        "applied": answer.applied,
        "changed": answer.changed,
        "deleted": answer.deleted,
        "lease": answer.about,
        "rejections": list(map(_rejection, answer.rejections)),
        "servers": list(map(_server, answer.servers)),
        "gone": list(answer.gone),
        "leases": [_lease(each) for each in _with_about(answer)],
        "warnings": list(answer.warnings),
        "failed": list(answer.failed),
    }


def _with_about(answer: PoolAnswer) -> tuple[GpuLease, ...]:
    about = answer.after.lease(answer.about) if answer.about is not None else None
    return answer.leases if about is None or about in answer.leases else (*answer.leases, about)


def _rejection(each: Rejection) -> dict[str, str]:
    return {"subject": each.subject, "reason": each.reason, "next": each.hint}


def _server(server: PoolServer) -> dict[str, Any]:
    gpus = [{"gpu": each.index, "memory_mib": each.memory_mib} for each in server.gpus]
    return {
        "name": server.name,
        "uuid": server.uuid,
        "host": server.host or None,
        "cluster": server.cluster or None,
        "state": server.state.value,
        "because": server.because or None,
        "night": _night(server.night),
        "gpus": gpus,
    }


def _night(night: ServerNight | None) -> dict[str, str] | None:
    if night is None:
        return None
    return {"night": night.night, "by_night": night.by_night.value, "until": night.until.isoformat()}


def _lease(lease: GpuLease) -> dict[str, Any]:
    return {
        "id": lease.id,
        "client": lease.client,
        "client_uuid": lease.wish.client_uuid,
        "owner": lease.wish.owner or None,
        "state": lease.state.value,
        "gpus": lease.wish.gpus,
        "memory_mib": lease.wish.memory_mib,
        "asked_at": _iso(lease.asked_at),
        "begins_at": _iso(lease.begins_at),
        "ends_at": _iso(lease.ends_at),
        "shares": list(map(_share, lease.shares)),
        "follows": lease.follows,
        "enabled": lease.enabled,
        "because": lease.because,
    }


def _share(share: LentShare) -> dict[str, Any]:
    return {"server": share.server, "gpu": share.gpu, "memory_mib": share.memory_mib}


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None
