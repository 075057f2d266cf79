"""Where this machine keeps its journal and locks: a directory of our own that nobody else can write."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from gpuops.config.user_paths import home_dir
from gpuops.errors import StateDamaged
from gpuops.files.private_file import way_open


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """$GPUOPS_STATE_DIR, else $XDG_STATE_HOME/gpuops, else ~/.local/state/gpuops."""
    if own := environ.get("GPUOPS_STATE_DIR"):
        return Path(own)
    # The XDG specification: a relative path in the variable is invalid and must be ignored.
    base = Path(environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else home_dir(environ) / ".local" / "state") / "gpuops"


def prepare_state_dir(path: Path) -> None:
    """Makes the directory (0700) if there is none. Raises StateDamaged when others could write in it, or replace it.

    A journal that others can write could make us resume or stop their VMs, so such a directory is refused,
    not repaired: whoever opened it may already have written.
    """
    try:
        _make(path)
        found = path.lstat()
        way = way_open(path)
    except OSError as error:
        raise StateDamaged(
            f"the state directory {path} cannot be used: {error.strerror}", hint=_made_by_root(path)
        ) from error
    if stat.S_ISLNK(found.st_mode):
        raise _linked("directory", path, hint="set GPUOPS_STATE_DIR to the directory itself")
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise StateDamaged(f"the state directory {path} is not a directory of this user", hint=_made_by_root(path))
    if found.st_mode & 0o022:
        raise StateDamaged(f"others can write in the state directory {path}", hint=f"chmod 700 {path}")
    if way is not None:
        raise StateDamaged(
            f"{way.why}, and so another directory can be put in the place of {path}",
            hint=f"{way.fix}, or set GPUOPS_STATE_DIR to a directory elsewhere",
        )


def _made_by_root(path: Path) -> str:
    """What makes the directory for this user. cron, in contrast to a unit of systemd, makes none."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    made = shlex.join(["install", "-d", "-o", user, "-m", "700", str(path)])
    return f"as root: {made}; or set GPUOPS_STATE_DIR to a directory of yours"


def _make(path: Path) -> None:
    """As mkdir with `parents`, which would leave those to the umask."""
    missing = [each for each in (path, *path.parents) if not os.path.lexists(each)]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def private_file(path: Path, *, make: bool = True) -> None:
    """Makes the file (0600) if there is none. Raises StateDamaged for a link, somebody else's file or a wide mode.

    `make` False: a file that is not there is left so; SQLite makes and removes those beside a database at any moment.
    """
    making = os.O_CREAT if make else 0
    try:
        descriptor = os.open(path, os.O_RDWR | making | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if not make and isinstance(error, FileNotFoundError):
            return
        if path.is_symlink():
            raise _linked("file", path, hint=f"put the file itself into {path.parent}, or set GPUOPS_STATE_DIR to the "
                          "directory it lies in") from error  # fmt: skip
        raise StateDamaged(
            f"the state file {path} cannot be used: {error.strerror}",
            hint="move what is there aside, or set GPUOPS_STATE_DIR to another directory of yours",
        ) from error
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not make and not found.st_nlink:
        return  # removed since it was opened
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        raise StateDamaged(f"the state file {path} is not a plain file of this user")
    if found.st_mode & 0o077:
        raise StateDamaged(f"others can read or write the state file {path}", hint=f"chmod 600 {path}")


def _linked(what: str, path: Path, *, hint: str) -> StateDamaged:
    """A link is not followed: whoever may place one would choose which file is written, and which journal is obeyed."""
    return StateDamaged(f"the state {what} {path} is a symbolic link, and links are not followed here", hint=hint)
