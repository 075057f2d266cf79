"""What is said of servers that were asked, and of shares that nothing but a promise limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    LentShare,
    PoolServer,
    ServerGpu,
)
from gpuops.model.workloads.remote_gpu import MeasuredShare, ServerCondition, ServerHealth
from gpuops.plan.pool.promises import dead, warnings

NOW = datetime(2026, 11, 27, tzinfo=UTC)
WISH = LeaseWish("ds-01", "uuid-1", 600, timedelta(hours=1))
LEASE = GpuLease("a1", WISH, WISH.lasts, LeaseState.LENT, NOW, NOW, NOW, (LentShare("gpu-01", 1, 600),), enabled=True)
BOOK = LeaseBook(LendingPool("lab", "VM Network"), (PoolServer("gpu-01", "uuid", (ServerGpu(1, 1000),)),), (LEASE,))


MORE = (
    "ds-01: lease a1 uses 601 MiB of GPU 1 of gpu-01, and is lent 600 MiB: "
    "gpuops pool reclaim --pool lab --lease a1 takes it back"
)


def serves(*measured: MeasuredShare, why: str = "") -> ServerHealth:
    return ServerHealth("gpu-01", ServerCondition.SERVES, why, measured)


def test_who_uses_more_than_its_share_is_named_with_what_takes_it_back() -> None:
    assert list(warnings(BOOK, [serves(MeasuredShare("a1", 1, 600))])) == []
    assert list(warnings(BOOK, [serves(MeasuredShare("a1", 1, 601))])) == [MORE]


def test_what_is_not_lent_is_named_too() -> None:
    found = list(warnings(BOOK, [serves(MeasuredShare("a1", 0, 5), MeasuredShare("b2", 1, 7))]))
    assert found == [
        "lease a1 uses 5 MiB of GPU 0 of gpu-01, which is not lent to it",
        "lease b2 uses 7 MiB of GPU 1 of gpu-01, which is not lent to it",
    ]


def test_a_server_that_could_not_be_asked_is_told_and_is_not_dead() -> None:
    unknown = ServerHealth("gpu-02", ServerCondition.UNKNOWN, "no login for guests")
    gone = ServerHealth("gpu-03", ServerCondition.DEAD, "its VM is powered off")
    healths = [serves(why="its use is not measured: no nvidia-smi"), unknown, gone]
    assert dead(healths) == ("gpu-03",)
    assert list(warnings(BOOK, healths)) == [
        "gpu-01: its use is not measured: no nvidia-smi",
        "gpu-02: whether it serves is not known: no login for guests",
    ]
