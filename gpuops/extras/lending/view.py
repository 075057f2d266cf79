"""The output of `gpuops pool`: the state of pools, and the changes of a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Annotated, Self

from msgspec import field

from gpuops.extras.lending.lease_book import GpuLease, LeaseBook, LeaseState, PoolAnswer, PoolServer, ServerState
from gpuops.extras.lending.lending import idle_mib
from gpuops.model.time_text import format_minute
from gpuops.plan.core.command_line import command
from gpuops.report.document import DocumentRecord, Moment, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.plan_json import RefusalRecord
from gpuops.report.text import size


def pools_text(pools: tuple[LeaseBook, ...]) -> Shown:
    """Return the GPUs and leases of each pool."""
    lines: list[Shown] = []
    for book in pools:
        program = f"program {book.pool.program}" if book.pool.program is not None else "no program"
        lines += [Text(f"{book.pool.name}: network {book.pool.network}, {program}", "bold")]
        lines += _tables(book, idle_mib(book))
    return lines or "there is no pool"


def _tables(book: LeaseBook, idle: Mapping[tuple[str, int], int]) -> Iterator[Shown]:
    """Yield a table of GPUs, a line for each server that does not lend, and a table of leases.

    `idle`: MiB that can be lent, by server and index of the GPU.
    """
    gpus = TextTable("server", "state", "GPU", "memory", "idle", right=(2, 3, 4))
    for server in book.servers:
        for gpu in server.gpus:
            sizes = size(gpu.memory_mib), size(idle[server.name, gpu.index])
            gpus.add_row(server.name, server.state.value, str(gpu.index), *sizes)
    if book.servers:
        yield gpus
    for server in (server for server in book.servers if server.state is not ServerState.SERVING):
        why = "is drained" if server.state is ServerState.DRAINING else server.because or "does not run"
        reclaim_command = command(f"pool reclaim {book.pool.name}", server=server.name)
        yield Text(f"{server.name} {why}; it lends again after {reclaim_command} --again", "yellow")
    leases = TextTable("lease", "client", "owner", "state", "until", "shares", "because")
    for lease in book.leases:
        state = Text(lease.state.value, "" if lease.state is LeaseState.LENT else "yellow")
        end = f"{format_minute(lease.ends_at.astimezone(UTC))}Z"
        shares = ", ".join(f"{share.server}/{share.gpu} {size(share.memory_mib)}" for share in lease.shares)
        names = lease.wish.client, lease.wish.owner or "-"
        leases.add_row(lease.id, *names, state, end, shares, lease.because)
    if book.leases:
        yield leases


def pool_answer_text(answer: PoolAnswer) -> Shown:
    """Return the changes that a command made or would make, or every reason against it."""
    if answer.rejections:
        return [Text(rejection.line, "red") for rejection in answer.rejections]
    pool = answer.after.pool.name
    change_word = "deleted" if answer.deleted else "made" if answer.before is None else "changed"
    lines: list[Shown] = [Text(f"pool {pool}: {change_word if answer.changed else 'nothing to do'}", "bold")]
    lines += [f"server {name} leaves the pool" for name in answer.removed_servers]
    lines += _tables(answer.changes, idle_mib(answer.after))
    lines += [Text(f"warning: {line}", "yellow") for line in answer.warnings]
    lines += [Text(f"failed: {line}", "bold red") for line in answer.failed]
    if answer.failed:
        lines.append(Text("next: run the same command again, or gpuops pool reclaim --due", "dim"))
    if answer.requested_lease is not None and answer.after.pool.program is None:
        lines.append(Text("this pool has no program: gpuops only records the lease, and sets up no guest", "dim"))
    if answer.changed and not answer.applied:
        lines.append(Text("dry run: nothing was changed", "dim"))
    return lines


class LentGpuRecord(DocumentRecord, frozen=True):
    """One GPU of a server."""

    index: Annotated[int, "from 0"] = field(name="gpu")
    memory_mib: Annotated[int, "what of its memory is lent"]


class LendingServerRecord(DocumentRecord, frozen=True):
    """A VM with whole GPUs."""

    name: Annotated[str, "of the VM when the pool got it"]
    uuid: Annotated[str, "its instance UUID"]
    gpus: list[LentGpuRecord]
    state: ServerState
    because: Annotated[str | None, "why it is dead; null = its VM does not run"]

    @classmethod
    def made_of(cls, server: PoolServer) -> Self:
        return cls.from_attributes(server, because=server.because or None)


class IdleGpuRecord(DocumentRecord, frozen=True):
    """The memory of a GPU that may be lent now."""

    server: str
    gpu: int
    idle_mib: int


class LeasedShareRecord(DocumentRecord, frozen=True):
    """A part of one GPU's memory."""

    server: str
    gpu: int
    memory_mib: int


