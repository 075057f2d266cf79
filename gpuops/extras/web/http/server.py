"""Runs the application in a thread of its own: the main thread keeps the session of vCenter, and the signals."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

import uvicorn

from gpuops.extras.web.http.access import Access
from gpuops.extras.web.http.application import application, sites_application
from gpuops.extras.web.http.connection import HEADER_BYTES, LimitedConnection
from gpuops.extras.web.http.current import Current, CurrentState

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
        proxy_headers=False,
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
    """Yield the same of several sites. `metrics` is called with the name of one, empty = all of them."""
    overview, states = CurrentState(), {name: CurrentState() for name in sites}
    app = sites_application(overview, states, access, metrics, say)
    with _answering(listener, app, {"": overview, **states}) as server:
        yield server


@contextmanager
def _answering(listener: socket.socket, app: Any, states: Mapping[str, CurrentState]) -> Iterator[WebServer]:
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
    [server] = servers
    try:
        yield server
    finally:
        server.end()
        thread.join(END_S)
