"""The demand of a site's VMs as a mix of shapes, by which losses are measured, and the type of a loss.

`losses.py` calls it. Demand is counted by host, so that after a change only one host is counted
again. A VM that is off today may be started tomorrow, so all existing VMs count, and those of current requests.

Example: 30 VMs with one 8q and 10 with two 24q are the shapes (8q, 1 device) and (24q, 2 devices); with the prior of 8
VMs with a whole GPU the shares are 30/48, 10/48 and 8/48.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_not
from typing import Final, NamedTuple

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, VgpuDevice, Vm

WHOLE: Final = ""
"""Stands in place of a profile for a GPU given to a VM as a whole."""
PRIOR: Final = 8.0
"""VMs with a whole GPU that are added to the demand of every site. So a few existing VMs do not decide alone, and an
empty GPU has a worth, since it takes any profile later."""
_MOST_SHAPES: Final = 256
"""Limit of shapes; the rarest are left out."""


class VmShape(NamedTuple):
    """The shape of a VM: so many devices of one kind, with roughly so much memory. A tuple, since every decision sorts
    the mix and looks shapes up in it."""

    profile: str
    devices: int
    memory_mib: int


Mix = Mapping[VmShape, float]
"""The shapes of one GPU model, each with its share of all."""
ShapeCounts = Mapping[str, Counter[VmShape]]
"""By the key of the board: how many VMs of each shape."""


def count_shapes(vms: Iterable[Vm], catalog: Catalog) -> dict[str, Counter[VmShape]]:
    """Count the shapes of these VMs by board. Templates are not counted."""
    counts: dict[str, Counter[VmShape]] = {}
    for vm in vms:
        if vm.devices and vm.template is not True:
            devices = [
                board_profile for device in vm.devices if (board_profile := _device(device, catalog)) is not None
            ]
            for board, shapes in shapes_of_devices(devices, vm.memory_mib).items():
                counts.setdefault(board, Counter()).update(shapes)
    return counts


def shapes_of_devices(devices: Sequence[tuple[str, str]], memory_mib: int | None) -> dict[str, Counter[VmShape]]:
    """Return the shapes of one VM with these devices, each a (board, profile): one shape for each kind, with its part
    of the memory."""
    counts: dict[str, Counter[VmShape]] = {}
    for (board, profile), count in Counter(devices).items():
        shape = VmShape(profile, count, _roughly((memory_mib or 0) * count // len(devices)))
        counts.setdefault(board, Counter())[shape] += 1
    return counts


def add_counts(counts: ShapeCounts, added: ShapeCounts) -> ShapeCounts:
    """The sum of both counts."""
    return {**counts, **{board: counts.get(board, Counter()) + shapes for board, shapes in added.items()}}


def subtract_counts(counts: ShapeCounts, removed: ShapeCounts) -> ShapeCounts:
    """The first counts less the second; shapes without a VM are left out."""
    return {**counts, **{board: counts.get(board, Counter()) - shapes for board, shapes in removed.items()}}


def board_mix(board: str, counts: ShapeCounts, largest_profiles: Iterable[str], host_gpus: int) -> Mix:
    """Return the mix of one board. `largest_profiles` are those that hosts offer for it, each with a whole GPU;
    `host_gpus` is the number of GPUs of the board in the host that has the most."""
    weights: dict[VmShape, float] = dict(counts.get(board, {}))
    largest = tuple(largest_profiles)
    whole = [shape for shape in weights if shape.profile in (WHOLE, *largest)]
    added_devices = {1}
    # VMs with all GPUs of a host are added if no VM asks for a part of a GPU, or if some have several whole GPUs. VMs
    # with one GPU then share hosts and leave complete hosts to large VMs that may be requested later.
    if len(whole) == len(weights) or any(shape.devices > 1 for shape in whole):
        added_devices.add(host_gpus)
    for shape in (VmShape(profile, devices, 0) for profile in largest for devices in added_devices):
        weights[shape] = weights.get(shape, 0.0) + PRIOR
    if len(weights) > _MOST_SHAPES:
        ranked = sorted(weights.items(), key=lambda shape_weight: (-shape_weight[1], shape_weight[0]))
        weights = dict(ranked[:_MOST_SHAPES])
    total = sum(weights.values())
    # Sorted, since sums of fractions must not depend on the order of counting.
    return {shape: weight / total for shape, weight in sorted(weights.items())}


def mix_distance(mix: Mix, other_mix: Mix) -> float:
    """Return the share of VMs in which two mixes differ: 0 = equal, 1 = nothing in common.

    >>> small, large = VmShape("8q", 1, 4096), VmShape("24q", 1, 16384)
    >>> mix_distance({small: 0.5, large: 0.5}, {small: 1.0})
    0.5
    """
    difference = sum(abs(share - other_mix.get(shape, 0.0)) for shape, share in mix.items())
    return 0.5 * (difference + sum(share for shape, share in other_mix.items() if shape not in mix))


def _device(device: GpuDevice, catalog: Catalog) -> tuple[str, str] | None:
    """Return the device's board and profile; None if the catalogue does not know them."""
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
    """Round up to 1, 1.5, 2, 3, 4, 6, 8 ... GiB, so that VMs of nearly the same size have the same shape.

    >>> [_roughly(gib * 1024) // 1024 for gib in (2, 5, 6, 7, 60, 100)]
    [2, 6, 6, 8, 64, 128]
    """
    if mib <= 0:
        return 0
    power = 1 << (mib - 1).bit_length()
    return power * 3 // 4 if mib <= power * 3 // 4 else power


class SiteDemand:
    """The demand of all VMs of a snapshot, updated host by host."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._counted_vms: dict[str, tuple[Vm, ...]] = {}
        self._total: ShapeCounts = {}

    def sync(self, inventory: Inventory) -> None:
        """Count the hosts again whose VMs changed."""
        now, counted_vms = inventory.vms_by_host, self._counted_vms
        # Compared as objects and not by value, without a line of Python for each host: there are thousands.
        for ref in compress(now, map(is_not, map(counted_vms.get, now), now.values())):
            self._replace(ref, now[ref])
        if len(counted_vms) > len(now):
            for ref in counted_vms.keys() - now.keys():
                self._replace(ref, ())

    def shape_counts(self, ref: str, own_counts: ShapeCounts, coming: ShapeCounts, inventory: Inventory) -> ShapeCounts:
        """Return the demand with `own_counts` in place of the VM's shapes in the snapshot, and with other requests."""
        vm_before = inventory.vms.get(ref)
        other_counts = self._total
        if vm_before is not None:
            other_counts = subtract_counts(other_counts, count_shapes((vm_before,), self._catalog))
        return add_counts(add_counts(other_counts, own_counts), coming)

    def _replace(self, ref: str, vms: tuple[Vm, ...]) -> None:
        before = {id(vm): vm for vm in self._counted_vms.get(ref, ())}
        now = {id(vm): vm for vm in vms}
        removed = count_shapes((vm for key, vm in before.items() if key not in now), self._catalog)
        added = count_shapes((vm for key, vm in now.items() if key not in before), self._catalog)
        self._total = add_counts(subtract_counts(self._total, removed), added)
        self._counted_vms[ref] = vms


@dataclass(frozen=True, slots=True)
class Loss:
    """What one place takes from the other VMs of a site. Places are compared by `steps`; the other fields explain."""

    steps: int
    worth_mib: float
    """GPU memory that the site's other VMs could have used."""
    kept_mib: float
    """Places lost for VMs with whole GPUs, times the chance that such VMs come."""


NO_LOSS: Final = Loss(0, 0.0, 0.0)
