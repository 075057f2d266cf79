"""Reads HTTP requests and writes replies: keep-alive, gzip on request, and the broken ends that fault rules ask for."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from gpuops.sim.fault_injection.rule import Ending

GZIP_LEVEL: Final = 1
GZIP_FROM_BYTES: Final = 16 * 1024
"""Below this, compressing costs more than it saves."""
MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024
MAX_LINE_BYTES: Final = 64 * 1024
MAX_LINES: Final = 100
"""Lines of the headers, with the empty line that ends them."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One HTTP request; the names of its headers in lower case."""

    verb: str
    target: str
    headers: Mapping[str, str]
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
    raw_requestline: bytes
    fields: Mapping[str, str]
    """The headers of the request, by their names in lower case."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET  # noqa: N815 - http.server looks for these

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log line: the ledger records what happened."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Write no log line, and do not format one first."""

    def parse_request(self) -> bool:
        """Read the request line and the headers; return False if an error reply was sent or the connection has ended.

        Replaces the method of http.server, which parses the headers as an e-mail message: that took a fifth of the
        time of a small call.
        """
        self.requestline = str(self.raw_requestline, "iso-8859-1").rstrip("\r\n")
        self.command, self.request_version, self.close_connection = "", self.protocol_version, True
        words = self.requestline.split()
        if not words:
            return False
        fields, status = self._read_fields()
        if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
            status = HTTPStatus.BAD_REQUEST
        if status is not HTTPStatus.OK:
            self.send_error(status)
            return False
        self.command, self.path, self.request_version = words
        self.fields = fields
        connection = fields.get("connection", "").lower()
        stays_open = self.request_version == "HTTP/1.1" or connection == "keep-alive"
        self.close_connection = connection == "close" or not stays_open
        if fields.get("expect", "").lower() == "100-continue" and self.request_version == "HTTP/1.1":
            self.handle_expect_100()
            self.wfile.flush()
        return True

    def _read_fields(self) -> tuple[dict[str, str], HTTPStatus]:
        """Return the headers by lower-case name (the first of each name counts) and OK or the status of the error."""
        fields: dict[str, str] = {}
        for _ in range(MAX_LINES):
            line = self.rfile.readline(MAX_LINE_BYTES + 1)
            if len(line) > MAX_LINE_BYTES:
                break
            if line in (b"\r\n", b"\n", b""):
                return fields, HTTPStatus.OK
            name, colon, value = str(line, "iso-8859-1").partition(":")
            if not colon or not name or name != name.strip():
                return fields, HTTPStatus.BAD_REQUEST
            fields.setdefault(name.lower(), value.strip())
        return fields, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE

    def _serve(self) -> None:
        body = self._body()
        if body is None:
            self.close_connection = True
            self._send(Outgoing(400))
            return
        incoming = Incoming(self.command, self.path, self.fields, body, str(self.client_address[0]))
        self._send(self.server.endpoint.serve(incoming))

    def _body(self) -> bytes | None:
        """The request's body; None for one that is too large or badly framed."""
        try:
            if self.fields.get("transfer-encoding", "").lower() == "chunked":
                return self._chunks()
            length = int(self.fields.get("content-length") or 0)
        except ValueError:
            return None
        return self.rfile.read(length) if 0 <= length <= MAX_REQUEST_BYTES else None

    def _chunks(self) -> bytes | None:
        """Return a body in chunks: a line with the size in hexadecimal, the bytes, an empty line; None if too large."""
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
        """Write the reply, or break the connection in the way that the reply's `ending` asks for."""
        match reply.ending:
            case Ending.RESET:
                self._reset()
                return
            case Ending.HANG:
                self._wait_for_the_client_to_leave()
                return
            case _:
                pass
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
            case _:
                pass

    def _write(self, body: bytes, reply: Outgoing) -> None:
        if reply.ending is Ending.DRIP:
            for number in range(len(body)):
                self.wfile.write(body[number : number + 1])
                self.wfile.flush()
                if self.server.stopping.wait(reply.pace_s):
                    return
        else:
            is_cut = reply.ending in (Ending.CUT, Ending.EOF)
            self.wfile.write(body[: len(body) // 2] if is_cut else body)

    def _wait_for_the_client_to_leave(self) -> None:
        """Read on until its end of the connection is closed; the server's own end closes it too."""
        self.close_connection = True
        self.rfile.read(1)

    def _hang_up(self) -> None:
        """End the connection without TLS's close_notify, as a broken middlebox or a killed process does."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _accepts_gzip(self) -> bool:
        return "gzip" in self.fields.get("accept-encoding", "")

    def _reset(self) -> None:
        """Reset the connection: the client sees a reset, not an empty reply."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(body) + packer.flush()
