"""Runs one command on a host or guest over SSH, whose key is known beforehand; by keys or an agent, never a password.

A host that is not in the known-hosts file is refused, not learned: another machine could answer in its place and get
commands meant for root's shell.
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
"""The limit for a connection, with the login."""
COMMAND_S: Final = 120.0
"""The limit for the connection and the command together, unless the caller sets another one."""
MOST_BYTES: Final = 1 << 20
"""The limit for the output of a command: no answer of nvidia-smi is longer."""
CHUNK_BYTES: Final = 1 << 14
_LONGEST_NAME: Final = 253
"""The longest DNS name, and below the longest of its parts (RFC 1123)."""
_LONGEST_LABEL: Final = 63
_LONGEST_USER: Final = 256
_LONGEST_SHOWN: Final = 80
_FORBIDDEN_IN_COMMAND: Final = re.compile("[\x00\r\n]")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The output of a command and its exit status."""

    stdout: str
    stderr: str
    exit_status: int


@dataclass(frozen=True, slots=True)
class Ssh:
    """The settings for SSH connections to hosts."""

    username: str = "root"
    known_hosts: Path = Path("~/.ssh/known_hosts")
    key: Path | None = None
    """None = the agent's keys and those in ~/.ssh."""
    port: int = 22
    address_of: Callable[[str], str] = str
    """The address of a host by its name in vCenter."""
    named_by: str = "--ssh-known-hosts"
    """The option or environment variable for another file of known hosts; for hints."""
    key_named_by: str = "--ssh-key"
    """The option or environment variable for another key; for hints."""

    def run(self, host: str, command: str, *, limit_s: float = COMMAND_S, read_output: bool = True) -> CommandResult:
        """Run a command on the host, and return its output and exit status; without `read_output` only the exit status.

        Raises Refused if the command was not sent: the login failed, or a setting or file cannot be used. Raises
        OutcomeUnknown if the connection broke after that, if the command has not ended within `limit_s` seconds, or if
        it prints more than `MOST_BYTES`.
        """
        try:
            import asyncssh
        except ImportError as error:
            hint = install_extra("ssh")
            raise Refused("SSH needs asyncssh, which is not installed", hint=hint) from error
        known_hosts = self.known_hosts.expanduser()
        if not known_hosts.is_file():
            hint = f"put the hosts' keys there (ssh-keyscan; check each key), or name another file: {self.named_by}"
            raise Refused(f"{known_hosts} does not exist: no SSH key of a host is known", hint=hint)
        self._require_private_files(known_hosts)
        self._require_readable_keys(asyncssh, known_hosts)
        self._require_valid_names(host, command)
        try:
            return asyncio.run(self._run(asyncssh, host, command, known_hosts, limit_s, read_output))
        except asyncssh.HostKeyNotVerifiable as error:
            hint = f"compare its key and put it into {known_hosts}"
            raise Refused(f"{host}: its SSH key is unknown, or not the one in {known_hosts}", hint=hint) from error
        except asyncssh.PermissionDenied as error:
            hint = f"use a key that the host accepts: an agent, ~/.ssh, or {self.key_named_by}"
            raise Refused(f"{host}: its SSH server refuses the login of {self.username}", hint=hint) from error
        except (OSError, ValueError, asyncssh.Error, TimeoutError) as error:
            hint = "switch the host's SSH service on, and let this machine reach it"
            raise Refused(f"{host}: cannot be reached by SSH ({type(error).__name__})", hint=hint) from error

    def _require_valid_names(self, host: str, command: str) -> None:
        """Raise Refused if the name or address of the host, the user name or the command is not valid for SSH."""
        address = self.address_of(host)
        for name in (host, address):
            if (why := unusable_address(name)) is not None:
                raise Refused(f"{_quote(name)}: cannot be reached by SSH: {why}", hint="use a DNS name or IP address")
        if not self.username.isprintable() or not 0 < len(self.username) <= _LONGEST_USER or " " in self.username:
            raise Refused(
                f"{_quote(self.username)} is not a valid SSH user name for {host}", hint="use root, for example"
            )
        if _FORBIDDEN_IN_COMMAND.search(command):
            raise Refused(
                f"{host}: a command with a null character or a line end is not sent: {_quote(command)}",
                hint="remove that character from the command",
            )

    def _require_private_files(self, known_hosts: Path) -> None:
        """Raise Refused if other users could add a known host or read a key.

        The keys are the configured one, or without one all keys in ~/.ssh, because asyncssh tries these.
        """
        default = Path("~/.ssh").expanduser().glob("id_*")
        keys = [path for path in default if path.suffix != ".pub"] if self.key is None else [self.key.expanduser()]
        try:
            exposures = replaceable(known_hosts), *(readable(key) for key in keys if key.is_file())
        except OSError as error:
            raise Refused(
                f"gpuops cannot check who may read or replace {error.filename}: {error.strerror}",
                hint=f"make it readable for this user, and check: ls -ld {error.filename}",
            ) from error
        for exposure in exposures:
            if exposure is not None:
                raise Refused(f"{exposure.why}, so gpuops does not connect by SSH", hint=exposure.fix)

    def _require_readable_keys(self, asyncssh: Any, known_hosts: Path) -> None:
        """Raise Refused, before any connection is made, if no keys can be read from the configured files."""
        try:
            asyncssh.read_known_hosts(str(known_hosts))
        except (OSError, ValueError) as error:
            hint = f"put the hosts' keys there (ssh-keyscan; check each key), or name another file: {self.named_by}"
            raise Refused(f"{known_hosts}: no hosts' keys can be read from it ({error})", hint=hint) from error
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
        self, asyncssh: Any, host: str, command: str, known_hosts: Path, limit_s: float, read_output: bool
    ) -> CommandResult:
        """Connect, run the command and return its result within `limit_s` seconds.

        Errors before the login are raised as they are; later ones as OutcomeUnknown, because the command may have run.
        """
        began_s, program = asyncio.get_running_loop().time(), command.split()[0]
        connection = await asyncio.wait_for(
            asyncssh.connect(
                self.address_of(host),
                port=self.port,
                username=self.username,
                known_hosts=str(known_hosts),
                client_keys=[str(self.key.expanduser())] if self.key is not None else (),  # () = agent and ~/.ssh
                host_key_alias=host,
                config=None,  # ignore ~/.ssh/config, which may name another host or run a command
                preferred_auth="publickey",
                password_auth=False,
                kbdint_auth=False,
                encoding=None,
            ),
            min(CONNECT_S, limit_s),
        )
        async with connection:
            try:
                remaining_s = limit_s - (asyncio.get_running_loop().time() - began_s)
                reply = await asyncio.wait_for(
                    _collect_output(asyncssh, connection, command, read_output), max(0.0, remaining_s)
                )
            except TimeoutError as error:
                raise OutcomeUnknown(f"{host}: {program} had not ended after {limit_s:.0f} s") from error
            except (OSError, ValueError, asyncssh.Error) as error:
                kind = type(error).__name__
                raise OutcomeUnknown(f"{host}: the SSH connection broke while {program} ran ({kind})") from error
            except _OutputTooLongError as error:
                message = f"{host}: {program} printed more than {MOST_BYTES >> 20} MiB"
                raise OutcomeUnknown(f"{message}, and gpuops stopped reading") from error
        if reply is None:
            raise OutcomeUnknown(f"{host}: the SSH connection broke while {program} ran")
        return reply


