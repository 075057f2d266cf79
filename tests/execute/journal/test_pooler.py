"""A real PgBouncer before the journal: in transaction mode it is refused once, in session mode it is used."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from time import sleep

import pytest

from gpuops.clock import passed_s
from gpuops.errors import UsageError
from gpuops.execute.journal.stores import open_store
from tests.execute.journal.postgres import PASSWORD, USER, Server

PORT = 6432


@pytest.fixture
def pgbouncer() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        message = "needs PgBouncer: apt-get install pgbouncer"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found


@contextmanager
def pooler(program: str, server: Server, mode: str) -> Iterator[str]:
    """The URL of a new database behind a PgBouncer in this mode."""
    server_url = server.database()
    socket = server_url.rpartition("host=")[2]
    name = server_url.partition("@/")[2].partition("?")[0]
    user = "postgres" if os.geteuid() == 0 else None  # it does not run as root
    base = Path(mkdtemp(prefix="gpuops-pooler-"))
    password = PASSWORD.replace("'", "''")
    (base / "pgbouncer.ini").write_text(
        f"[databases]\n{name} = host={socket} user={USER} password='{password}'\n[pgbouncer]\nauth_type = any\n"
        f"pool_mode = {mode}\nlisten_addr =\nlisten_port = {PORT}\nunix_socket_dir = {base}\nlogfile = {base}/log\n",
        encoding="utf-8",
    )
    if user is not None:
        for path in (base, base / "pgbouncer.ini"):
            shutil.chown(path, user)
    with subprocess.Popen([program, "-q", str(base / "pgbouncer.ini")], user=user, cwd=base) as running:
        try:
            until_s = passed_s() + 30
            while not (base / f".s.PGSQL.{PORT}").exists():
                assert running.poll() is None and passed_s() < until_s
                sleep(0.05)
            yield f"postgresql://{USER}@/{name}?host={base}&port={PORT}"
        finally:
            running.terminate()
            running.wait(30)
            shutil.rmtree(base, ignore_errors=True)


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
