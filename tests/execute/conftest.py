"""One PostgreSQL server for all tests of the executor that a worker runs; each test has a database of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.execute.journal.postgres import Server, binaries, running_server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server. Without one: fail in CI, where .ci/run installs it; skip elsewhere, saying what to type."""
    bin_dir = binaries()
    if bin_dir is None or find_spec("psycopg") is None:
        message = "needs a PostgreSQL server and psycopg: apt-get install postgresql, and make setup"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with running_server(bin_dir) as server:
        yield server
