"""The transport's limits one by one, each at the place where it is kept: bytes, seconds, elements, depth, lengths."""

from __future__ import annotations

import gzip
import http.client
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import pytest

from gpuops.errors import VcenterUnreachable
from gpuops.model.vcenter.target import Secret, Target
from gpuops.vsphere.transport import exchange, messages, network, stub

TARGET = Target("vc", "me", Secret("pw"))
OK = b"HTTP/1.1 200 OK\r\n"


def reply_with(inside: str) -> bytes:
    return (
        '<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body>'
        f'<CurrentTimeResponse xmlns="urn:vim25">{inside}</CurrentTimeResponse></Body></Envelope>'
    ).encode()


@contextmanager
def answering(send: Callable[[socket.socket], None]) -> Iterator[http.client.HTTPConnection]:
    """A connection whose other end does this once the request is there."""
    ours, theirs = socket.socketpair()
    connection = http.client.HTTPConnection("vc")
    connection.sock = ours

    def serve() -> None:
        try:
            theirs.recv(65536)
            send(theirs)
        except OSError:
            pass  # the client has had enough

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield connection
    finally:
        connection.close()
        for end in (ours, theirs):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        thread.join()


def test_a_request_is_one_packet() -> None:
    connection = network.open_connection(Target("vc", "me", Secret("pw"), tls=False), None)
    connection.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with connection.sock, theirs:
        connection.request("POST", "/sdk", b"<Body/>")
        head, _, body = theirs.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /sdk HTTP/1.1\r\n")
    assert body == b"<Body/>"


def ask(
    connection: http.client.HTTPConnection, within_s: float = 30.0, largest: int = 1024, *, compressed: bool = False
) -> exchange.HttpReply:
    until = time.monotonic() + within_s
    return exchange.exchange(connection, "POST", "/sdk", until=until, body=b"x", largest=largest, compressed=compressed)


def test_an_honest_reply_is_whole() -> None:
    with answering(lambda end: end.sendall(OK + b"Content-Length: 3\r\n\r\nabc")) as connection:
        assert ask(connection).body == b"abc"


@pytest.mark.parametrize(
    ("head", "body", "read"),
    [
        (b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + OK + b"content-length: 3\r\n\r\n", b"abcd", b"abc"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 8 + OK + b"Content-Length: 3\r\n\r\n", b"abc", b"abc"),
        (OK + b"Transfer-Encoding: Chunked\r\nContent-Length: 1\r\n\r\n", b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.0 200 OK\n\n", b"abc", b"abc"),
        (OK + b"Content-Length: -1\r\n\r\n", b"abc", b"abc"),
        (OK + b"Content-Length: many\r\n\r\n", b"abc", b"abc"),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n", b"abc", b""),
    ],
    ids=["after an interim one", "after several", "chunked", "until the end", "negative", "no number", "no content"],
)
def test_where_a_reply_ends(head: bytes, body: bytes, read: bytes) -> None:
    def send(end: socket.socket) -> None:
        end.sendall(head + body)
        end.shutdown(socket.SHUT_WR)

    with answering(send) as connection:
        assert ask(connection).body == read


def test_every_cookie_that_is_set_is_read() -> None:
    head = OK + b"Set-Cookie: a=1; Path=/\r\nset-cookie:b=2\r\nContent-Length: 0\r\n\r\n"
    with answering(lambda end: end.sendall(head)) as connection:
        assert ask(connection).set_cookie == ("a=1; Path=/", "b=2")


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (OK + b"Content-Length 3\r\n\r\nabc", network.UnreadableReply),
        (OK + b"X: y\r\n folded\r\n\r\n", network.UnreadableReply),
        (OK + b"X: y\r\n" * 100 + b"\r\n", http.client.HTTPException),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + OK + b"Content-Length: 0\r\n\r\n", network.UnreadableReply),
        (OK + b"X: " + b"y" * 65536 + b"\r\n\r\n", http.client.LineTooLong),
        (b"HTTP/2 200 OK\r\n\r\n", http.client.UnknownProtocol),
    ],
    ids=["no colon", "folded", "too many", "too many interim ones", "too long", "another protocol"],
)
def test_headers_that_no_vcenter_sends(head: bytes, error: type[Exception]) -> None:
    with answering(lambda end: end.sendall(head)) as connection, pytest.raises(error):
        ask(connection)


def drip(end: socket.socket) -> None:
    end.sendall(OK + b"Content-Length: 1000\r\n\r\n")
    for _ in range(1000):  # until the client has had enough
        end.sendall(b"x")
        threading.Event().wait(0.02)
    end.shutdown(socket.SHUT_RDWR)


def test_a_drip_is_named_as_what_it_is() -> None:
    with answering(drip) as connection, pytest.raises(network.EndlessReply, match="did not end within 1 s") as raised:
        ask(connection, within_s=1.0)
    raised_error = network.connection_error(TARGET, raised.value)
    assert isinstance(raised_error, VcenterUnreachable)
    assert raised_error.message == "vc:443 answers, but its reply did not end within 1 s"


def test_silence_is_named_as_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SILENCE_S", 0.05)
    with answering(lambda end: None) as connection, pytest.raises(TimeoutError) as raised:
        ask(connection)
    assert not isinstance(raised.value, network.EndlessReply)
    assert "did not answer within" in network.connection_error(TARGET, raised.value).message


def flood(end: socket.socket) -> None:
    end.sendall(OK + b"\r\n")
    while True:
        end.sendall(b"x" * 65536)


