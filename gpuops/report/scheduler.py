"""`scheduler show` for people and for programs: per host and GPU what is configured, in force, and pending."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuops.model.scheduler import Frequency, TimeSlices, VgpuScheduler
from gpuops.plan.hosts.scheduler.rmpvmrl import Reading, Unread, clamped
from gpuops.plan.hosts.scheduler.state import GpuScheduler, HostScheduler, Schedulers
from gpuops.report.plan_json import SCHEMA_VERSION, Document
from gpuops.report.units import count
from gpuops.report.visible import visible

UNSEEN = "in force: as the loaded module was told; what nvidia-smi set on a host since its boot is not seen from here"


def scheduler_text(found: Schedulers) -> RenderableType:
    """A heading and a table for each host."""
    inventory = found.inventory
    gpus = sum(len(each.gpus) for each in found.hosts)
    heading = (
        f"vCenter {visible(inventory.api_version)}: {count(len(found.hosts), 'host')} with {count(gpus, 'GPU')}, "
        f"read {inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    )
    lines: list[RenderableType] = [Text(heading, "bold")]
    for host in found.hosts:
        lines += [Text(), Text(_title(host), "bold"), _table(host)]
        lines += [Text(f"  unknown: {visible(reason)}", "yellow") for reason in host.settings.unread]
    return Group(*lines, Text(), Text(UNSEEN, "dim"))


def scheduler_document(found: Schedulers) -> Document:
    """Hosts > GPUs; null = not known, or nothing to schedule, as `note` says."""
    inventory = found.inventory
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "scheduler-show",
        "vcenter": inventory.vcenter,
        "api_version": inventory.api_version,
        "read_at": inventory.taken_at.isoformat(),
        "hosts": [_host(each) for each in found.hosts],
    }


def _title(found: HostScheduler) -> str:
    words = [f"{visible(found.host.name)}: {_driver(found)}"]
    pending = found.settings.reboot_pending
    if pending:
        words.append("a reboot is pending")
    return ", ".join(words)


def _driver(found: HostScheduler) -> str:
    if found.settings.has_module is False:
        return "no NVIDIA driver"
    if found.driver is None:
        return "driver unknown"
    branch = found.branch
    reads = branch.round_robin if branch else None
    return f"driver {visible(found.driver.version)} ({branch}, {reads or 'unknown'} round robin)"


def _table(found: HostScheduler) -> Table:
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("  GPU", "model", "configured", "in force", "reboot"):
        table.add_column(column, no_wrap=True)
    for gpu in found.gpus:
        table.add_row(*(Text(visible(cell)) for cell in _row(gpu)))
    return table


def _row(found: GpuScheduler) -> Iterator[str]:
    yield f"  {found.gpu.address}"
    yield found.gpu.name
    if found.note is not None:
        yield from (found.note, found.note, "")
        return
    yield from (_words(found.configured), _words(found.effective))
    yield {None: "unknown", True: "pending", False: ""}[found.reboot_pending]


def _words(reading: Reading | None) -> str:
    match reading:
        case None:
            return "unknown"
        case Unread():
            return str(reading)
        case VgpuScheduler():
            taken = clamped(reading)
            return f"{reading} ({taken})" if taken else str(reading)


def _host(found: HostScheduler) -> Document:
    return {
        "name": found.host.name,
        "ref": found.host.ref,
        "driver": found.driver.version if found.driver else None,
        "driver_branch": str(found.branch) if found.branch else None,
        "round_robin": found.branch.round_robin if found.branch else None,
        "module_options": found.settings.module_options,
        "loaded_options": found.settings.loaded_options,
        "reboot_pending": found.settings.reboot_pending,
        "unread": list(found.settings.unread),
        "gpus": [
            {
                "address": str(each.gpu.address),
                "name": each.gpu.name,
                "configured": _reading(each.configured),
                "effective": _reading(each.effective),
                "reboot_pending": each.reboot_pending,
                "note": each.note,
            }
            for each in found.gpus
        ],
    }


def _reading(reading: Reading | None) -> Document | None:
    if reading is None:
        return None
    if isinstance(reading, Unread):
        return {"policy": None, "unread": str(reading)}
    slices = reading.slices
    return {
        "policy": reading.policy.value,
        "time_slices": isinstance(slices, TimeSlices),
        "time_slice_ms": slices.time_slice_ms if isinstance(slices, TimeSlices) else None,
        "frequency_hz": slices.frequency_hz if isinstance(slices, Frequency) else None,
        "averaging": slices.averaging if isinstance(slices, Frequency) else None,
        "weighted": reading.weighted,
        "unread": None,
    }
