"""The storage controllers, disks, network cards and CD-ROM drives of a VM."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

FIRST_DISK: Final = 2000
FIRST_CDROM: Final = 3000
FIRST_CARD: Final = 4000
IDE_KEYS: Final = (200, 201)
"""Keys as vCenter gives them (govmomi, object.VirtualDeviceList); every VM has both IDE controllers."""


@dataclass(frozen=True, slots=True)
class StorageController:
    """A SCSI, SATA or NVMe controller; `kind` is its type in the API."""

    key: int
    kind: str
    bus: int


@dataclass(frozen=True, slots=True)
class Disk:
    """A virtual disk; `file` is its path, '' = named after the VM."""

    key: int
    controller: int
    unit: int
    kib: int
    file: str = ""
    mode: str = "persistent"
    thin: bool = True


@dataclass(frozen=True, slots=True)
class NetworkCard:
    """A network card on a network, named by moid and name; without `mac` it has one made of the VM's uuid.

    On a distributed port group it has the uuid of the switch, the key of its port and the cookie of the connection.
    """

    key: int
    kind: str
    network: str
    network_name: str
    mac: str = ""
    starts_connected: bool = True
    switch: str = ""
    port: str = ""
    cookie: int = 0
    protocol: str = ""
    """The protocol of a card for paravirtual RDMA: `rocev1` or `rocev2`."""


@dataclass(frozen=True, slots=True)
class CdromDrive:
    """A CD-ROM drive with an ISO image, or the client's device when `iso` is ''."""

    key: int
    controller: int
    unit: int
    iso: str = ""
    starts_connected: bool = False


Part = StorageController | Disk | NetworkCard | CdromDrive


@dataclass(frozen=True, slots=True)
class Hardware:
    """The controllers, disks, cards and drives of a VM; VMs that were made alike share one object."""

    controllers: tuple[StorageController, ...] = ()
    disks: tuple[Disk, ...] = ()
    cards: tuple[NetworkCard, ...] = ()
    drives: tuple[CdromDrive, ...] = ()

    @property
    def gib(self) -> int:
        """The capacity of its disks together."""
        return sum(disk.kib for disk in self.disks) >> 20

    def parts(self) -> tuple[Part, ...]:
        return (*self.controllers, *self.disks, *self.cards, *self.drives)

    def find(self, key: int) -> Part | None:
        """The part of that key."""
        return next((part for part in self.parts() if part.key == key), None)

    def attached(self, controller: int) -> list[Disk | CdromDrive]:
        """The disks and drives on a controller."""
        attachable: tuple[Disk | CdromDrive, ...] = (*self.disks, *self.drives)
        return [part for part in attachable if part.controller == controller]

    def units(self, controller: int) -> set[int]:
        """The unit numbers that are taken on a controller."""
        return {part.unit for part in self.attached(controller)}

    def with_part(self, part: Part) -> Hardware:
        """Return a copy with this part in place of the part with its key, or after the others of its kind."""
        name = _LISTS[type(part)]
        existing_parts = getattr(self, name)
        is_replacement = any(existing_part.key == part.key for existing_part in existing_parts)
        changed: Any = tuple(
            part if existing_part.key == part.key else existing_part for existing_part in existing_parts
        )
        changed_fields: dict[str, Any] = {name: changed if is_replacement else (*existing_parts, part)}
        return replace(self, **changed_fields)

    def without(self, key: int) -> Hardware:
        """Return a copy without the part of that key."""
        changed_fields: dict[str, Any] = {
            field.name: tuple(part for part in getattr(self, field.name) if part.key != key) for field in fields(self)
        }
        return Hardware(**changed_fields)


NO_HARDWARE: Final = Hardware()

_LISTS: Final[dict[type[Part], str]] = {
    StorageController: "controllers",
    Disk: "disks",
    NetworkCard: "cards",
    CdromDrive: "drives",
}


def first_free_number(first: int, used_numbers: set[int], *, excluding: tuple[int, ...] = ()) -> int:
    """Return the lowest number from `first` on that is neither used nor one of `excluding`."""
    number = first
    while number in used_numbers or number in excluding:
        number += 1
    return number
