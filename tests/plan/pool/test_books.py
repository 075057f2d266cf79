"""Random lives of a book: nothing is lent twice, nothing beyond a quota, and every lease ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    PoolQuota,
    PoolServer,
    ServerGpu,
    ServerState,
)
from gpuops.plan.pool import lending
from gpuops.plan.pool.placing import choose_shares, idle_mib
from gpuops.plan.pool.reclaim import Reclaim

GIB = 1024
BEGIN = datetime(2026, 3, 28, 22, 0, tzinfo=UTC)
QUOTA = PoolQuota(memory_mib=60 * GIB, shares=3)


def drawn_pool(draw: Random) -> LeaseBook:
    """One to four servers with one to four GPUs each, on three hosts of two clusters."""
    hosts = {"esx-01": "a", "esx-02": "a", "esx-03": "b"}
    servers = []
    for number in range(draw.randint(1, 4)):
        host = draw.choice(list(hosts))
        gpus = tuple(ServerGpu(index, draw.choice([24, 40, 80]) * GIB) for index in range(draw.randint(1, 4)))
        servers.append(PoolServer(f"gpu-{number}", f"uuid-{number}", gpus, host, hosts[host]))
    pool = LendingPool("lab", "net", quotas={"physics": QUOTA})
    return LeaseBook(pool, tuple(servers))


class Life:
    """A book, and the shares that clients really use: they are free only once `cut_off` was called."""

    def __init__(self, seed: int) -> None:
        self.draw, self.now = Random(seed), BEGIN
        self.book = drawn_pool(self.draw)
        self.used = dict[str, GpuLease]()

    def step(self, number: int) -> None:
        draw, book = self.draw, self.book
        server, client = draw.choice(book.servers).name, f"uuid-of-{draw.randrange(9)}"
        self.now += timedelta(minutes=draw.randrange(40))
        change: Callable[[], LeaseBook] = draw.choice(
            [
                *[lambda: self.lend(number, client)] * 5,
                lambda: lending.give_up(book, client, self.now),
                lambda: lending.settle(book, self.now),
                lambda: lending.take_back(book, server, self.now + timedelta(minutes=draw.randrange(9)), self.now),
                lambda: lending.server_died(book, server, self.now),
                lambda: Reclaim(server, again=True).book_after(book, self.now),
            ]
        )
        self.book = change()
        self.work()
        self.judge()

    def lend(self, number: int, client: str) -> LeaseBook:
        draw = self.draw
        owner, lasts = draw.choice(["", "physics"]), timedelta(minutes=draw.choice([1, 30, 240]))
        wish = LeaseWish(client, client, draw.choice([1, 8, 20, 40]) * GIB, lasts, draw.choice([1, 1, 2, 3]), owner)
        answer = lending.lend(self.book, wish, f"a{number}", self.now)
        assert (answer.lease is None) is bool(answer.rejections)
        if any("idle" in refused.rule for refused in answer.rejections):
            assert choose_shares(wish, answer.book) is None
        return answer.book

    def work(self) -> None:
        """Guests do some of what the book wants, and a command may be killed between two of its steps."""
        for lease in lending.to_enable(self.book):
            if self.draw.random() < 0.8:
                self.book = lending.enabling(self.book, lease.id)
                self.used[lease.id] = lease
            if lease.id in self.used and self.draw.random() < 0.8:
                self.book = lending.enabled(self.book, lease.id)
        for lease in lending.to_disable(self.book, self.now):
            if self.draw.random() < 0.5:
                self.book = lending.disabling(self.book, lease.id)
                self.used.pop(lease.id, None)
                self.book = lending.cut_off(self.book, lease.id, self.now)

    def judge(self) -> None:
        memory = {(server.name, gpu.index): gpu.memory_mib for server in self.book.servers for gpu in server.gpus}
        shares = [share for lease in self.used.values() for share in lease.shares]
        used_mib = Counter[tuple[str, int]]()
        for share in shares:
            used_mib[share.server, share.gpu] += share.memory_mib
        assert [gpu for gpu, mib in used_mib.items() if mib > memory[gpu]] == []
        physics = [lease for lease in self.used.values() if lease.wish.owner == "physics"]
        assert sum(len(lease.shares) for lease in physics) <= (QUOTA.shares or 0)
        for lease in self.book.leases:
            assert len({(share.server, share.gpu) for share in lease.shares}) == len(lease.shares)
            assert lease.ends_at is not None and lease.ends_at <= lease.asked_at + lease.lasts


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_never_more_is_lent_than_there_is_and_every_lease_ends(first: int) -> None:
    for seed in range(first, first + 50):
        live(Life(seed))


def live(life: Life) -> None:
    for number in range(60):
        life.step(number)
    life.now += timedelta(days=1)
    book = lending.settle(life.book, life.now)
    for lease in lending.to_disable(book, life.now):
        book = lending.cut_off(book, lease.id, life.now)
    assert [lease for lease in book.leases if lease.holds] == []
    idle = idle_mib(book)
    for server in book.servers:
        lent = server.state is ServerState.SERVING
        assert [idle[server.name, gpu.index] for gpu in server.gpus] == [gpu.memory_mib * lent for gpu in server.gpus]


def test_shares_are_near_and_on_few_servers_then_where_the_least_room_is() -> None:
    gpus = (ServerGpu(0, 80 * GIB), ServerGpu(1, 40 * GIB))
    servers = (PoolServer("far", "u1", gpus[1:], "esx-09", "b"), PoolServer("near", "u2", gpus, "esx-01", "a"))
    book = LeaseBook(LendingPool("lab", "net"), servers)
    wish = LeaseWish("ds", "u3", 8 * GIB, timedelta(hours=1), host="esx-02", cluster="a")
    [share] = choose_shares(wish, book) or ()
    assert (share.server, share.gpu) == ("near", 1)
    both = choose_shares(LeaseWish("ds", "u3", 8 * GIB, timedelta(hours=1), 2), book) or ()
    assert {share.server for share in both} == {"near"}
    assert choose_shares(LeaseWish("ds", "u3", 8 * GIB, timedelta(hours=1), 4), book) is None


def test_a_share_of_a_lease_that_is_over_is_free_only_once_its_client_is_cut_off() -> None:
    server = PoolServer("gpu-01", "u1", (ServerGpu(0, 40 * GIB),))
    wish = LeaseWish("ds", "u2", 40 * GIB, timedelta(hours=1))
    book = lending.enabled(lending.lend(LeaseBook(LendingPool("lab", "net"), (server,)), wish, "a1", BEGIN).book, "a1")
    later = BEGIN + timedelta(hours=2)
    other = LeaseWish("other", "u3", 1, timedelta(hours=1))
    assert lending.lend(book, other, "a2", later).lease is None
    freed = lending.cut_off(lending.settle(book, later), "a1", later)
    assert lending.lend(freed, other, "a2", later).lease is not None
    assert [lease.state for lease in freed.leases] == [LeaseState.ENDED]
