"""Requests to the simulated Connection Server that no client sends: each has an answer, and it goes on."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpuops.sim.horizon_server import DOMAIN
from gpuops.sim.scenario.build import build
from gpuops.sim.server import HorizonListener, SimServer

LOGIN = "/rest/login"
MAINTAIN = "/rest/inventory/v1/machines/action/enter-maintenance"
BODIES: list[Any] = [None, 5, [], [[]], "x", {}, {"username": 5}, {"refresh_token": []}, [None, 5, {}, []]]
WRONG_LOGINS: list[dict[str, Any]] = [
    {"domain": 5},
    {"domain": None},
    {"domain": []},
    {"username": []},
    {"password": 1},
]


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with SimServer(build("vdi")) as server:
        server.serve_horizon()
        yield server
        assert server.world.bugs == []


@pytest.fixture
def horizon_listener(server: SimServer) -> HorizonListener:
    return server.serve_horizon()


def context(server: SimServer) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=server.ca_file)


def send_request(server: SimServer, verb: str, path: str, body: bytes = b"", token: str = "") -> tuple[int, bytes]:
    wire = http.client.HTTPSConnection("127.0.0.1", server.serve_horizon().port, timeout=10, context=context(server))
    try:
        wire.request(verb, path, body, {"Authorization": f"Bearer {token}"})
        reply = wire.getresponse()
        return reply.status, reply.read()
    finally:
        wire.close()


def token_of(server: SimServer, **wrong: Any) -> tuple[int, str]:
    credentials = {"username": server.serve_horizon().username, "password": server.password, "domain": DOMAIN, **wrong}
    status, text = send_request(server, "POST", LOGIN, json.dumps(credentials).encode())
    return status, json.loads(text).get("access_token", "")


@pytest.mark.quick_cases(13)
@pytest.mark.parametrize("path", [LOGIN, "/rest/refresh", "/rest/logout"])
@pytest.mark.parametrize("body", [*map(json.dumps, BODIES), "", "{", "[" * 100_000, '{"a": 1e999}', "9" * 5000])
def test_a_body_that_is_no_login_is_refused(server: SimServer, path: str, body: str) -> None:
    assert send_request(server, "POST", path, body.encode())[0] in (400, 401)


@pytest.mark.parametrize("wrong", WRONG_LOGINS)
def test_a_login_of_other_types_is_refused(server: SimServer, wrong: dict[str, Any]) -> None:
    assert token_of(server, **wrong)[0] in (400, 401)


def test_what_is_no_list_of_machines_and_no_page_changes_nothing(server: SimServer) -> None:
    status, token = token_of(server)
    assert status == 200
    before = len(server.ledger)
    for body in BODIES:
        status, text = send_request(server, "POST", MAINTAIN, json.dumps(body).encode(), token)
        assert status in (200, 400)
        assert status == 400 or {machine["status_code"] for machine in json.loads(text)} <= {404}
    for query in ("page=x", "page=-1", "page=0", "size=0", "size=" + "9" * 5000, "page=" + "9" * 400):
        assert send_request(server, "GET", f"/rest/inventory/v1/machines?{query}", token=token)[0] in (200, 400)
    for path in ("/rest/inventory/v1/machines/../../config", "/rest/%00", "//rest", "/rest/" + "x" * 60_000, "*"):
        assert send_request(server, "GET", path, token=token)[0] == 404
    assert len(server.ledger) == before
    refreshed = json.dumps({"refresh_token": ""}).encode()
    assert send_request(server, "POST", "/rest/logout", refreshed)[0] == 401


def test_clients_that_are_silent_or_slow_delay_nobody(server: SimServer, horizon_listener: HorizonListener) -> None:
    with ExitStack() as stack:
        for number in range(40):
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", horizon_listener.port), timeout=10))
            if number % 2:
                wire.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01" if number % 3 else b"GET / HTTP/1.1\r\n")
        assert token_of(server)[0] == 200
