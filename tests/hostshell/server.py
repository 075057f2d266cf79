"""An SSH server in this process that answers for a host: whatever it is asked goes to `answer`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from gpuops.hostshell.ssh import Ssh

Answer = Callable[[str], tuple[str, int]]
BREAKS_OFF, NEVER_ENDS, STAYS = -1, -2, -3
"""In place of an exit status: the connection ends, it writes for ever, or is silent for ever."""


@dataclass
class ShellHost:
    """A host that can be entered: `ssh` is how, and `asked` what it was asked."""

    ssh: Ssh
    asked: list[str]
    known_hosts: Path
    server_key: Any


@contextmanager
def ssh_server(folder: Path, name: str, answer: Answer) -> Iterator[ShellHost]:
    """Serves until the block is left."""
    commands: list[str] = []
    server_key, client_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    key, known_hosts = folder / "id", folder / "known_hosts"
    client_key.write_private_key(key)
    key.chmod(0o600)
    known_hosts.write_text(f"{name} {server_key.export_public_key().decode()}", encoding="ascii")
    known_hosts.chmod(0o600)
    authorized = asyncssh.import_authorized_keys(client_key.export_public_key().decode())

    async def serve(process: Any) -> None:
        command = process.command or ""
        commands.append(command)
        text, status = answer(command)
        if status == BREAKS_OFF:
            process.channel.get_connection().abort()
            return
        while status == NEVER_ENDS:
            process.stdout.write(text.encode())
            await process.stdout.drain()
        process.stdout.write(text.encode())
        if status == STAYS:
            await process.wait_closed()
            return
        process.exit(status)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="ssh-host")
    thread.start()

    async def listen() -> Any:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[server_key],
            authorized_client_keys=authorized,
            process_factory=serve,
            encoding=None,
        )

    listener = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    try:
        yield ShellHost(
            Ssh("root", known_hosts, key, listener.get_port(), lambda host: "127.0.0.1"),
            commands,
            known_hosts,
            server_key,
        )
    finally:

        async def stop() -> None:
            listener.close()
            await listener.wait_closed()

        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
