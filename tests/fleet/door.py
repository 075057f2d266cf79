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
    """Listens on a free port of 127.0.0.1 until `close`."""

    def __init__(self, port: int) -> None:
        """`port`: of the simulated vCenter, on the same address."""
        self.came: list[float] = []
        """When somebody connected (`time.monotonic`), while it was open."""
        self._behind = ("127.0.0.1", port)
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._listener = self._listen(0)
        self.port: Final[int] = self._listener.getsockname()[1]

    def shut(self) -> None:
        with self._lock:
            there, self._open = self._open, set()
        for each in (self._listener, *there):
            _end(each)

    def reopen(self) -> None:
        self._listener = self._listen(self.port)

    close = shut

    def first_after(self, moment: float) -> float | None:
        """When somebody first connected after that moment; None = nobody has."""
        return next((each for each in tuple(self.came) if each > moment), None)

    def _listen(self, port: int) -> socket.socket:
        made = socket.create_server(("127.0.0.1", port), backlog=128)
        Thread(target=self._take, args=(made,), daemon=True).start()
        return made

    def _take(self, listener: socket.socket) -> None:
        while True:
            try:
                outside, _ = listener.accept()
            except OSError:  # it was shut
                return
            self.came.append(time.monotonic())
            inside = socket.create_connection(self._behind)
            with self._lock:
                self._open |= {outside, inside}
            for source, sink in ((outside, inside), (inside, outside)):
                Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one side has gone: the other is told
            while piece := source.recv(_PIECE):
                sink.sendall(piece)
        for each in (source, sink):
            _end(each)
        with self._lock:
            self._open -= {source, sink}


def _end(each: socket.socket) -> None:
    with suppress(OSError):  # nobody is at the other end any more
        each.shutdown(socket.SHUT_RDWR)
    each.close()
