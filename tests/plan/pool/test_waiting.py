"""Who waits keeps its place, however late the call is that lets it begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpuops.model.workloads.lease_book import LeaseBook, LeaseState, LeaseWish, LendingPool, PoolServer, ServerGpu
from gpuops.plan.pool import lending

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize("is_set_up", [False, True])
def test_a_late_call_does_not_let_a_later_wish_pass_an_earlier_one(is_set_up: bool) -> None:
    gpu = PoolServer("gpu-01", "uuid", (ServerGpu(0, 100),))
    book = LeaseBook(LendingPool("lab", "VM Network"), (gpu,))
    for second, client in enumerate("abc"):
        wish = LeaseWish(client, client, 100, 2 * HOUR)
        book = lending.lend(book, wish, client, NOON + timedelta(seconds=second)).book
    now = NOON + 2 * HOUR + timedelta(seconds=30)
    if is_set_up:
        book = lending.settle(lending.enabled(lending.enabling(book, "a"), "a"), now)
        book = lending.cut_off(book, "a", now + timedelta(seconds=2))
        now += timedelta(seconds=2)
    else:
        book = lending.settle(book, now)
    told = [(each.id, each.state, each.begins_at) for each in book.leases if each.open]
    assert told == [("b", LeaseState.LENT, now), ("c", LeaseState.WAITING, now + 2 * HOUR)]
