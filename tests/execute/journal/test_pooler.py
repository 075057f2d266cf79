"""A real PgBouncer before the journal: in transaction mode it is refused once, in session mode it is used."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gpuops.errors import UsageError
from gpuops.execute.journal.stores import open_store
from tests.execute.journal.pooler import pgbouncer, pooler
from tests.execute.journal.postgres import Server

__all__ = ["pgbouncer"]


def test_a_pooler_in_transaction_mode_is_refused(pgbouncer: str, postgresql: Server, tmp_path: Path) -> None:
    with pooler(pgbouncer, postgresql, "transaction") as url:
        for _ in range(2):
            with pytest.raises(
                UsageError, match=r"night_[0-9]+ is reached through a pooler in transaction mode"
            ) as refused:
                open_store(tmp_path, url, "vc-1")
            assert refused.value.exit_code == 2


def test_a_pooler_in_session_mode_is_used(pgbouncer: str, postgresql: Server, tmp_path: Path) -> None:
    with pooler(pgbouncer, postgresql, "session") as url:
        for _ in range(2):
            with closing(open_store(tmp_path, url, "vc-1")) as store:
                assert tuple(store.read(None)) == ()
