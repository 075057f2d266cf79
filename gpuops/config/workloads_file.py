"""Workloads that are to share GPUs, as YAML: how busy each keeps a GPU alone, and pairs that were seen to share one.

`templates/workloads.yaml` is the commented example. `gpuops size` reads it here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from gpuops.config.decoding import Section, read_as
from gpuops.errors import UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.devices.shared_gpu import ObservedPair, ShareText, SharingWorkload, SharingWorkloads, read_share
from gpuops.model.file_keys import Reads, Text

_HINT: Final = "templates/workloads.yaml shows every key, with comments"
MOST_VMS: Final = 5000
_FASTEST: Final = 1.5
"""A speed above 1 is noise of two measurements, up to here."""


def share_of(text: str, description: str) -> float:
    """The share that `0.7` or `70%` is, above 0 and up to 1. Raises UsageError that begins with `description`."""
    try:
        share, _ = read_share(text)
    except ValueError as error:
        raise UsageError(f"{description} {text}: {error}", hint="write it as 0.7, or as 70%") from None
    return share


class _WrittenShare(float):
    """A share, and how it was written."""

    in_percent: bool


def _reads_share(most: float) -> Reads:
    def read(value: Any) -> _WrittenShare:
        number, in_percent = read_share(value, most)
        share = _WrittenShare(number)
        share.in_percent = in_percent
        return share

    return Reads(read, ShareText)


Busy = Annotated[_WrittenShare, _reads_share(1.0)]
Speed = Annotated[_WrittenShare, _reads_share(_FASTEST)]


class WorkloadSection(Section):
    """One workload."""

    name: Text
    busy: Busy
    count: Annotated[int, Meta(ge=1, le=1000)] = 1


class PairSection(Section):
    """Two workloads that shared a GPU, and how fast each was; 1 = as fast as alone."""

    between: Annotated[tuple[Text, ...], Meta(min_length=2, max_length=2)]
    speeds: Annotated[tuple[Speed, ...], Meta(min_length=2, max_length=2)]


class WorkloadsFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    workloads: Annotated[tuple[WorkloadSection, ...], Meta(min_length=1, max_length=200)]
    pairs: Annotated[tuple[PairSection, ...], Meta(max_length=5000)] = ()

    def __post_init__(self) -> None:
        names = Counter(workload.name for workload in self.workloads)
        if twice := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"the workload {twice[0]!r} is there twice; `count` says how many VMs have it")
        if (vms := sum(workload.count for workload in self.workloads)) > MOST_VMS:
            raise ValueError(f"has {vms} VMs in all; {MOST_VMS} can be asked about at once")
        for pair in self.pairs:
            if strange := [name for name in pair.between if name not in names]:
                raise ValueError(f"a pair is between {strange[0]!r}, which is no workload of this file")
        shares = [workload.busy for workload in self.workloads]
        shares += [speed for pair in self.pairs for speed in pair.speeds]
        if len({share.in_percent for share in shares}) > 1:
            raise ValueError("has mixed units: some values are shares (0.7), others percentages (70%); write all alike")


def load_workloads(path: Path) -> SharingWorkloads:
    """The workloads in this file, in its order. Raises PolicyError, one line: file, place, reason."""
    return parse_workloads(read_text(path), str(path))


def parse_workloads(text: str, name: str) -> SharingWorkloads:
    """The workloads of a YAML text; `name` is what an error calls it. Raises PolicyError."""
    workloads_file = read_as(WorkloadsFile, parse_yaml(text, name), name, _HINT)
    pairs = tuple(
        ObservedPair((pair.between[0], pair.between[1]), (float(pair.speeds[0]), float(pair.speeds[1])))
        for pair in workloads_file.pairs
    )
    return SharingWorkloads(
        tuple(
            SharingWorkload(workload.name, float(workload.busy), workload.count)
            for workload in workloads_file.workloads
        ),
        pairs,
    )
