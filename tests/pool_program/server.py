"""Serves shares in the guest of a server, and enforces them: `server.py DIRECTORY`, until it is killed.

DIRECTORY is where gpuops keeps the shares, `LEASE.GPU/`. A share is open while it has a file `admit`:

    {"address": ..., "port": ..., "client": ..., "memory_mib": ..., "until": seconds of the clock, "key": SHA-256}

Only that client is served, only with its key, only within its memory and its time, whatever it does. A client says
`KEY hex`, `ALLOC MIB`, `FREE MIB` and `PING`, a line each, and is answered `OK ...` or `NO ...`.
"""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAUSE_S = 0.02


@dataclass(eq=False)
class Client:
    """One connection."""

    socket: socket.socket
    known: bool = False
    allocated_mib: int = 0
    read: bytes = b""


@dataclass(eq=False)
class Share:
    """One share that is open."""

    directory: Path
    told: dict[str, Any]
    listener: socket.socket
    clients: set[Client] = field(default_factory=set)

    @property
    def used_mib(self) -> int:
        return sum(each.allocated_mib for each in self.clients)


class Server:
    """All of them, in one process and one thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shares: dict[str, Share] = {}
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        while True:
            self.open_and_close()
            for key, _ in self.selector.select(PAUSE_S):
                share, client = key.data
                if client is None:
                    self.accept(share)
                else:
                    self.serve(share, client)

    def open_and_close(self) -> None:
        now = time.time()
        wanted = {each.parent.name: json.loads(each.read_text()) for each in self.directory.glob("*.[0-9]*/admit")}
        for name, share in list(self.shares.items()):
            if wanted.get(name) != share.told or share.told["until"] <= now:
                for client in list(share.clients):
                    self.drop(share, client)
                self.selector.unregister(share.listener)
                share.listener.close()
                (share.directory / "open").unlink(missing_ok=True)
                del self.shares[name]
        for name, told in wanted.items():
            if name not in self.shares and told["until"] > now:
                listener = socket.create_server((told["address"], told["port"]), reuse_port=False)
                listener.setblocking(False)
                self.shares[name] = Share(self.directory / name, told, listener)
                self.selector.register(listener, selectors.EVENT_READ, (self.shares[name], None))
                (self.directory / name / "open").touch()

    def accept(self, share: Share) -> None:
        taken, where = share.listener.accept()
        if where[0] != share.told["client"]:
            taken.close()
            return
        taken.setblocking(False)
        client = Client(taken)
        share.clients.add(client)
        self.selector.register(taken, selectors.EVENT_READ, (share, client))

    def serve(self, share: Share, client: Client) -> None:
        try:
            more = client.socket.recv(4096)
        except ConnectionError:
            more = b""
        if not more:
            self.drop(share, client)
            return
        client.read += more
        while b"\n" in client.read:
            line, _, client.read = client.read.partition(b"\n")
            client.socket.sendall(self.answer(share, client, line.decode()).encode() + b"\n")
        (share.directory / "used.new").write_text(f"{share.used_mib}\n")
        (share.directory / "used.new").rename(share.directory / "used")

    def answer(self, share: Share, client: Client, line: str) -> str:
        word, _, value = line.partition(" ")
        if word == "KEY":
            client.known = hashlib.sha256(value.encode()).hexdigest() == share.told["key"]
            return "OK" if client.known else "NO key"
        if not client.known:
            return "NO key"
        if word == "ALLOC":
            if share.used_mib + int(value) > share.told["memory_mib"]:
                return "NO memory"
            client.allocated_mib += int(value)
        elif word == "FREE":
            client.allocated_mib = max(client.allocated_mib - int(value), 0)
        return f"OK {share.used_mib}"

    def drop(self, share: Share, client: Client) -> None:
        self.selector.unregister(client.socket)
        client.socket.close()
        share.clients.discard(client)
        if share.directory.is_dir():
            (share.directory / "used").write_text(f"{share.used_mib}\n")


if __name__ == "__main__":
    Path(sys.argv[1], "pid").write_text(f"{os.getpid()}\n")
    Server(Path(sys.argv[1])).run()
