"""SSH: one command on one host or guest, its key known beforehand; by keys or an agent, never a password.

A host that is not in the known-hosts file is refused, not learned: whoever answers would be root's shell for us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuops.errors import OutcomeUnknown, Refused

CONNECT_S: Final = 20.0
COMMAND_S: Final = 120.0
MOST_BYTES: Final = 1 << 20
"""No answer of nvidia-smi is longer; more is cut off."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command wrote, and how it ended."""

    stdout: str
    stderr: str
    exit_status: int


@dataclass(frozen=True, slots=True)
class Ssh:
    """How hosts are entered."""

    username: str = "root"
    known_hosts: Path = Path("~/.ssh/known_hosts")
    key: Path | None = None
    """None = the agent's keys and those in ~/.ssh."""
    port: int = 22
    address_of: Callable[[str], str] = str
    """The address of a host by its name in vCenter."""
    named_by: str = "--ssh-known-hosts"
    """What a user says to name another file of known hosts,"""
    key_named_by: str = "--ssh-key"
    """and another key."""

    def run(self, host: str, command: str, *, limit_s: float = COMMAND_S, heard: bool = True) -> Reply:
        """The reply to a command, at the most a megabyte of it; not `heard`: its exit status alone.

        Raises Refused where the host cannot be entered, and OutcomeUnknown where it broke off after the command was
        sent, or has not ended within `limit_s`.
        """
        try:
            import asyncssh
        except ImportError as error:
            hint = "install the extra that has it: gpuops[ssh]"
            raise Refused("a host shell needs asyncssh, and it is not installed", hint=hint) from error
        known = self.known_hosts.expanduser()
        if not known.is_file():
            hint = f"put the hosts' keys there (ssh-keyscan, and compare them), or name another file: {self.named_by}"
            raise Refused(f"{known} is not there: no host's key is known", hint=hint)
        try:
            return asyncio.run(self._run(asyncssh, host, command, known, limit_s, heard))
        except asyncssh.HostKeyNotVerifiable as error:
            hint = f"compare its key and put it into {known}"
            raise Refused(f"{host}: its SSH key is not the one that is known, or none is known", hint=hint) from error
        except asyncssh.PermissionDenied as error:
            hint = f"use a key that the host accepts: an agent, ~/.ssh, or {self.key_named_by}"
            raise Refused(f"{host}: SSH does not let {self.username} in", hint=hint) from error
        except (OSError, asyncssh.Error, TimeoutError) as error:
            hint = "switch the host's SSH service on, and let this machine reach it"
            raise Refused(f"{host}: cannot be entered by SSH ({type(error).__name__})", hint=hint) from error

    async def _run(self, asyncssh: Any, host: str, command: str, known: Path, limit_s: float, heard: bool) -> Reply:
        began_s = asyncio.get_running_loop().time()
        connection = await asyncio.wait_for(
            asyncssh.connect(
                self.address_of(host),
                port=self.port,
                username=self.username,
                known_hosts=str(known),
                client_keys=[str(self.key.expanduser())] if self.key is not None else (),
                host_key_alias=host,
                config=None,
                preferred_auth="publickey",
                password_auth=False,
                kbdint_auth=False,
                encoding=None,
            ),
            min(CONNECT_S, limit_s),
        )
        # what nobody hears is not kept either, however much of it there is
        unheard = {} if heard else {"stdout": asyncssh.DEVNULL, "stderr": asyncssh.DEVNULL}
        async with connection:
            try:
                running = connection.run(command, check=False, encoding=None, stdin=asyncssh.DEVNULL, **unheard)
                left_s = limit_s - (asyncio.get_running_loop().time() - began_s)
                done = await asyncio.wait_for(running, max(0.0, left_s))
            except TimeoutError as error:
                raise OutcomeUnknown(f"{host}: {command.split()[0]} had not ended after {limit_s:.0f} s") from error
            except (OSError, asyncssh.Error) as error:
                kind = type(error).__name__
                raise OutcomeUnknown(f"{host}: SSH broke off in the middle of {command.split()[0]} ({kind})") from error
        if done.exit_status is None:
            raise OutcomeUnknown(f"{host}: SSH broke off in the middle of {command.split()[0]}")
        return Reply(_text(done.stdout), _text(done.stderr), done.exit_status)


def _text(written: Any) -> str:
    return bytes(written or b"")[:MOST_BYTES].decode("utf-8", "replace")
