"""`mode show` for people and for programs: what each GPU is used for, is configured for, and waits for."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuops.model.gpu import PhysicalGpu
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.report.plan_json import SCHEMA_VERSION, Document
from gpuops.report.units import count
from gpuops.report.visible import visible


def mode_text(inventory: Inventory, hosts: Sequence[Host]) -> RenderableType:
    """A heading and a table for each host."""
    gpus = sum(len(host.gpus) for host in hosts)
    heading = (
        f"vCenter {visible(inventory.api_version)}: {count(len(hosts), 'host')} with {count(gpus, 'GPU')}, "
        f"read {inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    )
    lines: list[RenderableType] = [Text(heading, "bold")]
    for host in hosts:
        lines += [Text(), Text(_title(host), "bold"), _table(host)]
    return Group(*lines)


def mode_document(inventory: Inventory, hosts: Sequence[Host]) -> Document:
    """Hosts > GPUs; null = not known."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "mode-show",
        "vcenter": inventory.vcenter,
        "api_version": inventory.api_version,
        "read_at": inventory.taken_at.isoformat(),
        "hosts": [_host(host) for host in hosts],
    }


def pending(gpu: PhysicalGpu) -> bool | None:
    """Whether the host's next boot changes what the GPU is used for; None = not known."""
    if gpu.passthrough is not None and gpu.passthrough.reboot_pending:
        return True
    if gpu.passthrough is not None and gpu.passthrough.active:
        return False
    if gpu.graphics_type is None or gpu.configured_graphics_type is None:
        return None
    return gpu.graphics_type is not gpu.configured_graphics_type


def _title(host: Host) -> str:
    default = host.default_graphics_type or "unknown"
    policy = host.assignment_policy or "unknown"
    return f"{visible(host.name)}: default type {default}, assignment policy {policy}"


def _table(host: Host) -> Table:
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("  GPU", "model", "used as", "configured as", "vGPU mode", "label", "reboot"):
        table.add_column(column, no_wrap=True)
    for gpu in host.gpus:
        label = gpu.passthrough.label if gpu.passthrough else None
        reboot = {None: "unknown", True: "pending", False: ""}[pending(gpu)]
        cells = (f"  {gpu.address}", gpu.name, _used(gpu), _configured(gpu), _mode(gpu), label or "", reboot)
        table.add_row(*(Text(visible(cell)) for cell in cells))
    return table


def _used(gpu: PhysicalGpu) -> str:
    if gpu.passthrough is not None and gpu.passthrough.active:
        return "DirectPath I/O"
    return gpu.graphics_type or "unknown"


def _configured(gpu: PhysicalGpu) -> str:
    if gpu.passthrough is not None and gpu.passthrough.enabled:
        return "DirectPath I/O"
    if gpu.passthrough is not None and gpu.passthrough.active:
        return "host"
    return gpu.configured_graphics_type or "unknown"


def _mode(gpu: PhysicalGpu) -> str:
    if gpu.passthrough is not None and gpu.passthrough.active:
        return ""
    return gpu.vgpu_mode or "unknown"


def _host(host: Host) -> Document:
    return {
        "name": host.name,
        "ref": host.ref,
        "default_type": host.default_graphics_type,
        "assignment_policy": host.assignment_policy,
        "gpus": [
            {
                "address": str(gpu.address),
                "name": gpu.name,
                "type": gpu.graphics_type,
                "configured_type": gpu.configured_graphics_type,
                "vgpu_mode": gpu.vgpu_mode,
                "passthrough_enabled": gpu.passthrough.enabled if gpu.passthrough else None,
                "passthrough_active": gpu.passthrough.active if gpu.passthrough else None,
                "label": gpu.passthrough.label if gpu.passthrough else None,
                "reboot_pending": pending(gpu),
            }
            for gpu in host.gpus
        ],
    }
