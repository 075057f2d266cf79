"""`gpuops runner init` makes all tables of the common database; `--sql` prints them for psql, and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, make_url

from gpuops.execute.journal.stores import open_database, url_for_messages
from gpuops.execute.migrations import HEAD, REVISIONS, Contents
from tests.execute.journal import old_tables
from tests.execute.journal.postgres import Server, binaries
from tests.runner.test_shared_targets import Database


class Typed:
    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.folder = folder
        self.environment = os.environ | {
            "GPUOPS_JOURNAL_URL": url, "GPUOPS_CONFIG": str(folder / "none.toml"), "GPUOPS_STATE_DIR": str(folder / "s")
        }  # fmt: skip

    def init(self, *words: str, stderr: str = "") -> str:
        completed = subprocess.run(
            [sys.executable, "-m", "gpuops", "runner", "init", *words], env=self.environment, cwd=self.folder,
            capture_output=True, encoding="utf-8", check=False, timeout=60,
        )  # fmt: skip
        assert (completed.returncode, completed.stderr) == (0, stderr)
        return completed.stdout

    def tables(self) -> list[str]:
        engine = create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"))
        table_names = sorted(inspect(engine).get_table_names())
        engine.dispose()
        return table_names

    def psql(self, statements: str) -> None:
        folder = binaries()
        assert folder is not None
        completed = subprocess.run(
            [str(folder / "psql"), "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", self.url], input=statements,
            env=os.environ | {"PGOPTIONS": "-c client_min_messages=warning"}, capture_output=True, encoding="utf-8",
            check=False, timeout=60,
        )  # fmt: skip
        assert (completed.returncode, completed.stderr) == (0, "")


@pytest.fixture
def typed(postgresql: Server, tmp_path: Path) -> Typed:
    return Typed(tmp_path, postgresql.database())


def test_it_makes_all_tables_and_then_has_nothing_to_do(typed: Typed) -> None:
    assert typed.init() == f"the tables of the queue were made; all others are of revision {HEAD} now, of none before\n"
    tables = typed.tables()
    assert {"procrastinate_jobs", "journal", "container_job_output", "measurements"} < {*tables}
    assert "book_records" in tables and not {"pools", "container_jobs", "runner_targets"} & {*tables}
    second_run = json.loads(typed.init("--output", "json"))
    assert (second_run["made"], second_run["before"], second_run["revision"], second_run["sql"]) == (
        False,
        HEAD,
        HEAD,
        None,
    )
    assert typed.init("--sql") == "-- nothing to do\n"
    assert typed.tables() == tables


@pytest.mark.long
def test_what_it_prints_makes_by_psql_what_it_makes_itself(typed: Typed, postgresql: Server, tmp_path: Path) -> None:
    printed = typed.init("--sql")
    assert typed.tables() == []
    typed.psql(printed)
    assert typed.init("--sql") == "-- nothing to do\n"
    itself = Typed(tmp_path, postgresql.database())
    itself.init()
    assert typed.tables() == itself.tables()


@pytest.mark.long
def test_it_prints_the_revisions_alone_that_are_not_there(typed: Typed) -> None:
    database = Database(typed.url)
    with closing(open_database(typed.url)) as opened:
        old_tables.make_revision(opened, REVISIONS[1], Contents.JOURNAL)
    printed = typed.init("--sql")
    assert "CREATE TABLE IF NOT EXISTS pools " in printed
    assert "CREATE TABLE IF NOT EXISTS container_jobs " not in printed
    typed.psql(printed)
    assert database.do("SELECT version_num FROM alembic_version") == [(HEAD,)]


@pytest.mark.long
def test_requests_across_sites_are_named_once_and_no_turn_waits_for_them(typed: Typed) -> None:
    typed.init()
    database = Database(typed.url)
    database.do("DROP TABLE book_records, alembic_version")
    with closing(open_database(typed.url)) as opened:
        old_tables.make_revision(opened, REVISIONS[2], Contents.JOURNAL)
    database.do(old_tables.REQUESTS[-1])
    for site in ("requests across sites", "prod"):
        words = f"""('q', 't', '{{"site": "{site}"}}')"""
        database.do(f"INSERT INTO procrastinate_jobs (queue_name, task_name, args) VALUES {words}")
    dropped = (
        "requests across sites are no longer supported, and their assignments are dropped: 'ml-1' was assigned to "
        "'prod'; next: name each of these VMs in the queue of one vCenter's policy, and remove `across_sites`\n"
    )
    assert f"-- warning: {dropped}" in typed.init("--sql")
    typed.init("--quiet", stderr=f"warning: {url_for_messages(make_url(typed.url))}: {dropped}")
    assert typed.init("--sql") == "-- nothing to do\n"
    assert database.do("SELECT args->>'site' FROM procrastinate_jobs") == [("prod",)]
