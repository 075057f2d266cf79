"""Writes files that other users cannot read, finds out who could read, write or replace a file, and forbids core files.

The journal, the snapshots, the completion cache and every entry point use it.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuops.errors import UsageError


def write_private(path: Path, text: str, *, like: Path | None = None) -> None:
    """Replace the file in one step, mode 0600, on disk before it returns. Raises UsageError.

    A reader sees the old file or the new one, never a part; a symbolic link at `path` is replaced, not followed.
    A device, a pipe or a directory is refused: root could put a file in the place of /dev/null.
    `like` is a file whose owner and mode the new one gets.
    """
    _replace(path, text, like=like)


def write_readable(path: Path, text: str) -> None:
    """Replace a file that every user may read (mode 0644), for example for a metrics collector. Raises UsageError."""
    _replace(path, text, mode=0o644)


def _replace(path: Path, text: str, *, like: Path | None = None, mode: int | None = None) -> None:
    """Replace a file at once, or create it, with the owner and mode of `like` or with `mode`. Raises UsageError."""
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} cannot be written: it is not a file", hint="choose another file")
        with _temporary_file_beside(path, text, like.stat() if like is not None else None) as new_file:
            if mode is not None:
                new_file.chmod(mode)
            new_file.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="choose a file in a directory of yours"
        ) from error


def write_new(path: Path, text: str | bytes) -> bool:
    """Write a file that does not exist yet, mode 0600, complete and on disk before it has its name. Raises UsageError.

    Return False if the name is in use; that file is left unchanged.
    """
    try:
        with _temporary_file_beside(path, text, None) as new_file:
            path.hardlink_to(new_file)  # unlike a rename, this fails if the name is in use
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="choose a file in a directory of yours"
        ) from error
    return True


@contextmanager
def _temporary_file_beside(path: Path, text: str | bytes, like: os.stat_result | None) -> Iterator[Path]:
    """Yield a temporary file with the text in the same directory; it is deleted at the end unless it was renamed.

    It gets the owner and mode of `like`; None = mode 0600. Raises OSError.
    """
    import tempfile  # not above: every command imports this module at its start

    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if like is not None:
                _copy_owner_and_mode(stream.fileno(), like)
            stream.write(text if isinstance(text, bytes) else text.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        yield Path(name)
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


def _copy_owner_and_mode(descriptor: int, like: os.stat_result) -> None:
    current = os.fstat(descriptor)
    if (current.st_uid, current.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))


_MOST_LINKS: Final = 40
"""The limit of Linux for links on the way to one file."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A permission that is too wide: `why` names the file and what others may do, `fix` is the command against it."""

    why: str
    fix: str


def readable(path: Path) -> Opening | None:
    """Return how other users may read or write this file; None = they may not.

    A group may read a file of root's: services get their files that way.
    """
    file_status = path.stat()
    # a file of this user: nothing for group and others; one of root: the group may read it
    forbidden_bits = 0o077 if file_status.st_uid == os.geteuid() else 0o027
    return _check_owner(path, file_status) or _check_mode(path, file_status, forbidden_bits, "read or write", "600")


def replaceable(path: Path) -> Opening | None:
    """Return how other users may write this file, or put another one in its place; None = they may not."""
    file_status = path.stat()
    if opening := _check_owner(path, file_status) or _check_mode(path, file_status, 0o022, "write", "644"):
        return opening
    # `path` may be a link to a link to the file: check the way to each of them, and to the file itself
    while not (opening := way_open(path)) and path.is_symlink():
        if opening := _check_owner(path, path.lstat()):
            return opening
        path = path.parent / path.readlink()
    return opening


def way_open(path: Path) -> Opening | None:
    """Return how other users could replace `path` through a directory or link on the way to it; None = they cannot.

    In a directory with the sticky bit, such as /tmp, users can replace only their own files. Raises OSError.
    """
    for entry_path, file_status in _on_the_way(path):
        if opening := _check_owner(entry_path, file_status):
            return opening
        # the mode of a link means nothing: its directory decides who may replace it
        if stat.S_ISLNK(file_status.st_mode) or file_status.st_mode & stat.S_ISVTX:
            continue
        if file_status.st_mode & stat.S_IWOTH:
            return Opening(f"everybody can write in {entry_path}", f"chmod o-w {entry_path}")
        if file_status.st_mode & stat.S_IWGRP and not _is_private(file_status.st_gid):
            return Opening(
                f"the group {_group(file_status.st_gid)} can write in {entry_path}", f"chmod g-w {entry_path}"
            )
    return None


def _on_the_way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each directory and each link that leads to `path`, from the root on, without `path` itself."""
    root, *remaining_parts = path.absolute().parts[:-1]
    folder, links = Path(root), 0
    yield folder, os.lstat(folder)
    while remaining_parts:
        part = remaining_parts.pop(0)
        if part == os.pardir:
            folder = folder.parent
            continue
        entry_path = folder / part
        file_status = os.lstat(entry_path)
        yield entry_path, file_status
        if not stat.S_ISLNK(file_status.st_mode):
            folder = entry_path
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = entry_path.readlink()
        if target.is_absolute():
            folder = Path(target.anchor)
        # the link's target comes next, then the parts after the link
        remaining_parts[:0] = target.parts[1:] if target.is_absolute() else target.parts


def _check_owner(path: Path, file_status: os.stat_result) -> Opening | None:
    if file_status.st_uid in (0, os.geteuid()):
        return None
    return Opening(f"{path} belongs to another user (uid {file_status.st_uid})", f"chown {os.geteuid()} {path}")


def _check_mode(path: Path, file_status: os.stat_result, forbidden_bits: int, may: str, fix: str) -> Opening | None:
    if not file_status.st_mode & forbidden_bits:
        return None
    return Opening(f"others can {may} {path} (mode {stat.S_IMODE(file_status.st_mode):o})", f"chmod {fix} {path}")


def _is_private(gid: int) -> bool:
    """Return whether a group has no other member: root's, and the one that many systems make for each user."""
    if gid == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def forbid_core_files() -> None:
    """Forbid core files of this process, and of the programs that it starts, from now on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
