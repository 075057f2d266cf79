"""VMs that do not exist yet, for which a request asks for a place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta

from gpuops.errors import UsageError
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.file_keys import Key, Text, reads_by
from gpuops.model.time_text import parse_zoned
from gpuops.model.vcenter.host import NumaPolicy

_SIZE: Final = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,3})?) ?(?P<unit>[MGT])(?:i?B)?", re.IGNORECASE)
_MIB: Final = {"M": 1, "G": 1024, "T": 1024 * 1024}


def moment(text: str) -> datetime:
    """Return the moment written as `2026-11-03T05:00+01:00`. Raises UsageError, also without an offset from UTC."""
    try:
        return parse_zoned(text.strip())
    except ValueError:
        hint = "write date, time and offset from UTC: 2026-11-03T05:00+01:00"
        raise UsageError(f"{text!r} is not a point in time", hint=hint) from None


def memory_mib(text: str) -> int:
    """Return the size written as `64GiB`, `64 GB`, `65536MiB` or `1.5TiB` in MiB; as in vSphere, a GB is a GiB.

    Raises UsageError, also for a bare number: 64 may be meant in GiB or in MiB.
    """
    match = _SIZE.fullmatch(text.strip())
    size_mib = float(match["number"]) * _MIB[match["unit"].upper()] if match else 0.0
    if size_mib < 1 or size_mib != int(size_mib):
        raise UsageError(f"{text!r} is not a size of memory", hint="write it with its unit: 64GiB")
    return int(size_mib)


Vcpus = Annotated[int, Key("vcpu"), Meta(ge=1, le=4096)]
Memory = Annotated[int, Key("memory"), reads_by(memory_mib)]


@dataclass(frozen=True, slots=True)
class Vgpus:
    """vGPUs of one profile."""

    profile: Text
    count: Annotated[int, Meta(ge=1, le=64)] = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """One VM to find a place for.

    It wants exactly one of: vGPUs (`profile`, `count` of them, and `more` of other profiles), whole GPUs of a kind
    (`gpus`), given whole devices (`device`), a vendor device group (`device_group`).
    """

    name: Text
    vcpus: Vcpus
    memory_mib: Memory
    profile: Text | None = None
    """vGPU profile, as people write it: `a100-3-20c`."""
    count: int = 1
    more: tuple[Vgpus, ...] = ()
    """vGPUs of other profiles in the same VM; all are of one GPU model."""
    gpus: int = 0
    """Whole GPUs by DirectPath I/O, all of one model."""
    model: Text | None = None
    """Which model these are, as people write it: `l40s`; None = any."""
    label: Text | None = None
    """Hardware label that each of `gpus` carries."""
    device: tuple[PciAddress, ...] = ()
    """PCI addresses of whole devices, all on one host (DirectPath I/O)."""
    device_group: Text | None = None
    """Vendor device group, all of it: `Nvidia:2@grid_a100d-80c%NVLink`."""
    numa: NumaPolicy = NumaPolicy.PREFERRED
    cluster: Text | None = None
    """Name of the cluster it must be in."""
    host: Text | None = None
    """Shell pattern that the host's name must match."""
    tag: tuple[str, ...] = ()
    """`category:tag` names, all of which its host carries."""
    affinity: Text | None = None
    """All workloads with this word share one host, or none of them is placed."""
    anti_affinity: Text | None = None
    """No two workloads with this word share a host."""
    spread: Text | None = None
    """Workloads with this word go to hosts that hold the fewest of them, as far as there is room."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """Higher is placed earlier."""
    until: Annotated[datetime, reads_by(moment)] | None = None
    """When its VM is removed; None = unknown."""

    @property
    def vgpus(self) -> tuple[Vgpus, ...]:
        """Return every profile with its count, in the order of the request; () = it asks for other devices."""
        return () if self.profile is None else (Vgpus(self.profile, self.count), *self.more)
