"""Runs the application in a thread of its own, with limited connections; the main thread keeps vCenter's session.

One client must not hold up another, and uvicorn's protocol (h11) limits only the number of requests and the pause
between bytes. So a connection has a fixed time to send a complete request, counted from its begin or its last answer,
and a fixed time to accept an answer. Requests are answered one by one: a client that sends the next request before it
has its answer is closed after that answer (RFC 9112 9.3.2 permits a retry). If there are too many connections, the one
that has waited longest for a request is closed for the new one: there may be any number of silent clients.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpuops import clock
from gpuops.extras.web.http.access import Access
from gpuops.extras.web.http.application import application, sites_application
from gpuops.extras.web.http.current import Current, CurrentState

MOST_CONNECTIONS: Final = 512
REQUEST_S: Final = 10.0
"""For a request, to the end of its headers."""
TAKE_S: Final = 30.0
"""For a client to take the 64 KiB that are waiting for it."""
HEADER_BYTES: Final = 16 * 1024
_PIECE: Final = 1024
"""h11 compares a request with its limit only while the request is incomplete, so it receives a segment in pieces."""
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\nRetry-After: 10\r\n\r\n"


class LimitedConnection(H11Protocol):
    """A connection with limits of time and number."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.waits_since_s: float | None = None
        """None = it is being answered."""
        self._request_timer: asyncio.TimerHandle | None = None
        self._take_timer: asyncio.TimerHandle | None = None

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
        for begin in range(0, len(data), _PIECE):
            if self.transport.is_closing():
                return
            super().data_received(data[begin : begin + _PIECE])

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._request_timer)
        self._stop(self._take_timer)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.waits_since_s = None
            self._stop(self._request_timer)

    def on_response_complete(self) -> None:
        if self.conn.trailing_data[0]:  # of thousands of requests in a row, one would be answered after another
            self.transport.close()
        self._waits()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop(self._take_timer)
        self._take_timer = self.loop.call_later(TAKE_S, self.abort)

    def resume_writing(self) -> None:
        self._stop(self._take_timer)
        super().resume_writing()

    def abort(self) -> None:
        """Close the connection at once, without sending the rest."""
        self.connections.discard(self)
        self.transport.abort()

    def _waits(self) -> None:
        self.waits_since_s = clock.passed_s()
        self._stop(self._request_timer)
        self._request_timer = self.loop.call_later(REQUEST_S, self.abort)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


BACKLOG: Final = 512
END_S: Final = 5.0
"""The longest that an end waits for the thread."""


class WebServer:
    """The main thread's handle of the server, by which it publishes states."""

    def __init__(self, server: uvicorn.Server, states: Mapping[str, CurrentState]) -> None:
        self._server, self._states = server, states
        self._loop = asyncio.get_running_loop()

    def tell(self, current: Current, site: str = "") -> None:
        """Publish a state to watchers and further answers; with several sites that of `site`, empty = of all.

        Raises RuntimeError if the loop is over.
        """
        self._loop.call_soon_threadsafe(self._states[site].tell, current)

    def end(self) -> None:
        """End event streams, then close connections."""
        self._server.should_exit = True
        if not self._loop.is_closed():
            for state in self._states.values():
                self._loop.call_soon_threadsafe(state.end)


def _config(app: Any) -> uvicorn.Config:
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
    """While this is open, requests to the listening socket are answered; at its end connections are closed at once."""
    state = CurrentState()
    with _answering(listener, application(state, access, metrics, say), {"": state}) as server:
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
    with _answering(listener, app, {"": overview, **states}) as server:
        yield server


@contextmanager
def _answering(listener: socket.socket, app: Any, states: Mapping[str, CurrentState]) -> Iterator[WebServer]:
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
