"""The types of the catalogue: boards with their profiles and geometry, found by profile name or PCI id.

The host's own list is the authority: a profile it offers and the catalogue lacks is attached with fewer checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID
from gpuops.model.devices.mig import MigGeometry
from gpuops.model.devices.vgpu import Series, Verified, VgpuProfile


class Generation(StrEnum):
    """GPU architecture, oldest first."""

    MAXWELL = "Maxwell"
    PASCAL = "Pascal"
    VOLTA = "Volta"
    TURING = "Turing"
    AMPERE = "Ampere"
    ADA = "Ada"
    HOPPER = "Hopper"
    BLACKWELL = "Blackwell"


class MultiVgpu(StrEnum):
    """Which profiles of a board one VM may carry more than once (NVIDIA's host driver; A and B types never)."""

    FULL_FRAMEBUFFER = "full-framebuffer"
    ALL = "all"


class MixedSizeRule(StrEnum):
    """How a board's mixed-size counts follow from its memory (NVIDIA AI Enterprise, vGPU for Compute)."""

    POWER_OF_TWO = "power-of-two"
    """The largest power of two n with n * size <= frame buffer."""
    SAME_AS_EQUAL_SIZE = "same-as-equal-size"
    PRINTED = "printed"
    """A printed table that no rule reproduces."""


@dataclass(frozen=True, slots=True)
class PciId:
    """One PCI identity of a board; `subsystem_ids` () = any, or not listed."""

    device_id: int
    subsystem_ids: tuple[int, ...] = ()
    shared: bool = False
    """Another board has the same device id: only the subsystem id tells them apart."""
    vendor_id: int = NVIDIA_VENDOR_ID
    marketed_as: str | None = None
    """The product's name where it differs from the board's."""


@dataclass(frozen=True, slots=True)
class Board:
    """One GPU model as the vGPU driver knows it. Figures are per physical GPU; None = unknown."""

    key: str
    """Unique: the name of its file."""
    name: str
    short_name: str
    """The first part of its profiles' short names; not unique (two boards are called `DC`)."""
    generation: Generation
    esxi_prefix: str | None
    """What its profiles' names in vCenter begin with: `grid_a100-`."""
    pci_ids: tuple[PciId, ...]
    framebuffer_mib: int
    gpus_per_board: int
    sriov: bool
    mixed_size_mode: bool | None
    """None where NVIDIA's documents disagree (Volta, Turing)."""
    mixed_size_rule: MixedSizeRule | None
    multi_vgpu: MultiVgpu
    mig: MigGeometry | None
    mmio_gib: int | None
    """64-bit MMIO a VM needs for one whole GPU (NVIDIA AI Enterprise); None = not in the published table."""
    nvlink_profiles: tuple[str, ...]
    """Profiles whose vGPUs in one VM may talk over NVLink."""
    nvswitch_profiles: tuple[str, ...]
    """Profiles that vendor device groups of an NVSwitch board are made of."""
    verified: Verified
    sources: tuple[tuple[str, str], ...]
    """(group of facts, titles of the documents they stand in)."""
    profiles: tuple[VgpuProfile, ...]
    nameless: tuple[VgpuProfile, ...] = ()
    """Profiles whose name in vCenter is not known: listed, never attached."""

    def most_in_one_vm(self, profile: VgpuProfile) -> int | None:
        """Return how many vGPUs of a profile of this board one VM may have; None = unknown. vSphere limits them
        further."""
        is_part_only_once = self.multi_vgpu is MultiVgpu.FULL_FRAMEBUFFER and not self.is_whole(profile)
        return 1 if is_part_only_once or profile.series in (Series.A, Series.B) else profile.max_per_vm

    def is_whole(self, profile: VgpuProfile) -> bool:
        """Return whether a vGPU of the profile has all memory of a GPU, without MIG."""
        return profile.framebuffer_mib >= self.framebuffer_mib and not profile.mig_backed


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Facts about devices without vGPU profiles that a host does not report."""

    key: str
    name: str
    vendor_id: int
    device_ids: tuple[int, ...]
    memory_mib: int | None
    """What its BAR maps, or may map; None = not known."""
    source: str


@dataclass(frozen=True)
class Catalog:
    """A set of boards. Not slotted: the indexes are computed once, on first use."""

    boards: tuple[Board, ...] = ()
    devices: tuple[DeviceModel, ...] = ()
    """Those without vGPU profiles: GPUs of other vendors, and GPUs of NVIDIA for DirectPath I/O alone."""

    def profile(self, name: str) -> VgpuProfile | None:
        """Return the profile of an ESXi name, in any case and under either brand; None = not in the catalogue.

        Older hosts may show `grid_a40-8q` for what newer ones call `nvidia_a40-8q`. The facts are the same; the name to
        attach is the one the host offers, not the `name` of what this returns.
        """
        name = name.lower()
        return self._profiles.get(name) or self._profiles.get(_other_brand(name))

    def board_of(self, name: str) -> Board | None:
        """Return the board that has the profile with this ESXi name."""
        profile = self.profile(name)
        return None if profile is None else self.board(profile.board)

    def board(self, key: str) -> Board | None:
        """Return the board with this key."""
        return self._boards.get(key)

    def board_by_pci(self, vendor_id: int, device_id: int, subsystem_id: int | None = None) -> Board | None:
        """Return the board of a PCI device; None = not in the catalogue, or only its subsystem id would tell.

        A16 and A2 share 10de:25b6, Quadro RTX 6000 and 8000 share 10de:1e30 (active) and 10de:1e78 (passive).
        """
        if subsystem_id is not None:
            exact = self._boards_by_pci.get((vendor_id, device_id, subsystem_id))
            if exact is not None:
                return exact
        return self._boards_by_pci.get((vendor_id, device_id, None))

    def device_model(self, vendor_id: int, device_id: int) -> DeviceModel | None:
        """Return the facts about devices of that type, if no vGPU profile of them is known."""
        models = (model for model in self.devices if model.vendor_id == vendor_id and device_id in model.device_ids)
        return next(models, None)

    @cached_property
    def worked_out(self) -> dict[object, dict[object, object]]:
        """Return the cache for facts derived from this catalogue alone; each user has its own key."""
        return {}

    @cached_property
    def _boards(self) -> Mapping[str, Board]:
        return {board.key: board for board in self.boards}

    @cached_property
    def _profiles(self) -> Mapping[str, VgpuProfile]:
        return {profile.name: profile for board in self.boards for profile in board.profiles}

    @cached_property
    def _boards_by_pci(self) -> Mapping[tuple[int, int, int | None], Board]:
        index: dict[tuple[int, int, int | None], Board] = {}
        for board in self.boards:
            for pci in board.pci_ids:
                index.update({(pci.vendor_id, pci.device_id, subsystem): board for subsystem in pci.subsystem_ids})
                if not pci.shared:
                    # Card makers have subsystem ids of their own, so the listed ones are not all there are.
                    index[pci.vendor_id, pci.device_id, None] = board
        return index


def _other_brand(name: str) -> str:
    """Return `nvidia_a40-8q` for `grid_a40-8q`, and the other way round."""
    if name.startswith("grid_"):
        return "nvidia_" + name.removeprefix("grid_")
    return "grid_" + name.removeprefix("nvidia_")
