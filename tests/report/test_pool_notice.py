"""Who is told of leases that end before their time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gpuops.model.notice import NoticeKind
from gpuops.model.workloads.lease_book import (
    LeaseBook,
    LeaseWish,
    LendingPool,
    PoolServer,
    ServerGpu,
)
from gpuops.plan.pool.answers import PoolAnswer
from gpuops.plan.pool.lending import give_up, lend, server_died, settle, take_back, take_back_lease
from gpuops.report.notice import notice_text
from gpuops.report.workloads.pool_notice import notice_of_pool

NOW = datetime(2026, 11, 27, 18, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
SERVERS = tuple(PoolServer(name, f"uuid-{name}", (ServerGpu(0, 1000),)) for name in ("gpu-01", "gpu-02"))


TAKEN_BACK = (
    "ds-01: lease a1 ends at 2026-11-27 19:00 UTC (server gpu-01 is taken back); "
    "it goes on as lease a1-2, which waits for room"
)


def book(servers: int = 1) -> LeaseBook:
    """A pool in which ds-01 has 600 MiB for two hours."""
    empty = LeaseBook(LendingPool("lab", "VM Network"), SERVERS[:servers])
    made = lend(empty, LeaseWish("ds-01", "uuid-1", 600, 2 * HOUR), "a1", NOW)
    assert made.lease is not None
    return made.book


def told(before: LeaseBook, after: LeaseBook, verb: str = "reclaim", *, applied: bool = True) -> tuple[str, ...]:
    notice = notice_of_pool(PoolAnswer(verb, NOW, before, after, applied), "prod", NOW)
    if notice is None:
        return ()
    assert notice.kind is NoticeKind.LEASES
    assert notice.headline == "pool lab: 1 lease taken back before the end"
    assert notice.next_move == "gpuops pool show --pool lab --vcenter prod"
    assert all(name in notice_text(notice).body for name in notice.names)
    return notice.names


def test_a_client_is_told_when_it_loses_its_share_and_where_it_goes_on() -> None:
    before = book()
    assert told(before, take_back(before, "gpu-01", HOUR, NOW)) == (TAKEN_BACK,)
    two = book(servers=2)
    server = two.leases[0].shares[0].server
    assert told(two, server_died(two, server, NOW)) == (
        f"ds-01: lease a1 ended at 2026-11-27 18:00 UTC (server {server} died); it goes on as lease a1-2",
    )
    assert told(before, take_back_lease(before, "a1", HOUR, NOW)) == (
        "ds-01: lease a1 ends at 2026-11-27 19:00 UTC (it is taken back)",
    )


def test_what_was_agreed_is_told_to_nobody() -> None:
    before = book()
    assert told(before, settle(before, NOW + 2 * HOUR)) == (), "its time is over"
    assert told(before, give_up(before, "uuid-1", NOW), "return") == ()
    assert told(before, take_back(before, "gpu-01", 3 * HOUR, NOW)) == (), "it ends by itself before the grace is over"
    assert told(before, before) == ()
    assert told(before, take_back(before, "gpu-01", HOUR, NOW), applied=False) == ()


def test_each_end_is_told_once_and_an_earlier_one_anew() -> None:
    before = book()
    first, sooner = take_back(before, "gpu-01", HOUR, NOW), take_back(before, "gpu-01", HOUR / 2, NOW)
    keys = {
        notice.key
        for after in (first, first, sooner)
        if (notice := notice_of_pool(PoolAnswer("reclaim", NOW, before, after, True), "prod", NOW)) is not None
    }
    assert len(keys) == 2
    assert told(first, settle(first, NOW)) == ()
