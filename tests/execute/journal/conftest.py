"""Stores to try: in memory, in a file, and in a real PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpuops.execute.journal.store import MemoryStore, Store
from gpuops.execute.journal.stores import open_store
from tests.execute.journal.postgres import Server, binaries, running_server

Opening = Callable[[], Store]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server. Without one: fail in CI, where .ci/run installs it; skip elsewhere, saying what to type."""
    found = binaries()
    if found is None or find_spec("psycopg") is None:
        message = "needs a PostgreSQL server and psycopg: apt-get install postgresql, and make setup"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with running_server(found) as server:
        yield server


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