def unusable_address(address: str) -> str | None:
    """Return why no host can have this name or address, or None (RFC 1123: labels of at most 63 characters)."""
    if not address.isascii() or not address.isprintable() or " " in address or not address:
        return "it is not the name of a host"
    if len(address) > _LONGEST_NAME:
        return f"its name has more than {_LONGEST_NAME} characters"
    labels = address.removesuffix(".").split(".")
    if ":" not in address and not all(0 < len(label) <= _LONGEST_LABEL for label in labels):
        return f"a part of its name is empty, or has more than {_LONGEST_LABEL} characters"
    return None


def _quote(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


class _OutputTooLongError(Exception):
    """The output is longer than `MOST_BYTES`."""


async def _collect_output(asyncssh: Any, connection: Any, command: str, read_output: bool) -> CommandResult | None:
    """Run the command and return its exit status, with its output if `read_output`; None = it has no exit status.

    A process that a signal ended has none. Raises _OutputTooLongError.
    """
    no_streams = dict.fromkeys(("stdin", "stdout", "stderr"), asyncssh.DEVNULL)
    process = await connection.create_process(command, encoding=None, **({} if read_output else no_streams))
    stdout = stderr = ""
    try:
        if read_output:
            stdout, stderr = await asyncio.gather(_read_text(process.stdout), _read_text(process.stderr))
        await process.wait_closed()
    finally:
        process.close()
    return None if process.exit_status is None else CommandResult(stdout, stderr, process.exit_status)


async def _read_text(stream: Any) -> str:
    """Return the complete text of a stream. Raises _OutputTooLongError beyond `MOST_BYTES`."""
    content = bytearray()
    while chunk := await stream.read(CHUNK_BYTES):
        content += chunk
        if len(content) > MOST_BYTES:
            raise _OutputTooLongError
    return content.decode("utf-8", "replace")
