"""The book of a pool in its database: what is written is read again, and of several writers none overwrites another."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from gpuops.extras.lending.lease_book import (
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
from gpuops.extras.lending.lending import end_lease_of, lend
from gpuops.extras.lending.pool_book import PoolBooks

Kept = tuple[Path, str]
NOW = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
HOUR = timedelta(hours=1)
SERVER = PoolServer("gpu-01", "uuid-1", (ServerGpu(0, 40_960), ServerGpu(1, 24_576)))
MADE = LeaseBook(LendingPool("lab", "net", quotas={"Physik ü": PoolQuota(memory_mib=1)}), (SERVER,))


def wish(number: int, memory_mib: int = 10_240) -> LeaseWish:
    return LeaseWish(f"vm-{number}", f"uuid-of-{number}", memory_mib, HOUR)


def open_books(book_place: Kept, vcenter: str = "vc-1", *, write: bool = True) -> AbstractContextManager[PoolBooks]:
    return PoolBooks.open(*book_place, vcenter, write=write)


def change(
    books: PoolBooks, decide: Callable[[LeaseBook | None], LeaseBook], name: str = "lab"
) -> tuple[LeaseBook | None, LeaseBook]:
    before, (after, _) = books.change(name, lambda book, _: (decide(book), ()))
    return before, after


def _write_lease(book: LeaseBook, _: LeaseBook | None) -> LeaseBook:
    return book


def test_what_is_written_is_read_again(book_place: Kept) -> None:
    lease = GpuLease("a1", wish(1), HOUR, LeaseState.LENT, NOW, NOW + HOUR, (LentShare("gpu-01", 0, 10_240),))
    written = MADE.with_leases([lease])
    with open_books(book_place, write=False) as books:
        assert books.read() == {}
    with open_books(book_place) as books:
        assert change(books, lambda before: written if before is None else before) == (None, written)
    with open_books(book_place, write=False) as books:
        assert books.read() == {"lab": written}
    with open_books(book_place, "vc-2", write=False) as books:
        assert books.read() == {}, "each vCenter has its own"


def test_a_lease_that_ended_leaves_the_book(book_place: Kept) -> None:
    with open_books(book_place) as books:
        change(books, lambda _: lend(MADE, wish(1), "a1", NOW)[0])
        _, after = change(books, lambda book: end_lease_of(book or MADE, "uuid-of-1", NOW))
        assert [lease.state for lease in after.leases] == [LeaseState.ENDED]
        assert books.read().get("lab") == MADE


def test_what_is_foreseen_is_not_written(book_place: Kept) -> None:
    with open_books(book_place, write=False) as books:
        assert books.change("lab", lambda *_: (MADE, ()), write=False) == (None, (MADE, ()))
        assert books.read() == {}


def test_a_decision_that_fails_leaves_everything_as_it_was(book_place: Kept) -> None:
    def fails(_: LeaseBook | None) -> LeaseBook:
        raise ValueError("no")

    with open_books(book_place) as books:
        change(books, lambda _: MADE)
        with pytest.raises(ValueError, match="no"):
            change(books, fails)
        assert books.read().get("lab") == MADE


def test_of_several_that_lend_at_once_each_decides_on_what_the_others_wrote(book_place: Kept) -> None:
    with open_books(book_place) as books:
        change(books, lambda _: MADE)

    def lent(number: int) -> None:
        with open_books(book_place) as mine:
            change(mine, lambda book: lend(book or MADE, wish(number, 20_480), f"a{number}", NOW)[0])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lent, range(8)))
    with open_books(book_place, write=False) as books:
        book = books.read().get("lab")
    assert book is not None
    # two of 20 GiB on the first GPU, one on the second
    assert [lease.state for lease in book.leases] == [LeaseState.LENT] * 3


def test_a_pool_is_removed_once_it_has_no_server_and_no_other_is(book_place: Kept) -> None:
    other_book = LeaseBook(LendingPool("other", "net"), (SERVER,))
    with open_books(book_place) as books, open_books(book_place, "vc-2") as elsewhere:
        for mine, book in ((books, MADE), (books, other_book), (elsewhere, MADE)):
            change(mine, partial(_write_lease, book), book.pool.name)
        books.remove_empty("lab")
        assert books.read().get("lab") == MADE, "it has a server"
        change(books, partial(_write_lease, replace(MADE, servers=())))
        books.remove_empty("lab")
        assert books.read() == {"other": other_book} and elsewhere.read() == {"lab": MADE}
