"""Reads one MIG family file into a `MigGeometry`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from gpuops.catalog.fields import Fields, read
from gpuops.model.mig import InstanceProfile, MigGeometry, Variant
from gpuops.model.vgpu import Verified

_FAMILIES: Final = Path(__file__).parent / "mig"
# Longest first, so that `+me.all` is not taken for an `+me` with something behind it.
_SUFFIXES: Final = tuple(sorted((variant for variant in Variant if variant), key=len, reverse=True))


@cache
def geometry(family: str) -> MigGeometry:
    """The geometry of a family of GPUs, read once per process. Raises UsageError."""
    fields = read(_FAMILIES / f"{family}.yaml")
    result = MigGeometry(
        family=family,
        max_instances=fields.number("max_instances"),
        compute_slices=fields.number("compute_slices"),
        memory_slices=fields.number("memory_slices"),
        min_driver=fields.maybe_text("min_driver"),
        verified=fields.choice("verified", Verified),
        profiles=tuple(_instance(name, row) for name, row in fields.named_rows("profiles")),
    )
    fields.done()
    return result


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