class ShownLeaseRecord(DocumentRecord, frozen=True):
    """Shares of one client until a moment."""

    id: str
    state: LeaseState
    asked_at: Annotated[Moment, "when it began"]
    ends_at: Moment
    shares: list[LeasedShareRecord]
    enabled: Annotated[bool | None, "whether its client is set up; null = that is under way"]
    because: Annotated[str, "why it ended, or is taken back; may be empty"]
    client: Annotated[str, "name of the VM"]
    client_uuid: Annotated[str, "its instance UUID"]
    owner: Annotated[str | None, "whose quota it counts against"]
    gpus: Annotated[int, "the number of GPUs of which it has a share"]
    memory_mib: Annotated[int, "of each"]

    @classmethod
    def made_of(cls, lease: GpuLease) -> Self:
        return cls.from_attributes(lease, lease.wish, owner=lease.wish.owner or None)


class ShownLendingPoolRecord(DocumentRecord, frozen=True):
    """One pool."""

    name: str
    network: Annotated[str, "the port group by which clients reach servers"]
    program: Annotated[str | None, "what moves CUDA calls; null = gpuops keeps the book alone"]
    servers: list[LendingServerRecord]
    gpus: list[IdleGpuRecord]
    leases: Annotated[list[ShownLeaseRecord], "by the moment when they began"]

    @classmethod
    def made_of(cls, book: LeaseBook) -> Self:
        return cls.from_attributes(book, book.pool, gpus=_idle_gpus(book, idle_mib(book)))


@printed("pool-show", by="gpuops pool show")
class PoolShowDocument(PrintedDocument, frozen=True):
    """Pools of GPUs lent over the network, as they stand."""

    pools: Annotated[list[ShownLendingPoolRecord], "by name"]


@printed("pool-create", by="gpuops pool create")
class PoolCreateDocument(PrintedDocument, frozen=True):
    """What makes, changes or deletes a pool, and what became of it."""

    name: Annotated[str, "of the pool"]
    network: Annotated[str, "the port group by which clients reach servers"]
    program: Annotated[str | None, "what moves CUDA calls; null = gpuops keeps the book alone"]
    servers: Annotated[list[LendingServerRecord], "those that are another than before"]
    gpus: Annotated[list[IdleGpuRecord], "of these servers"]
    leases: Annotated[list[ShownLeaseRecord], "those that are another than before, and the one that was asked for"]
    applied: bool
    changed: Annotated[bool, "whether the book was changed, or would be, by the clock too"]
    deleted: Annotated[bool, "whether the pool is out of the book, or would be"]
    lease: Annotated[str | None, "id of the lease that was asked for"]
    rejections: Annotated[list[RefusalRecord], "every reason against it"]
    removed_servers: Annotated[list[str], "names of servers that leave the pool"] = field(name="gone")
    warnings: list[str]
    failed: Annotated[list[str], "what failed in guests, or at marks, with the reason"]

    @classmethod
    def made_of(cls, answer: PoolAnswer) -> Self:
        changes = answer.changes
        gpus = _idle_gpus(changes, idle_mib(answer.after))
        lease = answer.requested_lease.id if answer.requested_lease is not None else None
        return cls.from_attributes(answer, changes, changes.pool, gpus=gpus, lease=lease)


@printed("pool-lend", by="gpuops pool lend")
class PoolLendDocument(PoolCreateDocument, frozen=True):
    """The lease of a client, or why it is refused."""


@printed("pool-return", by="gpuops pool return")
class PoolReturnDocument(PoolCreateDocument, frozen=True):
    """What a client gives back."""


@printed("pool-reclaim", by="gpuops pool reclaim")
class PoolReclaimDocument(PoolCreateDocument, frozen=True):
    """What is taken back or ended."""


def _idle_gpus(book: LeaseBook, idle: Mapping[tuple[str, int], int]) -> list[IdleGpuRecord]:
    return [
        IdleGpuRecord(server.name, gpu.index, idle[server.name, gpu.index])
        for server in book.servers
        for gpu in server.gpus
    ]
