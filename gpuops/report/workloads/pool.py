"""What `gpuops pool` prints: pools as they stand, and what a command did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC

from gpuops.model.stored import to_stored
from gpuops.model.time_text import format_minute
from gpuops.model.workloads.lease_book import LeaseBook, LeaseState, ServerState
from gpuops.plan.core.command_line import command
from gpuops.plan.pool.answers import PoolAnswer
from gpuops.plan.pool.lending import idle_mib
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import size, visible

Idle = Mapping[tuple[str, int], int]
"""The idle memory of GPUs in MiB, by server and index."""


def pools_text(pools: tuple[LeaseBook, ...]) -> Shown:
    """Return the GPUs and leases of each pool."""
    lines: list[Shown] = []
    for book in pools:
        program = f"program {visible(book.pool.program)}" if book.pool.program is not None else "no program"
        lines += [Text(f"{visible(book.pool.name)}: network {visible(book.pool.network)}, {program}", "bold")]
        lines += _tables(book, idle_mib(book))
    return lines or "there is no pool"


def _tables(book: LeaseBook, idle: Idle) -> Iterator[Shown]:
    """Yield the GPUs of these servers, how those that lend nothing lend again, and the leases."""
    gpus = TextTable("server", "state", "GPU", "memory", "idle", right=(2, 3, 4))
    for server in book.servers:
        for gpu in server.gpus:
            sizes = size(gpu.memory_mib), size(idle[server.name, gpu.index])
            gpus.add_row(visible(server.name), server.state.value, str(gpu.index), *sizes)
    if book.servers:
        yield gpus
    for server in (server for server in book.servers if server.state is not ServerState.SERVING):
        why = "is drained" if server.state is ServerState.DRAINING else server.because or "does not run"
        again = command("pool reclaim", pool=book.pool.name, server=server.name)
        yield Text(visible(f"{server.name} {why}; it lends again after {again} --again"), "yellow")
    leases = TextTable("lease", "client", "owner", "state", "until", "shares", "because")
    for lease in book.leases:
        state = Text(lease.state.value, "" if lease.state is LeaseState.LENT else "yellow")
        end = f"{format_minute(lease.ends_at.astimezone(UTC))}Z"
        shares = ", ".join(f"{visible(share.server)}/{share.gpu} {size(share.memory_mib)}" for share in lease.shares)
        names = visible(lease.client), visible(lease.wish.owner or "-")
        leases.add_row(lease.id, *names, state, end, shares, visible(lease.because))
    if book.leases:
        yield leases


def pool_answer_text(answer: PoolAnswer) -> Shown:
    """Return what a command did or would do, or every reason against it."""
    if answer.rejections:
        return [Text(visible(rejection.line), "red") for rejection in answer.rejections]
    pool = visible(answer.after.pool.name)
    what = "deleted" if answer.deleted else "made" if answer.before is None else "changed"
    lines: list[Shown] = [Text(f"pool {pool}: {what if answer.changed else 'nothing to do'}", "bold")]
    lines += [f"server {visible(name)} leaves the pool" for name in answer.removed_servers]
    lines += _tables(answer.changes, idle_mib(answer.after))
    lines += [Text(f"warning: {visible(line)}", "yellow") for line in answer.warnings]
    lines += [Text(f"failed: {visible(line)}", "bold red") for line in answer.failed]
    if answer.failed:
        lines.append(Text("the same command, or gpuops pool reclaim --due, tries it again", "dim"))
    if answer.about is not None and answer.after.pool.program is None:
        lines.append(Text("this pool names no program: gpuops keeps the book, and sets up no guest", "dim"))
    if answer.changed and not answer.applied:
        lines.append(Text("dry run: nothing was changed", "dim"))
    return lines


def pools_document(pools: tuple[LeaseBook, ...]) -> Document:
    """Return pools, servers, GPUs and leases as a JSON document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "pool-show",
        "pools": [_pool(book, idle_mib(book)) for book in pools],
    }


def pool_answer_document(answer: PoolAnswer, kind: str) -> Document:
    """Return what a command did as the JSON document of this `kind`, with the servers and leases that changed."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        **_pool(answer.changes, idle_mib(answer.after)),
        "applied": answer.applied,
        "changed": answer.changed,
        "deleted": answer.deleted,
        "lease": answer.about.id if answer.about is not None else None,
        "rejections": [
            {"subject": refusal.subject, "reason": refusal.reason, "next": refusal.hint}
            for refusal in answer.rejections
        ],
        "gone": list(answer.removed_servers),
        "warnings": list(answer.warnings),
        "failed": list(answer.failed),
    }


def _pool(book: LeaseBook, idle: Idle) -> Document:
    servers, gpus, leases = [], [], []
    for server in book.servers:
        memory = [{"gpu": gpu.index, "memory_mib": gpu.memory_mib} for gpu in server.gpus]
        servers.append({**to_stored(server), "because": server.because or None, "gpus": memory})
        gpus += [{"server": server.name, "gpu": g.index, "idle_mib": idle[server.name, g.index]} for g in server.gpus]
    for lease in book.leases:
        wish, moments = lease.wish, {"asked_at": lease.asked_at.isoformat(), "ends_at": lease.ends_at.isoformat()}
        client = {"client": wish.client, "client_uuid": wish.client_uuid, "owner": wish.owner or None}
        stored = {key: field for key, field in to_stored(lease).items() if key not in ("wish", "lasts")}
        leases.append({**stored, **client, "gpus": wish.gpus, "memory_mib": wish.memory_mib, **moments})
    settings = {"name": book.pool.name, "network": book.pool.network, "program": book.pool.program}
    return {**settings, "servers": servers, "gpus": gpus, "leases": leases}
