"""The ready file: how to reach a running simulated vCenter, readable by its owner only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.config.private_file import write_private
from gpuops.errors import TargetError

if TYPE_CHECKING:
    from gpuops.sim.server import SimServer


@dataclass(frozen=True, slots=True)
class Ready:
    """What a client needs; `ca_file` is None over plain HTTP."""

    url: str
    username: str
    password: str = field(repr=False)
    ca_file: str | None
    pid: int


def of(server: SimServer) -> Ready:
    """How to reach this server."""
    return Ready(server.url, server.username, server.password, server.ca_file, server.pid)


def write(path: Path, ready: Ready) -> None:
    """Put the file there in one step, mode 0600: whoever sees it sees all of it. Raises UsageError."""
    write_private(path, json.dumps(asdict(ready), indent=2) + "\n")


def read(path: Path) -> Ready:
    """The content of a ready file. Raises TargetError when it is missing or not one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Ready(**document)
    except FileNotFoundError:
        raise TargetError(
            f"no simulated vCenter has written {path}", hint="gpuops sim serve --ready-file FILE writes it"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise TargetError(f"{path} is not a ready file of a simulated vCenter: {error}") from error
