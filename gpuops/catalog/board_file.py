"""Reads one board file into a `Board` with its profiles and the MIG geometry of its family; `catalog.load` calls it.

A board's profiles are regular. All profiles of one size have the same counts and starts in every series, and all of one
series have the same limits and marks. The name of a profile is the board's name and a tail. So a file has each of these
facts once, and under `exceptions` the facts of single profiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from gpuops.catalog.fields import Fields, read
from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Board, Generation, MixedSizeRule, MultiVgpu, PciId
from gpuops.model.devices.mig import InstanceProfile, MigGeometry, Variant
from gpuops.model.devices.vgpu import ProfileKind, Series, Verified, VgpuProfile

BOARDS: Final = Path(__file__).parent / "gpus"
_FAMILIES: Final = Path(__file__).parent / "mig"
# Longest first, so that `+me.all` is not taken for an `+me` with something behind it.
_SUFFIXES: Final = tuple(sorted((variant for variant in Variant if variant), key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class _ProfileNames:
    """The parts of the names of the board's profiles."""

    key: str
    short: str
    full: str | None
    """The driver's name with its brand; None if no vSphere name can be derived from it."""
    documented_tails: tuple[str, ...]

    def esxi(self, tail: str) -> str:
        """Return the name in vCenter: the driver's full name in lower case, blanks as `_`; '' if that is unknown."""
        return f"{self.full}-{tail}".lower().replace(" ", "_") if self.full else ""

    def verification_of(self, tail: str) -> Verified | None:
        if self.full is None:
            return None
        return Verified.DOC if tail in self.documented_tails else Verified.DERIVED


def board(key: str) -> Board:
    """Return the board of the file `gpus/KEY.yaml`. Raises UsageError if the file cannot be understood."""
    fields = read(BOARDS / f"{key}.yaml")
    names = _ProfileNames(key, fields.text("short_name"), fields.maybe_text("full_name"), fields.texts("names_seen"))
    family = fields.maybe_text("mig")
    mig = _geometry(family) if family else None
    profiles = tuple(_profiles(fields, names, mig))
    loaded_board = Board(
        key=key,
        name=fields.text("name"),
        short_name=names.short,
        generation=fields.choice("generation", Generation),
        esxi_prefix=names.esxi("") or None,
        pci_ids=tuple(_pci_id(row) for row in fields.rows("pci")),
        framebuffer_mib=fields.number("framebuffer_mib"),
        gpus_per_board=fields.number("gpus_per_board"),
        sriov=fields.flag("sriov"),
        mixed_size_mode=fields.maybe_flag("mixed_size_mode"),
        mixed_size_rule=fields.maybe_choice("mixed_size_rule", MixedSizeRule),
        multi_vgpu=fields.choice("multi_vgpu", MultiVgpu),
        mig=mig,
        mmio_gib=fields.maybe_number("mmio_gib"),
        nvlink_profiles=tuple(map(names.esxi, fields.texts("nvlink"))),
        nvswitch_profiles=tuple(map(names.esxi, fields.texts("nvswitch"))),
        verified=fields.choice("verified", Verified),
        sources=tuple(fields.mapping("sources").items()),
        profiles=tuple(profile for profile in profiles if profile.attachable),
        nameless=tuple(profile for profile in profiles if not profile.attachable),
    )
    fields.check_all_read()
    return loaded_board


def _pci_id(row: Fields) -> PciId:
    return PciId(
        device_id=row.hexadecimal("device"),
        subsystem_ids=row.hexadecimals("subsystems"),
        shared=row.maybe_flag("shared") or False,
        marketed_as=row.maybe_text("marketed_as"),
    )


