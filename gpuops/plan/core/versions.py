"""The virtual hardware that a release of ESXi supports, and the options that need a newer API version of vCenter.

An older vCenter ignores newer fields without an error. A request that needs such a field is therefore refused first. In
an answer of an older vCenter, a newer field is unknown, not absent. Source: "since" of each field and type in the
vSphere API reference (Web Services).
"""

from __future__ import annotations

import re
from typing import Final

Release = tuple[int, int, int]

NEWEST: Final = 21
"""Virtual hardware of ESXi 8.0 Update 2 and 3; also used if the release of a host is unknown."""
_BEFORE_6_5: Final = 11
"""Virtual hardware of ESXi 6.0, the oldest release that gpuops reads."""

_HARDWARE: Final[tuple[tuple[Release, int], ...]] = (
    ((8, 0, 2), NEWEST),
    ((8, 0, 0), 20),
    ((7, 0, 2), 19),
    ((7, 0, 1), 18),
    ((7, 0, 0), 17),
    ((6, 7, 0), 14),
    ((6, 5, 0), 13),
)
"""(release, newest virtual hardware from this release on), from VMware docs, "Virtual machine hardware versions". ESXi
6.7 Update 2 supports 15 but reports 6.7.0, so 14 is used."""


def release(version: str | None) -> Release | None:
    """Return a version such as `8.0.3` as numbers; None = unknown."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def hardware_on(version: str | None) -> int:
    """Return the virtual hardware version of a new VM on a host of this release."""
    numbers = release(version)
    if numbers is None:
        return NEWEST
    return next((hardware for since, hardware in _HARDWARE if numbers >= since), _BEFORE_6_5)


CHANGED_SINCE: Final = "8.0.0.0"
"""The API version that supports all changes. On 7.0, gpuops makes only those that its API supports."""
_OLDEST_CHANGEABLE: Final = (7,)
TOO_OLD_NEXT: Final = "update vCenter: gpuops changes version 7.0 as far as its API allows, and only reads older ones"


def why_only_read(api_version: str) -> str | None:
    """Return why gpuops does not change a vCenter of this API version; None = it does."""
    present = version_numbers(api_version)
    if not present or present >= _OLDEST_CHANGEABLE:
        return None
    return f"gpuops only reads this vCenter (API version {api_version}); all changes need {CHANGED_SINCE}"


DYNAMIC: Final = "7.0.0.0", "Dynamic DirectPath I/O"
LABEL: Final = "7.0.2.0", "a hardware label"
GROUP: Final = "8.0.0.1", "a vendor device group"
NUMA_CORES: Final = "8.0.0.1", "cores per virtual NUMA node"
DEVICE_NODE: Final = "8.0.0.1", "a device's virtual NUMA node"


def unsupported_option(
    api_version: str,
    *,
    dynamic: bool = False,
    label: bool = False,
    group: bool = False,
    numa_cores: bool = False,
    device_node: bool = False,
) -> str | None:
    """Return a refusal of the first requested option that this API version does not support; None = all are."""
    checks = ((dynamic, DYNAMIC), (label, LABEL), (group, GROUP), (numa_cores, NUMA_CORES), (device_node, DEVICE_NODE))
    present = version_numbers(api_version)
    for is_requested, (since, option_text) in checks:
        if is_requested and present < version_numbers(since):
            return f"this vCenter has API version {api_version}; {option_text} needs {since}"
    return None


def version_numbers(text: str) -> tuple[int, ...]:
    """Return a dotted version as numbers for comparison: "8.0.3.0" is newer than "8.0"."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())
