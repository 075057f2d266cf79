"""Stores the pools of a vCenter: one record for each pool, with its servers and leases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from gpuops.errors import UsageError
from gpuops.execute.journal.book import Book, BookChange, BookKind, has_earlier_records, take_over
from gpuops.execute.journal.stores import make_file
from gpuops.extras.lending.lease_book import LeaseBook
from gpuops.extras.lending.lending import Decision

EARLIER_FILE: Final = "pools.sqlite"
"""The file in the state directory in which an earlier version stored pools."""
_MESSAGES: Final = {
    "keeps": "book of pools",
    "hint": "free disk space, start the database server, or restore it from a backup; until then nothing is lent",
}
POOL: Final = BookKind(
    "pool", LeaseBook, "the book of pool {key}", "restore it from a backup; until then nothing is lent"
)
Decide = Callable[[LeaseBook | None, tuple[LeaseBook, ...]], Decision]
"""Gets the stored book (None = new) and the other pools of the vCenter; returns the new book, or reasons against it."""


@dataclass(frozen=True, slots=True)
class PoolBooks:
    """The books of one vCenter. Every method raises StateDamaged."""

    _book: Book

    @classmethod
    @contextmanager
    def open(cls, state_dir: Path, url: str, vcenter: str, *, write: bool) -> Iterator[Self]:
        """Yield the books of this vCenter; without `write` nothing is created or changed.

        `url`: the database of the journal; empty = the file in the state directory. Raises StateDamaged, UsageError.
        """
        earlier_file = state_dir / EARLIER_FILE
        with Book.open(state_dir, url, vcenter, write=write, **_MESSAGES) as book:
            if url or not os.path.lexists(earlier_file):
                yield cls(book)
                return
            # pools of an earlier version are moved into the book; without `write` they are read where they are
            with closing(make_file(state_dir, EARLIER_FILE, None, **_MESSAGES)) as earlier:
                if write:
                    take_over(earlier, book)
                    earlier_file.unlink(missing_ok=True)
                yield cls(Book(earlier, vcenter) if not write and has_earlier_records(earlier) else book)

    def read(self) -> dict[str, LeaseBook]:
        """Return the books of all pools by name, in order."""
        with self._book.reading() as records:
            return records.every(POOL)

    def change(self, name: str, decide: Decide, *, write: bool = True) -> tuple[LeaseBook | None, Decision]:
        """Change the book of a pool; return the old one (None = it is new) and the decision, with the ended leases.

        Without `write` the change is only computed. While `decide` runs, no other process changes a pool of this
        vCenter. The change is on disk when this returns. If `decide` raises or refuses, nothing is changed.
        """
        with self._book.changing() if write else self._book.reading() as records:
            books = records.every(POOL)
            before = books.pop(name, None)
            after, rejections = decide(before, tuple(books.values()))
            if isinstance(records, BookChange) and not rejections:  # leases that ended are not stored
                leases = tuple(lease for lease in after.leases if lease.holds)
                records.put(POOL, name, replace(after, leases=leases))
        return before, (after, rejections)

    def remove_empty(self, name: str) -> None:
        """Take the pool out of the book if it has neither servers nor leases."""
        with self._book.changing() as records:
            book = records.read(POOL, name)
            if book is not None and not book.servers and not book.leases:
                records.remove(POOL, name)


def known_book(book: LeaseBook | None, name: str) -> LeaseBook:
    """Return the book. Raises UsageError if it is None: another command has deleted the pool meanwhile."""
    if book is None:
        raise UsageError(f"there is no pool {name!r}", hint="gpuops pool create --file templates/pool.yaml makes one")
    return book
