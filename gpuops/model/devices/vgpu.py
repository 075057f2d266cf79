"""vGPU profiles: the size of one, how many of them a GPU holds, and which offered name a person means.

Hosts offer the driver's name in lower case with `_` for blanks: `GRID A100-3-20C` is `grid_a100-3-20c`. The brand is a
property of the GPU (`grid_` up to Turing and on A100/A800, `nvidia_` on all later boards), so people leave it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from gpuops.errors import ProfileAmbiguous, ProfileUnknown


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


_NAME: Final = re.compile(
    r"(?P<brand>grid|nvidia)_(?P<board>.+?)-(?:(?P<slices>\d)-)?"
    r"(?P<gb>\d+)(?P<series>[abcq])4?(?P<media>me)?"
)
_BRAND: Final = re.compile(r"^(?:grid|nvidia)_")


@dataclass(frozen=True, slots=True)
class ProfileName:
    """The parts of an ESXi profile name such as `grid_a100-1-5cme`."""

    brand: str
    board: str
    """`a100`, `rtx6000-ada`, `rtx_pro_6000_blackwell_dc`."""
    slices: int | None
    """Compute slices of the GPU instance; None = a time-sliced profile."""
    size_gb: int
    """0 stands for half a GB (M10, M60, M6)."""
    series: Series
    media: bool
    """`...ME`: its GPU instance owns the media engines."""

    @property
    def esxi_prefix(self) -> str:
        return f"{self.brand}_{self.board}-"

    @property
    def framebuffer_mib(self) -> int:
        return self.size_gb * 1024 or 512


@lru_cache(maxsize=4096)
def parse(name: str) -> ProfileName | None:
    """Return the parts of an ESXi profile name; None for a name of another form (vGaming types, other vendors).

    Cached: every read of a fleet parses each name that a host offers, and these are the same few hundred names.
    """
    match = _NAME.fullmatch(name.lower())
    if match is None:
        return None
    return ProfileName(
        brand=match["brand"],
        board=match["board"],
        slices=int(match["slices"]) if match["slices"] else None,
        size_gb=int(match["gb"]),
        series=Series(match["series"].upper()),
        media=match["media"] is not None,
    )


def resolve(text: str, offered: Iterable[str]) -> str:
    """Return the offered ESXi name that `text` means: as offered, in any case, with blanks for `_`, or without brand.

    `a100-3-20c`, `A100-3-20C`, `GRID A100-3-20C` and `grid_a100-3-20c` all mean `grid_a100-3-20c`. Raises
    ProfileUnknown with the nearest names that are offered, and ProfileAmbiguous when hosts offer it under both brands.
    """
    names = sorted(set(offered))
    if text in names:
        return text
    lowered = "_".join(text.lower().split())
    matches = [name for name in names if name.lower() == lowered]
    matches = matches or [name for name in names if without_brand(name) == without_brand(lowered)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ProfileAmbiguous(
            f"vGPU profile {text!r} is offered under {len(matches)} names: {', '.join(matches)}",
            hint="give one of these names in full",
        )
    raise _unknown_profile(text, lowered, names)


def without_brand(name: str) -> str:
    """Return the name in lower case without `grid_` or `nvidia_`."""
    return _BRAND.sub("", name.lower())


def near(text: str, offered: Iterable[str]) -> list[str]:
    """Return the offered names that are similar to the text, the most similar first; `8q` stands for all `...-8q`.

    At most three names without brand count; each may be offered under both brands.
    """
    from difflib import get_close_matches

    names_by_short: dict[str, list[str]] = {}
    for name in offered:
        names_by_short.setdefault(without_brand(name), []).append(name)
    base_name = without_brand(text)
    same_ending = sorted(key for key in names_by_short if key.endswith(f"-{base_name}"))[:3]
    return [
        name for key in same_ending or get_close_matches(base_name, names_by_short, n=3) for name in names_by_short[key]
    ]


def _unknown_profile(text: str, lowered: str, names: list[str]) -> ProfileUnknown:
    similar_names = near(lowered, names)
    suggestion = f"; near: {', '.join(similar_names)}" if similar_names else ""
    return ProfileUnknown(
        f"no host offers a vGPU profile {text!r}{suggestion}",
        hint="gpuops inventory --hosts shows the profiles each host offers",
    )
