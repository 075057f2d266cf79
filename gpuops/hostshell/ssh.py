"""Runs one command on a host or guest over SSH, whose key is known beforehand; by keys or an agent, never a password.

A host that is not in the known-hosts file is refused, not learned: whoever answers would be root's shell for us.
"""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuops.distribution import install_extra
from gpuops.errors import OutcomeUnknown, Refused
from gpuops.files.private_file import readable, replaceable

CONNECT_S: Final = 20.0
COMMAND_S: Final = 120.0
MOST_BYTES: Final = 1 << 20
"""No answer of nvidia-smi is longer: who says more is not read on."""
CHUNK_BYTES: Final = 1 << 14
_LONGEST_NAME: Final = 253
_LONGEST_LABEL: Final = 63
_LONGEST_USER: Final = 256
_LONGEST_SHOWN: Final = 80
_UNSENDABLE: Final = re.compile("[\x00\r\n]")


@dataclass(frozen=True, slots=True)
class CommandResult:
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

    def run(self, host: str, command: str, *, limit_s: float = COMMAND_S, heard: bool = True) -> CommandResult:
        """The reply to a command; not `heard`: its exit status alone, whatever it writes.

        Raises Refused where the host cannot be entered or the command cannot be sent, and OutcomeUnknown where it broke
        off after the command was sent, has not ended within `limit_s`, or answers more than a megabyte.
        """
        try:
            import asyncssh
        except ImportError as error:
            hint = install_extra("ssh")
            raise Refused("a host shell needs asyncssh, and it is not installed", hint=hint) from error
        known = self.known_hosts.expanduser()
        if not known.is_file():
            hint = f"put the hosts' keys there (ssh-keyscan, and compare them), or name another file: {self.named_by}"
            raise Refused(f"{known} is not there: no host's key is known", hint=hint)
        self._must_be_ours(known)
        self._must_be_readable(asyncssh, known)
        self._must_be_sendable(host, command)
        try:
            return asyncio.run(self._run(asyncssh, host, command, known, limit_s, heard))
        except asyncssh.HostKeyNotVerifiable as error:
            hint = f"compare its key and put it into {known}"
            raise Refused(f"{host}: its SSH key is not the one that is known, or none is known", hint=hint) from error
        except asyncssh.PermissionDenied as error:
            hint = f"use a key that the host accepts: an agent, ~/.ssh, or {self.key_named_by}"
            raise Refused(f"{host}: SSH does not let {self.username} in", hint=hint) from error
        except (OSError, ValueError, asyncssh.Error, TimeoutError) as error:
            hint = "switch the host's SSH service on, and let this machine reach it"
            raise Refused(f"{host}: cannot be entered by SSH ({type(error).__name__})", hint=hint) from error

    def _must_be_sendable(self, host: str, command: str) -> None:
        """Raises Refused for an address, a user or a command that SSH cannot carry: it would fail somewhere inside."""
        address = self.address_of(host)
        for each in (host, address):
            if (why := unusable_address(each)) is not None:
                raise Refused(f"{_shown(each)}: cannot be entered by SSH: {why}", hint="name it as DNS does")
        if not self.username.isprintable() or not 0 < len(self.username) <= _LONGEST_USER or " " in self.username:
            raise Refused(f"{_shown(self.username)} is not the name of a user of {host}", hint="root, for instance")
        if _UNSENDABLE.search(command):
            raise Refused(f"{host}: a command with a null character or a line end is not sent: {_shown(command)}")

    def _must_be_ours(self, known: Path) -> None:
        """Raises Refused where others could make a host known, or could have taken a key.

        The keys are the one that is named, or those in ~/.ssh, which asyncssh tries.
        """
        default = Path("~/.ssh").expanduser().glob("id_*")
        keys = [self.key.expanduser()] if self.key is not None else [one for one in default if one.suffix != ".pub"]
        try:
            found = replaceable(known), *(readable(key) for key in keys if key.is_file())
        except OSError as error:
            raise Refused(f"{error.filename} cannot be looked at: {error.strerror}") from error
        for opening in found:
            if opening is not None:
                raise Refused(f"{opening.why}, so no host is entered by it", hint=opening.fix)

    def _must_be_readable(self, asyncssh: Any, known: Path) -> None:
        """Raises Refused for files that are no keys; asked before anybody is called, so nothing is half done."""
        try:
            asyncssh.read_known_hosts(str(known))
        except (OSError, ValueError) as error:
            hint = f"put the hosts' keys there (ssh-keyscan, and compare them), or name another file: {self.named_by}"
            raise Refused(f"{known}: no hosts' keys can be read from it ({error})", hint=hint) from error
        if self.key is None:
            return
        try:
            if not stat.S_ISREG(self.key.expanduser().stat().st_mode):  # a pipe would be waited for without end
                raise ValueError("it is not a file")
            asyncssh.read_private_key(str(self.key.expanduser()))
        except (OSError, ValueError) as error:
            hint = f"name a private key without a passphrase, or leave it to an agent: {self.key_named_by}"
            raise Refused(f"{self.key}: no private key can be read from it ({error})", hint=hint) from error

    async def _run(
        self, asyncssh: Any, host: str, command: str, known: Path, limit_s: float, heard: bool
    ) -> CommandResult:
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
        async with connection:
            try:
                left_s = limit_s - (asyncio.get_running_loop().time() - began_s)
                reply = await asyncio.wait_for(_said(asyncssh, connection, command, heard), max(0.0, left_s))
            except TimeoutError as error:
                raise OutcomeUnknown(f"{host}: {command.split()[0]} had not ended after {limit_s:.0f} s") from error
            except (OSError, ValueError, asyncssh.Error) as error:
                kind = type(error).__name__
                raise OutcomeUnknown(f"{host}: SSH broke off in the middle of {command.split()[0]} ({kind})") from error
            except _TooMuch as error:
                said = f"{host}: {command.split()[0]} answers more than {MOST_BYTES >> 20} MiB"
                raise OutcomeUnknown(f"{said}; it was not read on") from error
        if reply is None:
            raise OutcomeUnknown(f"{host}: SSH broke off in the middle of {command.split()[0]}")
        return reply


