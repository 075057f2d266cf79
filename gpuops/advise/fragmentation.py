"""Fragmentation: how much free GPU memory is of no use to the requests that a site knows.

After FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), with two changes. A GPU's free memory counts as
usable by a shape only as far as the memory beside it feeds instances too, so the unit is the NUMA node. And shapes are
weighted by the GPU memory they ask for: one lost whole-GPU VM weighs as much as the eight small ones in its place.
CPU is left out: vSphere shares cores, it does not hand them out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuops.advise.capacity import free_slots
from gpuops.advise.occupancy import GpuState
from gpuops.model.catalog import Catalog
from gpuops.model.vm import Vm

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

NO_LIMIT: Final = 2**50
"""MiB of memory that is not known: it does not limit."""
_MOST_SHAPES: Final = 8
"""Per GPU model: the commonest say what is typical, the rest only costs time."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of vGPU that VMs of the site ask for."""

    profile: str
    framebuffer_mib: int
    memory_mib: int
    """Memory of a VM with it, per vGPU, on average."""
    weight: float
    """Its share of the GPU memory asked for on its GPU model."""


Mix = Mapping[str, tuple[Shape, ...]]
"""Shapes by the key of the board they are made for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The vGPUs that VMs ask for, by profile: how many, and the memory of their VMs."""

    times: Counter[str] = field(default_factory=Counter)
    memory_mib: Counter[str] = field(default_factory=Counter)

    def plus(self, other: Asked, sign: int = 1) -> Asked:
        """These and the others; with `sign` -1 these without the others."""
        asked = Asked(self.times.copy(), self.memory_mib.copy())
        for profile, times in other.times.items():
            asked.times[profile] += sign * times
            asked.memory_mib[profile] += sign * other.memory_mib[profile]
        return asked


def mix_of(vms: Iterable[Vm], catalog: Catalog) -> Mix:
    """What the VMs ask for, running or not: who is off today asks tomorrow. Templates ask for nothing."""
    return mix_from(asked_by(vms), catalog)


def asked_by(vms: Iterable[Vm]) -> Asked:
    """The vGPUs that these VMs ask for."""
    asked = Asked()
    for vm in vms:
        profiles = vm.profiles if vm.devices and vm.template is not True else ()
        for profile in profiles:
            asked.times[profile] += 1
            asked.memory_mib[profile] += (vm.memory_mib or 0) // len(profiles)
    return asked


def mix_from(asked: Asked, catalog: Catalog) -> Mix:
    """The mix of VMs that ask for so much."""
    found: dict[str, list[Shape]] = {}
    for profile, times in sorted(asked.times.items()):
        facts = catalog.profile(profile)
        if facts is not None and times > 0:
            asked_mib = float(times * facts.framebuffer_mib)
            shape = Shape(profile, facts.framebuffer_mib, asked.memory_mib[profile] // times, asked_mib)
            found.setdefault(facts.board, []).append(shape)
    return {board: _shares(shapes) for board, shapes in found.items()}


def _shares(shapes: list[Shape]) -> tuple[Shape, ...]:
    most = sorted(shapes, key=lambda shape: (-shape.weight, shape.profile))[:_MOST_SHAPES]
    total = sum(shape.weight for shape in most)
    return tuple(Shape(s.profile, s.framebuffer_mib, s.memory_mib, s.weight / total) for s in most)


def useless(free_mib: Ints, slots: Ints, memory_mib: Ints, shapes: Sequence[Shape]) -> Floats:
    """For each NUMA node, the free memory of its GPUs of one board that the shapes can be expected not to use.

    `slots` has a row per node and a column per shape: how many more of it the GPUs take. `memory_mib` is what the node
    has free beside them; below zero counts as none.
    """
    import numpy as np

    size = np.array([shape.framebuffer_mib for shape in shapes])
    need = np.array([shape.memory_mib for shape in shapes])
    weight = np.array([shape.weight for shape in shapes])
    fed = np.maximum(0, memory_mib)[:, None] // np.maximum(1, need)
    instances = np.where(need > 0, np.minimum(slots, fed), slots)
    lost: Floats = (np.maximum(0, free_mib[:, None] - instances * size) * weight).sum(axis=1)
    return lost


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The measure for one mix. It remembers the slots it counted: most GPUs of a fleet are in one of a few states."""

    mix: Mix
    catalog: Catalog
    _counted: dict[tuple[object, ...], int] = field(default_factory=dict, compare=False, repr=False)

    def useless_mib(self, states: Sequence[GpuState], memory_mib: int | None) -> float:
        """Free memory of these GPUs of one node that the mix can be expected not to use, beside so much free memory.

        None = the free memory is not known, and does not limit. GPUs of a model that nobody asks for count nothing.
        """
        boards: dict[str, list[GpuState]] = {}
        for state in states:
            board = self.catalog.board_by_pci(state.gpu.vendor_id, state.gpu.device_id, state.gpu.subsystem_id)
            if board is not None and board.key in self.mix:
                boards.setdefault(board.key, []).append(state)
        return sum(self._on_board(key, alike, memory_mib) for key, alike in boards.items())

    def _on_board(self, key: str, states: Sequence[GpuState], memory_mib: int | None) -> float:
        # `useless` for one node: what looks at a few hosts does not wait for numpy.
        free_mib = sum(self._free_mib(key, state) for state in states)
        lost = 0.0
        for shape in self.mix[key]:
            instances = sum(self._slots(state, shape.profile) for state in states)
            if memory_mib is not None and shape.memory_mib:
                instances = min(instances, max(0, memory_mib) // shape.memory_mib)
            lost += shape.weight * max(0, free_mib - instances * shape.framebuffer_mib)
        return lost

    def _free_mib(self, key: str, state: GpuState) -> int:
        board = self.catalog.board(key)
        assert board is not None, "the key comes from the catalogue"
        held = (self.catalog.profile(tenant.profile) for tenant in state.tenants)
        return max(0, board.framebuffer_mib - sum(profile.framebuffer_mib for profile in held if profile is not None))

    def _slots(self, state: GpuState, profile: str) -> int:
        gpu = state.gpu
        holders = None if state.holders is None else tuple(sorted(state.holders))
        passthrough = gpu.passthrough is not None and gpu.passthrough.active
        kind = (gpu.vendor_id, gpu.device_id, gpu.subsystem_id, gpu.vgpu_mode, gpu.graphics_type, passthrough)
        known = (*kind, holders, profile)
        if known not in self._counted:
            self._counted[known] = free_slots(gpu, holders, profile, self.catalog).at_least
        return self._counted[known]
