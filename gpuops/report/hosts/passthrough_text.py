"""Text and document of `host passthrough show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Self

from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.document import DocumentRecord, Ref, SiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.text import count

Device = PhysicalGpu | OtherDevice
_ON: Final = {True: "on", False: "off", None: "unknown"}


def passthrough_text(inventory: Inventory, hosts: Sequence[Host]) -> Shown:
    """Return a heading and a table for each host."""
    devices = [device for host in hosts for device in host.devices]
    whole = sum(_active(device) is True for device in devices)
    heading = (
        f"vCenter {inventory.api_version}: {whole} of {count(len(devices), 'device')} on {count(len(hosts), 'host')} "
        f"by DirectPath I/O, read {format_zoned_minute(inventory.taken_at)}"
    )
    lines: list[Shown] = [Text(heading, "bold")]
    for host in hosts:
        lines += [Text(), Text(host.name, "bold"), _table(host)]
    return lines


def _table(host: Host) -> TextTable:
    return table_of(
        host.devices,
        Column("  device", lambda device: f"  {device.address}"),
        Column("model", lambda device: device.name),
        Column("DirectPath I/O", lambda device: _ON[_active(device)]),
        Column("configured", lambda device: _ON[_enabled(device)]),
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
