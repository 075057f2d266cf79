"""Answer GET and HEAD on one address of this machine, for a monitoring system: metrics, and the health of a service.

It listens on loopback unless another address is given. It is for small answers that need no login. Any other method is
refused (405), and a client that sends nothing for `SILENT_S` is disconnected. If there are too many connections, the
oldest is closed for the new one: its client is silent or slow, since an answer takes milliseconds.

GET /healthz is 200 if the last look of the service is recent, and 503 otherwise. GET /readyz is 503 also if that look
could not reach what the service needs, for example a runner's PostgreSQL; a restart of the service would not help then.
Both are for load balancers, monitoring systems and Kubernetes probes, and show only when the last look ended.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Final

from gpuops import clock
from gpuops.errors import UsageError
from gpuops.model.time_text import format_stamp

MOST_AT_ONCE: Final = 32
"""The most connections at the same time; each has a thread."""
SILENT_S: Final = 10.0
"""A client that sends no byte for this time is disconnected."""
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ListenOption:
    """The option that sets an address, for error messages about a wrong one."""

    name: str
    port: int
    """The default port."""

    @property
    def hint(self) -> str:
        return f"use {self.name} {self.port}, or an address of this machine: {self.name} {_LOOPBACK}:{self.port}"

    def address(self, text: str) -> tuple[str, int]:
        """Return host and port of `9464` or `127.0.0.1:9464`. Raises UsageError."""
        host, colon, port = text.rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) < 65536) or (colon and not host):
            raise UsageError(f"{self.name} {text!r} is not [HOST:]PORT", hint=self.hint)
        return host.strip("[]") or _LOOPBACK, int(port)


class GetHandler(BaseHTTPRequestHandler):
    """Answers a request with what `page` returns."""

    server_version, sys_version = "gpuops", ""
    timeout = SILENT_S

    def page(self, path: str) -> tuple[int, str, bytes]:
        """Return status, content type and body of the page at this path."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self._answer(*self.page(self.path.partition("?")[0]))

    do_HEAD = do_GET  # noqa: N815 - as http.server wants it

    def _refuse_method(self) -> None:
        """Refuse an HTTP method that is not served here. Methods unknown to HTTP get 501 from the base class."""
        self._answer(405, "text/plain; charset=utf-8", b"GET and HEAD alone are answered here\n")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method  # noqa: N815

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
        """Log nothing: monitoring systems ask every few seconds."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[GetHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._open: dict[socket.socket, None] = {}
        """Open connections, oldest first. Threads remove them."""
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
        """Log nothing: a client disconnected during an answer."""


@contextmanager
def listening(option: ListenOption, address: tuple[str, int], handler: type[GetHandler]) -> Iterator[int]:
    """Answer requests to the address with the handler while the block runs. Yields the port.

    Raises UsageError for an address that this machine does not have, or a port in use.
    """
    try:
        server = _Server(address, handler)
    except OSError as error:
        message = f"{option.name} {address[0]}:{address[1]} cannot be used: {error.strerror}"
        raise UsageError(message, hint=option.hint) from error
    with server:
        Thread(target=server.serve_forever, name=option.name.strip("-"), daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


STALE_S: Final = 900.0
"""A look at vCenter that ended longer ago is stale: three times the longest wait between two looks."""
_OPTION: Final = ListenOption("--health", 9464)


class Health:
    """Whether a service works, by the time and the result of its last look."""

    def __init__(self, stale_s: float = STALE_S) -> None:
        self._stale_s = stale_s
        self._lock = Lock()
        self._latest_look: tuple[float, str, bool] | None = None

    def note_look(self, *, is_available: bool = True) -> None:
        """Note that a look ended now. `is_available`: whether it reached what the service needs."""
        with self._lock:
            self._latest_look = clock.passed_s(), format_stamp(clock.wall_clock()), is_available

    def answer(self, *, ready: bool = False) -> tuple[int, dict[str, str | None]]:
        """Return the HTTP status and the body. `ready`: whether the service can work, not only whether it runs."""
        with self._lock:
            at_s, at, is_available = self._latest_look or (float("-inf"), None, True)
        fresh = clock.passed_s() - at_s < self._stale_s
        status = "stale" if not fresh else "away" if ready and not is_available else "ok"
        return (200 if status == "ok" else 503), {"status": status, "looked_at": at}


def health_address(text: str) -> tuple[str, int]:
    """Return host and port of `9464` or `127.0.0.1:9464`. Raises UsageError."""
    return _OPTION.address(text)


@contextmanager
def serve_health(address: tuple[str, int], stale_s: float = STALE_S) -> Iterator[Health]:
    """Serve GET /healthz and /readyz while the block runs. The caller calls `note_look` of the yielded Health.

    Raises UsageError for an address that this machine does not have, or a port in use.
    """
    health = Health(stale_s)

    class HealthRequest(GetHandler):
        def page(self, path: str) -> tuple[int, str, bytes]:
            if path in ("/healthz", "/readyz"):
                status, body = health.answer(ready=path == "/readyz")
            else:
                status, body = 404, {"status": "only /healthz and /readyz exist"}
            return status, "application/json", json.dumps(body).encode()

    with listening(_OPTION, address, HealthRequest):
        yield health
