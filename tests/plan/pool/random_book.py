"""Random lives of a book: wishes, returns, ends, servers and clients that die, and two runners that are killed.

What clients really use is kept apart from the book (`Guests`), and judged apart: the judge adds up megabytes and knows
nothing of the planner. One life is drawn from one seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from gpuops.model.workloads.cluster import Arrangement
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
from gpuops.plan.pool.room import OVERDUE, largest_idle_mib

GIB = 1024
BEGIN = datetime(2026, 3, 28, 22, 0, tzinfo=UTC)
MOMENT = timedelta(minutes=1)


def drawn_pool(draw: Random) -> LeaseBook:
    """One to four servers with one to four GPUs each, on three hosts of two clusters."""
    hosts = {"esx-01": "a", "esx-02": "a", "esx-03": "b"}
    servers = []
    for number in range(draw.randint(1, 4)):
        host = draw.choice(list(hosts))
        gpus = tuple(ServerGpu(index, draw.choice([24, 40, 48, 80]) * GIB) for index in range(draw.randint(1, 4)))
        servers.append(PoolServer(f"gpu-{number}", f"uuid-{number}", gpus, host, hosts[host]))
    quotas = {"physics": PoolQuota(memory_mib=draw.choice([None, 40 * GIB]), shares=draw.choice([None, 3]))}
    return LeaseBook(
        LendingPool("lab", "gpu-net", placement=draw.choice(list(Arrangement)), quotas=quotas), tuple(servers)
    )


def drawn_wish(draw: Random, client: str) -> LeaseWish:
    return LeaseWish(
        client,
        f"uuid-of-{client}",
        draw.choice([1, 2, 5, 8, 10, 20, 24, 40, 48]) * GIB + draw.choice([0, 0, 1, 511]),
        timedelta(minutes=draw.choice([1, 10, 30, 60, 240, 1000])),
        draw.choice([1, 1, 1, 2, 3, 5]),
        draw.choice(["", "physics", "chemistry"]),
        draw.choice(["", "esx-01", "esx-03"]),
        draw.choice(["", "a", "b"]),
    )


@dataclass(slots=True)
class Guests:
    """What clients use, whatever the book says of it."""

    connected: dict[str, GpuLease] = field(default_factory=dict)
    """By id of the lease."""
    dead: set[str] = field(default_factory=set)
    """Names of servers that run no more."""

    def judge(self, book: LeaseBook) -> None:
        """Never more in use than there is, on any GPU."""
        memory = {(each.name, gpu.index): gpu.memory_mib for each in book.servers for gpu in each.gpus}
        used: Counter[tuple[str, int]] = Counter()
        for lease in self.connected.values():
            for share in lease.shares:
                used[share.server, share.gpu] += share.memory_mib
        for gpu, used_mib in used.items():
            assert used_mib <= memory[gpu], f"{gpu}: {used_mib} MiB in use"


@dataclass(slots=True)
class Life:
    """A book, its guests, and two runners that each do what the book wants, until they are killed."""

    draw: Random
    book: LeaseBook
    now: datetime = BEGIN
    guests: Guests = field(default_factory=Guests)
    runners: list[Iterator[None] | None] = field(default_factory=lambda: [None, None])
    locks: dict[str, int] = field(default_factory=dict)
    """Which runner holds the lock of a lease."""
    seen: Counter[str] = field(default_factory=Counter)
    promised: dict[str, datetime] = field(default_factory=dict)
    """By id of a lease that waits: when it was last expected to begin."""
    late: bool = False
    """Whether a server left, or a lease ended late, since: then what is expected may be later."""

    def play(self, steps: int) -> None:
        deeds: dict[Callable[[], None], float] = {
            self.run: 16,
            self.pass_time: 4,
            self.give_up: 3,
            self.lend_largest: 3,
            self.kill: 1,
            self.serve_again: 1,
            self.client_dies: 1,
            self.take_back: 0.7,
            self.take_back_lease: 0.5,
            self.lose_server: 0.3,
        }
        for _ in range(steps):
            (deed,) = self.draw.choices([self.lend, *deeds], [14, *deeds.values()])
            deed()
            self.seen[deed.__name__] += 1
            self.judge()

    def write(self, book: LeaseBook) -> None:
        """One transaction: nobody else has written since `book` was read."""
        self.book = book

    def lend(self) -> None:
        wish = drawn_wish(self.draw, f"vm-{self.draw.randrange(24)}")
        patience = self.draw.choice([None, None, timedelta(0), timedelta(hours=2)])
        made = lending.lend(self.book, wish, f"l{self.seen['lend']}", self.now, patience)
        if made.lease is None:
            assert made.rejections
        elif made.changed:
            self.seen[f"lend: {made.lease.state}"] += 1
            again = lending.lend(made.book, wish, "again", self.now, patience)
            assert not again.changed
            assert again.lease == made.lease, "the same once more changes nothing"
            assert again.book == made.book
        self.write(made.book)

    def lend_largest(self) -> None:
        """The largest idle share can be lent at once, and one with a MiB more cannot."""
        lasts = timedelta(minutes=self.draw.choice([1, 60, 600]))
        book = lending.settle(self.book, self.now)
        self.write(book)
        largest = largest_idle_mib(book, self.now, lasts)
        for memory_mib, fits in ((largest, True), (largest + 1, False)):
            if not memory_mib:
                continue
            wish = LeaseWish("probe", "uuid-of-probe", memory_mib, lasts)
            made = lending.lend(book, wish, "probe", self.now, timedelta(0))
            assert (made.lease is not None) is fits, f"{memory_mib} MiB of {largest} idle"

    def give_up(self) -> None:
        open_leases = [each for each in self.book.leases if each.open]
        if open_leases:
            self._given_up(self.draw.choice(open_leases).wish.client_uuid, "it was returned")

    def client_dies(self) -> None:
        """Its VM is gone: whatever it was connected to is connected no more, and the book learns of it."""
        open_leases = [each for each in self.book.leases if each.open]
        if open_leases:
            client = self.draw.choice(open_leases).wish.client_uuid
            gone = [id for id, each in self.guests.connected.items() if each.wish.client_uuid == client]
            for id in gone:
                del self.guests.connected[id]
            self._given_up(client, "its client is gone")

    def _given_up(self, client_uuid: str, because: str) -> None:
        mine = [each for each in self.book.leases if each.holds and each.wish.client_uuid == client_uuid]
        # whoever is cut off now is expected to be so in a minute, which may be later than its end was
        self.late = any(each.ends_at is not None and each.ends_at < self.now + OVERDUE for each in mine)
        self.write(lending.give_up(self.book, client_uuid, self.now, because))
        assert lending.settle(self.book, self.now) == self.book, "who is not looked at has nothing to gain"

    def pass_time(self) -> None:
        self.now += timedelta(minutes=self.draw.choice([0, 1, 5, 30, 120]), seconds=self.draw.choice([0, 0, 1, 59]))
        if any(each.holds and each.ends_at is not None and each.ends_at <= self.now for each in self.book.leases):
            self.late = True
        if any(each.begins_at is not None and each.begins_at < self.now for each in self.book.leases):
            self.late = True
        settled = lending.settle(self.book, self.now, self.book)
        assert settled == lending.settle(self.book, self.now), "who is not looked at has nothing to gain"
        self.write(settled)

    def lose_server(self) -> None:
        server = self.draw.choice(self.book.servers)
        self.late = True
        self.guests.dead.add(server.name)
        held = [each for each in self.book.leases if each.holds and any(s.server == server.name for s in each.shares)]
        self.write(lending.server_died(self.book, server.name, self.now))
        for lease in held:
            now_is = self.book.lease(lease.id)
            assert now_is is not None
            assert now_is.state is LeaseState.BROKEN, "broken at once"

    def take_back(self) -> None:
        server = self.draw.choice(self.book.servers)
        self.late = True
        grace = timedelta(minutes=self.draw.choice([0, 5, 15]))
        taken = lending.take_back(self.book, server.name, grace, self.now)
        assert lending.take_back(taken, server.name, grace, self.now) == taken, "the same once more changes nothing"
        if server.state is not ServerState.DEAD:
            there = [each for each in taken.leases if each.state in (LeaseState.LENT, LeaseState.ENDING)]
            ends = [each.ends_at for each in there if any(share.server == server.name for share in each.shares)]
            assert all(at is not None and at <= self.now + grace for at in ends)
        self.write(taken)

    def take_back_lease(self) -> None:
        if self.book.leases:
            self.late = True
            self.write(lending.take_back_lease(self.book, self.draw.choice(self.book.leases).id, 15 * MOMENT, self.now))

    def serve_again(self) -> None:
        server = self.draw.choice(self.book.servers)
        self.guests.dead.discard(server.name)
        self.write(lending.serve_again(self.book, server.name, self.now))

    def run(self) -> None:
        """One of the runners takes one step further."""
        which = self.draw.randrange(2)
        runner = self.runners[which]
        if runner is None:
            runner = self.runners[which] = self._runner(which)
        if next(runner, True):
            self._forget(which)

    def kill(self) -> None:
        self._forget(self.draw.randrange(2))

    def _forget(self, which: int) -> None:
        self.runners[which] = None
        self.locks = {id: holder for id, holder in self.locks.items() if holder != which}

    def _runner(self, which: int) -> Iterator[None]:
        """What `gpuops pool reclaim --due` does, step by step; it may be killed at each `yield`."""
        self.write(lending.settle(self.book, self.now))
        yield
        for lease in lending.to_disable(self.book, self.now):
            yield from self._alone(which, lease.id, self._disable)
        for lease in lending.to_enable(self.book):
            yield from self._alone(which, lease.id, self._enable)

    def _alone(self, which: int, id: str, deed: Callable[[str], Iterator[None]]) -> Iterator[None]:
        if id in self.locks:
            return
        self.locks[id] = which
        yield from deed(id)
        del self.locks[id]

    def _disable(self, id: str) -> Iterator[None]:
        if id not in {each.id for each in lending.to_disable(self.book, self.now)}:
            return
        self.write(lending.disabling(self.book, id))
        yield
        self.guests.connected.pop(id, None)
        yield
        self.write(lending.cut_off(self.book, id, self.now))
        yield

    def _enable(self, id: str) -> Iterator[None]:
        if id not in {each.id for each in lending.to_enable(self.book)}:
            return
        self.write(lending.enabling(self.book, id))
        yield
        lease = self.book.lease(id)
        assert lease is not None
        self.guests.connected[id] = lease
        yield
        self.write(lending.enabled(self.book, id))
        yield

    def judge(self) -> None:
        self.guests.judge(self.book)
        memory = {(each.name, gpu.index): gpu.memory_mib for each in self.book.servers for gpu in each.gpus}
        lent: Counter[tuple[str, int]] = Counter()
        of_owner: Counter[str] = Counter()
        for lease in self.book.leases:
            if lease.state in (LeaseState.LENT, LeaseState.ENDING):
                assert lease.ends_at is not None, "no lease is without an end"
                assert len({(share.server, share.gpu) for share in lease.shares}) == lease.wish.gpus
                assert all(share.memory_mib == lease.wish.memory_mib for share in lease.shares)
                of_owner[lease.wish.owner] += lease.wish.gpus * lease.wish.memory_mib
            if lease.state in (LeaseState.LENT, LeaseState.ENDING) or lease.enabled is not False:
                for share in lease.shares:
                    lent[share.server, share.gpu] += share.memory_mib
        for gpu, lent_mib in lent.items():
            assert lent_mib <= memory[gpu], f"{gpu}: {lent_mib} of {memory[gpu]} MiB lent"
        quota = self.book.pool.quotas["physics"].memory_mib
        assert quota is None or of_owner["physics"] <= quota
        self._judge_promises()

    def _judge_promises(self) -> None:
        """Nobody who waits begins later than was said, unless a server left or a lease ended late."""
        waiting = {each.id: each.begins_at for each in self.book.leases if each.state is LeaseState.WAITING}
        if not self.late:
            for id, before in self.promised.items():
                now_at = waiting.get(id, before)
                assert now_at is not None
                assert now_at <= before, f"{id} was to begin at {before}, and is now at {now_at}"
        self.late = False
        self.promised = {id: at for id, at in waiting.items() if at is not None}

    def finish(self) -> None:
        """With no more wishes and all servers back, all that is open comes to its end."""
        for server in self.book.servers:
            self.write(lending.serve_again(self.book, server.name, self.now))
        for which in (0, 1):
            self._forget(which)
        for _ in range(400):
            self.now += timedelta(hours=2)
            for _ in self._runner(0):
                self.late = True
                self.judge()
            if not any(each.open for each in self.book.leases):
                assert not self.guests.connected
                return
        raise AssertionError(f"open for ever: {[each for each in self.book.leases if each.open]}")
