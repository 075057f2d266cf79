"""Asks a vCenter, its hosts and its broker for all that the table of assumptions is judged by. Changes nothing.

Of the connection broker it reads the identity, and the pools with their machines and sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from gpuops.advise.desktop_sessions import match_machines
from gpuops.errors import GpuopsError, NoPermission, UsageError
from gpuops.execute.site import catalog_of

if TYPE_CHECKING:
    from gpuops.broker.horizon import Horizon
    from gpuops.execute.site import Site
    from gpuops.model.desktops.broker import BrokerIdentity, BrokerState, DesktopMachine
    from gpuops.model.vcenter.inventory import Contact, Inventory
    from gpuops.report.first_contact_view import JudgedContact


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


PAST: Final = timedelta(days=7)
"""How far back tasks and events are read."""

Part = TypeVar("Part")


def judged_contact(site: Site) -> JudgedContact:
    """Read a vCenter once, and judge the table of assumptions by what was read. Raises NotConnected."""
    from gpuops.catalog.catalog_files import assumptions, contact_session, contact_setup
    from gpuops.plan.doctor.assumptions import judge_assumptions
    from gpuops.report.first_contact_view import JudgedContact

    contact = first_contact(site, contact_inventory(site))
    rows = judge_assumptions(assumptions().values(), contact, catalog_of(contact.inventory))
    return JudgedContact(contact, rows, contact_session(), contact_setup())


def contact_inventory(site: Site) -> Inventory:
    """Read the inventory with the settings of hosts with GPUs, and with what their nvidia-smi reports if allowed."""
    from gpuops.plan.core.scope import gpu_hosts

    inventory = site.with_vgpus(site.vcenter.inventory())
    return site.hosts.with_settings(inventory, [host.ref for host in gpu_hosts(inventory) if host.connected])


def first_contact(site: Site, inventory: Inventory) -> Contact:
    """Return what the table of assumptions is judged by: the inventory, past tasks and events, counters, the broker.

    `inventory`: just read, with the settings of hosts and the output of their nvidia-smi. `Contact.unread` names each
    part that this login may not read, and a broker that does not answer. Raises NotConnected if vCenter does not.
    """
    from gpuops.model.vcenter.inventory import Contact
    from gpuops.plan.core.scope import gpu_hosts
    from gpuops.vsphere.connection import Connection
    from gpuops.vsphere.reading import counters as read
    from gpuops.vsphere.reading.counters import counter_keys

    session = site.vcenter
    assert isinstance(session, Connection), "a first contact is one with a vCenter"
    since, unread = inventory.taken_at - PAST, list[str]()
    hosts = [host.ref for host in gpu_hosts(inventory) if host.connected]

    # None and () differ: None = the changes of VMs are unknown, () = there were none
    def part(name: str, ask: Callable[[], Part], nothing: Part, refusal: type[GpuopsError] = NoPermission) -> Part:
        try:
            return ask()
        except refusal as error:
            unread.append(f"{name}: {error.message}")
            return nothing

    return Contact(
        inventory,
        tasks=part("tasks", lambda: read.past_tasks(session, since), ()),
        events=part("events", lambda: read.past_events(session, since), ()),
        changes=part("changes of VMs", lambda: read.past_events(session, since, read.CHANGES), None),
        counter_instances=part("GPU counters", lambda: read.gpu_counter_instances(session, hosts), {}),
        counter_names=part("counters", lambda: frozenset(counter_keys(session)), frozenset()),
        reserved_mib=part("resource pools", lambda: read.reserved_mib(session, inventory.clusters), {}),
        machines=part("broker", lambda: _machines(site), (), GpuopsError),
        unread=tuple(unread),
    )


def _machines(site: Site) -> tuple[DesktopMachine, ...]:

    if site.broker is None:
        return ()
    with open_broker(site) as broker:
        return broker.machines()
