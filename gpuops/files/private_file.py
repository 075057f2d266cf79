"""Files that nobody else may read: how gpuops writes them, who could read, write or replace one, and that a crash of
gpuops leaves no core file. The journal, the snapshots, the completion cache and every entry point use it.
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
    """Replaces the file in one step, mode 0600, on disk before it returns. Raises UsageError.

    A reader sees the old file or the new one, never a part; a symbolic link at `path` is replaced, not followed.
    A device, a pipe or a directory is refused: root could put a file in the place of /dev/null.
    `like` is a file whose owner and mode the new one gets.
    """
    _replace(path, text, like=like)


def write_readable(path: Path, text: str) -> None:
    """The same, for everybody to read (mode 0644), for a program that collects what is no secret. Raises UsageError."""
    _replace(path, text, mode=0o644)


def _replace(path: Path, text: str, *, like: Path | None = None, mode: int | None = None) -> None:
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} cannot be written: it is not a file", hint="name a file of yours")
        with _written_beside(path, text, like.stat() if like is not None else None) as written:
            if mode is not None:
                written.chmod(mode)
            written.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name a file of yours") from error


def write_new(path: Path, text: str | bytes) -> bool:
    """Writes a file that is not there yet, mode 0600, whole and on disk before it has its name. Raises UsageError.

    False = there is something of that name, which is left as it is.
    """
    try:
        with _written_beside(path, text, None) as written:
            path.hardlink_to(written)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name a file of yours") from error
    return True


@contextmanager
def _written_beside(path: Path, text: str | bytes, like: os.stat_result | None) -> Iterator[Path]:
    """A file with the text in the same directory, gone at the end unless it was renamed. Raises OSError."""
    import tempfile  # not above: every command imports this module at its start

    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if like is not None:
                _become(stream.fileno(), like)
            stream.write(text if isinstance(text, bytes) else text.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        yield Path(name)
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


def _become(descriptor: int, like: os.stat_result) -> None:
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))


_MOST_LINKS: Final = 40
"""As many as Linux follows on the way to one file."""


@dataclass(frozen=True, slots=True)
class Opening:
    """`why` says what others may do, and to which file or directory; `fix` is what to type against it."""

    why: str
    fix: str


def readable(path: Path) -> Opening | None:
    """How others may read or write this file; None = they may not.

    A group may read a file of root's: that is how a service is given one.
    """
    found = path.stat()
    others = 0o077 if found.st_uid == os.geteuid() else 0o027
    return _anothers(path, found) or _by_mode(path, found, others, "read or write", "600")


def replaceable(path: Path) -> Opening | None:
    """How others may write this file, or put another one in its place; None = they may not."""
    found = path.stat()
    if opening := _anothers(path, found) or _by_mode(path, found, 0o022, "write", "644"):
        return opening
    while not (opening := way_open(path)) and path.is_symlink():  # where a link leads, others may write too
        if opening := _anothers(path, path.lstat()):
            return opening
        path = path.parent / path.readlink()
    return opening


def way_open(path: Path) -> Opening | None:
    """How others may put something else in the place of `path`, by a directory or a link on the way to it.

    In a directory with the sticky bit, as /tmp has it, nobody replaces what is not his. Raises OSError.
    """
    for each, found in _on_the_way(path):
        if opening := _anothers(each, found):
            return opening
        if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
            continue
        if found.st_mode & stat.S_IWOTH:
            return Opening(f"everybody can write in {each}", f"chmod o-w {each}")
        if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
            return Opening(f"the group {_group(found.st_gid)} can write in {each}", f"chmod g-w {each}")
    return None


def _on_the_way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Each directory and each link that leads to `path`, from the root on; `path` itself is none of them."""
    first, *left = path.absolute().parts[:-1]
    here, links = Path(first), 0
    yield here, os.lstat(here)
    while left:
        part = left.pop(0)
        if part == os.pardir:
            here = here.parent
            continue
        each = here / part
        found = os.lstat(each)
        yield each, found
        if not stat.S_ISLNK(found.st_mode):
            here = each
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = each.readlink()
        if target.is_absolute():
            here = Path(target.anchor)
        left[:0] = target.parts[1:] if target.is_absolute() else target.parts


def _anothers(path: Path, found: os.stat_result) -> Opening | None:
    if found.st_uid in (0, os.geteuid()):
        return None
    return Opening(f"{path} belongs to another user (uid {found.st_uid})", f"chown {os.geteuid()} {path}")


def _by_mode(path: Path, found: os.stat_result, others: int, may: str, fix: str) -> Opening | None:
    if not found.st_mode & others:
        return None
    return Opening(f"others can {may} {path} (mode {stat.S_IMODE(found.st_mode):o})", f"chmod {fix} {path}")


def _is_private(gid: int) -> bool:
    """Whether a group has no other member: root's, and the one that many systems make for each user."""
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
    """From here on no crash of this process leaves one, nor of the programs that it starts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
