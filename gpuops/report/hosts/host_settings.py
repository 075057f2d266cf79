"""What `mode show`, `mig show` and `scheduler show` print of hosts, as text and JSON.

Per host and GPU: what is in force, what is configured, and what waits for a reset or a reboot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpuops.model.devices.gpu import PhysicalGpu, VgpuMode
from gpuops.model.devices.scheduler import Frequency, TimeSlices, VgpuScheduler
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, SmiState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.hosts.scheduler.rmpvmrl import Reading, Unread, clamped
from gpuops.plan.hosts.scheduler.state import GpuScheduler, HostScheduler, Schedulers
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.gpu_health import health_document
from gpuops.report.hosts.device_modes import device_lines, devices_document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible


def mode_text(inventory: Inventory, hosts: Sequence[Host]) -> Shown:
    """A heading and a table for each host."""
    gpus = sum(len(host.gpus) for host in hosts)
    heading = (
        f"vCenter {visible(inventory.api_version)}: {count(len(hosts), 'host')} with {count(gpus, 'GPU')}, "
        f"read {inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    )
    lines: list[Shown] = [Text(heading, "bold")]
    for host in hosts:
        lines += [Text(), Text(_mode_title(host), "bold"), _mode_table(host), *device_lines(host, inventory)]
    return lines


def mode_document(inventory: Inventory, hosts: Sequence[Host]) -> Document:
    """Hosts > GPUs; null = not known."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "mode-show",
        "vcenter": inventory.vcenter,
        "api_version": inventory.api_version,
        "read_at": inventory.taken_at.isoformat(),
        "hosts": [_mode_host(host, inventory) for host in hosts],
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


def _mode_title(host: Host) -> str:
    default = host.default_graphics_type or "unknown"
    policy = host.assignment_policy or "unknown"
    return f"{visible(host.name)}: default type {default}, assignment policy {policy}"


def _mode_table(host: Host) -> TextTable:
    table = TextTable("  GPU", "model", "used as", "configured as", "vGPU mode", "label", "reboot")
    for gpu in host.gpus:
        label = gpu.passthrough.label if gpu.passthrough else None
        reboot = {None: "unknown", True: "pending", False: ""}[pending(gpu)]
        cells = (f"  {gpu.address}", gpu.name, _used(gpu), _configured(gpu), _mode(gpu), label or "", reboot)
        table.add_row(*(visible(cell) for cell in cells))
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


def _mode_host(host: Host, inventory: Inventory) -> Document:
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
        "devices": devices_document(host, inventory),
        "unread": list((host.settings or HostSettings()).unread),
    }


_WORDS: Final = {True: "on", False: "off", None: "unknown"}


def mig_text(inventory: Inventory, hosts: Sequence[Host]) -> Shown:
    """A heading and a table for each host; a host that did not answer says why."""
    heading = f"vCenter {visible(inventory.api_version)}: {count(len(hosts), 'host')}"
    lines: list[Shown] = [Text(f"{heading}, read {inventory.taken_at:%Y-%m-%d %H:%M %Z}", "bold")]
    for host in hosts:
        lines += [Text(), Text(visible(host.name), "bold"), _mig_table(host)]
        lines += [Text(f"  {visible(text)}", "yellow") for text in (host.settings or HostSettings()).unread]
    return lines


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
                "gpus": [*(_gpu(gpu, _state(gpu, host)) for gpu in host.gpus), *map(_unlisted, _unlisted_states(host))],
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
        "unread": state.unread if state else "",
        "health": health_document(state.health) if state else None,
    }


def _unlisted(state: SmiState) -> Document:
    """A GPU that nvidia-smi names and vCenter does not list: its model is unknown."""
    return {
        "address": str(state.address),
        "model": None,
        "vcenter": None,
        "current": state.current,
        "pending": state.pending,
        "unread": state.unread,
        "health": health_document(state.health),
    }


def _unlisted_states(host: Host) -> tuple[SmiState, ...]:
    states = (host.settings or HostSettings()).mig or ()
    return tuple(state for state in states if host.gpu(state.address) is None)


def _state(gpu: PhysicalGpu, host: Host) -> SmiState | None:
    told = (host.settings or HostSettings()).mig or ()
    return next((state for state in told if state.address == gpu.address), None)


def _in_vcenter(gpu: PhysicalGpu) -> bool | None:
    return None if gpu.vgpu_mode is None else gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE


def _mig_table(host: Host) -> TextTable:
    states = (host.settings or HostSettings()).mig
    is_sick = any(state.health.problems for state in states or ())
    columns = () if states is None else ("nvidia-smi", "pending", *(("health",) if is_sick else ()))
    table = TextTable("  GPU", "model", "vCenter", *columns)
    for gpu in host.gpus:
        cells = (f"  {gpu.address}", gpu.name, _WORDS[_in_vcenter(gpu)], *_smi_cells(_state(gpu, host)))
        table.add_row(*map(visible, cells[: 3 + len(columns)]))
    for state in _unlisted_states(host):
        cells = (f"  {state.address}", "", "not listed", *_smi_cells(state))
        table.add_row(*map(visible, cells[: 3 + len(columns)]))
    return table


def _smi_cells(state: SmiState | None) -> Iterator[str]:
    """The mode in force, the one that waits, and the health."""
    if state is None or state.unread:
        yield from ("not listed" if state is None else "unknown", "")
    elif state.current is None:
        yield from ("no MIG", "")
    else:
        yield from (_WORDS[state.current], "" if state.current == state.pending else _WORDS[state.pending])
    yield ", ".join(state.health.problems) if state is not None else ""


UNSEEN = "in force: as the loaded module was told; what nvidia-smi set on a host since its boot is not seen from here"


def scheduler_text(found: Schedulers) -> Shown:
    """A heading and a table for each host."""
    inventory = found.inventory
    gpus = sum(len(each.gpus) for each in found.hosts)
    heading = (
        f"vCenter {visible(inventory.api_version)}: {count(len(found.hosts), 'host')} with {count(gpus, 'GPU')}, "
        f"read {inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    )
    lines: list[Shown] = [Text(heading, "bold")]
    for host in found.hosts:
        lines += [Text(), Text(_scheduler_title(host), "bold"), _scheduler_table(host)]
        lines += [Text(f"  unknown: {visible(reason)}", "yellow") for reason in host.settings.unread]
    return (*lines, Text(), Text(UNSEEN, "dim"))


def scheduler_document(found: Schedulers) -> Document:
    """Hosts > GPUs; null = not known, or nothing to schedule, as `note` says."""
    inventory = found.inventory
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "scheduler-show",
        "vcenter": inventory.vcenter,
        "api_version": inventory.api_version,
        "read_at": inventory.taken_at.isoformat(),
        "hosts": [_scheduler_host(each) for each in found.hosts],
    }


def _scheduler_title(found: HostScheduler) -> str:
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


def _scheduler_table(found: HostScheduler) -> TextTable:
    table = TextTable("  GPU", "model", "configured", "in force", "reboot")
    for gpu in found.gpus:
        table.add_row(*(visible(cell) for cell in _row(gpu)))
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


def _scheduler_host(found: HostScheduler) -> Document:
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
