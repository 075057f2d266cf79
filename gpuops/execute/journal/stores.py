"""Which store: the file in the state directory, or a PostgreSQL database that several machines share."""

from __future__ import annotations

from pathlib import Path

from gpuops.execute.journal.postgresql import open_url
from gpuops.execute.journal.sqlite import open_file
from gpuops.execute.journal.store import Store


def open_store(state_dir: Path, url: str, vcenter: str) -> Store:
    """To write into: made if there is none. `url` empty = the file."""
    store = open_url(url, vcenter, writing=True) if url else open_file(state_dir, vcenter, writing=True)
    if store is None:
        raise AssertionError("a store to write into is made")
    return store


def look_into_store(state_dir: Path, url: str, vcenter: str) -> Store | None:
    """To read from: nothing is made or changed. None = there is none."""
    return open_url(url, vcenter, writing=False) if url else open_file(state_dir, vcenter, writing=False)
