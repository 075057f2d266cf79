"""`mig show` for people and for programs: MIG mode as vCenter tells it, and as the host's own nvidia-smi does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuops.model.gpu import PhysicalGpu, VgpuMode
from gpuops.model.host import Host
from gpuops.model.host_settings import HostSettings, SmiState
from gpuops.model.inventory import Inventory
from gpuops.report.plan_json import SCHEMA_VERSION, Document
from gpuops.report.units import count
from gpuops.report.visible import visible

_WORDS: Final = {True: "on", False: "off", None: "unknown"}


def mig_text(inventory: Inventory, hosts: Sequence[Host]) -> RenderableType:
    """A heading and a table for each host; a host that did not answer says why."""
    heading = f"vCenter {visible(inventory.api_version)}: {count(len(hosts), 'host')}"
    lines: list[RenderableType] = [Text(f"{heading}, read {inventory.taken_at:%Y-%m-%d %H:%M %Z}", "bold")]
    for host in hosts:
        lines += [Text(), Text(visible(host.name), "bold"), _table(host)]
        lines += [Text(f"  {visible(text)}", "yellow") for text in (host.settings or HostSettings()).unread]
    return Group(*lines)


def mig_document(inventory: Inventory, hosts: Sequence[Host]) -> Document:
    """Hosts > GPUs; null = not known, or nobody was asked."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "mig-show",
        "vcenter": inventory.vcenter,
        "read_at": inventory.taken_at.isoformat(),
        "hosts": [
            {
                "ref": host.ref,
                "name": host.name,
                "gpus": [_gpu(gpu, _state(gpu, host)) for gpu in host.gpus],
                "unread": list((host.settings or HostSettings()).unread),
            }
            for host in hosts
        ],
    }


def _gpu(gpu: PhysicalGpu, state: SmiState | None) -> Document:
    return {
        "address": str(gpu.address),
        "model": gpu.name,
        "vcenter": _in_vcenter(gpu),
        "current": state.current if state else None,
        "pending": state.pending if state else None,
    }


def _state(gpu: PhysicalGpu, host: Host) -> SmiState | None:
    told = (host.settings or HostSettings()).mig or ()
    return next((state for state in told if state.address == gpu.address), None)


def _in_vcenter(gpu: PhysicalGpu) -> bool | None:
    return None if gpu.vgpu_mode is None else gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE


def _table(host: Host) -> Table:
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    asked = (host.settings or HostSettings()).mig is not None
    for column in ("  GPU", "model", "vCenter", *(("nvidia-smi", "pending") if asked else ())):
        table.add_column(column, no_wrap=True)
    for gpu in host.gpus:
        cells = [f"  {gpu.address}", gpu.name, _WORDS[_in_vcenter(gpu)]]
        if asked:
            state = _state(gpu, host)
            current, waiting = (state.current, state.pending) if state else (None, None)
            cells += [_WORDS[current] if state else "not listed", "" if current == waiting else _WORDS[waiting]]
        table.add_row(*(Text(visible(cell)) for cell in cells))
    return table
