"""Ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether a process listens on the port."""
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0