def test_a_reply_has_a_size() -> None:
    with answering(flood) as connection, pytest.raises(network.UnreadableReply, match="in one reply"):
        ask(connection, within_s=5)


def test_nothing_is_unpacked_unless_that_was_asked_for() -> None:
    head = packed_reply(b"x", gzip.compress)
    with (
        answering(lambda end: end.sendall(head)) as connection,
        pytest.raises(network.UnreadableReply, match="compressed"),
    ):
        ask(connection)
    with answering(lambda end: end.sendall(head)) as connection:
        assert ask(connection, compressed=True).body == b"x"


def packed_reply(text: bytes, pack: Callable[[bytes], bytes], encoding: str = "gzip") -> bytes:
    body = pack(text)
    return OK + f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_what_is_packed_may_be_as_large_as_what_is_not() -> None:
    text = bytes(range(256)) * 4096
    with answering(lambda end: end.sendall(packed_reply(text, gzip.compress))) as connection:
        assert ask(connection, compressed=True, largest=len(text)).body == text


def test_a_packed_reply_has_the_size_of_what_it_holds() -> None:
    bomb = packed_reply(bytes(1024 * 1024 + 1), gzip.compress)
    with (
        answering(lambda end: end.sendall(bomb)) as connection,
        pytest.raises(network.UnreadableReply, match="more than 1 MiB in one reply"),
    ):
        ask(connection, compressed=True, largest=1024 * 1024)


@pytest.mark.parametrize(
    ("pack", "encoding", "said_of_it"),
    [
        (lambda text: text, "gzip", "cannot be unpacked"),
        (lambda text: gzip.compress(text)[:-1], "gzip", "does not end as it should"),
        (lambda text: gzip.compress(text) + b"more", "gzip", "does not end as it should"),
        (lambda text: gzip.compress(text) * 2, "gzip", "does not end as it should"),
        (zlib.compress, "gzip", "cannot be unpacked"),
        (zlib.compress, "deflate", "did not ask for"),
        (gzip.compress, "gzip, gzip", "did not ask for"),
    ],
    ids=["plain", "cut", "more", "twice", "zlib", "deflate", "packed twice"],
)
def test_what_is_packed_wrongly(pack: Callable[[bytes], bytes], encoding: str, said_of_it: str) -> None:
    sent = packed_reply(b"text", pack, encoding)
    with answering(lambda end: end.sendall(sent)) as connection, pytest.raises(network.UnreadableReply) as refused:
        ask(connection, compressed=True)
    assert said_of_it in str(refused.value)


@pytest.mark.parametrize("read", [messages.elements, lambda received: stub.deserialize_reply(received, datetime, None)])
@pytest.mark.parametrize(
    ("received", "said_of_it"),
    [
        (b"<!DOCTYPE a><a/>", "a document type, which SOAP forbids"),
        (reply_with("<a/>" * (messages.MOST_MARKS + 1)), ",000 elements and attributes in one reply"),
    ],
    ids=["document type", "elements"],
)
def test_what_no_parser_gets(read: Callable[[bytes], Any], received: bytes, said_of_it: str) -> None:
    with pytest.raises(network.UnreadableReply, match=re.escape(said_of_it)):
        read(received)


def test_what_lxml_never_has() -> None:
    assert messages.elements(b"<a>" * 256 + b"</a>" * 256) is not None
    with pytest.raises(network.UnreadableReply, match="depth"):
        messages.elements(b"<a>" * 257 + b"</a>" * 257)
    with pytest.raises(network.UnreadableReply, match="not XML"):
        messages.elements(reply_with(f"<returnval>{'x' * 10_000_001}</returnval>"))


@pytest.mark.parametrize(
    ("received", "said_of_it"),
    [
        (b"<a>" * 140 + b"</a>" * 140, "more than 128 elements within each other"),
        (reply_with(f"<returnval>{'x' * 10_000_001}</returnval>"), "a text of more than 10,000,000 characters"),
        (reply_with('<returnval type="VirtualMachine">vm"1</returnval>'), "which no object has"),
    ],
    ids=["depth", "text", "id"],
)
def test_what_pyvmomi_never_gets(received: bytes, said_of_it: str) -> None:
    with pytest.raises(network.UnreadableReply, match=said_of_it):
        stub.deserialize_reply(received, datetime, None)


@pytest.mark.parametrize(
    ("inside", "said_of_it"),
    [
        ("<a " + " ".join(f'xmlns:b{n}="u"' for n in range(21_000)) + "/>", "more than 20,000 namespaces"),
        ("<a " + " ".join(f'b{n}=""' for n in range(101_000)) + "/>", "more than 100,000 attributes"),
        ("<a/>" * 400_001, "more than 400,000 elements and attributes"),
    ],
    ids=["namespaces", "attributes", "elements"],
)
def test_attributes_and_namespaces_count_for_the_typed_parser(inside: str, said_of_it: str) -> None:
    with pytest.raises(network.UnreadableReply, match=said_of_it):
        stub.deserialize_reply(reply_with(inside), datetime, None)


def test_an_answer_about_thousands_of_objects_may_be_longer_than_one_about_none() -> None:
    small, large = b"<a/>", b"<entity/>" * 3000
    assert messages.typed_limit(small) == messages.MOST_TYPED + messages.TYPED_PER_MARK
    assert messages.typed_limit(large) > 3000 * 15 * 8, "15 privileges of each, of eight marks"
    assert messages.typed_limit(large * 1000) == messages.MOST_MARKS