def _profiles(fields: Fields, names: _ProfileNames, mig: MigGeometry | None) -> Iterator[VgpuProfile]:
    """Yield the profiles. Facts of a size override those of its series, and exceptions override both."""
    exceptions = fields.mapping("exceptions")
    for kind, section in ((ProfileKind.TIME_SLICED, "time_sliced"), (ProfileKind.MIG_BACKED, "mig_backed")):
        by_series = fields.mapping(f"{section}_series")
        for row in fields.mappings(section):
            for tail, type_id in row.pop("type_ids", {}).items():
                # 2B4 is a second B type, 1-5CME a C type that owns the media engines.
                series = tail.removesuffix("4").removesuffix("ME")[-1]
                if series not in by_series:
                    raise UsageError(f"{names.key}.yaml: {section}_series has no {series}, the series of {tail}")
                facts = {**by_series[series], **row, **exceptions.pop(tail, {}), "type_id": type_id}
                yield _profile(tail, Series(series), kind, facts, names, mig)
    if exceptions:
        tails = ", ".join(exceptions)
        raise UsageError(f"{names.key}.yaml: exceptions names profiles that the board does not have: {tails}")


def _profile(
    tail: str, series: Series, kind: ProfileKind, facts: dict[str, Any], names: _ProfileNames, mig: MigGeometry | None
) -> VgpuProfile:
    fields = Fields(facts, f"{names.key}.yaml: {tail}")
    mig_profile = fields.maybe_text("instance")
    instance = mig.profile(mig_profile) if mig and mig_profile else None
    mixed = fields.maybe_number("mixed")
    starts = fields.numbers("starts_gb")
    displays = fields.maybe_number("displays")
    guest_mib = fields.maybe_number("guest_mib")
    verified_mixed = fields.maybe_choice("verified_mixed", Verified)
    verified_starts = fields.maybe_choice("verified_starts", Verified)
    vgpu_profile = VgpuProfile(
        name=names.esxi(tail),
        short_name=f"{names.short}-{tail}",
        full_name=f"{names.full}-{tail}" if names.full else None,
        board=names.key,
        series=series,
        kind=kind,
        framebuffer_mib=fields.number("framebuffer_mib"),
        max_per_gpu=fields.number("count"),
        max_per_gpu_mixed=mixed,
        placement_ids_mixed=starts,
        mig_profile=mig_profile,
        compute_slices=instance.compute_slices if instance else None,
        memory_slices=instance.memory_slices if instance else None,
        max_per_gpu_instance=fields.maybe_number("per_instance"),
        max_per_vm=fields.maybe_number("max_per_vm"),
        guest_framebuffer_mib=guest_mib if displays is not None else None,
        printed_framebuffer_mib=fields.maybe_number("printed_mib"),
        type_id=fields.maybe_number("type_id"),
        max_displays=displays,
        ecc=fields.maybe_flag("ecc"),
        verified=fields.choice("verified", Verified),
        # a mark is for the complete series: a size without such a fact has no mark
        verified_mixed=verified_mixed if mixed is not None else None,
        verified_placement=verified_starts if starts else None,
        verified_name=names.verification_of(tail),
    )
    fields.check_all_read()
    return vgpu_profile


@cache
def _geometry(family: str) -> MigGeometry:
    """Return the geometry of a family of GPUs, read once per process. Raises UsageError."""
    fields = read(_FAMILIES / f"{family}.yaml")
    mig_geometry = MigGeometry(
        family=family,
        max_instances=fields.number("max_instances"),
        compute_slices=fields.number("compute_slices"),
        memory_slices=fields.number("memory_slices"),
        min_driver=fields.maybe_text("min_driver"),
        verified=fields.choice("verified", Verified),
        profiles=tuple(_instance(name, row) for name, row in fields.named_rows("profiles")),
    )
    fields.check_all_read()
    return mig_geometry


def _instance(name: str, row: Fields) -> InstanceProfile:
    return InstanceProfile(
        name=name,
        id=row.maybe_number("id"),
        compute_slices=row.number("compute_slices"),
        memory_slices=row.number("memory_slices"),
        starts=row.numbers("starts"),
        max_count=row.number("count"),
        variant=next((variant for variant in _SUFFIXES if name.endswith(variant)), Variant.PLAIN),
        usable_for_vgpu=row.flag("vgpu"),
    )
