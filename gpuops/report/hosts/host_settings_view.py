"""Text and documents of `mode show`, `mig show` and `scheduler show`.

For each host and GPU: what is in force, what is configured, and what waits for a reset or a reboot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

from msgspec import UNSET, UnsetType

from gpuops.model.devices.gpu import PhysicalGpu, VgpuMode
from gpuops.model.devices.scheduler import Frequency, RoundRobin, SchedulerPolicy, TimeSlices, VgpuScheduler
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, SmiState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.hosts.scheduler.module_options import Reading, Unread, describe_clamping
from gpuops.plan.hosts.scheduler.scheduler_state import GpuScheduler, HostScheduler, Schedulers
from gpuops.report.device_text import GpuHealthRecord
from gpuops.report.document import DocumentRecord, Ref, SiteDocument, VersionedSiteDocument, printed
from gpuops.report.hosts.device_modes_view import ModeDeviceRecord, device_lines, device_records
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.text import count, count_hosts, vcenter_heading


def mode_text(inventory: Inventory, hosts: Sequence[Host]) -> Shown:
    """Return a heading and a table for each host."""
    gpus = sum(len(host.gpus) for host in hosts)
    lines: list[Shown] = [vcenter_heading(inventory, count_hosts(len(hosts), gpus))]
    for host in hosts:
        default, policy = host.default_graphics_type or "unknown", host.assignment_policy or "unknown"
        title = f"{host.name}: default type {default}, assignment policy {policy}"
        lines += [Text(), Text(title, "bold"), _mode_table(host), *device_lines(host, inventory)]
    return lines


def is_reboot_pending(gpu: PhysicalGpu) -> bool | None:
    """Return whether the host's next boot changes the mode of the GPU; None = not known."""
    if gpu.passthrough is not None and gpu.passthrough.reboot_pending:
        return True
    if gpu.passthrough is not None and gpu.passthrough.active:
        return False
    if gpu.graphics_type is None or gpu.configured_graphics_type is None:
        return None
    return gpu.graphics_type is not gpu.configured_graphics_type


def _mode_table(host: Host) -> TextTable:
    return table_of(
        host.gpus,
        Column("  GPU", lambda gpu: f"  {gpu.address}"),
        Column("model", lambda gpu: gpu.name),
        Column("used as", lambda gpu: "DirectPath I/O" if _is_passed_through(gpu) else gpu.graphics_type or "unknown"),
        Column("configured as", _configured_use),
        Column("vGPU mode", lambda gpu: "" if _is_passed_through(gpu) else gpu.vgpu_mode or "unknown"),
        Column("label", lambda gpu: (gpu.passthrough.label if gpu.passthrough else None) or ""),
        Column("reboot", lambda gpu: {None: "unknown", True: "pending", False: ""}[is_reboot_pending(gpu)]),
    )


def _is_passed_through(gpu: PhysicalGpu) -> bool:
    return gpu.passthrough is not None and gpu.passthrough.active


def _configured_use(gpu: PhysicalGpu) -> str:
    if gpu.passthrough is not None and gpu.passthrough.enabled:
        return "DirectPath I/O"
    if _is_passed_through(gpu):
        return "host"  # DirectPath I/O ends with the next boot
    return gpu.configured_graphics_type or "unknown"


class ModeGpuRecord(DocumentRecord, frozen=True):
    """A GPU; null = not known."""

    address: Annotated[str, "PCI address"]
    name: str
    type: Annotated[str | None, "the graphics type in force"]
    configured_type: str | None
    vgpu_mode: str | None
    passthrough_enabled: bool | None
    passthrough_active: bool | None
    label: Annotated[str | None, "the hardware label"]
    reboot_pending: bool | None

    @classmethod
    def made_of(cls, gpu: PhysicalGpu) -> Self:
        passthrough = gpu.passthrough
        return cls.from_attributes(
            gpu,
            type=gpu.graphics_type,
            configured_type=gpu.configured_graphics_type,
            passthrough_enabled=passthrough.enabled if passthrough else None,
            passthrough_active=passthrough.active if passthrough else None,
            label=passthrough.label if passthrough else None,
            reboot_pending=is_reboot_pending(gpu),
        )


class ModeHostRecord(DocumentRecord, frozen=True):
    """A host; null = not known."""

    name: str
    ref: Ref
    default_type: str | None
    assignment_policy: str | None
    gpus: list[ModeGpuRecord]
    devices: Annotated[list[ModeDeviceRecord] | None, "its DirectPath devices, which a vCenter lists from 9.1 on"]
    unread: Annotated[list[str], "why its devices are not known"]


@printed("mode-show", by="gpuops host mode show")
class ModeShowDocument(VersionedSiteDocument, frozen=True):
    """What the GPUs of hosts are used for."""

    hosts: list[ModeHostRecord]


