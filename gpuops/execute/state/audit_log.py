"""Append events for later review to `audit.jsonl` in the state directory, one JSON line each.

The file is separate from the journal, which has one chain for each vCenter: an event can be written before a login, for
an address whose certificate was not verified.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import StateDamaged

if TYPE_CHECKING:
    from gpuops.config.vcenter.destination import Destination


FILE_NAME: Final = "audit.jsonl"


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
    """Append one line; it is on disk when this returns. Raises StateDamaged: without the line nothing may be done."""
    from gpuops.execute.state.state_dir import prepare_state_dir, private_file

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
