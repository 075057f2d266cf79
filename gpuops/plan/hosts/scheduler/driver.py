"""The NVIDIA driver of a host: which of its installed software packages (VIBs) it is, and of what branch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpuops.model.host_settings import SoftwarePackage
from gpuops.model.scheduler import DriverBranch

_VENDORS: Final = frozenset({"nvidia", "nvd"})
_MANAGEMENT: Final = re.compile(r"mgmt|management", re.IGNORECASE)
_VERSION: Final = re.compile(r"(\d{3})\.\d+")


def driver_of(packages: Iterable[SoftwarePackage]) -> SoftwarePackage | None:
    """The vGPU manager among the packages; None = there is none, or several of different branches."""
    found = [package for package in packages if _is_driver(package)]
    return found[0] if len({branch_of(package.version) for package in found}) == 1 else None


def branch_of(version: str) -> DriverBranch | None:
    """The branch of a driver version: `550.90.05-1OEM.800.1.0.20613240` is R550; None = no such version."""
    match = _VERSION.match(version)
    return DriverBranch(int(match[1])) if match else None


def _is_driver(package: SoftwarePackage) -> bool:
    """NVIDIA's management daemon is a package of its own, beside the driver."""
    ours = package.vendor.lower() in _VENDORS and branch_of(package.version) is not None
    return ours and _MANAGEMENT.search(package.name) is None
