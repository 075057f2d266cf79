"""Reads from a vCenter, its hosts and its broker what the table of assumptions is judged by; changes nothing.

`broker_show` reads the broker alone: its identity, and its pools with their machines and sessions.
"""

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
    not_found = tuple(sorted((match.machines[machine].name, why) for machine, why in match.not_found.items()))
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
    with _broker_client(site) as broker:
        yield broker


def open_broker_until_close(site: Site) -> Horizon:
    """Return the broker, logged in until the site is closed. Raises as `open_broker`."""
    return site.closing.enter_context(_broker_client(site))


def _broker_client(site: Site) -> Horizon:
    from gpuops.broker.horizon import Horizon

    if site.broker is None:
        raise UsageError(
            "no connection broker is configured for this vCenter",
            hint="put [targets.NAME.broker] into the configuration file (gpuops help broker)",
        )
    return Horizon(site.broker())


PAST_READ: Final = timedelta(days=7)
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
    from gpuops.vsphere.reading import counters

    session = site.vcenter
    assert isinstance(session, Connection), "a first contact is one with a vCenter"
    since, unread = inventory.taken_at - PAST_READ, list[str]()
    hosts = [host.ref for host in gpu_hosts(inventory) if host.connected]

    def read_part(
        name: str, read_it: Callable[[], Part], if_refused: Part, refusal: type[GpuopsError] = NoPermission
    ) -> Part:
        try:
            return read_it()
        except refusal as error:
            unread.append(f"{name}: {error.message}")
            return if_refused

    return Contact(
        inventory,
        tasks=read_part("tasks", lambda: counters.past_tasks(session, since), ()),
        events=read_part("events", lambda: counters.past_events(session, since), ()),
        # None = the changes of VMs are unknown; () would say that there were none
        changes=read_part("changes of VMs", lambda: counters.past_events(session, since, counters.CHANGES), None),
        counter_instances=read_part("GPU counters", lambda: counters.gpu_counter_instances(session, hosts), {}),
        counter_names=read_part("counters", lambda: frozenset(counters.counter_keys(session)), frozenset()),
        reserved_mib=read_part("resource pools", lambda: counters.reserved_mib(session, inventory.clusters), {}),
        machines=read_part("broker", lambda: _broker_machines(site), (), GpuopsError),
        unread=tuple(unread),
    )


def _broker_machines(site: Site) -> tuple[DesktopMachine, ...]:
    if site.broker is None:
        return ()
    with open_broker(site) as broker:
        return broker.machines()
