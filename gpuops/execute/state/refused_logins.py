"""Remembers that a vCenter refused an account, so that the same password is sent to no other vCenter.

A domain of vCenter Single Sign-On locks an account after five refused logins within three minutes (VMware vSphere 8.0
docs, lockout policy), and one command may log in to dozens of vCenters of one domain. An account here is a user name
together with the file that holds its password; the record counts until that file changes.

The record is a file: before a login the uuid of the vCenter, and so its journal, is unknown. It is written in place,
because processes lock this file itself; one that is half written counts as none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from gpuops import clock
from gpuops.execute.state.lock import waited_for
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.model.vcenter.login import WrongPassword

ACCEPTED_FOR: Final = timedelta(minutes=3)
"""How long logins run in parallel after an accepted one: the period in which SSO counts refused logins."""


@contextmanager
def guarded_login(
    state_dir: Path, username: str, password_file: Path, address: str, *, is_return: bool
) -> Iterator[None]:
    """Wrap one login to the vCenter at `address`, and record whether it accepted the password.

    Raises WrongPassword without sending it if another vCenter refused this account and the password file has not
    changed since. With `is_return` the login is tried anyway: the vCenter may belong to another SSO domain, and the
    suspended desktops must come back. Logins of an account that was not accepted within ACCEPTED_FOR run one at a
    time, so that the first refusal stops the others. Raises StateDamaged if the state directory cannot be used.
    """
    try:
        file_status = password_file.stat()
    except OSError:
        yield  # reading the password has reported the error already, or the file was removed since
        return
    version = f"{file_status.st_ino} {file_status.st_mtime_ns}"
    folder = state_dir / "logins"
    prepare_state_dir(folder)
    path = folder / sha256(f"{username.casefold()}\n{password_file.absolute()}".encode()).hexdigest()[:32]
    private_file(path)
    if _was_accepted(path, version):
        yield from _record_outcome(path, version, address)
        return
    with waited_for(path):
        record = _read_record(path)
        if record.get("version") == version and record.get("refused_by") not in (None, address) and not is_return:
            raise WrongPassword(
                f"{address} was not asked: {record['refused_by']} refused {username} with the password in "
                f"{password_file} (accounts lock after a few refused logins)",
                hint=f"correct {password_file}; the login is tried again as soon as the file has changed",
            )
        yield from _record_outcome(path, version, address)


def _record_outcome(path: Path, version: str, address: str) -> Iterator[None]:
    """Yield once for the login, then write whether the vCenter accepted the password; an unclear end writes nothing."""
    now = clock.wall_clock().isoformat()  # before the login: SSO has counted from then on
    try:
        yield
    except WrongPassword:
        path.write_text(json.dumps({"version": version, "refused_by": address}), encoding="utf-8")
        raise
    else:
        path.write_text(json.dumps({"version": version, "accepted_at": now}), encoding="utf-8")


def _was_accepted(path: Path, version: str) -> bool:
    record = _read_record(path)
    if record.get("version") != version or "accepted_at" not in record:
        return False
    try:
        return abs(clock.wall_clock() - datetime.fromisoformat(record["accepted_at"])) < ACCEPTED_FOR
    except (TypeError, ValueError):  # no time that gpuops wrote
        return False


def _read_record(path: Path) -> dict[str, str]:
    """Return the record of the account; {} if there is none, or the file is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
