"""Spoken: what the API version of a vCenter has words for. What it has none for is unknown there, not absent.

An older vCenter leaves newer fields out of its answers without a word, and a client leaves them out of its requests; so
a request that needs one is refused by name, before anything is looked for.
Source: "since" of each field and type in the vSphere API reference (Web Services).
"""

from __future__ import annotations

from typing import Final

DYNAMIC: Final = "7.0.0.0", "Dynamic DirectPath I/O"
LABEL: Final = "7.0.2.0", "a hardware label"
GROUP: Final = "8.0.0.1", "a vendor device group"
NUMA_CORES: Final = "8.0.0.1", "cores per virtual NUMA node"
DEVICE_NODE: Final = "8.0.0.1", "a device's virtual NUMA node"


def unspoken(
    api_version: str,
    *,
    dynamic: bool = False,
    label: bool = False,
    group: bool = False,
    numa_cores: bool = False,
    device_node: bool = False,
) -> str | None:
    """The first of these that this API version cannot say, in a line; None = it can say all of them."""
    asked = ((dynamic, DYNAMIC), (label, LABEL), (group, GROUP), (numa_cores, NUMA_CORES), (device_node, DEVICE_NODE))
    have = version_numbers(api_version)
    for wanted, (since, what) in asked:
        if wanted and have < version_numbers(since):
            return f"this vCenter speaks API {api_version}; {what} needs {since}"
    return None


def version_numbers(text: str) -> tuple[int, ...]:
    """A dotted version as numbers, to compare: "8.0.3.0" is newer than "8.0"."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())
