"""Where the files of a guest lie on this machine: a path of the guest, and that it does not lead out of its directory.

A guest has a directory for its root. `/tmp/a` is `DIRECTORY/tmp/a`, and a path that begins with the directory itself is
taken as it is: a shell in the guest, which sees this machine, then finds what was made through guest operations.
"""

from __future__ import annotations

import os
from pathlib import Path

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
