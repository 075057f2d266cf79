"""A program that carries CUDA calls over the network: its hooks and ports, read from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class RemoteProgram:
    """One program. Its hooks are POSIX sh, run in guests; `plan/pool/guest_scripts.py` has their variables."""

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


class ServerCondition(StrEnum):
    """The answer of the health hook."""

    SERVES = "serves"
    DEAD = "dead"
    """The VM is off, or the hook failed."""
    UNKNOWN = "unknown"
    """The hook could not be run."""


@dataclass(frozen=True, slots=True)
class ServedShare:
    """A share that a server serves, as its health hook prints it."""

    lease: str
    gpu: int
    used_mib: int


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """The health of one server."""

    server: str
    condition: ServerCondition
    why: str = ""
    """Why it does not serve."""
    shares: tuple[ServedShare, ...] = ()
