"""vGPU profiles: the size of one, and how many of them a GPU holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Series(StrEnum):
    """The last letter of a profile's name: what the guest may do with it."""

    A = "A"
    """Application streaming."""
    B = "B"
    """Virtual PC."""
    C = "C"
    """Compute."""
    Q = "Q"
    """Virtual workstation."""


class ProfileKind(StrEnum):
    """What a vGPU of the profile is cut from: a share of the whole GPU's time, or a GPU instance of its own."""

    TIME_SLICED = "time-sliced"
    MIG_BACKED = "mig-backed"


class Verified(StrEnum):
    """How well a fact of the catalogue is known."""

    DOC = "doc"
    """Read in NVIDIA documentation, a file NVIDIA publishes, or the host driver's own configuration."""
    DOC_RULE = "doc-rule"
    """Follows from a rule that every published table obeys; this row was not printed."""
    DERIVED = "derived"
    """Computed, or copied from a twin; not seen."""


@dataclass(frozen=True, slots=True)
class VgpuProfile:
    """One vGPU profile of one board. Counts are per physical GPU, not per board; None = unknown or not applicable."""

    name: str
    """The name hosts offer and VMs carry, lower case: `grid_a100-3-20c`. Empty when NVIDIA's lists name only a tail."""
    short_name: str
    """The driver's name without brand: `A100-3-20C`."""
    full_name: str | None
    """The driver's whole name: `GRID A100-3-20C`."""
    board: str
    """Key of its `Board`."""
    series: Series
    kind: ProfileKind
    framebuffer_mib: int
    """Nominal size, from the name."""
    max_per_gpu: int
    """In same-size mode; for a MIG-backed profile over the whole GPU in MIG mode."""
    max_per_gpu_mixed: int | None = None
    """In mixed-size mode; None for a MIG-backed profile, a GPU without the mode, or where it is unknown."""
    placement_ids_mixed: tuple[int, ...] = ()
    """Start offsets in GB a vGPU may take in mixed-size mode; () = none, or (beside a mixed count) not published."""
    mig_profile: str | None = None
    """Name of the GPU instance a MIG-backed vGPU runs in (`3g.20gb`), a key of the board's `MigGeometry`."""
    compute_slices: int | None = None
    memory_slices: int | None = None
    """Slices of that GPU instance, in the units of its geometry."""
    max_per_gpu_instance: int | None = None
    """vGPUs that share one GPU instance: 1, or more where the instance itself is time-sliced (Blackwell)."""
    max_per_vm: int | None = None
    """The driver's limit; the vSphere release limits it further."""
    guest_framebuffer_mib: int | None = None
    """What the guest sees, without ECC and page-retirement losses."""
    printed_framebuffer_mib: int | None = None
    """What the documentation prints, where it differs from the name."""
    type_id: int | None = None
    """The host driver's numeric type id, the same in every release."""
    max_displays: int | None = None
    ecc: bool | None = None
    verified: Verified = Verified.DERIVED
    """Of the profile and its count."""
    verified_mixed: Verified | None = None
    verified_placement: Verified | None = None
    verified_name: Verified | None = None
    """DOC = this very string was seen on a vSphere host; DERIVED = written by the rule; None = no name known."""

    @property
    def mig_backed(self) -> bool:
        return self.kind is ProfileKind.MIG_BACKED

    @property
    def attachable(self) -> bool:
        """Return whether its name in vCenter is known; a profile without one is listed, and never attached."""
        return bool(self.name)
