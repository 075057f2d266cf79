"""A real PgBouncer before a new database of the tests' server."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.execute.journal.postgres import PASSWORD, USER, Server
from tests.waiting import wait_until

PORT = 6432


@pytest.fixture
def pgbouncer() -> str:
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        message = "needs PgBouncer: apt-get install pgbouncer"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return program


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
            wait_until((base / f".s.PGSQL.{PORT}").exists, 30, process=running)
            yield f"postgresql://{USER}@/{name}?host={base}&port={PORT}"
        finally:
            running.terminate()
            running.wait(30)
            shutil.rmtree(base, ignore_errors=True)
