"""HTTP around the SDK: compression, connections that live on, and paths that are not there."""

from __future__ import annotations

import gzip
import http.client
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyVim.connect import Disconnect

from gpuops.sim.server import SimServer
from tests.sim.lab import connect
from tests.sim.small_world import small_world

RETRIEVE = """<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Header><operationID>night-7</operationID></soapenv:Header>
<soapenv:Body><RetrieveProperties xmlns="urn:vim25"><_this type="PropertyCollector">propertyCollector</_this>
<specSet><propSet><type>VirtualMachine</type><pathSet>name</pathSet><pathSet>config.hardware.device</pathSet></propSet>
<objectSet><obj type="Folder">group-v3</obj><skip>true</skip><selectSet xsi:type="TraversalSpec"><type>Folder</type>
<path>childEntity</path><skip>false</skip></selectSet></objectSet></specSet></RetrieveProperties></soapenv:Body>
</soapenv:Envelope>"""


@pytest.fixture
def large() -> Iterator[SimServer]:
    with SimServer(small_world(100), tls=False) as running:
        yield running
    assert running.world.bugs == []


@pytest.fixture
def cookie(large: SimServer) -> Iterator[str]:
    si = connect(large)
    yield si._stub.cookie
    Disconnect(si)


def post(wire: http.client.HTTPConnection, body: str | bytes, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    wire.request("POST", "/sdk", body, {"SOAPAction": '"urn:vim25/8.0.3.0"', **headers})
    reply = wire.getresponse()
    return reply, reply.read()


def connection(server: SimServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)


def test_large_replies_are_compressed_for_whoever_asks(large: SimServer, cookie: str) -> None:
    with closing(connection(large)) as wire:
        plain, text = post(wire, RETRIEVE, Cookie=cookie)
        packed, body = post(wire, RETRIEVE, Cookie=cookie, **{"Accept-Encoding": "gzip"})
    assert plain.getheader("Content-Encoding") is None
    assert packed.getheader("Content-Encoding") == "gzip"
    assert gzip.decompress(body) == text
    assert text.count(b"<returnval>") == 100


def test_compression_can_be_switched_off() -> None:
    world = small_world(100)
    world.gzip = False
    with SimServer(world, tls=False) as server, closing(connection(server)) as wire:
        si = connect(server)
        reply, _ = post(wire, RETRIEVE, Cookie=si._stub.cookie, **{"Accept-Encoding": "gzip"})
        assert reply.getheader("Content-Encoding") is None
        Disconnect(si)


def test_one_connection_serves_many_requests(large: SimServer, cookie: str) -> None:
    with closing(connection(large)) as wire:
        statuses = [post(wire, RETRIEVE, Cookie=cookie)[0].status for _ in range(3)]
        wire.request("GET", "/nowhere")
        missing = wire.getresponse()
        missing.read()
        chunked = iter([RETRIEVE[:500].encode(), RETRIEVE[500:].encode()])
        wire.request("POST", "/sdk", chunked, {"Cookie": cookie}, encode_chunked=True)
        last_reply = wire.getresponse()
        last_reply.read()
    assert (statuses, missing.status, last_reply.status) == ([200, 200, 200], 404, 200)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not XML",
        b"<a/>",
        RETRIEVE.replace("_this", "that").encode(),
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        RETRIEVE.replace("<type>VirtualMachine</type>", "<type>NoSuchType</type>").encode(),
        RETRIEVE.replace("<specSet>", "<specSet><wrong/>").encode(),
        RETRIEVE.replace("<skip>true</skip>", "<skip>maybe</skip>").encode(),
        RETRIEVE.replace("<RetrieveProperties ", "<RetrieveProperties colour='red' ")
        .replace("specSet", "spec")
        .encode(),
    ],
)
def test_what_is_no_request_is_an_invalid_request(large: SimServer, cookie: str, body: bytes) -> None:
    with closing(connection(large)) as wire:
        reply, text = post(wire, body, Cookie=cookie)
    assert reply.status == 500
    assert b'xsi:type="InvalidRequest"' in text
    assert b"root:" not in text


def test_a_badly_framed_request_ends_the_connection(large: SimServer) -> None:
    with closing(connection(large)) as wire:
        wire.putrequest("POST", "/sdk")
        wire.putheader("Content-Length", "many")
        wire.endheaders()
        reply = wire.getresponse()
        reply.read()
    assert reply.status == 400


GET = "GET /sdk/vimServiceVersions.xml HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (GET + "Host: here\r\nACCEPT-encoding : gzip\r\n", 400),
        (GET + "Host: here\r\n no colon\r\n", 400),
        (GET + ": nameless\r\n", 400),
        ("GET /sdk/vimServiceVersions.xml\r\n", 400),
        ("GET /sdk/vimServiceVersions.xml HTTP/2.0\r\n", 400),
        ("GET /sdk vim HTTP/1.1\r\n", 400),
        ("FETCH /sdk HTTP/1.1\r\n", 501),
        (GET + "".join(f"X-{number}: 1\r\n" for number in range(99)), 200),
        (GET + "".join(f"X-{number}: 1\r\n" for number in range(100)), 431),
        (GET + f"X: {'y' * 65000}\r\n", 200),
        (GET + f"X: {'y' * 66000}\r\n", 431),
        (f"GET /{'y' * 66000} HTTP/1.1\r\n", 414),
    ],
    ids=["space", "colon", "name", "0.9", "2.0", "words", "verb", "many", "too many", "long", "too long", "long path"],
)
def test_a_head_is_read_within_limits(large: SimServer, head: str, status: int) -> None:
    assert first_reply(large, head + "\r\n")[0] == status


@pytest.mark.parametrize(
    ("head", "lasts"),
    [
        (GET, True),
        (GET + "cOnnection: CLOSE\r\n", False),
        (GET.replace("1.1", "1.0"), False),
        (GET.replace("1.1", "1.0") + "Connection: Keep-Alive\r\n", True),
    ],
)
def test_a_connection_lasts_as_its_client_says(large: SimServer, head: str, lasts: bool) -> None:
    status, ended = first_reply(large, head + "\r\n")
    assert (status, ended) == (200, not lasts)


def test_who_asks_before_it_sends_a_body_is_told_to_send_it(large: SimServer) -> None:
    assert first_reply(large, "POST /api HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")[0] == 100


def first_reply(server: SimServer, head: str) -> tuple[int, bool]:
    """The status of the first reply, and whether the connection ends with it."""
    with closing(connection(server)) as wire:
        wire.connect()
        wire.sock.settimeout(10)
        wire.sock.sendall(head.encode())
        with wire.sock.makefile("rb") as replies:
            status = int(replies.readline().split()[1])
            length = 0
            while (line := replies.readline()).strip():
                length = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else length
            replies.read(length)
            wire.sock.settimeout(0.2)
            try:
                return status, replies.read(1) == b""
            except TimeoutError:
                return status, False


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"params": {}}'])
def test_what_is_no_tag_request_is_a_bad_request(large: SimServer, body: bytes) -> None:
    with closing(connection(large)) as wire:
        wire.request("POST", "/api", body)
        reply = wire.getresponse()
        reply.read()
    assert reply.status == 400


def test_an_anonymous_caller_reads_the_service_and_nothing_else(large: SimServer) -> None:
    service = RETRIEVE.replace('<obj type="Folder">group-v3', '<obj type="ServiceInstance">ServiceInstance')
    with closing(connection(large)) as wire:
        assert post(wire, service)[0].status == 200
        reply, text = post(wire, RETRIEVE)
    assert reply.status == 500
    assert b'xsi:type="NotAuthenticated"' in text
