"""What guests report: their GPUs and the software for them, commands that run there, and containers of jobs.

None = unknown. Which drivers go together (vGPU manager and guest driver, driver and CUDA) follows from NVIDIA's
documents; for other combinations it is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final


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


_NUMBERS: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,3}")


def version_of(text: str) -> tuple[int, ...] | None:
    """Return `580.65.06` as numbers; None for a text that is not a version of a driver or of CUDA."""
    return tuple(int(part) for part in text.split(".")) if _NUMBERS.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class VgpuPairs:
    """The guest drivers that the vGPU manager of one branch takes, by branch."""

    host: int
    guests: tuple[int, ...]
    no_others: bool
    """Whether the page says that no other branch can be used; otherwise any other is unknown."""
    source: str


@dataclass(frozen=True, slots=True)
class WindowsNumbers:
    """Windows drivers of a branch have numbers of their own: of R525 they begin with 527 and 528."""

    branch: int
    first: int
    last: int
    source: str


@dataclass(frozen=True, slots=True)
class CudaMinimum:
    """The oldest driver that runs a CUDA release; `minor` None = all releases of that major version."""

    major: int
    minor: int | None
    linux: tuple[int, ...]
    windows: tuple[int, ...]
    source: str

    def of(self, system: GuestSystem) -> tuple[int, ...]:
        """Return the oldest driver on that system."""
        return self.linux if system is GuestSystem.LINUX else self.windows


@dataclass(frozen=True, slots=True)
class DriverTables:
    """The tables of NVIDIA that the catalogue holds."""

    pairs: tuple[VgpuPairs, ...]
    windows: tuple[WindowsNumbers, ...]
    cuda: tuple[CudaMinimum, ...]

    def guests_of(self, host: int) -> VgpuPairs | None:
        """Return the guest drivers that a vGPU manager of that branch supports; None = no page is known."""
        return next((pair for pair in self.pairs if pair.host == host), None)

    def branch_of(self, driver: str, system: GuestSystem) -> int | None:
        """Return the branch of a guest driver: 525 of `525.60.13` on Linux, `527.41` on Windows; None = unknown."""
        version = version_of(driver)
        if version is None:
            return None
        if system is GuestSystem.LINUX:
            return version[0]
        return next((numbers.branch for numbers in self.windows if numbers.first <= version[0] <= numbers.last), None)

    def cuda_minimum(self, cuda: tuple[int, ...]) -> CudaMinimum | None:
        """Return the drivers that a CUDA release needs; None = no page is known."""
        minima = (minimum for minimum in self.cuda if minimum.major == cuda[0] and minimum.minor in (None, *cuda[1:2]))
        return next(minima, None)


CHECKPOINT_REFUSALS: Final = 2
"""So many guests in a row may refuse the login of checkpoint hooks before no other guest is tried. With two, a mistake
in one guest does not cost the others their work, and accounts are not locked yet."""


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """A command that runs in a guest."""

    vm: str
    """Managed object id."""
    name: str
    pid: int
    directory: str
    """Of its guest, for what it prints."""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended in the VM of that name; an empty error = it succeeded."""

    name: str
    took_s: float | None = None
    """By the clock of its guest; None = not known."""
    exit_code: int | None = None
    printed: str = ""
    error: str = ""


class ContainerPhase(StrEnum):
    """Where one attempt at a job is in its guest."""

    ABSENT = "absent"
    """The guest knows nothing of it: it was never started there, or its files were removed."""
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One attempt at a job, as its guest tells it. Times are those of the guest's clock."""

    state: ContainerPhase
    exit_code: int | None = None
    """0 to 255, as the runtime ended; None = it runs, or its end was not seen because its guest went down meanwhile."""
    began: datetime | None = None
    ended: datetime | None = None
    asked_to_end: bool = False
    """Whether gpuops had asked it for its end before it ended: its exit code then says nothing of its work."""


@dataclass(frozen=True, slots=True)
class CheckpointEnd:
    """What became of the checkpoint command; it is true where the state was saved."""

    saved: bool
    reason: str = ""
    """Why it was not, in one line of the guest; code that prints it must escape it."""

    def __bool__(self) -> bool:
        return self.saved


class MustHave(StrEnum):
    """A part that a guest can be required to have. If it is not required, it is checked only if it exists."""

    TOOLKIT = "toolkit"
    RDMA = "rdma"
