"""The GPUs of a guest and the software for them, as the guest reports them, and how it was read. None = unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class GuestSystem(StrEnum):
    LINUX = "linux"
    WINDOWS = "windows"


class GuestWay(StrEnum):
    """How guests are asked."""

    TOOLS = "tools"
    """Guest operations of VMware Tools."""
    SSH = "ssh"


class GuestMode(StrEnum):
    """A mode of a GPU, as nvidia-smi shows it: Enabled, Disabled, N/A."""

    ON = "on"
    OFF = "off"
    ABSENT = "it has none"


@dataclass(frozen=True, slots=True)
class GuestGpu:
    """One GPU as the nvidia-smi of the guest shows it."""

    name: str
    licence: str | None = None
    """`Licensed (Expiry: 2026-7-7 16:1:44 GMT)`, `Unlicensed`; None = it shows none."""
    ecc: GuestMode | None = None
    ecc_pending: GuestMode | None = None
    """What it is after the next reboot."""
    mig: GuestMode | None = None
    mig_pending: GuestMode | None = None


@dataclass(frozen=True, slots=True)
class SmiReport:
    """What `nvidia-smi -q -x` shows."""

    driver: str
    cuda: str | None
    """The newest CUDA that the driver runs."""
    gpus: tuple[GuestGpu, ...]


@dataclass(frozen=True, slots=True)
class RdmaLink:
    """A port of an RDMA device: `mlx5_0/1`."""

    name: str
    active: bool
    state: str


@dataclass(frozen=True, slots=True)
class GuestAnswer:
    """All that one guest tells."""

    system: GuestSystem
    clock_s: float | None = None
    """Its time, in seconds since 1970."""
    synchronized: bool | None = None
    """Whether a time service keeps its clock."""
    installed: str | None = None
    """The version of the driver that is installed, loaded or not."""
    smi: SmiReport | None = None
    smi_missing: bool = False
    smi_says: str = ""
    """Why there is no report: what nvidia-smi prints in place of it, or why that cannot be read."""
    smi_unreadable: bool = False
    """Whether it printed a report that cannot be read."""
    toolkit: str | None = None
    """The CUDA toolkit that is installed: `12.4`."""
    runtimes: tuple[str, ...] = ()
    """CUDA runtime libraries that the loader finds: `12`."""
    frameworks: Mapping[str, str | None] = field(default_factory=dict)
    """Version of each that was asked for; None = it is not installed."""
    python_missing: bool = False
    rdma: tuple[RdmaLink, ...] | None = None
    """None = the guest has no program that tells."""


@dataclass(frozen=True, slots=True)
class GuestReply:
    """What came back from a guest, not looked into yet, and vCenter's time before and after."""

    text: str | None
    why_not: str = ""
    """Why it could not be read,"""
    next_move: str = ""
    """and what to do about it."""
    before: datetime | None = None
    after: datetime | None = None
