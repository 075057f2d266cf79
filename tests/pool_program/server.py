"""Serves one share in the guest of a server, until it is killed or its time is over; the hook's variables say which.

Only the client's address is served, only within its memory. A client says `ALLOC MIB`, `ECHO TEXT` and `PING`, a line
each, and is answered `OK ...` or `NO ...`. The file `used` has what is allocated, `pid` is there once it listens.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from pathlib import Path


def main() -> None:
    until = time.time() + int(os.environ["SECONDS_LEFT"])
    listener = socket.create_server((os.environ["SERVER_ADDRESS"], int(os.environ["PORT"])), reuse_port=False)
    allocated_mib = dict[socket.socket, int]()
    Path("pid").write_text(f"{os.getpid()}\n")
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while time.time() < until:
            for key, _ in selector.select(0.05):
                if key.fileobj is listener:
                    accepted, peer = listener.accept()
                    if peer[0] != os.environ["CLIENT_ADDRESS"]:
                        accepted.close()
                        continue
                    selector.register(accepted, selectors.EVENT_READ)
                    allocated_mib[accepted] = 0
                    continue
                client = key.fileobj
                assert isinstance(client, socket.socket)
                if not serve(client, allocated_mib):
                    selector.unregister(client)
                    client.close()
                    del allocated_mib[client]
                Path("used").write_text(f"{sum(allocated_mib.values())}\n")


def serve(client: socket.socket, allocated_mib: dict[socket.socket, int]) -> bool:
    """Answer one line; False = the client has closed the connection."""
    try:
        line = client.recv(4096).decode().strip()
    except ConnectionError:
        return False
    word, _, value = line.partition(" ")
    if not line:
        return False
    if word == "ECHO":
        answer = f"OK {value}"
    elif word == "ALLOC" and sum(allocated_mib.values()) + int(value) > int(os.environ["MEMORY_MIB"]):
        answer = "NO memory"
    else:
        allocated_mib[client] += int(value or 0)
        answer = f"OK {sum(allocated_mib.values())}"
    client.sendall(f"{answer}\n".encode())
    return True


if __name__ == "__main__":
    main()
