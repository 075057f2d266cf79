"""A server that is a vCenter as far as the login, and then whatever it likes."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.wire.hostile.hostile_replies import Hostile


class HostileServer:
    """Passes requests on to a simulated vCenter over plain HTTP, and answers those of `strikes` by itself."""

    def __init__(self) -> None:
        self.strikes: Mapping[str, Hostile] = {}
        """Method -> what it is answered with; GET = the question for the versions of the API."""
        self.rewrites: Mapping[str, Callable[[bytes], bytes]] = {}
        """Method -> what becomes of the body of its honest answer."""
        world = build("lab")
        world.gzip = False  # what is rewritten is text
        self.honest = SimServer(world, tls=False)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.honest.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, socket.create_connection(("127.0.0.1", self.honest.port)) as honest:
            try:
                while (request := _message(connection)) is not None:
                    match = re.search(rb"<(\w+) xmlns=\"urn:vim25\"", request)
                    method = match.group(1).decode() if match else request[:3].decode()
                    strike = self.strikes.get(method)
                    if strike is not None:
                        self._strike(connection, strike)
                        return
                    honest.sendall(request)
                    reply = _message(honest)
                    if reply is None:
                        return
                    connection.sendall(_rewritten(reply, self.rewrites.get(method)))
            except OSError:
                return  # the client has had enough

    def _strike(self, connection: socket.socket, hostile: Hostile) -> None:
        if hostile.silent:
            self._over.wait(60)
            return
        length = len(hostile.body) if hostile.length is None else hostile.length
        headers = {**hostile.headers, **({"Content-Length": str(length)} if length >= 0 else {})}
        head = f"HTTP/1.1 {hostile.status}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if hostile.flood:
            connection.sendall(head.removesuffix(f"Content-Length: {length}\r\n").encode())
            while not self._over.is_set():
                connection.sendall(hostile.flood * 1000)
        connection.sendall(f"{head}\r\n".encode())
        if not hostile.drip_s:
            connection.sendall(hostile.body)
            if hostile.length is not None:
                self._over.wait(60)  # it has promised more
            return
        for number in range(len(hostile.body)):
            connection.sendall(hostile.body[number : number + 1])
            if self._over.wait(hostile.drip_s):
                return


def _rewritten(reply: bytes, rewrite: Callable[[bytes], bytes] | None) -> bytes:
    if rewrite is None:
        return reply
    head, _, body = reply.partition(b"\r\n\r\n")
    changed = rewrite(body)
    return re.sub(rb"(?i)(content-length: *)\d+", rb"\g<1>%d" % len(changed), head) + b"\r\n\r\n" + changed


def _message(connection: socket.socket) -> bytes | None:
    """One HTTP message with a Content-Length; None = the other end has left."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        if not piece:
            return None
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    parts, remaining = [head, b"\r\n\r\n", body], int(length.group(1)) - len(body) if length else 0
    while remaining > 0:
        parts.append(connection.recv(min(remaining, 1 << 20)))
        remaining -= len(parts[-1])
        if not parts[-1]:
            return None
    return b"".join(parts)