def mode_document(inventory: Inventory, hosts: Sequence[Host]) -> ModeShowDocument:
    """Return hosts > GPUs as a document; null = not known."""
    return ModeShowDocument.from_attributes(
        inventory,
        read_at=inventory.taken_at,
        hosts=[
            ModeHostRecord.from_attributes(
                host,
                default_type=host.default_graphics_type,
                devices=device_records(host, inventory),
                unread=(host.settings or HostSettings()).unread,
            )
            for host in hosts
        ],
    )


_ON_OFF: Final = {True: "on", False: "off", None: "unknown"}


def mig_text(inventory: Inventory, hosts: Sequence[Host]) -> Shown:
    """Return a heading and a table for each host, with the reason if nvidia-smi could not be read."""
    lines: list[Shown] = [vcenter_heading(inventory, count(len(hosts), "host"))]
    for host in hosts:
        lines += [Text(), Text(host.name, "bold"), _mig_table(host)]
        lines += [Text(f"  {text}", "yellow") for text in (host.settings or HostSettings()).unread]
    return lines


class MigGpuRecord(DocumentRecord, frozen=True):
    """MIG mode of a GPU; null = not known, or not read."""

    address: Annotated[str, "PCI address"]
    model: Annotated[str | None, "null = nvidia-smi names the GPU, and vCenter does not list it"]
    vcenter: Annotated[bool | None, "as vCenter reports it"]
    current: Annotated[bool | None, "as nvidia-smi reports it"]
    pending: Annotated[bool | None, "after a reset of the GPU"]
    unread: Annotated[str, "what nvidia-smi printed in place of MIG mode, or empty"]
    health: GpuHealthRecord | None


class MigHostRecord(DocumentRecord, frozen=True):
    """A host."""

    ref: Ref
    name: str
    gpus: list[MigGpuRecord]
    unread: Annotated[list[str], "what could not be read, and why"]


@printed("mig-show", by="gpuops host mig show")
class MigShowDocument(SiteDocument, frozen=True):
    """MIG mode of the GPUs of hosts."""

    hosts: list[MigHostRecord]


def mig_document(inventory: Inventory, hosts: Sequence[Host]) -> MigShowDocument:
    """Return hosts > GPUs as a document; null = not known, or not read."""
    records = []
    for host in hosts:
        gpus = []
        for gpu, state in _gpus_with_states(host):
            if gpu is None:  # nvidia-smi lists a GPU that vCenter does not
                gpus.append(MigGpuRecord.from_attributes(state, model=None, vcenter=None))
                continue
            # without an answer of nvidia-smi its values are unknown
            read = state or SmiState(gpu.address, current=None, pending=None)
            health = None if state is None else state.health
            gpus.append(MigGpuRecord.from_attributes(read, model=gpu.name, vcenter=_is_mig_on(gpu), health=health))
        unread = (host.settings or HostSettings()).unread
        records.append(MigHostRecord.from_attributes(host, gpus=gpus, unread=unread))
    return MigShowDocument.from_attributes(inventory, read_at=inventory.taken_at, hosts=records)


def _gpus_with_states(host: Host) -> Iterator[tuple[PhysicalGpu | None, SmiState | None]]:
    """Yield each GPU of a host with its state by nvidia-smi, then the states of GPUs that vCenter does not list."""
    states = {state.address: state for state in (host.settings or HostSettings()).mig or ()}
    yield from ((gpu, states.pop(gpu.address, None)) for gpu in host.gpus)
    yield from ((None, state) for state in states.values())


def _is_mig_on(gpu: PhysicalGpu) -> bool | None:
    """Return whether vCenter reports MIG mode for the GPU; None = not known."""
    return None if gpu.vgpu_mode is None else gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE


def _mig_table(host: Host) -> TextTable:
    states = (host.settings or HostSettings()).mig
    has_problems = any(state.health.problems for state in states or ())
    columns = () if states is None else ("nvidia-smi", "pending", *(("health",) if has_problems else ()))
    table = TextTable("  GPU", "model", "vCenter", *columns)
    for gpu, state in _gpus_with_states(host):
        if gpu is not None:
            vcenter_cells = (f"  {gpu.address}", gpu.name, _ON_OFF[_is_mig_on(gpu)])
        else:
            vcenter_cells = (f"  {state.address if state else ''}", "", "not listed")
        # only the cells that have a column: none without nvidia-smi, and health, the last, only with problems
        table.add_row(*vcenter_cells, *_smi_cells(state)[: len(columns)])
    return table


def _smi_cells(state: SmiState | None) -> tuple[str, str, str]:
    """Return the MIG mode in force, the pending mode, and the health, as nvidia-smi reports them."""
    if state is None:
        return "not listed", "", ""
    health = ", ".join(state.health.problems)
    if state.unread:
        return "unknown", "", health
    if state.current is None:
        return "no MIG", "", health
    return _ON_OFF[state.current], "" if state.current == state.pending else _ON_OFF[state.pending], health


IN_FORCE_NOTE = (
    "in force: the options of the loaded module; gpuops does not see what nvidia-smi set on a host since its boot"
)


