"""Release: the ESXi release of a host, and the virtual hardware that a VM made on it gets."""

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
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def hardware_on(version: str | None) -> int:
    """The virtual hardware version of a VM that is made on such a host today."""
    known = release(version)
    if known is None:
        return NEWEST
    return next((hardware for since, hardware in _HARDWARE if known >= since), 11)
