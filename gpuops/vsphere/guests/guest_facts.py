"""Reads which system runs in guests, the addresses of a guest, and vCenter's time.

Source: vSphere API reference, GuestInfo.guestFamily and GuestNicInfo (reported by VMware Tools), and
VirtualMachineConfigInfo.guestId (configured for the VM), whose names begin with `win` for Windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops.model.guests.guest import GuestSystem
from gpuops.model.vcenter.inventory import decode_name

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

_FAMILIES: Final = {"linuxGuest": GuestSystem.LINUX, "windowsGuest": GuestSystem.WINDOWS}
_LINUX_IDS: Final = (
    "ubuntu", "debian", "rhel", "centos", "rockylinux", "almalinux", "sles", "oracleLinux", "vmwarePhoton",
)  # fmt: skip
"""Beginnings of guest ids of Linux that do not contain `Linux`."""
_PATHS: Final = ["guest.guestFamily", "config.guestId"]


def guest_systems(session: Session, vms: Sequence[str]) -> Mapping[str, GuestSystem]:
    """Return the system by VM (ref), without unknown and other systems. Raises NotConnected and its subclasses."""
    properties_by_vm = session.read_properties([session.vm(ref) for ref in vms], _PATHS, subject="guests")
    systems = {ref: _system(properties) for ref, properties in properties_by_vm.items()}
    return {ref: system for ref, system in systems.items() if system is not None}


def guest_id(session: Session, vm: str) -> str:
    """Return the configured guest id (`ubuntu64Guest`); empty if unreadable. Raises NotConnected and its subclasses."""
    guest_vm = session.vm(vm)
    config = session.read(lambda: guest_vm.config, subject=vm)
    return str(config.guestId or "") if config is not None else ""


def _system(properties: Mapping[str, Any]) -> GuestSystem | None:
    family, made_for = properties.get("guest.guestFamily"), str(properties.get("config.guestId") or "")
    if family in _FAMILIES:
        return _FAMILIES[family]
    if made_for.startswith("win"):
        return GuestSystem.WINDOWS
    return GuestSystem.LINUX if "Linux" in made_for or made_for.startswith(_LINUX_IDS) else None


def vcenter_time(session: Session) -> datetime:
    """Return vCenter's time. Raises NotConnected and its subclasses."""
    with session.decoding("CurrentTime"):
        now: datetime = session.read(session.instance.CurrentTime).astimezone(UTC)
    return now


def guest_addresses(session: Session, vm: str) -> Mapping[str, tuple[str, ...]]:
    """Return the unchecked addresses that the guest reports, by network name; none while VMware Tools do not run.

    Raises VmNotFound for a VM that does not exist any more.
    """
    target = session.vm(vm)
    guest = session.read(lambda: target.guest, subject=vm)
    addresses: dict[str, tuple[str, ...]] = {}
    with session.decoding("guest.net"):
        for nic in (guest.net or ()) if guest is not None else ():
            if nic.network:
                network = decode_name(nic.network)
                addresses[network] = (*addresses.get(network, ()), *map(str, nic.ipAddress or ()))
    return addresses
