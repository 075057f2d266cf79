"""Servers of a pool: which VM may be one, whose shares they keep, and when they count as lending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from gpuops.extras.lending import lending
from gpuops.extras.lending.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    PoolFile,
    PoolQuota,
    PoolServer,
    ServerGpu,
    ServerState,
)
from gpuops.extras.lending.lending import choose_shares, idle_mib
from gpuops.extras.lending.pool_members import Reclaim, is_lending, servers_of, servers_of_other_pools
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DynamicDevice, PowerState, Vm
from tests.plan.moving.worlds import world
from tests.plan.snapshots import catalog

GIB = 1024
SERVER = PoolServer("ml-03", "uuid-a", (ServerGpu(0, 40 * GIB),))
L40S, UNKNOWN = (0x10DE, 0x26B9), (0x10DE, 0xFFFF)


def lent(*servers: PoolServer) -> LeaseBook:
    """A book of these servers, or of `SERVER`, whose first has lent a share to a client that is set up."""
    wish = LeaseWish("ds", "uuid-ds", 8 * GIB, timedelta(hours=1))
    book, _ = lending.lend(LeaseBook(LendingPool("lab", "net"), servers or (SERVER,)), wish, "a1", BEGIN)
    return lending.hooks_ended(book, "a1", True, BEGIN)


def test_shares_never_move_to_another_vm_that_has_the_name_of_their_server() -> None:
    book = lent()
    after, [refused] = lending.with_servers(book, (replace(SERVER, uuid="uuid-b"),), BEGIN)
    assert (refused.subject, after.servers) == ("ml-03", book.servers)


def test_two_servers_that_swap_their_names_keep_those_that_they_have_in_the_pool() -> None:
    other_server = PoolServer("ml-04", "uuid-b", (ServerGpu(0, 24 * GIB),))
    book = lent(SERVER, other_server)
    swapped = (replace(SERVER, name="ml-04"), replace(other_server, name="ml-03"))
    assert lending.with_servers(book, swapped, BEGIN) == (book, ())


def test_a_new_server_has_no_name_of_another_one() -> None:
    book = lent()
    renamed, new = replace(SERVER, name="ml-05"), replace(SERVER, uuid="uuid-b")
    after, [refused] = lending.with_servers(book, (renamed, new), BEGIN)
    assert (refused.rule, after) == ("is listed twice, or has the name of another server", book)


def test_a_dead_server_lends_as_long_as_a_client_may_still_use_it() -> None:
    book = lending.server_died(lent(), SERVER, BEGIN, "cannot serve: no driver")
    assert is_lending(book.servers[0], book)
    book = lending.hooks_ended(book, "a1", False, BEGIN)
    assert not is_lending(book.servers[0], book)


def test_a_server_of_another_pool_is_refused_when_it_comes() -> None:
    book, other_pool = lent(), LeaseBook(LendingPool("other", "net"), (SERVER,))
    assert list(servers_of_other_pools(book, lending.settle(book, BEGIN), [other_pool])) == [], (
        "it goes on where it lends"
    )
    [refused] = servers_of_other_pools(None, other_pool, [book])
    assert refused.rule == "is already a server of pool lab"


@pytest.mark.parametrize("because", ["", "cannot serve: no driver"])
def test_a_report_that_a_server_is_dead_is_recorded_of_one_that_is_dead_already(because: str) -> None:
    book = lending.server_died(lent(), SERVER, BEGIN, because)
    assert not book.servers[0].is_reported_dead
    inventory: Inventory = world([[8]], [[8]]).with_vm(Vm("vm-1", "ml-03", instance_uuid="uuid-a", power=PowerState.ON))
    book, _ = Reclaim("ml-03", dead=True).decide(book, inventory, BEGIN)
    assert book.servers[0].is_reported_dead
    assert lending.server_died(book, book.servers[0], BEGIN) == book, "a reading of vCenter takes no report back"
    assert Reclaim("ml-03", again=True).decide(book, inventory, BEGIN)[0].servers[0] == SERVER


@pytest.mark.parametrize(("allowed", "is_server"), [((L40S,), True), ((L40S, UNKNOWN), False), ((), False)])
def test_a_dynamic_device_that_may_be_an_unknown_board_is_not_lent(
    allowed: tuple[tuple[int, int], ...], is_server: bool
) -> None:
    vm = Vm("vm-1", "ml-04", instance_uuid="uuid-1", power=PowerState.ON, devices=(DynamicDevice(1, allowed, "ml"),))
    inventory: Inventory = world([[8]], [[8]]).with_vm(vm)
    wish = PoolFile(name="lab", network="net", version=1, servers=("ml-04",))
    servers, refused = servers_of(wish, inventory, catalog())
    assert bool(refused) is not is_server
    assert all(server.state is ServerState.SERVING for server in servers)


BEGIN = datetime(2026, 3, 28, 22, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
QUOTA = PoolQuota(memory_mib=60 * GIB, shares=3)


def drawn_pool(draw: Random) -> LeaseBook:
    """One to four servers with one to four GPUs each."""
    servers = []
    for number in range(draw.randint(1, 4)):
        gpus = tuple(ServerGpu(index, draw.choice([24, 40, 80]) * GIB) for index in range(draw.randint(1, 4)))
        servers.append(PoolServer(f"gpu-{number}", f"uuid-{number}", gpus))
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
        server, client = draw.choice(book.servers), f"uuid-of-{draw.randrange(9)}"
        self.now += timedelta(minutes=draw.randrange(40))
        change: Callable[[], LeaseBook] = draw.choice(
            [
                *[lambda: self.lend(number, client)] * 5,
                lambda: lending.end_lease_of(book, client, self.now),
                lambda: lending.settle(book, self.now),
                lambda: lending.take_back(book, server, self.now + timedelta(minutes=draw.randrange(9)), self.now),
                lambda: lending.server_died(book, server, self.now),
                lambda: lending.serve_again(book, server, self.now),
            ]
        )
        self.book = change()
        self.work()
        self.judge()

    def lend(self, number: int, client: str) -> LeaseBook:
        draw = self.draw
        owner, lasts = draw.choice(["", "physics"]), timedelta(minutes=draw.choice([1, 30, 240]))
        wish = LeaseWish(client, client, draw.choice([1, 8, 20, 40]) * GIB, lasts, draw.choice([1, 1, 2, 3]), owner)
        book, rejections = lending.lend(self.book, wish, f"a{number}", self.now)
        assert rejections or lending.current_lease(book, client, self.now) is not None
        if any("idle" in refused.rule for refused in rejections):
            assert len(choose_shares(wish, book)) < wish.gpus
        return book

    def work(self) -> None:
        """Guests do some of what the book wants, and a command may be killed between two of its steps."""
        for lease in lending.to_enable(self.book):
            if self.draw.random() < 0.8:
                self.book = lending.hooks_begin(self.book, lease.id, self.now)
                self.used[lease.id] = lease
            if lease.id in self.used and self.draw.random() < 0.8:
                self.book = lending.hooks_ended(self.book, lease.id, True, self.now)
        for lease in lending.to_disable(self.book, self.now):
            if self.draw.random() < 0.5:
                self.book = lending.hooks_begin(self.book, lease.id, self.now)
                self.used.pop(lease.id, None)
                self.book = lending.hooks_ended(self.book, lease.id, False, self.now)

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
            assert lease.ends_at <= lease.asked_at + lease.lasts


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
        book = lending.hooks_ended(book, lease.id, False, life.now)
    assert [lease for lease in book.leases if lease.holds] == []
    idle = idle_mib(book)
    for server in book.servers:
        lent = server.state is ServerState.SERVING
        assert [idle[server.name, gpu.index] for gpu in server.gpus] == [gpu.memory_mib * lent for gpu in server.gpus]


def test_a_share_of_a_lease_that_is_over_is_free_only_once_its_client_is_cut_off() -> None:
    book = LeaseBook(LendingPool("lab", "net"), (PoolServer("gpu-01", "u1", (ServerGpu(0, 40 * GIB),)),))
    book, _ = lending.lend(book, LeaseWish("ds", "u2", 40 * GIB, HOUR), "a1", BEGIN)
    book = lending.hooks_ended(book, "a1", True, BEGIN)
    later = BEGIN + 2 * HOUR
    other_client = LeaseWish("other", "u3", 1, HOUR)
    assert lending.lend(book, other_client, "a2", later)[1]
    freed = lending.hooks_ended(lending.settle(book, later), "a1", False, later)
    assert not lending.lend(freed, other_client, "a2", later)[1]
    assert [lease.state for lease in freed.leases] == [LeaseState.ENDED]
