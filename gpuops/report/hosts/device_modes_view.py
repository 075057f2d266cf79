"""Texts and documents of DirectPath modes of devices (`mode show`), and of `gpuops host mig check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Self

from gpuops.advise.gpu_profiles import JudgedLayout, JudgedPart, LayoutVerdict
from gpuops.errors import report_exit_code
from gpuops.model.devices.catalog import Board
from gpuops.model.devices.device_mode import HostDevice, VmClassReservation
from gpuops.model.devices.gpu import PhysicalGpu, VgpuMode
from gpuops.model.devices.mig import LayoutForm
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.document import DocumentRecord, NamedRecord, PrintedDocument, Ref, SiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.monitoring.inventory_view import figure, free_figures
from gpuops.report.text import count, optional_figure


def device_lines(host: Host, inventory: Inventory) -> Iterator[Text]:
    """Yield a few lines for each device, and why devices are unknown; nothing if the vCenter lists none."""
    settings = host.settings or HostSettings()
    if settings.devices is not None:
        yield Text(f"  DirectPath devices{'' if settings.devices else ': none'}")
    for device in settings.devices or ():
        yield Text(f"    {device.id}  {device.name}: {device.mode}")
        for line in _device_facts(device, inventory):
            yield Text(f"      {line}", "dim")
    yield from (Text(f"  unknown: {reason}", "yellow") for reason in settings.unread)


def _device_facts(device: HostDevice, inventory: Inventory) -> Iterator[str]:
    """Yield one line for each known group of facts about a device."""
    other_modes = [mode for mode in device.configurable if mode != device.mode]
    facts = [f"can be {', '.join(other_modes)}" if other_modes else "can be nothing else"]
    if device.driver_name or device.driver_version:
        facts.append(" ".join(filter(None, ("driver", device.driver_name, device.driver_version))))
    if device.interconnect:
        facts.append(device.interconnect)
    yield "; ".join(facts)
    if device.total_mib is not None or device.used_mib is not None:
        yield f"memory: {_memory_text(device)}"
    # total None: vCenter does not report it, so the class is shown
    classes = [reservation for reservation in device.vm_classes or () if reservation.total != 0]
    if classes:
        yield f"reserved in its cluster: {', '.join(map(_class_text, classes))}"
    if device.profiles:
        yield f"DirectPath profiles: {', '.join(device.profiles)}"
    if device.vms:
        yield f"used by {', '.join(sorted(_vm_name(ref, inventory) for ref in device.vms))}"


def _memory_text(device: HostDevice) -> str:
    used, total = (optional_figure(mib, unknown="unknown") for mib in (device.used_mib, device.total_mib))
    text = f"{used} of {total} MiB used"
    if device.reserved_mib is None:
        return text
    reserved_used = optional_figure(device.reserved_used_mib, unknown="unknown")
    return f"{text}, {device.reserved_mib} MiB reserved ({reserved_used} of it in use)"


def _class_text(reservation: VmClassReservation) -> str:
    where = f" in {reservation.zone}" if reservation.zone else ""
    in_use, total = (optional_figure(figure, unknown="unknown") for figure in (reservation.in_use, reservation.total))
    return f"{reservation.vm_class}{where}, {in_use} of {total} in use"


def _vm_name(ref: str, inventory: Inventory) -> str:
    return inventory.vms[ref].name if ref in inventory.vms else ref


class ModeVmClassRecord(DocumentRecord, frozen=True):
    """The reservation for a VM class in the cluster of the host; null = not known."""

    name: str
    zone: str | None
    direct_path_profile: Annotated[str | None, "its id"]
    in_use: int | None
    total: int | None

    @classmethod
    def made_of(cls, reservation: VmClassReservation) -> Self:
        return cls.from_attributes(reservation, name=reservation.vm_class, direct_path_profile=reservation.profile)


class ModeDeviceRecord(DocumentRecord, frozen=True):
    """A DirectPath device of a host; null = not known."""

    id: Annotated[str, "as vCenter names it"]
    address: Annotated[str | None, "PCI address"]
    name: str
    mode: Annotated[str, "in force"]
    configurable_modes: Annotated[list[str], "modes that it can be set to"]
    interconnect: str | None
    driver: Annotated[str | None, "name of the driver"]
    driver_version: str | None
    memory_mib: int | None
    used_memory_mib: Annotated[int | None, "memory used by VMs"]
    reserved_memory_mib: Annotated[int | None, "reserved memory"]
    reserved_used_memory_mib: Annotated[int | None, "reserved memory in use"]
    vms: Annotated[list[NamedRecord] | None, "those that use it"]
    vm_classes: Annotated[list[ModeVmClassRecord] | None, "those of a Supervisor that use it"]
    direct_path_profiles: Annotated[list[str] | None, "ids of the DirectPath profiles that use it"]


def device_records(host: Host, inventory: Inventory) -> list[ModeDeviceRecord] | None:
    """Return the devices; None if the vCenter lists none or does not report them."""
    devices = (host.settings or HostSettings()).devices
    if devices is None:
        return None
    return [
        ModeDeviceRecord.from_attributes(
            device,
            configurable_modes=device.configurable,
            driver=device.driver_name,
            memory_mib=device.total_mib,
            used_memory_mib=device.used_mib,
            reserved_memory_mib=device.reserved_mib,
            reserved_used_memory_mib=device.reserved_used_mib,
            vms=None if device.vms is None else [NamedRecord(ref, _vm_name(ref, inventory)) for ref in device.vms],
            direct_path_profiles=device.profiles,
        )
        for device in devices
    ]


Device = PhysicalGpu | OtherDevice
_ON_OFF: Final = {True: "on", False: "off", None: "unknown"}


def passthrough_text(inventory: Inventory, hosts: Sequence[Host]) -> Shown:
    """Return a heading and a table for each host."""
    devices = [device for host in hosts for device in host.devices]
    passed_through = sum(_active(device) is True for device in devices)
    heading = (
        f"vCenter {inventory.api_version}: {passed_through} of {count(len(devices), 'device')} on "
        f"{count(len(hosts), 'host')} by DirectPath I/O, read {format_zoned_minute(inventory.taken_at)}"
    )
    lines: list[Shown] = [Text(heading, "bold")]
    for host in hosts:
        lines += [Text(), Text(host.name, "bold"), _passthrough_table(host)]
    return lines


def _passthrough_table(host: Host) -> TextTable:
    return table_of(
        host.devices,
        Column("  device", lambda device: f"  {device.address}"),
        Column("model", lambda device: device.name),
        Column("DirectPath I/O", lambda device: _ON_OFF[_active(device)]),
        Column("configured", lambda device: _ON_OFF[_enabled(device)]),
        Column("label", lambda device: (device.passthrough.label if device.passthrough else None) or ""),
        Column("reboot", lambda device: "pending" if device.passthrough and device.passthrough.reboot_pending else ""),
    )


def _active(device: Device) -> bool | None:
    return device.passthrough.active if device.passthrough is not None else None


def _enabled(device: Device) -> bool | None:
    return device.passthrough.enabled if device.passthrough is not None else None


class PassthroughDeviceRecord(DocumentRecord, frozen=True):
    """A GPU or another device; null = not known."""

    address: Annotated[str, "PCI address"]
    name: str
    active: Annotated[bool | None, "in force: VMs get it whole"]
    enabled: Annotated[bool | None, "configured: in force after the next boot"]
    label: Annotated[str | None, "the hardware label"]

    @classmethod
    def made_of(cls, device: Device) -> Self:
        label = device.passthrough.label if device.passthrough is not None else None
        return cls.from_attributes(device, active=_active(device), enabled=_enabled(device), label=label)


class PassthroughHostRecord(DocumentRecord, frozen=True):
    """A host."""

    name: str
    ref: Ref
    devices: list[PassthroughDeviceRecord]


@printed("passthrough-show", by="gpuops host passthrough show")
class PassthroughShowDocument(SiteDocument, frozen=True):
    """Which devices of hosts are given to VMs whole."""

    hosts: list[PassthroughHostRecord]


_STYLES: Final = {
    LayoutVerdict.FITS: "green",
    LayoutVerdict.DOES_NOT_FIT: "red",
    LayoutVerdict.UNKNOWN: "yellow",
    LayoutVerdict.OTHER_MODEL: "dim",
}


def layouts_exit_code(layouts: Sequence[JudgedLayout]) -> int:
    """Return 3 if a layout does not fit or may not fit, or if none is for the GPU model; otherwise 0."""
    verdicts = {judged.verdict for judged in layouts}
    is_refused = verdicts & {LayoutVerdict.DOES_NOT_FIT, LayoutVerdict.UNKNOWN} or LayoutVerdict.FITS not in verdicts
    return report_exit_code(refused=is_refused)


def layouts_text(layouts: Sequence[JudgedLayout], board: Board, file: Path) -> Iterator[Shown]:
    """Yield a heading, and one line for each part of each layout."""
    yield Text(f"{file}: {count(len(layouts), 'layout')}, on {board.name}", "bold")
    table = TextTable("layout", "GPUs", "has", "verdict", "")
    for judged in layouts:
        for part in judged.parts:
            gpus = "all" if part.part.gpus is None else ", ".join(map(str, part.part.gpus))
            contents = ", ".join(f"{number} x {name}" for name, number in part.part.counts) or "nothing"
            if not part.part.is_mig_on:
                contents = "MIG mode off"
            verdict = Text(part.verdict.value, _STYLES[part.verdict])
            table.add_row(judged.layout.name, gpus, contents, verdict, _part_note(part, judged.layout.form))
    yield table


def _part_note(part: JudgedPart, form: LayoutForm) -> str:
    if part.verdict is LayoutVerdict.OTHER_MODEL:
        return f"for device {', '.join(f'{device:04x}' for _, device in part.part.models)} alone"
    if part.free is None:
        return part.because
    if form is not LayoutForm.GPU_INSTANCES:
        return f"free: {free_figures(part.free)}"
    instances = " or ".join(f"{figure(room)} x {name}" for name, room in part.free.items())
    return f"free: {instances or 'none'}"


class PciTypeRecord(DocumentRecord, frozen=True):
    """A kind of PCI device."""

    vendor_id: Annotated[str, "four hexadecimal digits"]
    device_id: Annotated[str, "four hexadecimal digits"]


class FreeRoomRecord(DocumentRecord, frozen=True):
    """Room for more GPU instances, or vGPUs, of a name; each for itself."""

    name: str
    at_least: int
    at_most: int | None
    because: str


class LayoutPartRecord(DocumentRecord, frozen=True):
    """The intended layout of some GPUs of a host, judged on an empty GPU."""

    gpus: Annotated[list[int] | None, "their numbers on the host; null = all"]
    devices: Annotated[list[PciTypeRecord], "GPU models that it applies to; empty = any"]
    mig_mode: Annotated[bool, "false = MIG mode is off"]
    counts: Annotated[dict[str, int], "GPU instances or vGPU types by name"]
    verdict: LayoutVerdict
    because: Annotated[str, "why it does not fit, or why that is not known"]
    vgpu_mode: Annotated[VgpuMode | None, "of the GPU; null = it does not fit, or MIG mode is off"]
    free: Annotated[list[FreeRoomRecord] | None, "null = it does not fit, or not known"]

    @classmethod
    def made_of(cls, judged: JudgedPart) -> Self:
        part, free = judged.part, judged.free
        rooms = [FreeRoomRecord.from_attributes(room, name=name) for name, room in (free or {}).items()]
        return cls.from_attributes(
            judged,
            part,
            devices=[PciTypeRecord(f"{vendor:04x}", f"{device:04x}") for vendor, device in part.models],
            mig_mode=part.is_mig_on,
            counts=dict(part.counts),
            vgpu_mode=judged.mode,
            free=None if free is None else rooms,
        )


class LayoutRecord(DocumentRecord, frozen=True):
    """A named layout."""

    name: str
    form: LayoutForm
    verdict: Annotated[LayoutVerdict, "the worst of its parts"]
    parts: list[LayoutPartRecord]

    @classmethod
    def made_of(cls, judged: JudgedLayout) -> Self:
        return cls.from_attributes(judged, judged.layout)


@printed("mig-check", by="gpuops host mig check")
class MigCheckDocument(PrintedDocument, frozen=True):
    """Whether GPUs of a model can have the named layouts of a file."""

    file: str
    model: Annotated[str, "as options take it, `a100`"]
    model_name: str
    exit_code: Annotated[int, "3 = one does not fit or is not known to, or none is for this GPU model"]
    layouts: list[LayoutRecord]


def layouts_document(layouts: Sequence[JudgedLayout], board: Board, file: Path) -> MigCheckDocument:
    """Return the verdict on each layout and on its parts."""
    exit_code, records = layouts_exit_code(layouts), list(map(LayoutRecord.made_of, layouts))
    return MigCheckDocument(str(file), board.key, board.name, exit_code, records)
