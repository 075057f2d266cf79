"""Handler: HTTP around the endpoints, with keep-alive, cookies and gzip on request."""

from __future__ import annotations

import socket
import struct
import zlib
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

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
    """One HTTP reply. `lost` = close the connection instead; `cut` = send only half of it."""

    status: int
    body: bytes = b""
    content_type: str = "text/xml; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)
    lost: bool = False
    cut: bool = False


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
        """Nothing: the ledger says what happened."""

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
        if reply.lost:
            self._reset()
            return
        body, headers = reply.body, dict(reply.headers)
        if len(body) >= GZIP_FROM_BYTES and self.server.endpoint.gzip and self._accepts_gzip():
            body = _gzip(body)
            headers["Content-Encoding"] = "gzip"
        self.send_response(reply.status)
        if body:
            self.send_header("Content-Type", reply.content_type)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if reply.cut else body)
        self.wfile.flush()
        if reply.cut:
            self._reset()

    def _accepts_gzip(self) -> bool:
        return "gzip" in self.headers.get("Accept-Encoding", "")

    def _reset(self) -> None:
        """End the connection the hard way: the client sees a reset, not an empty reply."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(body) + packer.flush()
