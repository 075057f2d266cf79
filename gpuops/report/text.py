"""Figures with their units as text, for all views."""

from __future__ import annotations

from typing import Final

PINNED: Final = (
    "pinned: pciPassthruN.cfg.gpu-pci-id stays as it is when HA or vMotion takes the VM to another host, where it "
    "names another GPU or none (--pin never)"
)


def size(mib: float | None) -> str:
    """Return `64 GiB`, `1.5 GiB` or `512 MiB`; `unknown` for None."""
    if mib is None:
        return "unknown"
    if mib < 1024:
        return f"{mib:g} MiB"
    return f"{round(mib / 1024, 1):g} GiB"


def count(number: int, noun: str) -> str:
    """Return `1 host` or `2 hosts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
