"""What `gpuops broker show` tells: each pool with its machines and sessions, and whether a rotation can gate it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuops.model.desktops.broker import BrokerIdentity, DesktopMachine, DesktopPool, DesktopSession, SessionState


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool of a broker, and how many of what it has."""

    pool: DesktopPool
    machines: int = 0
    vms: int = 0
    """Those whose VM is in this vCenter."""
    in_maintenance: int = 0
    sessions: int = 0
    connected: int = 0
    """Those that are not known to be disconnected."""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker at one moment."""

    identity: BrokerIdentity
    pools: tuple[PoolState, ...]
    not_found: tuple[tuple[str, str], ...]
    """(name, reason) of the machines that are not certainly a VM of this vCenter."""
    reasons: tuple[str, ...]
    """The same, a line for each reason."""
    in_other_vcenters: int
    """Machines that are certainly in another vCenter."""
    other_sessions: int
    """Sessions on no machine of these pools."""


def pool_states(
    pools: Iterable[DesktopPool],
    machines: Sequence[DesktopMachine],
    sessions: Sequence[DesktopSession],
    matched: Iterable[str],
) -> tuple[PoolState, ...]:
    """Return each pool with its numbers, by name; `matched` are the ids of the machines whose VM was found."""
    matched_ids = set(matched)
    return tuple(
        _state(pool, [machine for machine in machines if machine.pool == pool.id], sessions, matched_ids)
        for pool in sorted(pools, key=lambda pool: (pool.name, pool.id))
    )


def _state(
    pool: DesktopPool, machines: Sequence[DesktopMachine], sessions: Sequence[DesktopSession], matched_ids: set[str]
) -> PoolState:
    machine_ids = {machine.id for machine in machines}
    pool_sessions = [session for session in sessions if session.machine in machine_ids]
    # after the pool: machines, VMs, machines in maintenance, sessions, connected sessions
    return PoolState(
        pool,
        len(machines),
        len(machine_ids & matched_ids),
        sum(machine.in_maintenance is True for machine in machines),
        len(pool_sessions),
        sum(session.state is not SessionState.DISCONNECTED for session in pool_sessions),
    )
