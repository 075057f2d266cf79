"""What is left of a lease that is cut short goes on: for how long, from when, and where."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    PoolServer,
    ServerGpu,
)
from gpuops.plan.pool import lending

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SERVERS = tuple(PoolServer(name, f"uuid-of-{name}", (ServerGpu(0, 100),)) for name in ("gpu-01", "gpu-02"))


def a_lease() -> LeaseBook:
    """Of four hours, on gpu-01 since noon."""
    book = LeaseBook(LendingPool("lab", "VM Network"), SERVERS)
    book = lending.lend(book, LeaseWish("vm", "vm", 60, 4 * HOUR), "a", NOON).book
    assert book.leases[0].shares[0].server == "gpu-01"
    return lending.enabled(lending.enabling(book, "a"), "a")


def after(book: LeaseBook) -> GpuLease:
    [found] = [each for each in book.leases if each.follows == "a"]
    return found


def test_what_is_left_after_the_grace_goes_on_from_then_and_not_before() -> None:
    taken = lending.take_back(a_lease(), "gpu-01", 30 * MINUTE, NOON + HOUR)
    cut = NOON + HOUR + 30 * MINUTE
    going_on = after(taken)
    assert (going_on.state, going_on.lasts) == (LeaseState.WAITING, 2.5 * HOUR)
    assert (going_on.begins_at, going_on.ends_at) == (cut, NOON + 4 * HOUR), (
        "there is room now, and its client has that"
    )
    # ten minutes instead: nothing of the time is lost
    sooner = after(lending.take_back(taken, "gpu-01", 10 * MINUTE, NOON + HOUR))
    assert (sooner.begins_at, sooner.ends_at) == (NOON + HOUR + 10 * MINUTE, NOON + 4 * HOUR)


def test_what_is_left_of_a_dead_servers_lease_begins_at_once() -> None:
    died = lending.server_died(a_lease(), "gpu-01", NOON + 3 * HOUR)
    going_on = after(died)
    assert (going_on.state, going_on.ends_at) == (LeaseState.LENT, NOON + 4 * HOUR)
    assert going_on.shares[0].server == "gpu-02"
    assert [each.id for each in lending.to_disable(died, NOON + 3 * HOUR)] == ["a"], "what it has is undone"


def test_who_waits_for_a_server_that_leaves_waits_for_another_one() -> None:
    full = LeaseBook(LendingPool("lab", "VM Network"), SERVERS)
    for client, hours in (("a", 2), ("b", 4), ("c", 1)):
        full = lending.lend(full, LeaseWish(client, client, 60, hours * HOUR), client, NOON).book
    waits = full.lease("c")
    assert waits is not None and (waits.shares[0].server, waits.begins_at) == ("gpu-01", NOON + 2 * HOUR)
    drained = lending.take_back(full, "gpu-01", HOUR, NOON).lease("c")
    assert drained is not None and drained.shares[0].server == "gpu-02"
    assert drained.begins_at == NOON + 4 * HOUR


def test_a_server_that_is_called_otherwise_keeps_its_leases() -> None:
    renamed = (replace(SERVERS[0], name="gpu-99"), SERVERS[1])
    book, rejections = lending.with_servers(a_lease(), renamed, NOON)
    assert rejections == ()
    assert book.leases[0].shares[0].server == "gpu-99"
    assert [each.name for each in book.servers] == ["gpu-99", "gpu-02"]
