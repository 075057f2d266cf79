"""The site's mix of VMs: what they ask for, counted host by host, so that one VM more costs one host's count.

Who is off today asks tomorrow, so all VMs count, and those that are asked for now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_not
from typing import Final, NamedTuple

from gpuops.model.catalog import Catalog
from gpuops.model.inventory import Inventory
from gpuops.model.vm import DirectPathDevice, DynamicDevice, GpuDevice, VgpuDevice, Vm

WHOLE: Final = ""
"""In place of a profile: a GPU given whole."""
PRIOR: Final = 8.0
"""VMs with a whole GPU that every site is taken to have beside its own: what little is known does not decide alone, and
a GPU that is left empty takes any profile tomorrow, one that is begun only some."""
_MOST: Final = 256
"""Shapes: the rarest of more are left out."""


class Shape(NamedTuple):
    """One kind of VM: so many devices of one kind, with so much memory beside them, roughly.

    A tuple, for every decision sorts the mix and looks shapes up in it.
    """

    profile: str
    devices: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Offer:
    """What a profile that hosts offer takes of a GPU."""

    size_mib: int
    mig_backed: bool


Mix = Mapping[Shape, float]
"""The shapes of one GPU model, each with its share of all."""
Asked = Mapping[str, Counter[Shape]]
"""By the key of the board: how many VMs of each shape."""


def asked_by(vms: Iterable[Vm], catalog: Catalog) -> dict[str, Counter[Shape]]:
    """What these VMs ask for. Templates ask for nothing."""
    asked: dict[str, Counter[Shape]] = {}
    for vm in vms:
        if vm.devices and vm.template is not True:
            devices = [known for device in vm.devices if (known := _device(device, catalog)) is not None]
            for board, shapes in asked_by_devices(devices, vm.memory_mib).items():
                asked.setdefault(board, Counter()).update(shapes)
    return asked


def asked_by_devices(devices: Sequence[tuple[str, str]], memory_mib: int | None) -> dict[str, Counter[Shape]]:
    """What one VM asks for with these devices, each a board and a profile: a shape for each kind, with its part of the
    memory."""
    asked: dict[str, Counter[Shape]] = {}
    for (board, profile), count in Counter(devices).items():
        shape = Shape(profile, count, _roughly((memory_mib or 0) * count // len(devices)))
        asked.setdefault(board, Counter())[shape] += 1
    return asked


def plus(asked: Asked, other: Asked) -> Asked:
    """These and the others."""
    return _sum(asked, other, 1)


def minus(asked: Asked, other: Asked) -> Asked:
    """These without the others."""
    return _sum(asked, other, -1)


def _sum(asked: Asked, other: Asked, sign: int) -> Asked:
    found = dict(asked)
    for board, shapes in other.items():
        total = Counter(found.get(board, ()))
        for shape, times in shapes.items():
            total[shape] += sign * times
            if total[shape] <= 0:
                del total[shape]
        found[board] = total
    return found


def mix_of(board: str, asked: Asked, largest: Iterable[str]) -> Mix:
    """The mix of one board; `largest` are the largest profiles that hosts offer for it."""
    weights: dict[Shape, float] = dict(asked.get(board, {}))
    for profile in largest:
        shape = Shape(profile, 1, 0)
        weights[shape] = weights.get(shape, 0.0) + PRIOR
    if len(weights) > _MOST:
        weights = dict(sorted(weights.items(), key=lambda each: (-each[1], each[0]))[:_MOST])
    total = sum(weights.values())
    # In an order of their own: sums of fractions must not depend on who was counted first.
    return {shape: weight / total for shape, weight in sorted(weights.items())}


def distance(mix: Mix, other: Mix) -> float:
    """The share of VMs that would have to be others to make one mix of the other."""
    more = sum(abs(share - other.get(shape, 0.0)) for shape, share in mix.items())
    return 0.5 * (more + sum(share for shape, share in other.items() if shape not in mix))


def largest(offers: Mapping[str, Offer]) -> set[str]:
    """The largest profile of each kind of GPU: time-sliced, and MIG-backed."""
    by_size = sorted(offers.items(), key=lambda each: (each[1].size_mib, each[0]))
    return set({offer.mig_backed: name for name, offer in by_size}.values())


def _device(device: GpuDevice, catalog: Catalog) -> tuple[str, str] | None:
    """The board it is of and its profile; None = the catalogue does not know it."""
    profile = WHOLE
    match device:
        case VgpuDevice(profile=profile):
            board = catalog.board_of(profile)
        case DirectPathDevice(vendor_id=vendor, device_id=number) | DynamicDevice(allowed=[(vendor, number), *_]):
            board = catalog.board_by_pci(vendor, number)
        case _:
            board = None
    return (board.key, profile) if board else None


def _roughly(mib: int) -> int:
    """Up to two figures of the binary number: 1, 1.5, 2, 3, 4, 6 GiB and so on."""
    if mib <= 0:
        return 0
    power = 1 << (mib - 1).bit_length()
    return power * 3 // 4 if mib <= power * 3 // 4 else power


class SiteMix:
    """What all VMs of the snapshot ask for."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._seen: dict[str, tuple[Vm, ...]] = {}
        self._total: Asked = {}

    def sync(self, inventory: Inventory) -> None:
        """Count again what changed since."""
        now, seen = inventory.vms_by_host, self._seen
        # Compared as objects and not by value, without a line of Python for each host: there are thousands.
        for ref in compress(now, map(is_not, map(seen.get, now), now.values())):
            self._replace(ref, now[ref])
        if len(seen) > len(now):
            for ref in seen.keys() - now.keys():
                self._replace(ref, ())

    def asked(self, ref: str, own: Asked, coming: Asked, inventory: Inventory) -> Asked:
        """With this VM as it is to be, instead of what the snapshot knows of it, and with those that come too."""
        known = inventory.vms.get(ref)
        others = self._total if known is None else minus(self._total, asked_by((known,), self._catalog))
        return plus(plus(others, own), coming)

    def _replace(self, ref: str, vms: tuple[Vm, ...]) -> None:
        before = {id(vm): vm for vm in self._seen.get(ref, ())}
        now = {id(vm): vm for vm in vms}
        gone = asked_by((vm for key, vm in before.items() if key not in now), self._catalog)
        come = asked_by((vm for key, vm in now.items() if key not in before), self._catalog)
        self._total = plus(minus(self._total, gone), come)
        self._seen[ref] = vms