def unusable_address(address: str) -> str | None:
    """Why this is no name or address of a host; None = it may be one (RFC 1123: labels of 63 characters)."""
    if not address.isascii() or not address.isprintable() or " " in address or not address:
        return "it is no name of a host"
    if len(address) > _LONGEST_NAME:
        return f"its name has more than {_LONGEST_NAME} characters"
    labels = address.removesuffix(".").split(".")
    if ":" not in address and not all(0 < len(label) <= _LONGEST_LABEL for label in labels):
        return f"a part of its name is empty, or has more than {_LONGEST_LABEL} characters"
    return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


class _TooMuch(Exception):
    """More was written than any answer is long."""


async def _said(asyncssh: Any, connection: Any, command: str, heard: bool) -> CommandResult | None:
    """What the command wrote, if it is heard; None = it ended without an exit status. Raises _TooMuch."""
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), asyncssh.DEVNULL)
    process = await connection.create_process(command, encoding=None, **({} if heard else nowhere))
    stdout = stderr = ""
    try:
        if heard:
            stdout, stderr = await asyncio.gather(_text(process.stdout), _text(process.stderr))
        await process.wait_closed()
    finally:
        process.close()
    return None if process.exit_status is None else CommandResult(stdout, stderr, process.exit_status)


async def _text(stream: Any) -> str:
    """All of it, a piece at a time: never more than the most is held."""
    found = bytearray()
    while chunk := await stream.read(CHUNK_BYTES):
        found += chunk
        if len(found) > MOST_BYTES:
            raise _TooMuch
    return found.decode("utf-8", "replace")
