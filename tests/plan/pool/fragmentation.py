"""How much of a pool its fragmentation costs, beside the bound that an integer program finds.

Two questions on small pools, both at one moment and without nearness:

* Wishes come one after the other, each is lent or refused at once: how many MiB are lent, beside the most of those
  wishes that fit when all are known before (`most_lent_mib`).
* Leases stand: how large is the largest idle share, beside what it were with the same leases laid anew
  (`largest_when_packed_mib`).

`python -m tests.plan.pool.fragmentation` prints what comes out, for README.md of `gpuops/plan/pool`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from statistics import mean

from gpuops.model.workloads.cluster import Arrangement
from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    PoolServer,
    ServerGpu,
)
from gpuops.plan.pool.lending import give_up, lend
from gpuops.plan.pool.room import largest_idle_mib
from tests.plan.pool.random_book import BEGIN, GIB

HOUR = timedelta(hours=1)
NOW = timedelta(0)


@dataclass(frozen=True, slots=True)
class Measured:
    """One drawn pool."""

    lent_mib: int
    most_lent_mib: int
    idle_mib: int
    """Of the largest idle share, once some have been returned."""
    packed_idle_mib: int


def drawn(seed: int, placement: Arrangement = Arrangement.PACKED) -> tuple[LeaseBook, list[LeaseWish]]:
    """Two to four GPUs on one to two servers, and wishes for half again as much as there is."""
    draw = Random(seed)
    sizes = [draw.choice([24, 40, 48]) * GIB for _ in range(draw.randint(2, 4))]
    gpus = [ServerGpu(index, size) for index, size in enumerate(sizes)]
    cut = draw.randint(1, len(gpus))
    parts = [part for part in (gpus[:cut], gpus[cut:]) if part]
    servers = tuple(PoolServer(f"gpu-{n}", f"uuid-{n}", tuple(part)) for n, part in enumerate(parts))
    wishes: list[LeaseWish] = []
    while sum(each.memory_mib for each in wishes) < 1.5 * sum(sizes):
        name = f"vm-{len(wishes)}"
        wishes.append(LeaseWish(name, f"uuid-of-{name}", draw.choice([4, 6, 8, 10, 12, 16, 20]) * GIB, HOUR))
    return LeaseBook(LendingPool("small", "net", placement=placement), servers), wishes


def measured(seed: int, placement: Arrangement = Arrangement.PACKED) -> Measured:
    book, wishes = drawn(seed, placement)
    draw = Random(seed)
    sizes = [gpu.memory_mib for server in book.servers for gpu in server.gpus]
    for wish in wishes:
        book = lend(book, wish, f"lease-of-{wish.client}", BEGIN, NOW).book
    lent_mib = sum(each.wish.memory_mib for each in _held(book))
    most = most_lent_mib(sizes, [each.memory_mib for each in wishes])
    for lease in _held(book):
        if draw.random() < 0.5:
            book = give_up(book, lease.wish.client_uuid, BEGIN)
    packed = largest_when_packed_mib(sizes, [each.wish.memory_mib for each in _held(book)])
    return Measured(lent_mib, most, largest_idle_mib(book, BEGIN, HOUR), packed)


def _held(book: LeaseBook) -> list[GpuLease]:
    return [each for each in book.leases if each.state is LeaseState.LENT]


def most_lent_mib(gpus_mib: Sequence[int], wishes_mib: Sequence[int]) -> int:
    """The most of these wishes that fit: x[w, g] is 1 where wish w is on GPU g."""
    import numpy as np  # a third of a second, which each worker of pytest would wait for
    from scipy.optimize import Bounds, LinearConstraint, milp

    count, width = len(wishes_mib), len(gpus_mib)
    once = np.kron(np.eye(count), np.ones((1, width)))
    full = np.kron(np.asarray([wishes_mib]), np.eye(width))
    value = np.repeat(wishes_mib, width).astype(float)
    found = milp(
        -value,
        integrality=np.ones(count * width),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(once, ub=1), LinearConstraint(full, ub=np.asarray(gpus_mib, float))],
    )
    assert found.success, found.message
    return round(-found.fun)


def largest_when_packed_mib(gpus_mib: Sequence[int], leases_mib: Sequence[int]) -> int:
    """The largest idle share when these leases lie as they best do: for each GPU, as little on it as can be."""
    best = 0
    for empty in range(len(gpus_mib)):
        others = [size for gpu, size in enumerate(gpus_mib) if gpu != empty]
        on_it = sum(leases_mib) - (most_lent_mib(others, leases_mib) if leases_mib and others else 0)
        if on_it <= gpus_mib[empty]:
            best = max(best, gpus_mib[empty] - on_it)
    return best


def main(count: int = 500) -> None:
    for placement in Arrangement:
        every = [measured(seed, placement) for seed in range(count)]
        lent = mean(each.lent_mib / each.most_lent_mib for each in every)
        idle = mean(each.idle_mib / each.packed_idle_mib for each in every)
        exact = sum(each.idle_mib == each.packed_idle_mib for each in every)
        print(
            f"{placement}, {count} pools: lent {lent:.1%} of the most that fits; largest idle share {idle:.1%} of the "
            f"one when packed anew, as large in {exact}"
        )


if __name__ == "__main__":
    main()
