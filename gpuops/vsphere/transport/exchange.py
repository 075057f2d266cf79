"""Sends one HTTP request and receives its whole reply within a limit of bytes and of seconds.

The timeout of a socket is for one read: a server that sends a byte now and then never exceeds it. Here the deadline is
for the complete reply, from the status line to the last byte, and every byte counts, with headers and chunk trailers.
Redirects are not followed. The caller can allow compression. 1 MB of gzip may be 1 GB of text, so a reply is unpacked
piece by piece, and the limit of bytes is for the text.
"""

from __future__ import annotations

import http
import http.client
import io
import socket
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuops import clock
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.network import UnreadableReply

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LARGEST_REPLY: Final = 64 * 1024 * 1024
_BUFFER: Final = 256 * 1024
_PIECE: Final = 1024 * 1024
_OVERHEAD: Final = 1024 * 1024
"""The bytes of one reply in addition to its body: headers, chunk lengths and what was read ahead."""
_LARGEST_LINE: Final = 64 * 1024
_MOST_LINES: Final = 100
"""Header lines of one reply, the limit of http.client."""
_MOST_CONTINUES: Final = 8
"""The limit of "100 Continue" before a reply: a flood of them costs much CPU time and few bytes."""
_BODILESS: Final = frozenset({http.HTTPStatus.NO_CONTENT, http.HTTPStatus.NOT_MODIFIED})
_GZIP: Final = "gzip"
_UNPACKED: Final = frozenset({"", "identity"})


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete reply."""

    status: int
    reason: str
    body: bytes
    set_cookie: tuple[str, ...]
    session_key: str = ""
    """The id of the session after a login over VI/JSON."""


def exchange(
    connection: http.client.HTTPConnection,
    verb: str,
    path: str,
    *,
    until: float,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    largest: int = LARGEST_REPLY,
    compressed: bool = False,
) -> HttpReply:
    """Return the reply, received before `until` on the monotonic clock; its body is unpacked.

    With `compressed` the server may answer with gzip. Raises TimeoutError (EndlessReply for a reply that does not end),
    UnreadableReply for one that has more than `largest` bytes when unpacked, that is compressed without `compressed` or
    that cannot be unpacked; errors of the connection pass. The caller must close the connection after any error: the
    following bytes belong to no request.
    """
    # http.client calls `response_class` to make its response: so the limits hold from the status line on
    connection.response_class = partial(_BoundedResponse, until=until, largest=largest)  # type: ignore[assignment]
    began_s = clock.passed_s()
    if connection.sock is not None:
        connection.sock.settimeout(_patience(until))
    accepted_encoding = _GZIP if compressed else "identity"
    connection.request(verb, path, body, {"Accept-Encoding": accepted_encoding, **(headers or {})})
    try:
        response = connection.getresponse()
        encoding = response.getheader("Content-Encoding", "").strip().lower()
        if encoding not in (*_UNPACKED, accepted_encoding):
            raise UnreadableReply("a compressed reply that gpuops did not ask for")
        pieces = _pieces(response)
        received = b"".join(pieces if encoding in _UNPACKED else _unpack(pieces, largest))
    except TimeoutError as late:
        if clock.passed_s() < until:
            raise  # the server was silent for SILENCE_S, which ends before the deadline
        raise network.EndlessReply(until - began_s) from late
    cookies = tuple(response.headers.get_all("Set-Cookie") or ())
    key = response.headers.get("vmware-api-session-id", "")
    return HttpReply(response.status, response.reason, received, cookies, key)


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the body as it was sent, in pieces: the memory in use must not depend on the Content-Length of a server."""
    size = 0
    while piece := response.read(_PIECE):
        yield piece
        size += len(piece)
        stream = response.fp.raw if response.fp is not None else None
        # the lengths of tiny chunks are most of what is received: chunks of one byte take seconds for each mebibyte
        if isinstance(stream, _BoundedStream) and stream.total > size + size // 8 + _OVERHEAD:
            raise UnreadableReply("a reply in tiny chunks")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)


