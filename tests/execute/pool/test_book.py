"""The book of a pool in its database: what is written is read again, and of several writers none overwrites another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from gpuops.execute.pool.book import Decision, PoolBooks
from gpuops.model.workloads.lease_book import (
    GpuLease,
    LeaseBook,
    LeaseState,
    LeaseWish,
    LendingPool,
    LentShare,
    PoolQuota,
    PoolServer,
    ServerGpu,
)
from gpuops.plan.pool.lending import give_up, lend

Kept = tuple[Path, str]
NOW = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
HOUR = timedelta(hours=1)
SERVER = PoolServer("gpu-01", "uuid-1", (ServerGpu(0, 40_960), ServerGpu(1, 24_576)), "esx-01", "a")
MADE = LeaseBook(LendingPool("lab", "net", quotas={"Physik ü": PoolQuota(memory_mib=1)}), (SERVER,))


def wish(number: int, memory_mib: int = 10_240) -> LeaseWish:
    return LeaseWish(f"vm-{number}", f"uuid-of-{number}", memory_mib, HOUR)


def change(books: PoolBooks, decide: Decision, name: str = "lab") -> tuple[LeaseBook | None, LeaseBook]:
    return books.change(name, decide, lambda *_: None)


def _written(book: LeaseBook, _: LeaseBook | None) -> LeaseBook:
    return book


def test_what_is_written_is_read_again(kept: Kept) -> None:
    lease = GpuLease("a1", wish(1), HOUR, LeaseState.LENT, NOW, NOW + HOUR, (LentShare("gpu-01", 0, 10_240),))
    written = MADE.with_leases([lease])
    with PoolBooks.to_read(*kept, "vc-1") as books:
        assert books.names() == ()
        assert books.read("lab") is None
    with PoolBooks.to_write(*kept, "vc-1") as books:
        assert change(books, lambda before: written if before is None else before) == (None, written)
    with PoolBooks.to_read(*kept, "vc-1") as books:
        assert books.names() == ("lab",)
        assert books.read("lab") == written
    with PoolBooks.to_read(*kept, "vc-2") as books:
        assert books.names() == (), "each vCenter has its own"


def test_what_is_over_is_kept_and_shown_only_where_it_is_asked_for(kept: Kept) -> None:
    with PoolBooks.to_write(*kept, "vc-1") as books:
        change(books, lambda _: lend(MADE, wish(1), "a1", NOW).book)
        _, after = change(books, lambda book: give_up(book or MADE, "uuid-of-1", NOW))
        assert [each.state for each in after.leases] == [LeaseState.ENDED]
        open_only, with_ended = books.read("lab"), books.read("lab", ended=5)
    assert open_only is not None
    assert open_only.leases == ()
    assert with_ended is not None
    assert with_ended.leases == after.leases


def test_of_those_that_are_over_the_latest_are_shown(kept: Kept) -> None:
    with PoolBooks.to_write(*kept, "vc-1") as books:
        change(books, lambda _: MADE)
        for number in range(3):
            at = NOW + number * HOUR
            lent = lend(books.read("lab") or MADE, wish(number), f"a{number}", at).book
            over = give_up(lent, f"uuid-of-{number}", at)
            for book in (lent, over):
                change(books, partial(_written, book))
        latest = books.read("lab", ended=2)
    assert latest is not None
    assert [each.id for each in latest.leases] == ["a1", "a2"]


def test_a_decision_that_fails_leaves_everything_as_it_was(kept: Kept) -> None:
    def fails(_: LeaseBook | None) -> LeaseBook:
        raise ValueError("no")

    with PoolBooks.to_write(*kept, "vc-1") as books:
        change(books, lambda _: MADE)
        with pytest.raises(ValueError, match="no"):
            change(books, fails)
        assert books.read("lab") == MADE


def test_of_several_that_lend_at_once_each_decides_on_what_the_others_wrote(kept: Kept) -> None:
    with PoolBooks.to_write(*kept, "vc-1") as books:
        change(books, lambda _: MADE)

    def lent(number: int) -> None:
        with PoolBooks.to_write(*kept, "vc-1") as mine:
            change(mine, lambda book: lend(book or MADE, wish(number, 20_480), f"a{number}", NOW).book)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lent, range(8)))
    with PoolBooks.to_read(*kept, "vc-1") as books:
        book = books.read("lab")
    assert book is not None
    # two of 20 GiB on the first GPU, one on the second
    assert [lease.state for lease in book.leases] == [LeaseState.LENT] * 3


def test_a_pool_is_removed_with_its_leases_once_it_has_no_server_and_no_other_is(kept: Kept) -> None:
    over = give_up(lend(MADE, wish(1), "a1", NOW).book, "uuid-of-1", NOW)
    other = LeaseBook(LendingPool("other", "net"), (SERVER,)).with_leases(over.leases)
    with PoolBooks.to_write(*kept, "vc-1") as books, PoolBooks.to_write(*kept, "vc-2") as elsewhere:
        for mine, book in ((books, over), (books, other), (elsewhere, over)):
            change(mine, partial(_written, book), book.pool.name)
        books.remove("lab")
        assert books.read("lab", ended=5) == over, "it has a server"
        change(books, partial(_written, replace(over, servers=())))
        books.remove("lab")
        assert books.names() == ("other",) and books.read("lab", ended=5) is None
        assert books.read("other", ended=5) == other and elsewhere.read("lab", ended=5) == over
        change(books, partial(_written, MADE))
        assert books.read("lab", ended=5) == MADE, "one that is made anew has none of the leases of the first"
