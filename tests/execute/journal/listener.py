"""A PostgreSQL server that cannot encrypt and asks for the password in clear: it records all that it is sent."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SSL, _GSS = 80877103, 80877104
"""Codes by which a client asks for encryption, in place of a protocol version (PostgreSQL manual, 55.7)."""
NO_ENCRYPTION: Final = b"N"
ASK_FOR_PASSWORD: Final = b"R" + struct.pack("!ii", 8, 3)
"""AuthenticationCleartextPassword."""


class Listener:
    """`heard` is what came beyond requests for encryption; `asked` how many connections there were."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked = 0
        self.heard = b""

    def answer(self, connection: socket.socket) -> None:
        """One connection, until its client leaves."""
        self.asked += 1
        while len(head := connection.recv(8)) == 8:
            length, code = struct.unpack("!ii", head)
            if length == 8 and code in (_SSL, _GSS):
                connection.sendall(NO_ENCRYPTION)
                continue
            self.heard += head + connection.recv(length - 8)
            connection.sendall(ASK_FOR_PASSWORD)
            self.heard += connection.recv(4096)
            return
        self.heard += head


@contextmanager
def listening() -> Iterator[Listener]:
    """Serves on 127.0.0.1 until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        new_listener = Listener(server.getsockname()[1])

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed: the block has ended
                    return
                with connection:
                    connection.settimeout(5)
                    new_listener.answer(connection)

        thread = threading.Thread(target=serve, name="postgresql-listener", daemon=True)
        thread.start()
        try:
            yield new_listener
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)
