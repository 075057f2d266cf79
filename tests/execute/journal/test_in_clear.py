"""No word of a password goes to a server in clear, on whichever way the URL and the environment lead to it.

0.0.0.0 and 127.1 lead to this machine on Linux and are no literal loopback address: they stand for another machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.errors import StateDamaged
from gpuops.execute.journal.stores import open_store
from tests.execute.journal.listener import Listener, listening

pytest.importorskip("psycopg", reason="needs psycopg: make setup")

SECRET = "Cn4ry"
WAYS = {
    "a host that begins as a loopback address": ("@127.1:{port}/j", {}),
    "a name": ("@localhost:{port}/j", {}),
    "several hosts in one parameter": ("@/j?host=0.0.0.0,127.0.0.1&port={port},{port}", {}),
    "several hosts in several parameters": ("@/j?host=0.0.0.0:{port}&host=127.0.0.1:{port}", {}),
    "several hosts in the place of one": ("@127.0.0.1,0.0.0.0:{port}/j", {}),
    "an address without a host": ("@/j?hostaddr=0.0.0.0&port={port}", {}),
    "an address beside a socket": ("@/j?host=/nowhere&hostaddr=0.0.0.0&port={port}", {}),
    "an address beside a loopback host": ("@127.0.0.1:{port}/j?hostaddr=0.0.0.0", {}),
    "PGHOST": ("@/j", {"PGHOST": "0.0.0.0", "PGPORT": "{port}"}),
    "PGHOSTADDR": ("@127.0.0.1/j", {"PGHOSTADDR": "0.0.0.0", "PGPORT": "{port}"}),
    "a service of the URL": ("@/j?service=elsewhere", {"PGSERVICEFILE": "{services}"}),
    "a service of the environment": ("@/j", {"PGSERVICE": "elsewhere", "PGSERVICEFILE": "{services}"}),
    "a service of the file in the home": ("@/j?service=elsewhere", {"HOME": "{home}"}),
    "a service beside a loopback host": ("@127.0.0.1/j?service=elsewhere", {"PGSERVICEFILE": "{services}"}),
    "GSSAPI preferred by the environment": ("@0.0.0.0:{port}/j", {"PGGSSENCMODE": "prefer"}),
}


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as new_listener:
        yield new_listener


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listener: Listener) -> dict[str, str]:
    """No settings of a user: libpq's variables are unset, and a file of services leads to the listener."""
    for name in ("HOST", "HOSTADDR", "PORT", "SERVICE", "SERVICEFILE", "SSLMODE", "PASSWORD", "PASSFILE", "GSSENCMODE"):
        monkeypatch.delenv(f"PG{name}", raising=False)
    services = tmp_path / ".pg_service.conf"
    services.write_text(f"[elsewhere]\nhostaddr=0.0.0.0\nport={listener.port}\nsslmode=disable\n", encoding="utf-8")
    return {"port": str(listener.port), "services": str(services), "home": str(tmp_path)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["url", "pgpass"])
def test_a_server_that_cannot_encrypt_is_sent_nothing(
    where: str, way: str, listener: Listener, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    url_rest, variables = WAYS[way]
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(**environment))
    user = f"gpuops:{SECRET}" if where == "url" else "gpuops"
    passfile = tmp_path / "pgpass"
    passfile.write_text(f"*:*:*:*:{SECRET}\n", encoding="utf-8")
    passfile.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    with pytest.raises(StateDamaged) as refused:
        open_store(tmp_path, f"postgresql://{user}{url_rest.format(**environment)}", "vc-1")
    assert SECRET not in f"{refused.value.message} {refused.value.hint}"
    assert listener.heard == b""


@pytest.mark.parametrize("url_rest", ["@127.0.0.1:{port}/j", "@/j?hostaddr=127.0.0.1&port={port}"])
def test_a_literal_loopback_address_is_this_machine(
    url_rest: str, listener: Listener, environment: dict[str, str], tmp_path: Path
) -> None:
    """And the listener of this file hears a password where it is sent in clear."""
    with pytest.raises(StateDamaged):
        open_store(tmp_path, f"postgresql://gpuops:{SECRET}{url_rest.format(**environment)}", "vc-1")
    assert SECRET.encode() in listener.heard
