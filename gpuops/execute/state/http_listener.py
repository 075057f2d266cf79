"""Answers GET and HEAD on one address of this machine, for a monitoring system: loopback unless another one is said.

It is for small answers that need no login. Any other method is refused (405), a client that says nothing for a while is
left, and of more than a few connections at once the oldest is closed for the new one: its client is silent or slow,
since an answer takes milliseconds.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from gpuops.errors import UsageError

MOST_AT_ONCE: Final = 32
"""Connections; each has a thread."""
SILENT_S: Final = 10.0
"""After so long without a byte a client is left."""
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ListenOption:
    """The option that names an address, for what is said of a wrong one."""

    name: str
    port: int
    """The usual one."""

    @property
    def hint(self) -> str:
        return f"say {self.name} {self.port}, or an address of this machine: {self.name} {_LOOPBACK}:{self.port}"

    def address(self, text: str) -> tuple[str, int]:
        """Host and port of `9464` or `127.0.0.1:9464`. Raises UsageError."""
        host, colon, port = text.rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) < 65536) or (colon and not host):
            raise UsageError(f"{self.name} {text!r} is not [HOST:]PORT", hint=self.hint)
        return host.strip("[]") or _LOOPBACK, int(port)


class GetHandler(BaseHTTPRequestHandler):
    """Answers a request; `page` says with what."""

    server_version, sys_version = "gpuops", ""
    timeout = SILENT_S

    def page(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body of what is at this path."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self._answer(*self.page(self.path.partition("?")[0]))

    do_HEAD = do_GET  # noqa: N815 - as http.server wants it

    def _refused(self) -> None:
        """A method that HTTP knows, and that is not answered here. What HTTP does not know is 501, as it says."""
        self._answer(405, "text/plain; charset=utf-8", b"GET and HEAD alone are answered here\n")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refused  # noqa: N815

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status == 405:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """What is asked every few seconds is not worth a line."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[GetHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._open: dict[socket.socket, None] = {}
        """Connections that are answered, in the order in which they were opened. Threads end them."""
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        for oldest in list(self._open)[: len(self._open) + 1 - MOST_AT_ONCE]:
            self._open.pop(oldest, None)
            with suppress(OSError):  # it has ended meanwhile
                oldest.shutdown(socket.SHUT_RDWR)
        self._open[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the midst of an answer is not worth a line either."""


@contextmanager
def listening(option: ListenOption, address: tuple[str, int], handler: type[GetHandler]) -> Iterator[int]:
    """While this is open, requests to the address are answered by the handler; what it gives is the port.

    Raises UsageError for an address that is none of this machine, or a port that is taken.
    """
    try:
        server = _Server(address, handler)
    except OSError as error:
        said = f"{option.name} {address[0]}:{address[1]} cannot be used: {error.strerror}"
        raise UsageError(said, hint=option.hint) from error
    with server:
        Thread(target=server.serve_forever, name=option.name.strip("-"), daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
