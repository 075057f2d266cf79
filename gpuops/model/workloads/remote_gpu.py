"""A program that carries CUDA calls over the network: its hooks and ports, read from a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RemoteProgram:
    """One program. Its hooks are POSIX sh, run in guests; `guest_scripts/pool.sh` lists their variables."""

    name: str
    grant_server: str
    """Lets one client use one share."""
    grant_client: str
    """Writes `env`, which users of the client read before they start a program."""
    revoke_server: str
    """Cuts the client off from one share."""
    revoke_client: str
    health: str
    """Exits with 0 while the server can serve, and prints `lease LEASE GPU MIB` for each share that it serves."""
    first_port: int
    """The first of the `ports` consecutive ports of a server; each share that it lends has its own port."""
    ports: int


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """The answer of a server's health hook."""

    server: str
    used_mib: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The memory that is used of each share that it serves, by lease and GPU."""
    why: str = ""
    """Why it does not serve, or why that is unknown; empty = it serves."""
    is_dead: bool = False
    """The hook failed; False and `why` = it could not be run."""
