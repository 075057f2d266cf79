"""Where the files of a guest lie on this machine, and transfers of them that a guest operation began.

A guest has a directory for its root. `/tmp/a` is `DIRECTORY/tmp/a`, and a path that begins with the directory itself is
taken as it is: a shell in the guest, which sees this machine, then finds what was made through guest operations.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuops.errors import UsageError
from gpuops.files.file import read_bytes

FOLDERS = ("tmp", "root", "opt")
"""What a new guest has."""


def make_root(root: Path) -> None:
    """The directories of a new guest, for its owner alone."""
    for name in FOLDERS:
        (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)


def locate_in_guest(root: Path, path: str) -> Path:
    """Where a path of the guest lies. Raises PermissionError for one that leads out of it, ValueError for none.

    The last part is not followed where it is a link, so that a link itself can be removed.
    """
    if not path or "\0" in path:
        raise ValueError(f"{path!r} is no path")
    home = root.resolve()
    guest_path = Path(path)
    inside = guest_path.is_relative_to(root) or guest_path.is_relative_to(home)
    whole = Path(os.path.normpath(guest_path if inside else home / path.lstrip("/")))
    resolved = whole.parent.resolve() / whole.name
    if not resolved.is_relative_to(home):
        raise PermissionError(f"{path} leads out of the guest")
    return resolved


def follow_in_guest(root: Path, path: str) -> Path:
    """The same, where a link is followed. Raises PermissionError for one that leads out."""
    resolved = locate_in_guest(root, path).resolve()
    if not resolved.is_relative_to(root.resolve()):
        raise PermissionError(f"{path} leads out of the guest")
    return resolved


def temporary_name(number: int, prefix: str, suffix: str) -> str:
    """Name of a temporary file. Raises ValueError for a prefix or suffix with a slash."""
    if "/" in prefix or "/" in suffix:
        raise ValueError("a prefix or suffix has no slash")
    return f"{prefix}{number:06d}{suffix}"


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
