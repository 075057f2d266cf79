"""The desktop pools, machines, sessions and gates of a connection broker, without any user's name.

gpuops asks only whether a session exists; its user's name stays with the broker. If the gate before a desktop is
closed, its machine is in maintenance: no user gets it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from gpuops.model.stored import stored_as


class PoolKind(StrEnum):
    """How the machines of a desktop pool come to be."""

    AUTOMATED = "automated"
    """Full or linked clones that the broker has made."""
    INSTANT_CLONE = "instant clone"
    MANUAL = "manual"
    """VMs that somebody has made and added."""
    OTHER = "other"
    """RDS hosts, or a kind that gpuops does not know."""


class DesktopPowerPolicy(StrEnum):
    """What the broker does with unused machines."""

    NONE = "none"
    ALWAYS_ON = "always on"
    SUSPEND = "suspend"
    POWER_OFF = "power off"


class AfterLogoff(StrEnum):
    """What becomes of a machine when its user has logged off."""

    NOTHING = "nothing"
    REFRESH = "refresh"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class DesktopPool:
    """A desktop pool of a broker; None = it is not told."""

    id: str
    name: str
    kind: PoolKind
    power_policy: DesktopPowerPolicy | None = None
    after_logoff: AfterLogoff | None = None
    enabled: bool | None = None
    spare_machines: int | None = 0
    """How many unused machines the broker keeps powered on, whatever the power policy; None = unknown."""

    @property
    def refusal(self) -> str | None:
        """Return why a rotation cannot keep users away from its machines; None = it can.

        A pool whose machines are kept on would resume what a night suspends, and instant clones can be nothing else
        (Horizon REST API, power_policy of DesktopPoolSessionSettings: "For Instant clone desktops this setting can only
        be set to ALWAYS_POWERED_ON").
        """
        if self.kind is PoolKind.INSTANT_CLONE:
            return "instant clones are always powered on, and deleted when their user logs off"
        if self.kind is PoolKind.OTHER:
            return "it is not a pool of single-user desktops of a vCenter"
        if self.power_policy is DesktopPowerPolicy.ALWAYS_ON:
            return "its power policy keeps machines on: the broker would resume what a night suspends"
        if self.power_policy is None:
            return "the broker does not report its power policy"
        if self.spare_machines is None:
            return "the broker does not report how many spare machines it keeps powered on"
        if self.after_logoff in (AfterLogoff.REFRESH, AfterLogoff.DELETE):
            # "refreshed" or "deleted"
            return (
                f"it has machines {self.after_logoff}{'d' if self.after_logoff.endswith('e') else 'ed'} after a logoff"
            )
        return None


@dataclass(frozen=True, slots=True)
class DesktopMachine:
    """A machine of a desktop pool; None = it is not told."""

    id: str
    name: str
    pool: str | None
    """Id of its pool."""
    dns_name: str | None = None
    path: str | None = None
    """Inventory path of its VM."""
    state: str | None = None
    """The broker's word: AVAILABLE, CONNECTED, DISCONNECTED, MAINTENANCE ..."""
    in_maintenance: bool | None = None
    session: str | None = None
    """Id of the session on it; None = no session, or unknown."""
    vcenter: str | None = None
    """The broker's id of the vCenter that its VM is in."""
    managed: bool = True
    """Whether the broker reaches it through a vCenter; otherwise only an agent in its guest makes it known."""

    @property
    def lacks_agent(self) -> bool:
        """Return whether the agent in its guest does not answer, or not yet: a session on it may be in no list
        (assumption: broker-no-agent)."""
        state = self.state or ""
        return state in _NO_AGENT or state.startswith("AGENT_ERR")


_NO_AGENT: Final = ("AGENT_UNREACHABLE", "AGENT_CONFIG_ERROR", "WAIT_FOR_AGENT", "WAITING_FOR_AGENT", "UNKNOWN")
"""Next to AGENT_ERR_... and AGENT_ERROR_...: Horizon Server API 2312, HeldVMInfo; View API 2306, MachineData and
ProblemMachineCount; WAITING_FOR_AGENT is from memory."""


@dataclass(frozen=True, slots=True)
class BrokerVcenter:
    """A vCenter that a broker works with."""

    id: str
    """The broker's own id of it."""
    name: str
    instance_uuid: str | None
    """None = the broker does not tell it."""


class SessionState(StrEnum):
    """Whether a user is at a session now."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    PENDING = "pending"
    """Somebody is logging in."""


@dataclass(frozen=True, slots=True)
class DesktopSession:
    """A session on a machine; None = it is not told. There is no field for its user."""

    id: str
    machine: str | None
    """Id of its machine; None = it is on an RDS host, or the machine is gone."""
    state: SessionState | None = None
    started_at: datetime | None = None
    disconnected_at: datetime | None = None
    idle_s: float | None = None
    on_rds_host: bool = False


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """What a broker is, and who is logged in."""

    address: str
    user: str
    product: str
    """Name and version."""
    cluster: str = ""


class DesktopBroker(Protocol):
    """The connection broker, which assigns desktops to users.

    Reads raise NotConnected in its kinds and NoPermission. Both changes also raise OutcomeUnknown where the reply was
    lost; they return why the broker did not do it, by the id of the machine, for those where it did not.
    """

    def pools(self) -> tuple[DesktopPool, ...]:
        """Return every desktop pool that the login may see."""
        ...

    def machines(self) -> tuple[DesktopMachine, ...]:
        """Return every machine of these pools."""
        ...

    def machine(self, identity: str) -> DesktopMachine | None:
        """Return the machine of that id, as it is now; None if it does not exist."""
        ...

    def vcenters(self) -> tuple[BrokerVcenter, ...]:
        """Return every vCenter that the broker works with; empty if the login may not see them."""
        ...

    def sessions(self) -> tuple[DesktopSession, ...]:
        """Return every session on these machines."""
        ...

    def enter_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        """Put these machines into maintenance mode: the broker gives none of them to a user from then on."""
        ...

    def exit_maintenance(self, machines: Collection[str]) -> Mapping[str, str]:
        """Take these machines out of maintenance mode."""
        ...


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


@stored_as("Gate")
@dataclass(frozen=True, slots=True)
class Gate:
    """The gate of one VM at one moment, as the broker reports it."""

    closed: bool | None
    """Whether the broker assigns the desktop to no user; None = unknown."""
    machine: str = ""
    """The broker's id of the machine; empty = it is not known."""
    refusal: str = ""
    """Why a night cannot close it, or cannot know; empty = it can."""
    spare_machines: int = 0
    """How many unused machines of its pool the broker keeps powered on."""


NO_MACHINE: Final = Gate(closed=False, refusal="it is no machine of the connection broker")
"""There is nothing that users could be kept from, or let in to."""


def unknown_gate(why: str) -> Gate:
    """Return the gate of a VM about which the broker could not be asked."""
    return Gate(closed=None, refusal=why)
