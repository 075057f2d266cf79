"""Workloads that are to share GPUs, and what was seen of two that did."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Annotated, Any, Final

from msgspec import Meta

from gpuops.model.file_keys import Key, Reads, Text

_PERCENT: Final = re.compile(r"(\d+(?:\.\d+)?) ?%")
ShareText = Annotated[Any, Meta(extra_json_schema={"type": ["number", "string"]})]
MOST_VMS: Final = 5000
_FASTEST: Final = 1.5
"""A speed above 1 is noise of two measurements, up to here."""


class ShareOfGpu(float):
    """A share as it was written: 0.7, or 70% (`in_percent`)."""

    in_percent: bool


def read_share(text: object, most: float = 1.0) -> ShareOfGpu:
    """Return the share of a GPU, more than 0 and at most `most`. Raises ValueError for any other text."""
    percent = _PERCENT.fullmatch(text.strip()) if isinstance(text, str) else None
    try:
        share = ShareOfGpu(float(percent[1]) / 100 if percent else float(str(text)))
    except ValueError:
        share = ShareOfGpu("nan")  # refused below
    share.in_percent = percent is not None
    if isinstance(text, bool) or not isfinite(share):
        raise ValueError("is not a share: write it as 0.7, or as 70%")
    if most < share <= 100 and percent is None:
        raise ValueError(f"is above 1: a share is written as 0.7, or with its unit, {share:g}%")
    if not 0 < share <= most:
        raise ValueError(f"should be more than 0 and {most:g} or less")
    return share


Busy = Annotated[float, Reads(read_share, ShareText)]
Speed = Annotated[float, Reads(partial(read_share, most=_FASTEST), ShareText)]


@dataclass(frozen=True, slots=True)
class ObservedPair:
    """Two workloads that shared a GPU, and how fast each was; 1 = as fast as alone."""

    names: Annotated[tuple[Text, ...], Key("between"), Meta(min_length=2, max_length=2)]
    speeds: Annotated[tuple[Speed, ...], Meta(min_length=2, max_length=2)]


@dataclass(frozen=True, slots=True)
class SharingWorkload:
    """One workload."""

    name: Text
    busy: Busy
    count: Annotated[int, Meta(ge=1, le=1000)] = 1


@dataclass(frozen=True, slots=True)
class SharingWorkloads:
    """Workloads, and pairs of them that were observed."""

    workloads: Annotated[tuple[SharingWorkload, ...], Meta(min_length=1, max_length=200)]
    pairs: Annotated[tuple[ObservedPair, ...], Meta(max_length=5000)] = ()

    def __post_init__(self) -> None:
        names = Counter(workload.name for workload in self.workloads)
        if repeated_names := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"the workload {repeated_names[0]!r} is listed twice; use `count` for several VMs of it")
        if (vms := sum(workload.count for workload in self.workloads)) > MOST_VMS:
            raise ValueError(f"has {vms} VMs in total; at most {MOST_VMS} are allowed")
        for pair in self.pairs:
            if unknown_names := [name for name in pair.names if name not in names]:
                raise ValueError(f"a pair names {unknown_names[0]!r}, which is not a workload of this file")
        shares = [workload.busy for workload in self.workloads]
        shares += [speed for pair in self.pairs for speed in pair.speeds]
        if len({share.in_percent for share in shares if isinstance(share, ShareOfGpu)}) > 1:
            raise ValueError("has mixed units: some values are shares (0.7), others percentages (70%); write all alike")
