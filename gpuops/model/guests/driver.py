"""Which drivers go together by NVIDIA's documents: vGPU manager and guest driver, driver and CUDA. Others: unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuops.model.guests.guest import GuestSystem

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
        """The oldest driver on that system."""
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
