"""Uses shares in the guest of a client, as its environment says: `client.py LINE...`; `hold` waits for the cut-off.

Each line goes to every server, and what each answers is printed, `0 OK 100`. Ends with 3 where no server is reached.
"""

from __future__ import annotations

import os
import socket
import sys


def main(lines: list[str]) -> int:
    connections = []
    for each in os.environ["POOL_SERVERS"].split(","):
        address, _, port = each.rpartition(":")
        try:
            connected = socket.create_connection((address, int(port)), 5, (os.environ["GPUOPS_GUEST_ADDRESS"], 0))
        except OSError as error:
            print("not reached:", error, flush=True)
            return 3
        connections.append(connected)
    for line in lines:
        for number, server in enumerate(connections):
            if line == "hold":
                server.settimeout(None)
                print(number, "cut off" if not received(server) else "told something", flush=True)
                continue
            try:
                server.sendall(f"{line}\n".encode())
                print(number, received(server) or "cut off", flush=True)
            except ConnectionError:
                print(number, "cut off", flush=True)
    return 0


def received(connection: socket.socket) -> str:
    """A line; empty = the server has closed the connection."""
    try:
        return connection.recv(4096).decode().strip()
    except ConnectionError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
