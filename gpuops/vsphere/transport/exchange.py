"""Sends one HTTP request and receives its whole reply within a limit of bytes and of seconds.

A socket's timeout is for one read: a server that sends a byte now and then never meets it. Here each read gets what is
left until the deadline, from the status line to the last byte, and every byte counts: headers and chunk trailers too.
No redirect is followed and no reply is decompressed: none is requested compressed.
"""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Mapping
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
"""For headers and the lengths of chunks, and what is read ahead."""
_UNPACKED: Final = frozenset({"", "identity"})


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A reply received whole."""

    status: int
    reason: str
    body: bytes
    set_cookie: tuple[str, ...]


def exchange(
    connection: http.client.HTTPConnection,
    verb: str,
    path: str,
    *,
    until: float,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    largest: int = LARGEST_REPLY,
) -> HttpReply:
    """The reply, received before `until` on the monotonic clock.

    Raises TimeoutError (EndlessReply for one that goes on and on), UnreadableReply for one packed or larger than
    `largest` bytes, and the connection's own errors. The caller closes the connection after any of them: what follows
    on it belongs to no request.
    """
    # http.client makes its responses by this name: the only seam before the status line is read
    connection.response_class = partial(_BoundedResponse, until=until, largest=largest)  # type: ignore[assignment]
    began = clock.passed_s()
    if connection.sock is not None:
        connection.sock.settimeout(_patience(until))
    connection.request(verb, path, body, {"Accept-Encoding": "identity", **(headers or {})})
    try:
        response = connection.getresponse()
        unpacked(response.getheader("Content-Encoding", ""))
        received = _whole(response)
    except TimeoutError as late:
        if clock.passed_s() < until:
            raise  # silence, not a drip
        raise network.EndlessReply(until - began) from late
    return HttpReply(response.status, response.reason, received, tuple(response.headers.get_all("Set-Cookie") or ()))


def unpacked(encoding: str) -> None:
    """Raises UnreadableReply for a Content-Encoding: what is small on the wire may be anything when it is unpacked."""
    if encoding.strip().lower() not in _UNPACKED:
        raise UnreadableReply("a packed reply that was not asked for")


def _whole(response: http.client.HTTPResponse) -> bytes:
    """The body, in pieces: a length that a server claims must not decide how much memory is taken."""
    parts: list[bytes] = []
    size = 0
    while piece := response.read(_PIECE):
        parts.append(piece)
        size += len(piece)
        metered = response.fp.raw if response.fp is not None else None
        if isinstance(metered, _BoundedStream) and metered.total > size + size // 8 + _OVERHEAD:
            raise UnreadableReply("a reply in crumbs")  # chunks of a byte each would cost seconds per mebibyte
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(parts)


def _patience(until: float) -> float:
    left = until - clock.passed_s()
    if left <= 0:
        raise TimeoutError("the reply is not whole in time")
    return min(left, network.SILENCE_S)


class _BoundedResponse(http.client.HTTPResponse):
    """A response read through `_BoundedStream`, within its limits of bytes and of seconds."""

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, *, until: float, largest: int
    ) -> None:
        super().__init__(sock, debuglevel, method)
        self.fp.close()
        self.fp = io.BufferedReader(_BoundedStream(sock, until, largest), _BUFFER)


class _BoundedStream(io.RawIOBase):
    """What a socket receives, until the time is up or it is too much."""

    def __init__(self, sock: socket.socket, until: float, largest: int) -> None:
        self._socket = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open when http.client lets go of it
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
            raise UnreadableReply(f"more than {self._largest // 1024**2} MiB in one reply")
        return received

    def close(self) -> None:
        self._raw.close()
        super().close()
