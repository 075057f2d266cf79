"""The addresses that VMware Tools tell of a guest, by network (vSphere API reference, GuestNicInfo)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuops.model.vcenter.entity_name import decode_name

if TYPE_CHECKING:
    from gpuops.vsphere.connection import Connection


def guest_addresses(connection: Connection, vm: str) -> Mapping[str, tuple[str, ...]]:
    """By name of the network, those that the guest tells, whatever they are; none while VMware Tools do not run.

    Raises VmNotFound for a VM that is gone.
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
