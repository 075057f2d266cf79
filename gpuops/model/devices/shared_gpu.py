"""Workloads that are to share GPUs, and what was seen of two that did."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Final

from msgspec import Meta

_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?) ?%")
ShareText = Annotated[Any, Meta(extra_json_schema={"type": ["number", "string"]})]


def read_share(share: object, most: float = 1.0) -> tuple[float, bool]:
    """Return the share, and whether it is written in percent. Raises ValueError."""
    percent = _PERCENT.fullmatch(share.strip()) if isinstance(share, str) else None
    try:
        number = float(percent[1]) / 100 if percent else float(str(share))
    except ValueError:
        number = float("nan")
    if isinstance(share, bool) or not isfinite(number):
        raise ValueError("is no share: write it as 0.7, or as 70%")
    if most < number <= 100 and percent is None:
        raise ValueError(f"is above 1: a share is written as 0.7, or with its unit, {number:g}%")
    if not 0 < number <= most:
        raise ValueError(f"should be more than 0 and {most:g} or less")
    return number, percent is not None


@dataclass(frozen=True, slots=True)
class ObservedPair:
    """Two workloads that shared a GPU, and how fast each was beside the other; 1 = as fast as alone."""

    names: tuple[str, str]
    speeds: tuple[float, float]


@dataclass(frozen=True, slots=True)
class SharingWorkload:
    """So many VMs that each keep a GPU busy for this share of the time, alone."""

    name: str
    busy: float
    count: int


@dataclass(frozen=True, slots=True)
class SharingWorkloads:
    """What a file says of them."""

    workloads: tuple[SharingWorkload, ...]
    pairs: tuple[ObservedPair, ...]
