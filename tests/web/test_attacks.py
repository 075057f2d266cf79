"""Clients that are slow, silent, many or do not speak HTTP: no other client waits, and memory stays."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuops.clock import passed_s
from gpuops.extras.web.http import web_server as server
from gpuops.sim.core.sim_clock import ClockMode
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.waiting import wait_until
from tests.web.conftest import Serve, Served, receive_all, service

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LAST = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


AT_ONCE_S = 9.0
"""Less than a client that is waited for costs (`REQUEST_S`, 10 s)."""


def answers_at_once(served: Served) -> bool:
    began_s = passed_s()
    return served.get("/healthz").status_code == 200 and passed_s() - began_s < AT_ONCE_S


@pytest.mark.long
@pytest.mark.parametrize(
    ("nonsense", "begins"),
    [
        (b"\r\n\r\n", b""),
        (b"GET\r\n\r\n", b"HTTP/1.1 400 "),
        (b"\x16\x03\x01" * 50, b""),
        (b"GET /\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.test\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET http://evil.test/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"HTTP/1.1 404 "),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\x00b\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 400 "),
        (b"G" * 70_000, b"HTTP/1.1 400 "),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: x\r\n" * 3000 + b"\r\n", b"HTTP/1.1 400 "),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 600_000 + b"\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: x\r\n" * 100_000 + b"\r\n", b"HTTP/1.1 400 "),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 "),
    ],
)
def test_what_is_no_request_is_refused_and_ends_nothing(served: Served, nonsense: bytes, begins: bytes) -> None:
    with served.connected() as client:
        try:
            client.sendall(nonsense)
            client.shutdown(socket.SHUT_WR)
        except OSError:  # broken off, reset, or not connected any more
            begins = b""  # it was refused before all of it was there
        answer = receive_all(client)
    assert answer.startswith(begins) or answer == b"", answer[:200]
    assert not answer.startswith(b"HTTP/1.1 200")
    assert served.get("/healthz").status_code == 200
    assert served.said == []


@pytest.mark.long
def test_a_header_of_almost_that_size_is_answered(served: Served) -> None:
    request = LAST.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * (server.HEADER_BYTES - 200) + b"\r\n\r\n")
    assert served.raw(request).startswith(b"HTTP/1.1 200 ")


def test_a_websocket_is_not_opened(served: Served) -> None:
    request = b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with served.connected() as client:
        client.sendall(request)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 "), "the same as without"


@pytest.mark.parametrize("requests", [2, 20, 5000])
def test_of_requests_that_do_not_wait_for_an_answer_one_is_answered(served: Served, requests: int) -> None:
    with served.connected() as client:
        with suppress(OSError):  # it may be closed before all is sent
            client.sendall(REQUEST * requests)
        assert receive_all(client).count(b"HTTP/1.1 ") <= 1
    with served.connected() as client:
        for _ in range(3):
            client.sendall(REQUEST)
            answer = b""
            while not answer.endswith(b"ok\n"):
                answer += client.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 "), "a waiting client keeps the connection"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_client_that_sends_a_byte_now_and_then_is_left(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Each byte would renew a limit of silence; the limit here is of the request."""
    monkeypatch.setattr(server, "REQUEST_S", 1.0)
    served = serve()
    began_s = passed_s()
    with served.connected() as client:
        client.sendall(sent)
        wait_until(lambda: is_closed(client), 20, every_s=0.1)
    assert passed_s() - began_s > 0.5


def is_closed(client: socket.socket) -> bool:
    """Whether the server closed; sends one byte more."""
    try:
        client.sendall(b"x")
        client.settimeout(0.05)
        return client.recv(4096) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.long
def test_a_body_that_never_ends_holds_its_connection_no_longer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 1.0)
    served = serve()
    with served.connected() as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 503 "), "it is answered without it"
        wait_until(lambda: is_closed(client), 20, every_s=0.1)


@pytest.mark.long
def test_who_does_not_take_an_answer_is_left(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of a page of 30 MB a kernel's buffers hold a part alone, and the server one piece."""
    monkeypatch.setattr(server, "SEND_S", 0.5)
    served = serve(report={"read_at": "2031-01-01T00:00:00+00:00", "text": "x" * 30_000_000})
    assert served.look()
    clients = [served.connected() for _ in range(20)]
    try:
        assert served.get("/api/report").status_code == 200, "it is made once"
        before_kib = resident_kib()
        for client in clients:
            client.sendall(b"GET /api/report HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        most_kib = before_kib

        def all_cut_off() -> bool:
            nonlocal most_kib
            most_kib = max(most_kib, resident_kib())
            return not served.server._server.server_state.connections

        wait_until(all_cut_off)
        assert most_kib - before_kib < 60 * 1024, "not a copy for each"
        assert answers_at_once(served)
        assert all(len(receive_all(client)) < 29_000_000 for client in clients), "they were cut off"
    finally:
        for client in clients:
            client.close()


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of a thousand connections are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("needs 4,096 open files: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
def test_a_thousand_connections_that_say_nothing_keep_nobody_out(served: Served, many_files: None) -> None:
    before_kib = resident_kib()
    with ExitStack() as stack:
        for number in range(1000):
            client = stack.enter_context(served.connected())
            if number % 3 == 0:
                client.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert answers_at_once(served)
        page = served.get("/")
        assert page.status_code == 200 and "Map of the fleet" in page.text
        assert resident_kib() - before_kib < 64 * 1024
    assert answers_at_once(served)


@pytest.mark.long
def test_where_all_connections_are_watched_the_next_is_refused_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 5)
    with ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(served.connected())
            client.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"text/event-stream" in client.recv(4096)
        began_s = passed_s()
        refused = served.raw(b"")
        assert refused.startswith(b"HTTP/1.1 503 ") and passed_s() - began_s < AT_ONCE_S
    wait_until(lambda: served.raw(REQUEST).startswith(b"HTTP/1.1 200 "))


BODIES = (
    ("application/json", '{"vm": "ml-07", "profile": "a100-3-20c", "apply": true}'),
    ("text/xml", "<PowerOffVM_Task><_this>vm-101</_this></PowerOffVM_Task>"),
)
PATHS = ("/", "/api/report", "/api/rotate/night", "/sdk", "/gpuops-sim/faults", "/api/attach?vm=ml-07&apply=true")
ATTACKS = [
    f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: {kind}\r\n"
    f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH")
    for path in PATHS
    for kind, body in BODIES
]


@pytest.mark.long
def test_a_session_of_attacks_and_looks_changes_nothing_in_vcenter(clean: Any, tmp_path: Path) -> None:
    """By the ledger of the simulated vCenter, which has every change that anybody made, and its objects."""
    with SimServer(build("lab", clock=ClockMode.REAL)) as server:
        with service(server, tmp_path) as (url, run):
            port = int(url.rpartition(":")[2])
            wait_until(lambda: b"200 OK" in reply_to(port, LAST))
            statuses = {reply_to(port, attack)[:13] for attack in ATTACKS}
            assert statuses == {b"HTTP/1.1 200 ", b"HTTP/1.1 404 ", b"HTTP/1.1 405 "}
            for name in ("report", "inventory", "capacity", "doctor", "history"):
                request = f"GET /api/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                assert reply_to(port, request.encode()).startswith(b"HTTP/1.1 200 ")
            run.terminate()
            _, errors = run.communicate(timeout=60)
        assert run.returncode == 143 and "Traceback" not in errors, errors
        assert server.world.ledger.to_json(after_sequence=0) == []
        assert server.world.bugs == [] and list(server.world.sessions) == []


def reply_to(port: int, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(text)
        return receive_all(client)