def scheduler_text(schedulers: Schedulers) -> Shown:
    """Return a heading and a table for each host."""
    gpus = sum(len(host.gpus) for host in schedulers.hosts)
    lines: list[Shown] = [vcenter_heading(schedulers.inventory, count_hosts(len(schedulers.hosts), gpus))]
    for host in schedulers.hosts:
        pending = ", a reboot is pending" if host.settings.reboot_pending else ""
        table = TextTable("  GPU", "model", "configured", "in force", "reboot", rows=map(_scheduler_cells, host.gpus))
        lines += [Text(), Text(f"{host.host.name}: {_driver_text(host)}{pending}", "bold"), table]
        lines += [Text(f"  unknown: {reason}", "yellow") for reason in host.settings.unread]
    return (*lines, Text(), Text(IN_FORCE_NOTE, "dim"))


def _driver_text(host_scheduler: HostScheduler) -> str:
    if host_scheduler.settings.has_module is False:
        return "no NVIDIA driver"
    if host_scheduler.driver is None:
        return "driver unknown"
    branch = host_scheduler.branch
    round_robin = branch.round_robin if branch else None
    return f"driver {host_scheduler.driver.version} ({branch}, {round_robin or 'unknown'} round robin)"


def _scheduler_cells(gpu_scheduler: GpuScheduler) -> tuple[str, ...]:
    gpu, note = gpu_scheduler.gpu, gpu_scheduler.note
    if note is not None:
        return f"  {gpu.address}", gpu.name, note, note, ""
    reboot = {None: "unknown", True: "pending", False: ""}[gpu_scheduler.reboot_pending]
    return (
        f"  {gpu.address}",
        gpu.name,
        _reading_text(gpu_scheduler.configured),
        _reading_text(gpu_scheduler.effective),
        reboot,
    )


def _reading_text(reading: Reading | None) -> str:
    match reading:
        case None:
            return "unknown"
        case Unread():
            return str(reading)
        case VgpuScheduler():
            clamped_text = describe_clamping(reading)
            return f"{reading} ({clamped_text})" if clamped_text else str(reading)


class SchedulerRecord(DocumentRecord, frozen=True, kw_only=True):
    """A scheduling policy, or why its setting cannot be read."""

    policy: SchedulerPolicy | None
    time_slices: bool | UnsetType = UNSET
    time_slice_ms: float | UnsetType | None = UNSET
    frequency_hz: float | UnsetType | None = UNSET
    averaging: int | UnsetType | None = UNSET
    weighted: bool | UnsetType = UNSET
    unread: str | None

    @classmethod
    def made_of(cls, reading: Reading) -> Self:
        if isinstance(reading, Unread):
            return cls(policy=None, unread=str(reading))
        slices = reading.slices
        return cls.from_attributes(
            reading,
            time_slices=isinstance(slices, TimeSlices),
            time_slice_ms=slices.time_slice_ms if isinstance(slices, TimeSlices) else None,
            frequency_hz=slices.frequency_hz if isinstance(slices, Frequency) else None,
            averaging=slices.averaging if isinstance(slices, Frequency) else None,
            unread=None,
        )


class SchedulerGpuRecord(DocumentRecord, frozen=True):
    """A GPU."""

    address: Annotated[str, "PCI address"]
    name: str
    configured: SchedulerRecord | None
    effective: Annotated[SchedulerRecord | None, "in force"]
    reboot_pending: bool | None
    note: Annotated[str | None, "why there is nothing to schedule"]

    @classmethod
    def made_of(cls, gpu_scheduler: GpuScheduler) -> Self:
        return cls.from_attributes(gpu_scheduler, gpu_scheduler.gpu)


class SchedulerHostRecord(DocumentRecord, frozen=True):
    """A host; null = not known."""

    name: str
    ref: Ref
    driver: Annotated[str | None, "version of the NVIDIA driver"]
    driver_branch: str | None
    round_robin: RoundRobin | None
    module_options: Annotated[str | None, "as the host has them for its next boot"]
    loaded_options: Annotated[str | None, "the options of the loaded module"]
    reboot_pending: bool | None
    unread: Annotated[list[str], "what could not be read, and why"]
    gpus: list[SchedulerGpuRecord]

    @classmethod
    def made_of(cls, host_scheduler: HostScheduler) -> Self:
        branch = host_scheduler.branch
        return cls.from_attributes(
            host_scheduler,
            host_scheduler.host,
            host_scheduler.settings,
            driver=host_scheduler.driver.version if host_scheduler.driver else None,
            driver_branch=str(branch) if branch else None,
            round_robin=branch.round_robin if branch else None,
            unread=host_scheduler.settings.unread,
        )


@printed("scheduler-show", by="gpuops host scheduler show")
class SchedulerShowDocument(VersionedSiteDocument, frozen=True):
    """The vGPU scheduler of each GPU."""

    hosts: list[SchedulerHostRecord]

    @classmethod
    def made_of(cls, schedulers: Schedulers) -> Self:
        return cls.from_attributes(schedulers, schedulers.inventory, read_at=schedulers.inventory.taken_at)
