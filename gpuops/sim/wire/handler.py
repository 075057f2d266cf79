"""Reads HTTP requests and writes replies: keep-alive, gzip on request, and the broken ends that fault rules ask for."""

from __future__ import annotations

import socket
import struct
import zlib
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from gpuops.sim.fault_injection.rule import Ending

GZIP_LEVEL: Final = 1
GZIP_FROM_BYTES: Final = 16 * 1024
"""Below this, compressing costs more than it saves."""
MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Incoming:
    """One HTTP request."""

    verb: str
    target: str
    headers: Message
    body: bytes
    address: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One HTTP reply and how it is sent; `pace_s` is the time between two bytes of a dripping one."""

    status: int
    body: bytes = b""
    content_type: str = "text/xml; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)
    ending: Ending = Ending.WHOLE
    pace_s: float = 0.0


class Handler(BaseHTTPRequestHandler):
    """Passes requests to the server's endpoint."""

    protocol_version = "HTTP/1.1"
    server_version = "gpuops-sim"
    sys_version = ""
    wbufsize = -1
    server: Any

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET  # noqa: N815 - http.server looks for these

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing: the ledger has what happened."""

    def _serve(self) -> None:
        body = self._body()
        if body is None:
            self.close_connection = True
            self._send(Outgoing(400))
            return
        incoming = Incoming(self.command, self.path, self.headers, body, str(self.client_address[0]))
        self._send(self.server.endpoint.serve(incoming))

    def _body(self) -> bytes | None:
        """The request's body; None for one that is too large or badly framed."""
        try:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                return self._chunks()
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            return None
        return self.rfile.read(length) if 0 <= length <= MAX_REQUEST_BYTES else None

    def _chunks(self) -> bytes | None:
        parts: list[bytes] = []
        total = 0
        while size := int(self.rfile.readline(64).split(b";", 1)[0], 16):
            total += size
            if total > MAX_REQUEST_BYTES:
                return None
            parts.append(self.rfile.read(size))
            self.rfile.readline(64)
        self.rfile.readline(64)
        return b"".join(parts)

    def _send(self, reply: Outgoing) -> None:
        match reply.ending:
            case Ending.RESET:
                self._reset()
                return
            case Ending.HANG:
                self._wait_for_the_client_to_leave()
                return
        body, headers = reply.body, dict(reply.headers)
        if len(body) >= GZIP_FROM_BYTES and self.server.endpoint.gzip and self._accepts_gzip():
            body = _gzip(body)
            headers["Content-Encoding"] = "gzip"
        if reply.ending is Ending.TRUNCATED:
            body = body[: len(body) // 2]
        self.send_response(reply.status)
        if body:
            self.send_header("Content-Type", reply.content_type)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self._write(body, reply)
        self.wfile.flush()
        match reply.ending:
            case Ending.CUT:
                self._reset()
            case Ending.EOF | Ending.STALE:
                self._hang_up()

    def _write(self, body: bytes, reply: Outgoing) -> None:
        if reply.ending is Ending.DRIP:
            for number in range(len(body)):
                self.wfile.write(body[number : number + 1])
                self.wfile.flush()
                if self.server.stopping.wait(reply.pace_s):
                    return
        else:
            half = reply.ending in (Ending.CUT, Ending.EOF)
            self.wfile.write(body[: len(body) // 2] if half else body)

    def _wait_for_the_client_to_leave(self) -> None:
        """Read on until its end of the connection is closed; the server's own end closes it too."""
        self.close_connection = True
        self.rfile.read(1)

    def _hang_up(self) -> None:
        """End the connection without TLS's close_notify, as a broken middlebox or a killed process does."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _accepts_gzip(self) -> bool:
        return "gzip" in self.headers.get("Accept-Encoding", "")

    def _reset(self) -> None:
        """Reset the connection: the client sees a reset, not an empty reply."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(body) + packer.flush()
