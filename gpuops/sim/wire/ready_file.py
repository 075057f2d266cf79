"""Writes the ready file, which says how to reach a running simulated vCenter and is readable by its owner only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.errors import TargetError
from gpuops.files.file import NOT_PARSED, is_missing, parse_json, read_text
from gpuops.files.private_file import write_private

if TYPE_CHECKING:
    from gpuops.sim.server import SimServer


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """What a client needs; over plain HTTP `ca_file` stays None."""

    url: str
    username: str
    password: str = field(repr=False)
    ca_file: str | None
    pid: int
    broker: dict[str, str] | None = None
    """Of the simulated Connection Server, if one is served: url, username, domain; its password is the vCenter's."""


def of(server: SimServer) -> ReadyFile:
    """How to reach this server."""
    return ReadyFile(server.url, server.username, server.password, server.ca_file, server.pid, server.broker)


def write(path: Path, ready: ReadyFile) -> None:
    """Put the file there in one step, mode 0600: a reader sees all of it or nothing. Raises UsageError."""
    fields_written = {key: value for key, value in asdict(ready).items() if key != "broker" or value is not None}
    write_private(path, json.dumps(fields_written, indent=2) + "\n")


def read(path: Path) -> ReadyFile:
    """Return the content of a ready file. Raises TargetError if the file is missing or is not a ready file."""
    try:
        text = read_text(path, error=TargetError)
    except TargetError as error:
        if not is_missing(error):
            raise
        raise TargetError(
            f"no simulated vCenter has written {path}", hint="gpuops sim serve --ready-file FILE writes it"
        ) from None
    try:
        return _check_kinds(ReadyFile(**parse_json(text)))
    except NOT_PARSED as error:
        raise TargetError(
            f"{path} is not a ready file of a simulated vCenter: {error}",
            hint="gpuops sim serve --ready-file FILE writes one",
        ) from error


def _check_kinds(ready: ReadyFile) -> ReadyFile:
    """The same. Raises ValueError for values of another kind: to end process -1 would end all of them."""
    texts = (ready.url, ready.username, ready.password, ready.ca_file or "")
    if not all(isinstance(text, str) for text in texts) or not ready.url.startswith(("http://", "https://")):
        raise ValueError("it names no address, user and password")
    if type(ready.pid) is not int or not 1 < ready.pid < 2**31:
        raise ValueError("it names no process")
    return ready
