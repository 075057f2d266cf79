"""The guests of one simulated vCenter that run real processes: each has a directory, and a mark on its processes.

What they run has the rights of the user who runs the simulator, and sees this machine; only its environment is its own.
Nothing is made before a program is started or a file is written. A helper process, which outlives a simulator that is
killed, ends all processes and removes the directories (`marked_processes.py`).

A guest has a directory for its root. `/tmp/a` is `DIRECTORY/tmp/a`, and a path that begins with the directory itself is
taken as it is: a shell in the guest, which sees this machine, then finds what was made through guest operations.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from gpuops.errors import UsageError
from gpuops.files.file import read_bytes
from gpuops.sim.guests import marked_processes
from gpuops.sim.state.vm_state import Power

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL: Final = "/bin/sh"


@dataclass(slots=True)
class RealProcess:
    """A process that was started in a guest."""

    pid: int
    path: str
    command: str
    owner: str
    started_at: datetime
    mark: str
    """The mark in its environment, which the processes that it starts inherit."""
    child: subprocess.Popen[bytes] = field(repr=False)
    ended_at: datetime | None = None
    exit_code: int | None = None


@dataclass(slots=True)
class RealGuest:
    """The directory and the processes of one VM's guest."""

    root: Path
    mark: str
    boot_time: datetime | None = None
    """The VM's boot time when its processes were started."""
    stopped: bool = False
    processes: list[RealProcess] = field(default_factory=list)


class RealGuests:
    """The real guests of a world by moid of their VM. The caller holds the world's lock, that of `changed`."""

    def __init__(self, now: Callable[[], datetime], changed: threading.Condition) -> None:
        self._now = now
        self._changed = changed
        self._token = secrets.token_hex(8)
        self._home: Path | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._guests: dict[str, RealGuest] = {}
        self._numbers = 0
        self.transfers = FileTransfers()

    @property
    def busy(self) -> bool:
        """Whether a process runs: then no time is jumped over, for it takes real time."""
        return any(
            process.ended_at is None
            for guest in self._guests.values()
            if not guest.stopped
            for process in guest.processes
        )

    def guest(self, vm: str) -> RealGuest:
        """Return the guest of a VM; its directory is made at the first call."""
        if vm not in self._guests:
            root = self._guests_directory() / vm
            make_root(root)
            self._guests[vm] = RealGuest(root, f"{self._token}/{vm}.")
        return self._guests[vm]

    def next_number(self) -> int:
        """Return a number that was not used before, for marks and names of temporary files."""
        self._numbers += 1
        return self._numbers

    def start(
        self,
        vm: str,
        boot_time: datetime | None,
        owner: str,
        program: tuple[str, Path, str],
        directory: Path,
        environment: Mapping[str, str],
    ) -> RealProcess:
        """Start a program with a shell that reads its arguments, as VMware Tools do on Linux.

        `program` is (path in the guest, path on this machine, arguments). Raises OSError.
        """
        guest = self.guest(vm)
        guest.boot_time = boot_time
        path, executable, arguments = program
        mark = f"{guest.mark}{self.next_number()}."
        child = subprocess.Popen(  # noqa: S603 - a user who may log in to the guest asked for it
            [SHELL, "-c", f'"{executable}" {arguments}'],
            cwd=directory,
            env={**environment, marked_processes.VARIABLE: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process = RealProcess(child.pid, path, f"{path} {arguments}".rstrip(), owner, self._now(), mark, child)
        guest.processes.append(process)
        threading.Thread(target=self._wait_for_end, args=(process,), name=f"guest-{child.pid}", daemon=True).start()
        return process

    def processes(self, vm: str) -> Sequence[RealProcess]:
        """Return the processes that were started in the guest since its boot, including those that have ended."""
        guest = self._guests.get(vm)
        return tuple(guest.processes) if guest is not None else ()

    def environment(self, vm: str) -> dict[str, str]:
        """Return the environment of every program in the guest; it holds nothing of the simulator's own environment."""
        root = self.guest(vm).root
        home, temporary = str(root / "root"), str(root / "tmp")
        return {"PATH": PATH, "HOME": home, "TMPDIR": temporary, "LANG": "C.UTF-8", "SHELL": SHELL}

    def power_changed(self, vm: str, power: Power, boot_time: datetime | None) -> None:
        """End the VM's processes if it is off or has booted again, stop them while it is suspended, then continue."""
        guest = self._guests.get(vm)
        if guest is None:
            return
        if power is Power.OFF or boot_time != guest.boot_time:
            self._end(guest)
        elif power is Power.SUSPENDED and not guest.stopped:
            guest.stopped = True
            marked_processes.stop_all(guest.mark)
        elif power is Power.ON and guest.stopped:
            guest.stopped = False
            marked_processes.continue_all(guest.mark)

    def copy(self, vm: str, new_vm: str) -> None:
        """Copy the files of a VM's guest to the guest of its clone."""
        if vm in self._guests:
            shutil.copytree(self._guests[vm].root, self.guest(new_vm).root, symlinks=True, dirs_exist_ok=True)

    def forget(self, vm: str) -> None:
        """End the processes and remove the files of a VM that was removed."""
        guest = self._guests.pop(vm, None)
        if guest is not None:
            self._end(guest)
            shutil.rmtree(guest.root, ignore_errors=True)

    def close(self) -> None:
        """End all processes and remove all files."""
        if self._helper is not None:
            self._helper.communicate()
            self._helper = None
        self._guests.clear()
        self._home = None

    def _guests_directory(self) -> Path:
        """Return the directory of all guests; make it, and start the helper process that removes it, if needed."""
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="gpuops-guests-"))
            program = [sys.executable, "-I", marked_processes.__file__, f"{self._token}/", str(self._home)]
            self._helper = subprocess.Popen(program, stdin=subprocess.PIPE, start_new_session=True, env={})  # noqa: S603
        return self._home

    def _end(self, guest: RealGuest) -> None:
        guest.stopped = False
        if guest.processes:
            marked_processes.end_all(guest.mark)
            guest.processes = []

    def _wait_for_end(self, process: RealProcess) -> None:
        code = process.child.wait()
        with self._changed:
            # a shell says 128 and the number of a signal; Popen the negative number (VMware Tools: from memory)
            process.exit_code = code if code >= 0 else 128 - code
            process.ended_at = self._now()
            self._changed.notify_all()


