"""An audit reads every record from the first, and finds what a run, which begins at a checkpoint, does not look at."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.journal import FILE_NAME, Journal, journal
from gpuops.execute.journal.audit import verify
from gpuops.execute.journal.record import checksum
from tests.execute.journal.postgres import Server

NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)


def clock() -> Callable[[], datetime]:
    moments = iter(range(10**6))
    return lambda: NOW + timedelta(seconds=next(moments))


def fill(state: Path, vcenter: str, runs: int, url: str = "") -> None:
    with closing(Journal.open(state, vcenter, clock(), url=url)) as opened:
        for number in range(runs):
            opened.end(opened.begin("attach", policy=f"policy {number}"))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two vCenters; in the first a checkpoint after every second run."""
    monkeypatch.setattr(journal, "CHECKPOINT_EVERY", 4)
    fill(tmp_path, "vc-1", 4)
    fill(tmp_path, "vc-2", 1)
    return tmp_path


def edit(state: Path, statement: str) -> None:
    with closing(sqlite3.connect(state / FILE_NAME)) as database, database:
        # not `rowcount`: in Turkish, sqlite3 takes no INSERT for one and knows none of its rows
        database.execute(statement)
        assert database.total_changes == 1


def test_a_whole_journal_is_told_with_its_heads(state: Path) -> None:
    audit = verify(state, "")
    assert (audit.whole, audit.damage, audit.journal) == (True, "", str(state / FILE_NAME))
    assert [(chain.vcenter, chain.good, chain.bad) for chain in audit.chains] == [("vc-1", 10, ""), ("vc-2", 2, "")]
    assert (audit.chains[0].first, audit.chains[0].last) == (NOW, NOW + timedelta(seconds=9))
    assert all(verify(state, "", chain.head).whole for chain in audit.chains)


def test_what_a_run_does_not_read_is_read_here(state: Path) -> None:
    edit(state, "UPDATE journal SET body = replace(body, 'policy 0', 'policy X') WHERE seq = 1 AND vcenter = 'vc-1'")
    with closing(Journal.open(state, "vc-1", clock())) as opened:
        assert opened.last_policy("attach") == "policy 3"
    audit = verify(state, "")
    assert not audit.whole
    assert [(chain.good, chain.bad) for chain in audit.chains] == [
        (0, "record 1: its text does not fit its checksum: it was changed, or moved here"),
        (2, ""),
    ]


def reseal(state: Path, seq: int, body: str) -> None:
    """What somebody does who knows how the chain is made: from that record on, everything is sealed anew."""
    with closing(sqlite3.connect(state / FILE_NAME)) as database, database:
        database.execute("UPDATE journal SET body = ? WHERE seq = ? AND vcenter = 'vc-1'", (body, seq))
        rows = database.execute("SELECT seq, run, kind, at, body, checksum FROM journal WHERE vcenter = 'vc-1' "
                                "ORDER BY seq").fetchall()  # fmt: skip
        previous = "0" * 64
        for row in rows:
            previous = checksum(previous, "vc-1", *row[:5])
            database.execute("UPDATE journal SET checksum = ? WHERE seq = ? AND vcenter = 'vc-1'", (previous, row[0]))
        database.execute("UPDATE journal_heads SET checksum = ? WHERE vcenter = 'vc-1'", (previous,))


def test_a_checkpoint_that_says_something_else_than_the_records_is_found(state: Path) -> None:
    with closing(sqlite3.connect(state / FILE_NAME)) as database:
        query = "SELECT body FROM journal WHERE seq = 5 AND vcenter = 'vc-1'"
        body = json.loads(database.execute(query).fetchone()[0])
    reseal(state, 5, json.dumps({**body, "policies": [["attach", "mine"]]}))
    [bad, _] = verify(state, "").chains
    assert (bad.good, bad.bad) == (4, "record 5: the state in this checkpoint is not that of the records before it")


def test_a_journal_that_was_sealed_anew_or_cut_off_does_not_have_the_head_that_was_noted(state: Path) -> None:
    noted = verify(state, "").chains[0].head
    reseal(state, 6, '{"kind":"attach","night":null,"policy":"","pid":1,"digest":""}')
    assert verify(state, "").whole, "nothing in it tells"
    audit = verify(state, "", noted)
    assert not audit.whole
    assert audit.damage == (f"record {noted} was noted, and the journal does not have it: it was removed or replaced")
    (state / FILE_NAME).unlink()
    assert "there is no journal" in verify(state, "", noted).damage


def test_no_journal_is_no_damage(tmp_path: Path) -> None:
    audit = verify(tmp_path / "none", "")
    assert (audit.whole, audit.chains) == (True, ())
    assert not (tmp_path / "none").exists(), "an audit makes nothing"


def test_records_without_a_head_and_a_head_without_records(state: Path) -> None:
    edit(state, "DELETE FROM journal_heads WHERE vcenter = 'vc-2'")
    edit(state, "INSERT INTO journal_heads SELECT 'vc-3', 4, checksum, 0 FROM journal_heads WHERE vcenter = 'vc-1'")
    assert [chain.bad for chain in verify(state, "").chains] == [
        "",
        "record 1: the journal has records of this vCenter without a head, which gpuops never writes",
        "record 1: it is missing; 4 records were written",
    ]


def test_a_torn_index_is_told_by_the_database_itself(state: Path) -> None:
    with closing(sqlite3.connect(state / FILE_NAME)) as database:
        database.execute("PRAGMA journal_mode=DELETE")
        page = database.execute("SELECT rootpage FROM sqlite_master WHERE name LIKE 'sqlite_autoindex_journal_1'")
        begin = (page.fetchone()[0] - 1) * 4096
    content = bytearray((state / FILE_NAME).read_bytes())
    content[begin + 4000 : begin + 4096] = bytes(96)
    (state / FILE_NAME).write_bytes(content)
    try:
        assert not verify(state, "").whole
    except StateDamaged as damaged:
        assert damaged.exit_code == 7


@pytest.mark.parametrize("head", ["7", "x:" + "0" * 64, "7:" + "0" * 63, ":"])
def test_what_is_no_head_is_refused(state: Path, head: str) -> None:
    with pytest.raises(UsageError, match="is not a head of a journal"):
        verify(state, "", head)


@pytest.mark.parametrize("schema", [1, 3])
def test_a_journal_of_another_schema_is_refused(state: Path, schema: int) -> None:
    edit(state, f"UPDATE schema_version SET version = {schema}")
    with pytest.raises(StateDamaged, match=f"has schema {schema}, this version reads only schema 2") as refused:
        verify(state, "")
    assert refused.value.hint.startswith(
        "use the gpuops that wrote it; until then gpuops rotate restore --from-markers"
    )


def test_the_same_in_postgresql(postgresql: Server, tmp_path: Path) -> None:
    url = postgresql.database()
    fill(tmp_path, "vc-1", 3, url)
    audit = verify(tmp_path, url)
    assert (audit.whole, audit.chains[0].good) == (True, 6)
    assert audit.journal.startswith("postgresql://gpuops:***@/night_")
    assert list(tmp_path.iterdir()) == [], "nothing is kept on this machine"
