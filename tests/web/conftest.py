"""A server of the page in this process, with documents that a test tells it; and `gpuops serve` as a service."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from gpuops.errors import NotConnected
from gpuops.extras.web.http.access import Access
from gpuops.extras.web.http.current import Current, FleetFollower, FleetRead
from gpuops.extras.web.http.web_server import WebServer, serving
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from tests.cli.conftest import clean
from tests.ports import free_port, listens
from tests.report.page.conftest import Reported, reported
from tests.waiting import wait_until

__all__ = ["clean", "reported"]

LONGEST_S: Final = 60.0


@dataclass
class CannedFleet:
    """What a site would tell, from a document; the test changes it and says so."""

    report: dict[str, Any]
    away: str = ""
    reads: int = 0

    def read(self) -> FleetRead:
        self.reads += 1
        if self.away:
            raise NotConnected(self.away)
        documents: dict[str, Callable[[], dict[str, Any]]] = {
            name: partial(dict, kind=name) for name in ("inventory", "capacity", "doctor", "history")
        }
        return FleetRead(self.report, documents)

    def wait_for_change(self, timeout_s: float) -> bool:
        return False


@dataclass
class Served:
    """The server and its fleet."""

    port: int
    server: WebServer
    fleet: CannedFleet
    said: list[str]
    metrics: list[Current] = field(default_factory=list)
    _following: FleetFollower | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def look(self) -> bool:
        """Read once and send the edition to all watchers."""
        if self._following is None:
            self._following = FleetFollower(lambda: self.fleet, self.server.tell, self.said.append)
        return self._following.read_once()

    def get(self, path: str = "/", method: str = "GET", **options: Any) -> httpx.Response:
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False) as client:
            return client.request(method, path, **options)

    def raw(self, text: bytes, *, within_s: float = 30.0) -> bytes:
        """What comes back until the server closes."""
        with self.connected(within_s) as client:
            client.sendall(text)
            client.shutdown(socket.SHUT_WR)
            return receive_all(client)

    def connected(self, within_s: float = 30.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=within_s)


def receive_all(client: socket.socket) -> bytes:
    """All until the other end closes, or breaks off."""
    received_bytes = b""
    try:
        while piece := client.recv(65536):
            received_bytes += piece
    except ConnectionResetError:
        return received_bytes
    return received_bytes


Serve = Callable[..., Served]


@pytest.fixture
def serve(reported: Reported) -> Iterator[Serve]:
    """Starts servers; nothing is read yet."""
    with ExitStack() as stack:

        def start(access: Access | None = None, report: dict[str, Any] | None = None) -> Served:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            messages: list[str] = []
            moments_read: list[Current] = []

            def metrics(now: Current) -> bytes:
                moments_read.append(now)
                return b"gpuops_up 1\n"

            server = stack.enter_context(serving(listener, access or Access(), metrics, messages.append))
            fleet = CannedFleet(report if report is not None else dict(reported.document))
            return Served(listener.getsockname()[1], server, fleet, messages, moments_read)

        yield start


@pytest.fixture
def served(serve: Serve) -> Served:
    """Of the scenario `lab`, read once, for everybody."""
    new_served = serve()
    assert new_served.look()
    return new_served


@contextmanager
def service(
    server: SimServer, folder: Path, *options: str, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`gpuops serve` of that vCenter: its address, once it listens, and the process."""
    ready, port = folder / "ready.json", free_port()
    sim_client.write(ready, sim_client.of(server))
    words = [sys.executable, "-m", "gpuops", "serve", "--listen", str(port), "--vcenter", f"sim@{ready}", *options]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", env={**os.environ, **(environ or {})}
    ) as run:
        try:
            wait_until(lambda: run.poll() is not None or listens(port))
            yield f"http://127.0.0.1:{port}", run
        finally:
            run.kill()


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of an open stream, as they come."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
