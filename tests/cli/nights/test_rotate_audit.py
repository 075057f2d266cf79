"""`gpuops rotate audit verify`: exit code 0 for a journal as gpuops wrote it, and 7 for any other."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import Result

from gpuops.execute.journal import FILE_NAME, Journal

Gpuops = Callable[..., Result]
NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of one run."""
    state = tmp_path / "state"
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(state))
    with closing(Journal.open(state, "vc-1", lambda: NOW)) as journal:
        journal.end(journal.begin("attach"))
    return state


def change(state: Path, statement: str) -> None:
    with closing(sqlite3.connect(state / FILE_NAME)) as database, database:
        # not `rowcount`: in Turkish, sqlite3 takes no INSERT for one and knows none of its rows
        database.execute(statement)
        assert database.total_changes == 1


def test_a_whole_journal(state: Path, gpuops: Gpuops) -> None:
    verification = gpuops("rotate", "audit", "verify")
    assert verification.exit_code == 0
    line, verdict = verification.stdout.splitlines()
    assert line.startswith("vCenter vc-1: 2 records from 2026-11-20 21:00 UTC to 2026-11-20 21:00 UTC, head 2:")
    assert verdict == f"as gpuops wrote it: {state / FILE_NAME}"
    head = line.rpartition(" ")[2]
    assert gpuops("rotate", "audit", "verify", "--head", head).exit_code == 0


def test_a_changed_record_is_named_in_text_and_json(state: Path, gpuops: Gpuops) -> None:
    change(state, "UPDATE journal SET at = '2026-11-20T22:00:00+00:00' WHERE seq = 2")
    verification = gpuops("rotate", "audit", "verify")
    assert verification.exit_code == 7
    assert "vCenter vc-1: record 2: its text does not fit its checksum" in verification.stdout
    assert "only the 1 record from" in verification.stdout
    assert verification.stdout.splitlines()[-1].startswith("next: gpuops rotate day --policy FILE ")
    as_json = gpuops("rotate", "audit", "verify", "--output", "json")
    assert as_json.exit_code == 7
    document = json.loads(as_json.stdout)
    assert (document["kind"], document["whole"], document["damage"]) == ("rotate-audit", False, None)
    [chain] = document["vcenters"]
    assert (chain["vcenter"], chain["good_records"]) == ("vc-1", 1)
    assert chain["bad"].startswith("record 2: ")


def test_an_end_that_was_cut_off_is_told_by_the_head_that_was_noted(state: Path, gpuops: Gpuops) -> None:
    document = json.loads(gpuops("rotate", "audit", "verify", "-o", "json").stdout)
    first = sqlite3.connect(state / FILE_NAME).execute("SELECT checksum FROM journal WHERE seq = 1").fetchone()[0]
    change(state, "DELETE FROM journal WHERE seq = 2")
    change(state, f"UPDATE journal_heads SET seq = 1, checksum = '{first}'")
    assert gpuops("rotate", "audit", "verify").exit_code == 0
    verification = gpuops("rotate", "audit", "verify", "--head", document["vcenters"][0]["head"])
    assert verification.exit_code == 7
    assert "was noted, and the journal does not have it" in verification.stdout


def test_a_file_that_is_no_journal_is_one_line(state: Path, gpuops: Gpuops) -> None:
    (state / FILE_NAME).write_bytes(b"no database" * 1000)
    verification = gpuops("rotate", "audit", "verify")
    assert (verification.exit_code, verification.stdout) == (7, "")
    assert "file is not a database" in verification.stderr
    assert "Traceback" not in verification.stderr


def test_nothing_recorded_is_nothing_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpuops: Gpuops) -> None:
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "none"))
    verification = gpuops("rotate", "audit", "verify")
    assert (verification.exit_code, verification.stdout) == (
        0,
        f"nothing was recorded yet: {tmp_path / 'none' / FILE_NAME}\n",
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--head", "12"), "'12' is not a head of a journal"),
        (("--journal-url", "mysql://db/j"), "the URL of the journal is not the URL of a PostgreSQL database"),
        (("--journal-url", "postgresql://u:Cn4ry@db/j"), "--journal-url contains a password"),
        (("--journal-url", "Cn4ry"), "the URL of the journal is not the URL of a PostgreSQL database"),
    ],
)
def test_what_is_not_understood_is_refused(
    state: Path, gpuops: Gpuops, arguments: tuple[str, ...], reason: str
) -> None:
    refusal = gpuops("rotate", "audit", "verify", *arguments)
    assert refusal.exit_code == 2
    assert reason in refusal.stderr
    assert "Cn4ry" not in refusal.stderr
