"""A door in front of a simulated vCenter: it passes bytes on, notes who came when, and can be shut.

A shut door refuses connections and ends those that there are, as a network that is cut off does: what vCenter has under
way goes on behind it.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from threading import Lock, Thread
from typing import Final

_PIECE: Final = 1 << 16


class Door:
    """Listens on a port of 127.0.0.1, which is its own until `close`, whether it is open or shut."""

    def __init__(self, port: int) -> None:
        """`port`: of the simulated vCenter, on the same address."""
        self.came: list[float] = []
        """When somebody connected (`time.monotonic`), while it was open."""
        self._behind = ("127.0.0.1", port)
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._shut = 0
        self._kept = socket.socket()  # bound, and never listening: no other process gets the port of a shut door
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", 0))
        self.port: Final[int] = self._kept.getsockname()[1]
        self._listener = self._listen()

    def shut(self) -> None:
        """It stays shut until it was reopened as often: each trouble ends at its own time."""
        with self._lock:
            self._shut += 1
            connections, self._open = self._open, set()
        for opened in (self._listener, *connections):
            _end(opened)

    def reopen(self) -> None:
        with self._lock:
            self._shut -= 1
            if not self._shut:
                self._listener = self._listen()

    def close(self) -> None:
        self.shut()
        self._kept.close()

    def first_after(self, moment: float) -> float | None:
        """Return the moment of the first connection after that moment; None without one."""
        return next((connected_at for connected_at in tuple(self.came) if connected_at > moment), None)

    def _listen(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        Thread(target=self._take, args=(listener,), daemon=True).start()
        return listener

    def _take(self, listener: socket.socket) -> None:
        while True:
            try:
                outside, _ = listener.accept()
            except OSError:  # it was shut
                return
            self.came.append(time.monotonic())
            inside = socket.create_connection(self._behind)
            with self._lock:
                let_in = not self._shut
                if let_in:
                    self._open |= {outside, inside}
            if not let_in:  # it was shut meanwhile
                _end(outside)
                _end(inside)
                continue
            for source, sink in ((outside, inside), (inside, outside)):
                Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one side has closed: the other is closed too
            while piece := source.recv(_PIECE):
                sink.sendall(piece)
        for end in (source, sink):
            _end(end)
        with self._lock:
            self._open -= {source, sink}


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # the other end has closed
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
