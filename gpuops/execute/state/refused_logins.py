"""Remembers that a vCenter refused an account, so that the same password is sent to no other vCenter.

A domain of vCenter Single Sign-On locks an account after five refused logins within three minutes (VMware vSphere 8.0
docs, lockout policy), and one command may log in to dozens of vCenters of one domain. An account here is a user name
together with the file that holds its password; the record counts until that file changes.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from gpuops import clock
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.model.vcenter.login import WrongPassword

ACCEPTED_FOR: Final = timedelta(minutes=3)
"""So long after a login logins of the account are not made one after another; as long as refused ones are counted."""


@contextmanager
def guarded_login(
    state_dir: Path, username: str, password_file: Path, address: str, *, returns: bool
) -> Iterator[None]:
    """Wrap one login to the vCenter at this address. Raises WrongPassword if another vCenter refused the account.

    Logins of an account that was not accepted lately are made one after another: the first refusal stops the rest.
    `returns`: a return logs in all the same, for the other vCenter may belong to another domain, and its desktops must
    come back. Raises StateDamaged for a state directory that cannot be used.
    """
    try:
        found = password_file.stat()
    except OSError:
        yield  # reading it has said what is wrong, or it was removed since
        return
    version = f"{found.st_ino} {found.st_mtime_ns}"
    folder = state_dir / "logins"
    prepare_state_dir(folder)
    path = folder / sha256(f"{username}\n{password_file.absolute()}".encode()).hexdigest()[:32]
    private_file(path)
    if _was_accepted(path, version):
        yield from _attempt(path, version, address)
        return
    with path.open("r+", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = _read(path)
        if record.get("version") == version and record.get("refused_by") not in (None, address) and not returns:
            raise WrongPassword(
                f"{address} was not asked: {record['refused_by']} refused {username} with the password in "
                f"{password_file} (accounts lock after a few refused logins)",
                hint=f"correct {password_file}; the login is tried again as soon as the file has changed",
            )
        yield from _attempt(path, version, address)


def _attempt(path: Path, version: str, address: str) -> Iterator[None]:
    now = clock.wall_clock().isoformat()
    try:
        yield
    except WrongPassword:
        path.write_text(json.dumps({"version": version, "refused_by": address}), encoding="utf-8")
        raise
    else:
        path.write_text(json.dumps({"version": version, "accepted_at": now}), encoding="utf-8")


def _was_accepted(path: Path, version: str) -> bool:
    record = _read(path)
    if record.get("version") != version or "accepted_at" not in record:
        return False
    return abs(clock.wall_clock() - datetime.fromisoformat(record["accepted_at"])) < ACCEPTED_FOR


def _read(path: Path) -> dict[str, str]:
    """What is recorded; empty if nothing is, or if the file was cut off while it was written."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