def _unpack(pieces: Iterator[bytes], largest: int) -> Iterator[bytes]:
    """Yield the text of these pieces of gzip, at most `largest` bytes. Raises UnreadableReply."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    bytes_left = largest
    for piece in pieces:
        try:
            text = unpacker.decompress(piece, bytes_left + 1)  # never more than one byte too many is made
        except zlib.error as error:
            raise UnreadableReply("a compressed reply that cannot be unpacked") from error
        bytes_left -= len(text)
        if bytes_left < 0:
            raise _too_large(largest)
        yield text
    if not unpacker.eof or unpacker.unused_data:
        raise UnreadableReply("a compressed reply that does not end as it should")


def _too_large(largest: int) -> UnreadableReply:
    return UnreadableReply(f"more than {largest // 1024**2} MiB in one reply")


def _patience(until: float) -> float:
    """Return the seconds to wait for the next bytes. Raises TimeoutError at the deadline `until`."""
    left_s = until - clock.passed_s()
    if left_s <= 0:
        raise TimeoutError("the reply is not complete in time")
    return min(left_s, network.SILENCE_S)


class _BoundedResponse(http.client.HTTPResponse):
    """A response read through `_BoundedStream`, within its limits of bytes and of seconds."""

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, *, until: float, largest: int
    ) -> None:
        super().__init__(sock, debuglevel, method)
        self.fp.close()
        self.fp = io.BufferedReader(_BoundedStream(sock, until, largest), _BUFFER)

    def begin(self) -> None:
        """Read the status line and the headers.

        http.client's method parses the headers as an e-mail message, which takes 5 % of the time of a small call.
        """
        for _ in range(_MOST_CONTINUES + 1):  # a server may send "100 Continue" before the reply
            version, status, reason = self._read_status()  # type: ignore[attr-defined]
            headers = self._read_headers()
            if status != http.HTTPStatus.CONTINUE:
                break
        else:
            raise UnreadableReply(f"100 Continue more than {_MOST_CONTINUES} times before one reply")
        if not version.startswith(("HTTP/1.", "HTTP/0.9")):
            raise http.client.UnknownProtocol(version)
        self.version = 10 if version in ("HTTP/1.0", "HTTP/0.9") else 11
        self.code = self.status = status
        self.reason = reason.strip()
        self.headers = self.msg = headers
        self.chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        self.chunk_left = None
        self.length = None if self.chunked else _claimed_length(headers)
        if status in _BODILESS or status < http.HTTPStatus.OK:
            self.length = 0
        ends_with_connection = self.length is None and not self.chunked
        self.will_close = self._check_close() or ends_with_connection  # type: ignore[attr-defined]

    def _read_headers(self) -> http.client.HTTPMessage:
        """Return the headers up to the empty line. Raises UnreadableReply, or HTTPException."""
        headers = http.client.HTTPMessage()
        for _ in range(_MOST_LINES):
            line = self.fp.readline(_LARGEST_LINE + 1)
            if len(line) > _LARGEST_LINE:
                raise http.client.LineTooLong("header line")
            if line in (b"\r\n", b"\n", b""):
                return headers
            name, colon, field_value = str(line, "iso-8859-1").partition(":")
            if not colon or not name or name != name.strip():
                raise UnreadableReply("a header without a name")
            headers[name] = field_value.strip()
        raise http.client.HTTPException(f"got more than {_MOST_LINES} headers")


def _claimed_length(headers: http.client.HTTPMessage) -> int | None:
    """Return the Content-Length, or None if it is missing or not a number."""
    try:
        length = int(headers.get("Content-Length", ""))
    except ValueError:
        return None
    return length if length >= 0 else None


class _BoundedStream(io.RawIOBase):
    """The bytes that a socket receives, within the limits of time and size."""

    def __init__(self, sock: socket.socket, until: float, largest: int) -> None:
        self._socket = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open after http.client closes it
        self._until = until
        self._largest = largest
        self.total = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        self._socket.settimeout(_patience(self._until))
        received = self._raw.readinto(buffer)
        self.total += received or 0
        if self.total > self._largest + _OVERHEAD:
            raise _too_large(self._largest)
        return received

    def close(self) -> None:
        self._raw.close()
        super().close()
