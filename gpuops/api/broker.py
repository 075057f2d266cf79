"""The connection broker of a vCenter: its identity, and its pools with their machines and sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuops.advise.desktop_sessions import match_machines
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from gpuops.broker.horizon import Horizon
    from gpuops.execute.site import Site
    from gpuops.model.desktops.broker import BrokerIdentity, BrokerState


def broker_show(site: Site) -> BrokerState:
    """Return the broker's pools with their machines and sessions, and how its machines match the VMs of vCenter.

    Reads the complete inventory of both. Raises UsageError if no broker is configured, NotConnected.
    """
    from gpuops.model.desktops.broker import BrokerState, pool_states

    with open_broker(site) as broker:
        identity, pools, machines = broker.identity(), broker.pools(), broker.machines()
        sessions, vcenters = broker.sessions(), broker.vcenters()
    inventory = site.vcenter.inventory()
    match = match_machines(inventory.vms.values(), inventory.vcenter, machines, vcenters)
    states = pool_states(pools, machines, sessions, {machine.id for machine in match.machine_of.values()})
    not_found = tuple(sorted((match.machines[identity].name, why) for identity, why in match.not_found.items()))
    # sessions on a machine of no pool appear in no row: they are only counted
    pool_ids = {pool.id for pool in pools}
    pool_machines = {machine.id for machine in machines if machine.pool in pool_ids}
    other_sessions = sum(session.machine not in pool_machines for session in sessions)
    return BrokerState(identity, states, not_found, match.reasons, len(match.elsewhere), other_sessions)


def broker_identity(site: Site) -> BrokerIdentity | None:
    """Return the broker's identity and its logged-in user; None if no broker is configured. Raises NotConnected."""
    if site.broker is None:
        return None
    with open_broker(site) as broker:
        return broker.identity()


@contextmanager
def open_broker(site: Site) -> Iterator[Horizon]:
    """Yield the broker, logged in for the block. Raises UsageError if none is configured, NotConnected."""
    with _client(site) as broker:
        yield broker


def kept_open(site: Site) -> Horizon:
    """Return the broker, logged in until the site is closed. Raises as `open_broker`."""
    return site.closing.enter_context(_client(site))


def _client(site: Site) -> Horizon:
    from gpuops.broker.horizon import Horizon

    if site.broker is None:
        raise UsageError(
            "no connection broker is configured for this vCenter",
            hint="put [targets.NAME.broker] into the configuration file (gpuops help broker)",
        )
    return Horizon(site.broker())
