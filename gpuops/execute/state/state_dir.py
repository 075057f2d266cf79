"""Create and check the state directory: this machine's journal, locks and audit log, writable only by gpuops's user.

The audit log, `audit.jsonl`, has one JSON line for each event. It is separate from the journal, which has one chain for
each vCenter: an event can be written before a login, for an address whose certificate was not verified.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuops.config.user_paths import home_dir
from gpuops.errors import StateDamaged
from gpuops.files.private_file import way_open

if TYPE_CHECKING:
    from gpuops.config.vcenter.destination import Destination


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return $GPUOPS_STATE_DIR, else $XDG_STATE_HOME/gpuops, else ~/.local/state/gpuops."""
    if configured_dir := environ.get("GPUOPS_STATE_DIR"):
        return Path(configured_dir)
    # The XDG specification: a relative path in the variable is invalid and must be ignored.
    base = Path(environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else home_dir(environ) / ".local" / "state") / "gpuops"


def prepare_state_dir(path: Path) -> None:
    """Create the directory (0700) if it does not exist. Raises StateDamaged if others can write in it or replace it.

    A journal that others can write could make gpuops resume or stop VMs of their choice. Such a directory is refused
    and not repaired: another user may already have written to it.
    """
    try:
        _make(path)
        dir_stat = path.lstat()
        exposure = way_open(path)
    except OSError as error:
        raise StateDamaged(
            f"the state directory {path} cannot be used: {error.strerror}", hint=_creation_hint(path)
        ) from error
    if stat.S_ISLNK(dir_stat.st_mode):
        raise _refuse_link("directory", path, hint="set GPUOPS_STATE_DIR to the directory itself")
    if not stat.S_ISDIR(dir_stat.st_mode) or dir_stat.st_uid != os.geteuid():
        raise StateDamaged(f"the state directory {path} is not a directory of this user", hint=_creation_hint(path))
    if dir_stat.st_mode & 0o022:
        raise StateDamaged(f"others can write in the state directory {path}", hint=f"chmod 700 {path}")
    if exposure is not None:
        raise StateDamaged(
            f"{exposure.why}, so another user can replace {path}",
            hint=f"{exposure.fix}, or set GPUOPS_STATE_DIR to a directory elsewhere",
        )


def _creation_hint(path: Path) -> str:
    """Return the hint that creates the directory for this user. cron, unlike a systemd unit, does not create it."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    command = shlex.join(["install", "-d", "-o", user, "-m", "700", str(path)])
    return f"as root: {command}; or set GPUOPS_STATE_DIR to a directory of yours"


def _make(path: Path) -> None:
    """Create the directory and its parents with mode 0700. `mkdir(parents=True)` would use the umask for parents."""
    missing = [directory for directory in (path, *path.parents) if not os.path.lexists(directory)]
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)


def private_file(path: Path, *, make: bool = True) -> None:
    """Create the file (0600) if it does not exist. Raises StateDamaged for a link, another user's file or a wide mode.

    `make` False: do not create it. SQLite creates and removes the files next to a database at any moment.
    """
    create_flag = os.O_CREAT if make else 0
    try:
        # O_NONBLOCK: a pipe in place of the file must not make this wait
        descriptor = os.open(path, os.O_RDWR | create_flag | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if not make and isinstance(error, FileNotFoundError):
            return
        if path.is_symlink():
            hint = f"put the file itself into {path.parent}, or set GPUOPS_STATE_DIR to the directory it lies in"
            raise _refuse_link("file", path, hint=hint) from error
        raise StateDamaged(
            f"the state file {path} cannot be used: {error.strerror}",
            hint="move that file away, or set GPUOPS_STATE_DIR to another directory of yours",
        ) from error
    try:
        file_stat = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not make and not file_stat.st_nlink:
        return  # removed since it was opened
    # a second link could be in a directory that other users can write
    if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_uid != os.geteuid() or file_stat.st_nlink != 1:
        raise StateDamaged(
            f"the state file {path} is not a plain file of this user",
            hint="put a plain file of this user there, or set GPUOPS_STATE_DIR to another directory",
        )
    if file_stat.st_mode & 0o077:
        raise StateDamaged(f"others can read or write the state file {path}", hint=f"chmod 600 {path}")


def refuse_writable(file_stat: os.stat_result) -> None:
    """Raise StateDamaged for a file that other users may have written."""
    if file_stat.st_uid != os.geteuid() or file_stat.st_mode & 0o022:
        raise StateDamaged("other users can write this state file", hint="remove the file; gpuops writes it again")


def _refuse_link(file_type: str, path: Path, *, hint: str) -> StateDamaged:
    """Return the error for a link. A user who can place a link could choose the file and the journal that are used."""
    return StateDamaged(f"the state {file_type} {path} is a symbolic link, and links are not followed here", hint=hint)


FILE_NAME: Final = "audit.jsonl"
"""The audit log in the state directory."""


def log_unverified_certificate(where: Destination, state_dir: Path, at: str, command: list[str]) -> None:
    """Log that a connection is made without a verified certificate. Raises StateDamaged."""
    append(
        state_dir,
        at,
        "certificate-not-verified",
        vcenter=str(where.address),
        said_by=where.origins["verify"],
        username=where.username,
        uid=os.getuid(),
        command=command,
    )


def append(state_dir: Path, at: str, event: str, **facts: Any) -> None:
    """Append one line to the audit log; it is on disk when this returns.

    Raises StateDamaged if that fails: the caller must not do what it could not log.
    """
    prepare_state_dir(state_dir)
    path = state_dir / FILE_NAME
    private_file(path)
    line = json.dumps({"at": at, "event": event, **facts}) + "\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(descriptor, line.encode("ascii"))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StateDamaged(
            f"the audit log {path} cannot be written: {error.strerror}",
            hint="make it writable for this user, and free space on its disk",
        ) from error