FOLDERS = ("tmp", "root", "opt")
"""The directories in a new guest."""


def make_root(root: Path) -> None:
    """Make the directories of a new guest, readable by their owner only."""
    for name in FOLDERS:
        (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)


def locate_in_guest(root: Path, path: str) -> Path:
    """Return where a path of the guest is on this machine.

    If the last part is a link, it is not followed, so that the link itself can be removed. Raises PermissionError for a
    path that leads out of the guest, ValueError for an empty path or one with a NUL character.
    """
    if not path or "\0" in path:
        raise ValueError(f"{path!r} is not a path: it is empty or has a NUL character")
    home = root.resolve()
    guest_path = Path(path)
    inside = guest_path.is_relative_to(root) or guest_path.is_relative_to(home)
    # a guest path may also be given as the path on this machine, as a program started in the guest sees it
    host_path = Path(os.path.normpath(guest_path if inside else home / path.lstrip("/")))
    resolved = host_path.parent.resolve() / host_path.name
    if not resolved.is_relative_to(home):
        raise PermissionError(f"{path} leads out of the guest's directory")
    return resolved


def follow_in_guest(root: Path, path: str) -> Path:
    """The same, where a link is followed. Raises PermissionError for one that leads out."""
    resolved = locate_in_guest(root, path).resolve()
    if not resolved.is_relative_to(root.resolve()):
        raise PermissionError(f"{path} leads out of the guest's directory")
    return resolved


def temporary_name(number: int, prefix: str, suffix: str) -> str:
    """Name of a temporary file. Raises ValueError for a prefix or suffix with a slash."""
    if "/" in prefix or "/" in suffix:
        raise ValueError("the prefix and the suffix of a temporary file must not contain a slash")
    return f"{prefix}{number:06d}{suffix}"


TRANSFER_PATH: Final = "/guestFile"
MAX_TRANSFER_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a file that is transferred; the server reads no larger request."""
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class FileTransfer:
    """A transfer that can be carried out once: into the guest with these permissions, or out of it.

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
        return f"{self.base}{TRANSFER_PATH}?id={len(self._waiting)}&token={token}"

    def take(self, token: str, *, upload: bool) -> FileTransfer | None:
        """Return the transfer of a token, which is then used up; None = no transfer in that direction."""
        transfer = self._waiting.get(token)
        return self._waiting.pop(token) if transfer is not None and transfer.upload is upload else None


def read(transfer: FileTransfer) -> bytes:
    """Return the bytes to download. Raises UsageError if the file is gone or larger than MAX_TRANSFER_BYTES."""
    if transfer.content is not None:
        return transfer.content
    return read_bytes(transfer.place, largest=MAX_TRANSFER_BYTES, error=UsageError)


def write(transfer: FileTransfer, content: bytes) -> None:
    """Write an uploaded file in one step. Raises FileExistsError, or another OSError."""
    if not transfer.overwrite and transfer.place.exists():
        raise FileExistsError(f"{transfer.place.name} already exists")
    temporary_path = transfer.place.with_name(f".{transfer.place.name}.{secrets.token_hex(4)}")
    temporary_path.write_bytes(content)
    temporary_path.chmod(_MODE if transfer.permissions is None else transfer.permissions & 0o7777)
    temporary_path.replace(transfer.place)
