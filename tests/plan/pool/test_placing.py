"""Which GPUs a lease gets, in the order in which it is said, and what a quota that names nobody is for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpuops.model.workloads.cluster import Arrangement
from gpuops.model.workloads.lease_book import (
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    PoolQuota,
    PoolServer,
    ServerGpu,
)
from gpuops.plan.pool import lending

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def server(name: str, host: str, cluster: str, *gpus_mib: int) -> PoolServer:
    return PoolServer(name, name, tuple(ServerGpu(index, size) for index, size in enumerate(gpus_mib)), host, cluster)


def lent(
    book: LeaseBook, memory_mib: int, gpus: int = 1, host: str = "esx-1", cluster: str = "a", client: str = "vm"
) -> tuple[LeaseBook, list[str]]:
    """The book after it, and the shares as `server/gpu`."""
    made = lending.lend(book, LeaseWish(client, client, memory_mib, HOUR, gpus, "", host, cluster), client, NOON)
    assert made.lease is not None and made.lease.state is LeaseState.LENT
    return made.book, [f"{each.server}/{each.gpu}" for each in made.lease.shares]


POOL = LendingPool("lab", "VM Network")
SPREAD = LendingPool("lab", "VM Network", placement=Arrangement.SPREAD)


@pytest.mark.parametrize(
    ("servers", "gpus", "packed", "spread"),
    [
        # on the client's host, though another is tighter and one is emptier
        ([("far", "esx-9", "b", 10), ("near", "esx-2", "a", 90), ("own", "esx-1", "a", 50)], 1, ["own/0"], ["own/0"]),
        # in its cluster, likewise
        ([("far", "esx-9", "b", 10), ("far-2", "esx-9", "b", 90), ("near", "esx-2", "a", 50)], 1, ["near/0"], None),
        # equally near: packed takes what is left least of, spread what is left most of
        ([("a", "esx-2", "a", 50, 20), ("b", "esx-2", "a", 30, 90)], 1, ["a/1"], ["b/1"]),
        ([("b", "esx-2", "a", 50), ("a", "esx-2", "a", 50)], 1, ["a/0"], None),
        # the fewest servers, though others are nearer
        ([("own", "esx-1", "a", 10), ("near", "esx-2", "a", 10), ("far", "esx-9", "b", 90, 80)], 2,
         ["far/0", "far/1"], None),
        ([("own", "esx-1", "a", 10), ("near", "esx-2", "a", 10), ("far", "esx-9", "b", 90, 80)], 3,
         ["far/0", "far/1", "own/0"], None),
    ],
)  # fmt: skip
def test_the_order_is_servers_then_nearness_then_room(
    servers: list[tuple[str, str, str, int]], gpus: int, packed: list[str], spread: list[str] | None
) -> None:
    made = tuple(server(*each) for each in servers)
    _, shares = lent(LeaseBook(POOL, made), 10, gpus)
    assert sorted(shares) == packed
    _, shares = lent(LeaseBook(SPREAD, made), 10, gpus)
    assert sorted(shares) == (spread or packed)


def test_the_quota_that_names_nobody_is_for_each_owner_that_is_not_named() -> None:
    pool = LendingPool("lab", "net", quotas={"physics": PoolQuota(memory_mib=40)}, quota=PoolQuota(10, 1))
    book = LeaseBook(pool, (server("gpu", "", "", 100, 100),))

    def state(owner: str, memory_mib: int, gpus: int = 1, after: LeaseBook = book) -> str:
        wish = LeaseWish(f"vm-{len(after.leases)}", f"{len(after.leases)}", memory_mib, HOUR, gpus, owner)
        made = lending.lend(after, wish, wish.client_uuid, NOON)
        return made.lease.state.value if made.lease is not None else made.rejections[0].reason

    assert state("physics", 40) == "lent"
    assert state("chemistry", 10) == "lent"
    assert "memory quota of chemistry" in state("chemistry", 11)
    assert "memory quota of VMs without an owner" in state("", 11)
    assert "quota of shares of chemistry" in state("chemistry", 5, 2)
    one = lending.lend(book, LeaseWish("a", "a", 8, HOUR, owner="chemistry"), "a", NOON).book
    assert state("chemistry", 1, after=one) == "waiting", "its one share is taken"
    assert state("biology", 10, after=one) == "lent"
