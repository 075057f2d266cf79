"""The web server of `gpuops serve`, which runs in its own thread with limited connections, and its ASGI application.

The application has the addresses of the pages, checks logins, and adds the security headers to every answer. It accepts
only GET and HEAD. It returns the first error that applies: 421 for a foreign Host header, 405 for another method, 401
without a login (403 if only a proxy may log in), 404 for an unknown address.

One client must not hold up another, and uvicorn's protocol (h11) limits only the number of requests and the pause
between bytes. So a connection has a fixed time to send a complete request, counted from the begin of the connection or
its last answer, and a fixed time to accept an answer. Requests are answered one by one: a client that sends the next
request before it has its answer is closed after that answer (RFC 9112 9.3.2 permits a retry). If there are too many
connections, the one that has waited longest for a request is closed for the new one: there may be any number of silent
clients.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpuops import clock
from gpuops.extras.web.http.access import Access
from gpuops.extras.web.http.current import PAGE, Current, CurrentState, address_of
from gpuops.extras.web.metrics_view import CONTENT_TYPE
from gpuops.extras.web.page.html import drawing_script, page_style

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MOST_WATCHERS: Final = 200
"""The most pages that may be kept current at the same time."""
HEARTBEAT_S: Final = 15.0
"""How often a watcher gets the same state again: proxies cut silent connections, and the page shows an age."""
METRICS_STAND_S: Final = 15.0
"""How long the text of the metrics is sent again before it is made anew."""
PIECE: Final = 64 * 1024
"""Bytes that are sent at once: a slow client costs no more memory."""
DOCUMENTS: Final = ("report", "inventory", "capacity", "idle", "doctor", "history")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""The security headers of every answer."""
WITHOUT_LOGIN: Final = "/healthz"
"""This address only returns whether the service is healthy."""
_HTML, _JSON, _JS, _CSS = (
    f"{kind}; charset=utf-8" for kind in ("text/html", "application/json", "text/javascript", "text/css")
)


def application(
    state: CurrentState, access: Access, metrics: Callable[[Current], bytes], say: Callable[[str], None]
) -> ASGIApp:
    """Return the application of one site. `metrics` runs in another thread; `say` is called with one line for a bug."""
    return Guarded(_Pages(state, metrics).router(), access, say)


def sites_application(
    overview: CurrentState,
    sites: Mapping[str, CurrentState],
    access: Access,
    metrics: Callable[[str, Current], bytes],
    say: Callable[[str], None],
) -> ASGIApp:
    """Return the application of several sites: a table, and the pages of each below `overview.address_of`.

    `metrics` is called with the name of a site, empty = all of them.
    """
    site_pages = {
        f"/{unquote(address_of(name))}": _Pages(state, partial(metrics, name)).router() for name, state in sites.items()
    }
    overview_pages = _Pages(overview, partial(metrics, ""), _source("overview.js")).router()
    return Guarded(_BySite(overview_pages, site_pages), access, say)


