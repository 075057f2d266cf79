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
    """Of a card for paravirtual RDMA: `rocev1` or `rocev2`."""


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
    """All of a VM; shared by VMs that were made alike."""

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
        """The same with this part, in the place of the one of its key or after all others."""
        name = _LISTS[type(part)]
        listed = getattr(self, name)
        is_listed = any(listed_part.key == part.key for listed_part in listed)
        changed: Any = tuple(part if listed_part.key == part.key else listed_part for listed_part in listed)
        fields_kept: dict[str, Any] = {name: changed if is_listed else (*listed, part)}
        return replace(self, **fields_kept)

    def without(self, key: int) -> Hardware:
        """The same without the part of that key."""
        fields_kept: dict[str, Any] = {
            field.name: tuple(part for part in getattr(self, field.name) if part.key != key) for field in fields(self)
        }
        return Hardware(**fields_kept)


NO_HARDWARE: Final = Hardware()

_LISTS: Final[dict[type[Part], str]] = {
    StorageController: "controllers",
    Disk: "disks",
    NetworkCard: "cards",
    CdromDrive: "drives",
}


def free(first: int, used_numbers: set[int], *, besides: tuple[int, ...] = ()) -> int:
    """The lowest number from `first` on that is not taken."""
    number = first
    while number in used_numbers or number in besides:
        number += 1
    return number
