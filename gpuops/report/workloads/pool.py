"""What `gpuops pool` prints: pools as they stand, and what a command did."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from gpuops.model.stored import to_stored
from gpuops.model.workloads.lease_book import GpuLease, LeaseState, PoolServer, ServerState
from gpuops.plan.core.command_line import command
from gpuops.plan.pool.answers import PoolAnswer, ShownPool
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, size, visible

_STYLES = {LeaseState.ENDING: "yellow", LeaseState.BROKEN: "bold red"}


def pools_text(pools: tuple[ShownPool, ...]) -> Shown:
    """Return the GPUs and leases of each pool."""
    lines: list[Shown] = []
    for shown in pools:
        pool = shown.book.pool
        program = f"program {visible(pool.program)}" if pool.program is not None else "no program"
        lines.append(Text(f"{visible(pool.name)}: network {visible(pool.network)}, {program}", "bold"))
        gpus = TextTable("server", "host", "state", "GPU", "memory", "idle", right=(3, 4, 5))
        for server in shown.book.servers:
            for gpu in server.gpus:
                cells = (str(gpu.index), size(gpu.memory_mib), size(shown.idle_mib[server.name, gpu.index]))
                gpus.add_row(visible(server.name), visible(server.host or "unknown"), server.state.value, *cells)
        lines.append(gpus)
        lines += [_state_line(server, pool.name) for server in shown.book.servers if server.state in _LENDS_NOTHING]
        if shown.book.leases:
            table = TextTable("lease", "client", "owner", "state", "until", "shares")
            for lease in shown.book.leases:
                state, owner = Text(lease.state.value, _STYLES.get(lease.state, "")), visible(lease.wish.owner or "-")
                table.add_row(lease.id, visible(lease.client), owner, state, _moment(lease.ends_at), _shares(lease))
            lines.append(table)
    return lines or "there is no pool"


_LENDS_NOTHING = (ServerState.DEAD, ServerState.DRAINING)


def _shares(lease: GpuLease) -> str:
    if not lease.shares:
        return f"{lease.wish.gpus} x {size(lease.wish.memory_mib)}"
    return ", ".join(f"{visible(share.server)}/{share.gpu} {size(share.memory_mib)}" for share in lease.shares)


def _moment(moment: datetime | None) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%MZ}" if moment is not None else "-"


def pool_answer_text(answer: PoolAnswer) -> Shown:
    """Return what a command did or would do, or every reason against it."""
    if answer.rejections:
        return [Text(visible(rejection.line), "red") for rejection in answer.rejections]
    lines: list[Shown] = [*_server_lines(answer)]
    lines += [
        Text(f"{visible(lease.client)}: {_lease_words(lease)}", _STYLES.get(lease.state, "")) for lease in answer.leases
    ]
    about = answer.after.lease(answer.about) if answer.about is not None else None
    if about is not None and about not in answer.leases:
        lines.append(Text(f"{visible(about.client)} has it already: {_lease_words(about)}", "bold"))
    elif not answer.changed:
        lines.append(Text(f"pool {visible(answer.after.pool.name)}: nothing to do", "bold"))
    lines += [Text(f"warning: {visible(line)}", "yellow") for line in answer.warnings]
    lines += [Text(f"failed: {visible(line)}", "bold red") for line in answer.failed]
    if answer.failed:
        lines.append(Text("the same command, or gpuops pool reclaim --due, tries it again", "dim"))
    if answer.verb == "lend" and answer.changed and answer.after.pool.program is None:
        lines.append(Text("this pool names no program: gpuops keeps the book, and sets up no guest", "dim"))
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
        if server.state is ServerState.DEAD:
            yield _state_line(server, answer.after.pool.name)
    for server in answer.removed_servers:
        yield f"server {visible(server.name)} leaves the pool"


def _state_line(server: PoolServer, pool: str) -> Text:
    again = f"{command('pool reclaim', pool=pool, server=server.name)} --again"
    if server.state is ServerState.DRAINING:
        return Text(visible(f"{server.name} is drained; it lends again after {again}"), "yellow")
    if server.because:
        return Text(visible(f"{server.name} {server.because}; it lends again after {again}"), "bold red")
    return Text(visible(f"{server.name} does not run, and lends nothing: power it on, then {again}"), "yellow")


def _lease_words(lease: GpuLease) -> str:
    because = f" ({visible(lease.because)})" if lease.because else ""
    match lease.state:
        case LeaseState.LENT:
            return f"lease {lease.id}, {_shares(lease)}, until {_moment(lease.ends_at)}"
        case LeaseState.ENDING:
            return f"lease {lease.id}, {_shares(lease)}, ends at {_moment(lease.ends_at)}{because}"
        case _:
            return f"lease {lease.id} is {lease.state}{because}"


def pools_document(pools: tuple[ShownPool, ...]) -> Document:
    """Return pools, servers, GPUs and leases as a JSON document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "pool-show",
        "pools": [
            {
                "name": shown.book.pool.name,
                "network": shown.book.pool.network,
                "program": shown.book.pool.program,
                "servers": [_server(server) for server in shown.book.servers],
                "gpus": [
                    {"server": server, "gpu": gpu, "idle_mib": idle} for (server, gpu), idle in shown.idle_mib.items()
                ],
                "leases": [_lease(lease) for lease in shown.book.leases],
            }
            for shown in pools
        ],
    }


def pool_answer_document(answer: PoolAnswer, kind: str) -> Document:
    """Return what a command did as the JSON document of this `kind`."""
    about = answer.after.lease(answer.about) if answer.about is not None else None
    leases = (*answer.leases, about) if about is not None and about not in answer.leases else answer.leases
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "pool": answer.after.pool.name,
        "applied": answer.applied,
        "changed": answer.changed,
        "deleted": answer.deleted,
        "lease": answer.about,
        "rejections": [
            {"subject": refusal.subject, "reason": refusal.reason, "next": refusal.hint}
            for refusal in answer.rejections
        ],
        "servers": [_server(server) for server in answer.servers],
        "gone": [server.name for server in answer.removed_servers],
        "leases": [_lease(lease) for lease in leases],
        "warnings": list(answer.warnings),
        "failed": list(answer.failed),
    }


def _server(server: PoolServer) -> dict[str, Any]:
    may_be_unknown = {"host": server.host or None, "cluster": server.cluster or None, "because": server.because or None}
    gpus = [{"gpu": gpu.index, "memory_mib": gpu.memory_mib} for gpu in server.gpus]
    return {**to_stored(server), **may_be_unknown, "gpus": gpus}


def _lease(lease: GpuLease) -> dict[str, Any]:
    wish, ends_at = lease.wish, lease.ends_at.isoformat() if lease.ends_at is not None else None
    client = {"client": wish.client, "client_uuid": wish.client_uuid, "owner": wish.owner or None}
    stored = {key: value for key, value in to_stored(lease).items() if key not in ("wish", "lasts")}
    request = {"gpus": wish.gpus, "memory_mib": wish.memory_mib, "asked_at": lease.asked_at.isoformat()}
    return {**stored, **client, **request, "ends_at": ends_at}
