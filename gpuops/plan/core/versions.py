"""What the release of a host and the API version of a vCenter can do: virtual hardware, and fields of requests.

An older vCenter leaves newer fields out of its answers without a word, and a client leaves them out of its requests; so
a request that needs one is refused by name, before anything is looked for. What it has no field for is unknown there,
not absent. Source: "since" of each field and type in the vSphere API reference (Web Services).
"""

from __future__ import annotations

import re
from typing import Final

Release = tuple[int, int, int]

NEWEST: Final = 21
"""Virtual hardware of ESXi 8.0 Update 2 and 3: what a VM gets where the release of its host is not known."""

_HARDWARE: Final[tuple[tuple[Release, int], ...]] = (
    ((8, 0, 2), NEWEST),
    ((8, 0, 0), 20),
    ((7, 0, 2), 19),
    ((7, 0, 1), 18),
    ((7, 0, 0), 17),
    ((6, 7, 0), 14),
    ((6, 5, 0), 13),
)
"""From each release on (VMware docs, "Virtual machine hardware versions"). 6.7 Update 2 has 15, and shows itself as
6.7.0: it is taken for the older one. Newer releases run 21 too."""


def release(version: str | None) -> Release | None:
    """`8.0.3` in numbers; None = unknown."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def hardware_on(version: str | None) -> int:
    """Return the virtual hardware version of a VM that is made on such a host today."""
    numbers = release(version)
    if numbers is None:
        return NEWEST
    return next((hardware for since, hardware in _HARDWARE if numbers >= since), 11)


CHANGED_SINCE: Final = "8.0.0.0"
"""What a vCenter must speak to be changed; one of 7.0 is changed as far as its API has what is asked for."""
_OLDEST_CHANGED: Final = (7,)
TOO_OLD_NEXT: Final = "update vCenter: 7.0 is changed as far as its API goes, older ones are only read"


def why_only_read(api_version: str) -> str | None:
    """Return why a vCenter of this API version is not changed, in a line; None = it is."""
    have = version_numbers(api_version)
    if not have or have >= _OLDEST_CHANGED:
        return None
    return f"this vCenter speaks API {api_version} and is only read; changes need {CHANGED_SINCE}"


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
    """Return the first of these that this API version cannot say, in a line; None = it can say all of them."""
    checks = ((dynamic, DYNAMIC), (label, LABEL), (group, GROUP), (numa_cores, NUMA_CORES), (device_node, DEVICE_NODE))
    have = version_numbers(api_version)
    for is_requested, (since, option_text) in checks:
        if is_requested and have < version_numbers(since):
            return f"this vCenter speaks API {api_version}; {option_text} needs {since}"
    return None


def version_numbers(text: str) -> tuple[int, ...]:
    """Return a dotted version as numbers, to compare: "8.0.3.0" is newer than "8.0"."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())
