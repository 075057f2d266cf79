"""A program that moves CUDA calls over the network, as a file of `templates/remote-gpu` tells of it.

Its scripts are POSIX sh, run in guests by the login for guests; `plan/pool/guest_scripts.py` says what each is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class MemoryLimit(StrEnum):
    """Who keeps a client within its share of a GPU's memory."""

    PROGRAM = "program"
    """The program refuses what would be more."""
    PROMISE = "promise"
    """Nobody: what it uses is measured in the server, and more than its share is told."""


class LeaseKey(StrEnum):
    """What a client shows to a server."""

    NONE = "none"
    """Nothing: its address admits it."""
    CLIENT = "client"
    """A random key of the lease, made in the client, which it never leaves but to the program; the server's guest is
    given its SHA-256."""


class CutOff(StrEnum):
    """Where a lease that is over is ended."""

    SERVER = "server"
    """A client that does not want to lose it loses it."""
    CLIENT = "client"
    """In the client's guest: whoever is root there could undo it."""


@dataclass(frozen=True, slots=True)
class ServerScripts:
    """What is run in the guest of a server; each may be run again at any time, and then changes nothing."""

    start: str
    """The server serves from then on; nobody is admitted."""
    stop: str
    """It serves nobody, and nothing of it runs."""
    check: str
    """Ends with 0 while the server can serve."""
    admit: str
    """One lease may use its share of one GPU, for `SECONDS_LEFT` seconds. A last line `told WORD` is given to the
    client's environment."""
    dismiss: str
    """It may no more, and is cut off."""
    used: str = ""
    """Prints `LEASE GPU MIB` for each lease that is measured."""


@dataclass(frozen=True, slots=True)
class ClientScripts:
    """What is made, and run, in the guest of a client."""

    environment: str
    """Jinja2 text of the lease's file `env`, read by a shell before the client's programs start. It is given `shares`
    with `address`, `port`, `gpu`, `memory_mib` and `told` each, `lease` and `key_file`."""
    enter: str = ""
    """Run when `env` is there."""
    leave: str = ""
    """Run before `env` is removed."""


@dataclass(frozen=True, slots=True)
class Release:
    """What is known of a program's last release."""

    version: str
    """Empty = no page tells."""
    date: str
    """ISO date; empty = no page tells."""
    seen: str
    """ISO date on which the page was read."""
    page: str


@dataclass(frozen=True, slots=True)
class RemoteProgram:
    """One program."""

    name: str
    server: ServerScripts
    client: ClientScripts
    memory: MemoryLimit
    key: LeaseKey
    cut_off: CutOff
    first_port: int
    """Of the ports of a server; each share that is lent has one of them."""
    ports: int
    most_shares: int | None = None
    """Of one lease; None = any number."""
    release: Release | None = None
    pages: Mapping[str, str] = field(default_factory=dict)
    """Where the documentation has each command, option or variable of the scripts."""

    def too_many(self, shares: int) -> str:
        """Why one client cannot have so many shares; empty = it can."""
        if self.most_shares is None or shares <= self.most_shares:
            return ""
        return f"{self.name} lends {self.most_shares} GPU to a client, not {shares}"


class ServerCondition(StrEnum):
    """What is known of a server."""

    SERVES = "serves"
    DEAD = "dead"
    """Its VM is off, or the program says that it cannot serve."""
    UNKNOWN = "unknown"
    """Its guest could not be asked: nothing is concluded."""


@dataclass(frozen=True, slots=True)
class MeasuredShare:
    """What one lease uses of one GPU of the server that was asked."""

    lease: str
    gpu: int
    used_mib: int


@dataclass(frozen=True, slots=True)
class ServedShare:
    """A share that gpuops finds in the guest of a server, whoever put it there."""

    lease: str
    gpu: int
    lost: bool
    """The guest was started anew since: nothing serves it."""


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """A server when it was asked."""

    server: str
    condition: ServerCondition
    why: str = ""
    """Where it does not serve."""
    measured: tuple[MeasuredShare, ...] = ()
    shares: tuple[ServedShare, ...] = ()
    """Those in its guest, of one that serves."""
