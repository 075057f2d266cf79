"""Figures with their units, and the heading of views, as text."""

from __future__ import annotations

from typing import Final

from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.layout import Text

PINNED: Final = (
    "pinned: pciPassthruN.cfg.gpu-pci-id does not change when HA or vMotion moves the VM to another host, where it "
    "names another GPU or none; use --pin never to avoid this"
)


def size(mib: float | None) -> str:
    """Return `64 GiB`, `1.5 GiB` or `512 MiB`; `unknown` for None."""
    if mib is None:
        return "unknown"
    if mib < 1024:
        return f"{mib:g} MiB"
    return f"{round(mib / 1024, 1):g} GiB"


def optional_figure(figure: object | None, spec: str = "", *, unknown: str = "?") -> str:
    """Return the figure, formatted as in an f-string; `unknown` for None."""
    return unknown if figure is None else format(figure, spec)


def count(number: int, noun: str) -> str:
    """Return `1 host` or `2 hosts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def count_hosts(hosts: int, gpus: int) -> str:
    """Return `2 hosts with 8 GPUs`."""
    return f"{count(hosts, 'host')} with {count(gpus, 'GPU')}"


def vcenter_heading(inventory: Inventory, subject: str) -> Text:
    """Return `vCenter 8.0.3.0: SUBJECT, read 2026-11-21 02:49 UTC`."""
    return Text(f"vCenter {inventory.api_version}: {subject}, read {format_zoned_minute(inventory.taken_at)}", "bold")
