"""Asks the connection broker who has a session, for a snapshot on which is then decided."""

from __future__ import annotations

from gpuops.advise.desktop_sessions import SessionsRead, matched
from gpuops.model.broker import DesktopBroker
from gpuops.model.inventory import Inventory


def with_sessions(inventory: Inventory, broker: DesktopBroker) -> SessionsRead:
    """The snapshot with the sessions on its VMs: two bulk reads, of machines and of sessions.

    Machines are read first: a session on one that is newer than that is counted as one without a machine, and never as
    no session. Raises NotConnected in its kinds, NoPermission.
    """
    machines = broker.machines()
    return matched(inventory, machines, broker.sessions())
