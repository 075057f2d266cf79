"""Stores to try: in memory, in a file, and in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.execute.journal.stores import MemoryStore, Store, open_store

Opening = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    """Opens the same records anew, as each process would."""
    match request.param:
        case "memory":
            store = MemoryStore()
            return lambda: store
        case "sqlite":
            return lambda: open_store(tmp_path / "state", "", "vc-1")
        case _:
            url = request.getfixturevalue("postgresql").database()
            return lambda: open_store(tmp_path / "state", url, "vc-1")