class _BySite:
    """Passes requests below the address of a site to its pages, others to the common pages."""

    def __init__(self, overview: ASGIApp, sites: Mapping[str, ASGIApp]) -> None:
        self._overview = overview
        # the longest address first, because the address of one site may be the beginning of another
        self._sites = sorted(sites.items(), key=lambda address_and_app: -len(address_and_app[0]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        match = next(((address, app) for address, app in self._sites if path.startswith(address)), None)
        if match is None:
            await self._overview(scope, receive, send)
        else:
            address, app = match
            await app({**scope, "path": f"/{path.removeprefix(address)}"}, receive, send)


class Guarded:
    """Checks access, and adds security headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access, say: Callable[[str], None]) -> None:
        self._app, self._access, self._say = app, access, say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it; add the security headers, and log errors instead of sending them."""
        is_begun = False

        async def send_with_headers(message: dict[str, object]) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                message["headers"] = [*message["headers"], *HEADERS]  # type: ignore[misc]
            await send(message)

        app = self._refusal(scope) or self._app
        try:
            await app(scope, receive, send_with_headers)  # type: ignore[arg-type]
        except Exception as error:
            self._say(f"{scope['path']!r} was not answered: {type(error).__name__}: {error}")
            if is_begun:
                # a part is sent already: the server closes the connection, so the client sees that the rest is missing
                raise ConnectionAbortedError from error
            failed = _text_response(
                "gpuops serve cannot make this page now: see the log of the service for the reason\n", 500
            )
            await failed(scope, receive, send_with_headers)  # type: ignore[arg-type]

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the error answer of a request; None if it is accepted."""
        # ASGI: the addresses are None if the connection has none (a Unix socket)
        headers, peer = scope["headers"], (scope["client"] or ("",))[0]
        if not self._access.answers_to(headers, (scope["server"] or ("",))[0]):
            return _text_response(
                "gpuops serve has another host name: use its address, or start it with --web-name NAME\n", 421
            )
        if scope["method"] not in ("GET", "HEAD"):
            return _text_response("only GET and HEAD are answered here\n", 405, Allow="GET, HEAD")
        if scope["path"] == WITHOUT_LOGIN or self._access.lets_in(headers, peer):
            return None
        if self._access.passwords is None:
            return _text_response(
                "use the address of the reverse proxy in front of this service, and log in there\n", 403
            )
        ask = 'Basic realm="gpuops", charset="UTF-8"'
        return _text_response("name and password are needed\n", 401, **{"WWW-Authenticate": ask})


class _Pages:
    """The pages and documents of one site, or of the table of several sites, by their addresses."""

    def __init__(self, state: CurrentState, metrics: Callable[[Current], bytes], script: str | None = None) -> None:
        """Make the pages. `script` replaces the script of the page of a fleet."""
        self._state, self._metrics, self._script = state, metrics, script
        self._metrics_lock = asyncio.Lock()
        self._metrics_made: tuple[Current, float, bytes] | None = None

    def router(self) -> Router:
        return Router([*self._routes()], redirect_slashes=False)

    def _routes(self) -> Sequence[Route]:
        """Return the addresses with their functions."""
        # the table of several sites has its own script; the page of one vCenter draws its fleet
        script = self._script if self._script is not None else drawing_script() + _source("live.js")
        style = page_style() + _source("live.css")
        return [
            Route("/", self.page),
            Route("/page.js", _constant_answer(script.encode(), _JS)),
            Route("/page.css", _constant_answer(style.encode(), _CSS)),
            Route("/events", self.events),
            Route("/metrics", self.metrics),
            Route(WITHOUT_LOGIN, self.health),
            *(Route(f"/api/{name}", self.document, name=name) for name in DOCUMENTS),
        ]

    async def page(self, request: Request) -> Response:
        body = await self._state.body(PAGE)
        return _chunked_response(body if body is not None else _UNREAD, _HTML)

    async def document(self, request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]
        now = self._state.now
        body = await self._state.body(name)
        if body is not None and now.edition is not None:
            return _chunked_response(body, _JSON, {"X-Gpuops-Edition": now.edition.name})
        if now.edition is None:
            return _text_response("vCenter has not been read yet\n", 503, **{"Retry-After": "10"})
        return _text_response(f"document {name} needs a rotation policy: start gpuops serve with --policy FILE\n", 404)

    async def metrics(self, request: Request) -> Response:
        async with self._metrics_lock:
            now = self._state.now
            stored = self._metrics_made
            if stored is None or stored[0] is not now or clock.passed_s() - stored[1] >= METRICS_STAND_S:
                body = await asyncio.to_thread(self._metrics, now)
                stored = self._metrics_made = now, clock.passed_s(), body
        return _chunked_response(stored[2], CONTENT_TYPE)

    async def health(self, request: Request) -> Response:
        now = self._state.now
        is_healthy = now.edition is not None and now.trouble is None
        return _text_response("ok\n" if is_healthy else "vCenter is away\n", 200 if is_healthy else 503)

    async def events(self, request: Request) -> Response:
        if self._state.watchers >= MOST_WATCHERS:
            return _text_response(
                f"{MOST_WATCHERS} pages are already kept current: try again later\n", 503, **{"Retry-After": "60"}
            )
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(self._events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[bytes]:
        """Yield the state as events: at once, after each change, and again after `HEARTBEAT_S`."""
        state = self._state
        state.watchers += 1
        try:
            yield b"retry: 3000\n\n"
            while not state.is_ended:
                current = state.now
                yield current.event(clock.passed_s())
                await state.wait_for_newer(current, HEARTBEAT_S)
        finally:
            state.watchers -= 1


_UNREAD: Final = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>GPU fleet</title>
<link rel="stylesheet" href="page.css">
</head>
<body data-edition="">
<p class="live" id="live" data-state="unknown"><span role="status">vCenter has not been read yet.</span>
<span class="dim"></span></p>
<header><h1>GPU fleet</h1></header>
<script src="page.js"></script>
</body>
</html>
"""


def _source(name: str) -> str:
    return files("gpuops.extras.web.http").joinpath(name).read_text(encoding="utf-8")


def _constant_answer(body: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return _chunked_response(body, media_type)

    return answer


def _text_response(text: str, status: int, **headers: str) -> Response:
    return PlainTextResponse(text, status, headers)


def _chunked_response(body: bytes, media_type: str, headers: dict[str, str] | None = None) -> Response:
    """Return the bytes in pieces: each piece waits until the client has taken the last one."""

    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(body), PIECE):
            yield body[begin : begin + PIECE]

    all_headers = {"Content-Length": str(len(body)), **(headers or {})}
    return StreamingResponse(pieces(), media_type=media_type, headers=all_headers)


MOST_CONNECTIONS: Final = 512
REQUEST_S: Final = 10.0
"""The longest time until a request is complete to the end of its headers."""
SEND_S: Final = 30.0
"""The longest time until a client has taken the 64 KiB that wait for it."""
HEADER_BYTES: Final = 16 * 1024
_PARSED_BYTES: Final = 1024
"""h11 compares a request with its limit only while the request is incomplete, so it receives a segment in pieces."""
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\nRetry-After: 10\r\n\r\n"


class LimitedConnection(H11Protocol):
    """A connection with limits of time and number."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.waits_since_s: float | None = None
        """When it began to wait for a request (`clock.passed_s`); None = a request is being answered."""
        self._request_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection. Above the limit, close the one that waits longest, or this one if all are busy."""
        super().connection_made(transport)
        self._waits()  # from now on, until its first request
        if len(self.connections) <= MOST_CONNECTIONS:
            return
        other_connections = (
            connection
            for connection in self.connections
            if connection is not self and isinstance(connection, LimitedConnection)
        )
        waiting = [connection for connection in other_connections if connection.waits_since_s is not None]
        if waiting:  # the new one takes the place of the connection that has sent no request for the longest time
            min(waiting, key=lambda connection: connection.waits_since_s or 0.0).abort()
        else:
            transport.write(_FULL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        for begin in range(0, len(data), _PARSED_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[begin : begin + _PARSED_BYTES])

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._request_timer)
        self._stop(self._send_timer)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        last_cycle = self.cycle
        super().handle_events()
        if self.cycle is not last_cycle:  # a request is complete: uvicorn has started a cycle for its answer
            self.waits_since_s = None
            self._stop(self._request_timer)

    def on_response_complete(self) -> None:
        # The client has sent its next request before it had this answer. Without a limit, a client could send thousands
        # in a row and keep the connection busy.
        if self.conn.trailing_data[0]:
            self.transport.close()
        self._waits()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop(self._send_timer)
        self._send_timer = self.loop.call_later(SEND_S, self.abort)

    def resume_writing(self) -> None:
        self._stop(self._send_timer)
        super().resume_writing()

    def abort(self) -> None:
        """Close the connection at once, without sending the rest."""
        self.connections.discard(self)
        self.transport.abort()

    def _waits(self) -> None:
        """Note that the connection waits for a request, and abort it if none is complete after `REQUEST_S`."""
        self.waits_since_s = clock.passed_s()
        self._stop(self._request_timer)
        self._request_timer = self.loop.call_later(REQUEST_S, self.abort)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


BACKLOG: Final = 512
END_S: Final = 5.0
"""How long the end of the server waits for its thread."""


class WebServer:
    """The main thread's handle of the server, by which it publishes states."""

    def __init__(self, server: uvicorn.Server, states: Mapping[str, CurrentState]) -> None:
        self._server, self._states = server, states
        self._loop = asyncio.get_running_loop()

    def tell(self, current: Current, site: str = "") -> None:
        """Publish a state to watchers and further answers; with several sites that of `site`, empty = of all.

        Raises RuntimeError if the event loop has ended.
        """
        self._loop.call_soon_threadsafe(self._states[site].tell, current)

    def end(self) -> None:
        """Let the server end: its event streams now, its connections soon after."""
        self._server.should_exit = True
        if not self._loop.is_closed():
            for state in self._states.values():
                self._loop.call_soon_threadsafe(state.end)


def _config(app: Any) -> uvicorn.Config:
    """Return the settings of uvicorn: HTTP only, no log of requests, and limited headers."""
    return uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # any client can send them: `Access` checks the real peer
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_graceful_shutdown=1,
    )


@contextmanager
def serving(
    listener: socket.socket, access: Access, metrics: Callable[[Current], bytes], say: Callable[[str], None]
) -> Iterator[WebServer]:
    """Yield the server of one site, which answers requests to the socket; close all connections at the end."""
    state = CurrentState()
    with _run_server(listener, application(state, access, metrics, say), {"": state}) as server:
        yield server


@contextmanager
def serving_sites(
    listener: socket.socket,
    sites: Sequence[str],
    access: Access,
    metrics: Callable[[str, Current], bytes],
    say: Callable[[str], None],
) -> Iterator[WebServer]:
    """Yield the server of several sites, as `serving`. `metrics` is called with the name of a site; empty = all."""
    overview, states = CurrentState(), {name: CurrentState() for name in sites}
    app = sites_application(overview, states, access, metrics, say)
    with _run_server(listener, app, {"": overview, **states}) as server:
        yield server


@contextmanager
def _run_server(listener: socket.socket, app: Any, states: Mapping[str, CurrentState]) -> Iterator[WebServer]:
    """Yield the server, which answers in its own thread; at the end all connections are closed."""
    # its errors are invalid requests of clients, and would repeat for each of them
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    ready = Event()
    servers: list[WebServer] = []

    async def run() -> None:
        try:
            server = uvicorn.Server(_config(app))
            servers.append(WebServer(server, states))
        finally:
            ready.set()
        await server.serve(sockets=[listener])

    thread = Thread(target=lambda: asyncio.run(run()), name="web", daemon=True)
    thread.start()
    ready.wait()
    [server] = servers  # empty if `uvicorn.Server` failed: this raises, and the thread prints the cause
    try:
        yield server
    finally:
        server.end()
        thread.join(END_S)
