"""HTTP connections that are limited in number and in time, so that no client holds up another.

uvicorn's protocol (h11) knows limits of requests, and one for the wait between two of them that each byte renews. Here
a connection has so long from its begin, or from its last answer, to send a request whole, whatever it sends meanwhile;
and so long to take what is sent to it. Requests are answered one by one: a client that sends the next before it has its
answer is closed after that answer (RFC 9112 9.3.2 permits a retry). If there are too many, the connection that has
waited longest for a request is closed for the new one: there may be any number of silent clients.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from gpuops import clock

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
        super().connection_made(transport)
        self._waits()
        if len(self.connections) <= MOST_CONNECTIONS:
            return
        other_connections = (
            connection
            for connection in self.connections
            if connection is not self and isinstance(connection, LimitedConnection)
        )
        waiting = [connection for connection in other_connections if connection.waits_since_s is not None]
        if waiting:
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
