"""Ports of this machine."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request


def free_port() -> int:
    """Return a port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether a process listens on the port."""
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


def http_status(port: int, path: str = "/healthz") -> int:
    """Return the status of a GET request to the port, 0 without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0
