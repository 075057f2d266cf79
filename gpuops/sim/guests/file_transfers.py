"""File transfers that were begun by a guest operation and are carried out by one request over HTTP each."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuops.errors import UsageError
from gpuops.files.file import read_bytes

PATH: Final = "/guestFile"
LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a file that is transferred; the server reads no larger request."""
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class FileTransfer:
    """One that may be carried out once: into the guest with these permissions, or out of it.

    Its file is at `place`; what a declared program has printed is `content`, and no file of this machine.
    """

    place: Path = Path()
    upload: bool = False
    content: bytes | None = None
    size: int = 0
    permissions: int | None = None
    overwrite: bool = False


@dataclass(slots=True)
class FileTransfers:
    """The transfers of a simulated vCenter that clients have not carried out yet; `base` begins their URLs.

    The host in a URL is `*`: a client puts the one in that it is connected to (vSphere API reference,
    InitiateFileTransferToGuest).
    """

    base: str = ""
    _waiting: dict[str, FileTransfer] = field(default_factory=dict)

    def begin(self, transfer: FileTransfer) -> str:
        """Return the URL for the transfer; a client with the URL needs no login."""
        token = secrets.token_urlsafe(24)
        self._waiting[token] = transfer
        return f"{self.base}{PATH}?id={len(self._waiting)}&token={token}"

    def take(self, token: str, *, upload: bool) -> FileTransfer | None:
        """Return the transfer of a token, which is then used up; None = no transfer in that direction."""
        transfer = self._waiting.get(token)
        return self._waiting.pop(token) if transfer is not None and transfer.upload is upload else None


def read(transfer: FileTransfer) -> bytes:
    """What is to be downloaded. Raises UsageError for what is no file any more, or a larger one."""
    if transfer.content is not None:
        return transfer.content
    return read_bytes(transfer.place, largest=LARGEST, error=UsageError)


def write(transfer: FileTransfer, content: bytes) -> None:
    """Put an upload in its place, whole. Raises FileExistsError, or another OSError."""
    if not transfer.overwrite and transfer.place.exists():
        raise FileExistsError(f"{transfer.place.name} is there")
    beside = transfer.place.with_name(f".{transfer.place.name}.{secrets.token_hex(4)}")
    beside.write_bytes(content)
    beside.chmod(_MODE if transfer.permissions is None else transfer.permissions & 0o7777)
    beside.replace(transfer.place)
