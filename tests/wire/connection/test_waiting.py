"""A return waits for a vCenter behind whose address something else answers meanwhile, and for no other server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpuops.clock import wall_clock
from gpuops.errors import NotConnected
from gpuops.execute.site.vcenter_wait import FIRST_PAUSE_S, VcenterWait
from gpuops.model.vcenter.target import Secret, Target
from gpuops.vsphere.connection import Connection
from tests.wire.hostile.hostile_replies import Hostile
from tests.wire.hostile.hostile_server import HostileServer

PAGE = b"<!DOCTYPE html><html><body>Starting<br></body></html>"
ANSWERS = {
    "404": Hostile(PAGE, "404 Not Found"),
    "302": Hostile(b"", "302 Found", {"Location": "/ui/"}),
    "500": Hostile(PAGE, "500 Internal Server Error"),
    "503": Hostile(PAGE, "503 Service Unavailable"),
    "page": Hostile(PAGE),
    "well-formed page": Hostile(b"<html><body>Starting</body></html>"),
    "nothing": Hostile(b""),
}


@pytest.fixture(scope="module")
def hostile_server() -> Iterator[HostileServer]:
    with HostileServer() as server:
        yield server


@pytest.fixture
def server(hostile_server: HostileServer) -> HostileServer:
    hostile_server.strikes, hostile_server.rewrites = {}, {}
    return hostile_server


def connect(server: HostileServer) -> Connection:
    honest = server.honest
    return Connection(Target("127.0.0.1", honest.username, Secret(honest.password), port=server.port, tls=False))


def measure_waits(
    server: HostileServer, attempt: Callable[[], object], failed: NotConnected | None = None
) -> list[float]:
    """How long a return rested before its vCenter was back, which it was after the first rest."""
    rests: list[float] = []

    def resume_service(seconds: float) -> None:
        rests.append(seconds)
        server.strikes, server.rewrites = {}, {}

    vcenter_wait = VcenterWait(None, wall_clock, resume_service, lambda line: None)
    if failed is None:
        vcenter_wait.reach_vcenter(attempt)
    else:
        vcenter_wait.until_back(failed, attempt)
    return rests


@pytest.mark.parametrize("method", ["GET", "RetrieveServiceContent", "Login"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_another_answer_at_the_login_is_waited_for(server: HostileServer, method: str, answer: str) -> None:
    server.strikes = {method: ANSWERS[answer]}
    assert measure_waits(server, lambda: connect(server).close()) == [FIRST_PAUSE_S]


@pytest.mark.parametrize("answer", ANSWERS)
def test_another_answer_in_the_middle_is_waited_for(server: HostileServer, answer: str) -> None:
    with connect(server) as vcenter:
        server.strikes = {"RetrievePropertiesEx": ANSWERS[answer]}
        with pytest.raises(NotConnected) as failed:
            vcenter.inventory()
        assert measure_waits(server, vcenter.inventory, failed.value) == [FIRST_PAUSE_S]


@pytest.mark.parametrize(
    ("method", "before", "after"),
    [("GET", b"urn:vim25", b"urn:vim1"), ("RetrieveServiceContent", b">VirtualCenter<", b">HostAgent<")],
)
def test_a_server_that_is_no_such_vcenter_is_not(
    server: HostileServer, method: str, before: bytes, after: bytes
) -> None:
    server.rewrites = {method: lambda body: body.replace(before, after)}
    with pytest.raises(NotConnected, match=r"offers no API version|is a single ESXi host"):
        measure_waits(server, lambda: connect(server).close())
