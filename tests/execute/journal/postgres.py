"""A PostgreSQL server of the tests' own: on a Unix socket alone, with a password, gone when the tests end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

from sqlalchemy import create_engine, text

PASSWORD = "Cn4ry&<é\"'>/@:"
USER = "gpuops"


def binaries() -> Path | None:
    """Where initdb and pg_ctl lie; None = there is no PostgreSQL server on this machine."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian[-1].parent if debian else None


class Server:
    """One running server; each `database()` is a new, empty one."""

    def __init__(self, socket: Path, control: Callable[..., None]) -> None:
        """`control` runs pg_ctl on it with these words."""
        self._socket = socket
        self._control = control
        self._numbers = count(1)

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{quote(password, safe='')}@/{database}?host={self._socket}"

    def database(self) -> str:
        """The URL of a new database."""
        name = f"night_{next(self._numbers)}"
        self._do(f"CREATE DATABASE {name}")
        return self.url(name)

    def cut_off(self) -> None:
        """Close the newest database: it refuses logins, and all its connections end."""
        name = f"night_{next(self._numbers) - 1}"
        self._do(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        self._do(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")

    def stop(self) -> None:
        """End all connections and refuse logins."""
        self._control("-m", "fast", "stop")

    def start(self) -> None:
        """It answers again, with all that was committed."""
        self._control("start")

    def _do(self, statement: str) -> None:
        url = self.url("postgres").replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()


@contextmanager
def running_server(bin_dir: Path) -> Iterator[Server]:
    """A server that stops, and leaves nothing behind, when the block ends."""
    # PostgreSQL does not run as root; as another user it cannot reach into pytest's own private directory
    user = "postgres" if os.geteuid() == 0 else None
    base = Path(mkdtemp(prefix="gpuops-pg-"))
    try:
        password = base / "password"
        password.write_text(PASSWORD, encoding="utf-8")
        if user is not None:
            for path in (base, password):
                shutil.chown(path, user)
        cluster_dir = base / "data"

        def run(*command: str) -> None:
            # its output goes to a file: the server inherits it, and a pipe would stay open for as long as it runs
            with (base / "output").open("ab") as output:
                process = subprocess.run(
                    [str(bin_dir / command[0]), *command[1:]],
                    user=user,
                    cwd=base,
                    stdout=output,
                    stderr=output,
                    check=False,
                )
            assert process.returncode == 0, (base / "output").read_text(encoding="utf-8", errors="replace")

        run("initdb", "-D", str(cluster_dir), "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync",
            "--auth=scram-sha-256", f"--pwfile={password}")  # fmt: skip
        options = f"-c listen_addresses='' -c unix_socket_directories={base} -c fsync=off"

        def control(*words: str) -> None:
            run("pg_ctl", "-D", str(cluster_dir), "-w", "-t", "60", "-o", options, *words)

        control("start")
        try:
            yield Server(base, control)
        finally:
            control("-m", "immediate", "stop")
    finally:
        shutil.rmtree(base, ignore_errors=True)
