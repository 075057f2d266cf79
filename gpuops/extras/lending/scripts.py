"""Commands that run the hooks of a pool's program in guests (`pool.sh`), and the parsing of what they print.

Lease ids, addresses and paths come from guests or files of others: each is checked before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from gpuops.errors import Refused, StepFailed
from gpuops.extras.lending.lease_book import LentShare
from gpuops.extras.lending.remote_gpu import RemoteProgram
from gpuops.guest_scripts.commands import shell_command
from gpuops.plan.core.guest_address import unicast_address

PREFIX: Final = "gpuops-pool-"
"""Prefix of temporary directories in guests, and of ids of operations."""
HOOK_FAILED: Final = 1
"""Exit code of a script whose hook failed; `health` has another one if its hook could not be run."""
MOST_SHARES: Final = 1000
"""A guest may print any number of lines: so many are read."""
_LEASE: Final = re.compile(r"[0-9a-z][0-9a-z-]{0,62}")
_PORT: Final = re.compile(r"^port ([0-9]{1,5})$", re.MULTILINE)
_SHARE: Final = re.compile(r"^lease ([0-9a-z][0-9a-z-]{0,62}) ([0-9]{1,3}) ([0-9]{1,9})$", re.MULTILINE)


def grant_in_server(
    program: RemoteProgram, lease: str, share: LentShare, server: str, client: str, seconds_left: int
) -> str:
    """Return the command that lets the client at that address use the share; it prints `port N`."""
    variables: dict[str, str | int] = {
        "LEASE": _valid_lease(lease),
        "GPU": share.gpu,
        "MEMORY_MIB": share.memory_mib,
        "SECONDS_LEFT": seconds_left,
        "SERVER_ADDRESS": address(server),
        "CLIENT_ADDRESS": address(client),
    }
    ports = program.ports.first, program.ports.last
    return shell_command("pool", "grant_server", program.grant.server, *ports, variables=variables)


def grant_in_client(program: RemoteProgram, lease: str, shares: Sequence[tuple[str, int]]) -> str:
    """Return the command that sets the client up for these shares, each an address and a port."""
    endpoints = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in shares]
    variables = {"LEASE": _valid_lease(lease), "SHARES": ",".join(endpoints)}
    return shell_command("pool", "grant_client", program.grant.client, variables=variables)


def revoke_in_server(program: RemoteProgram, lease: str, gpu: int, server: str) -> str:
    """Return the command that cuts the lease off from that GPU; a share that is not there is no error."""
    variables: dict[str, str | int] = {"LEASE": _valid_lease(lease), "GPU": gpu, "SERVER_ADDRESS": address(server)}
    return shell_command("pool", "revoke_server", program.revoke.server, variables=variables)


def revoke_all_in_server(program: RemoteProgram, server: str) -> str:
    """Return the command that cuts off every lease from the GPUs of this server, including those missing in the book.

    A server that was dead may still have shares of leases that ended meanwhile: its guest could not be reached then.
    """
    return shell_command("pool", "revoke_all", program.revoke.server, variables={"SERVER_ADDRESS": address(server)})


def revoke_in_client(program: RemoteProgram, lease: str) -> str:
    """Return the command that takes away what `grant` made there; a lease that is not there is no error."""
    return shell_command("pool", "revoke_client", program.revoke.client, variables={"LEASE": _valid_lease(lease)})


def health(program: RemoteProgram, server: str) -> str:
    """Return the command that asks a server for its health."""
    return shell_command("pool", "health", program.health, variables={"SERVER_ADDRESS": address(server)})


def granted_port(printed: str, server: str) -> int:
    """Return the port that `grant_in_server` printed. Raises StepFailed."""
    port = _PORT.search(printed)
    if port is None:
        raise StepFailed(f"{server}: its guest printed no port", hint="look at the guest")
    return int(port[1])


def served_shares(printed: str) -> dict[tuple[str, int], int]:
    """Return the memory that is used of each share, by lease and GPU, as the health hook printed it."""
    lines = _SHARE.findall(printed)[:MOST_SHARES]
    return {(lease, int(gpu)): int(used_mib) for lease, gpu, used_mib in lines}


def address(text: str) -> str:
    """Return an address by which others reach a guest. Raises Refused: a guest may report any text."""
    reachable = unicast_address(text)
    if reachable is None:
        raise Refused(f"a guest reports {text[:80]!r}, which is no IP address by which others reach it")
    return str(reachable)


def first_address(texts: Sequence[str]) -> str | None:
    """Return the first of these by which others reach a guest, IPv4 before IPv6; None = there is none."""
    reachable = [str(parsed) for text in texts if (parsed := unicast_address(text)) is not None]
    return min(reachable, key=lambda text: ip_address(text).version, default=None)


def _valid_lease(text: str) -> str:
    if not _LEASE.fullmatch(text):
        raise Refused(f"{text[:80]!r} is no id of a lease")
    return text
