"""Reads the addresses of a guest that VMware Tools report, by network (vSphere API reference, GuestNicInfo)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuops.model.vcenter.entity_name import decode_name

if TYPE_CHECKING:
    from gpuops.vsphere.connection import Connection


def guest_addresses(connection: Connection, vm: str) -> Mapping[str, tuple[str, ...]]:
    """Return the unchecked addresses that the guest reports, by network name; none while VMware Tools do not run.

    Raises VmNotFound for a VM that does not exist any more.
    """
    target = connection.vm(vm)
    guest = connection.read(lambda: target.guest, subject=vm)
    addresses: dict[str, tuple[str, ...]] = {}
    with connection.decoding("guest.net"):
        for nic in (guest.net or ()) if guest is not None else ():
            if nic.network:
                network = decode_name(nic.network)
                addresses[network] = (*addresses.get(network, ()), *map(str, nic.ipAddress or ()))
    return addresses
