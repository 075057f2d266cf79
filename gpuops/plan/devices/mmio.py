"""How much 64-bit address space a VM needs for its GPUs, by the larger of two published rules.

* VMware, Dell: twice the memory of all passthrough GPUs of the VM, rounded up to a power of two before it is doubled.
* NVIDIA AI Enterprise docs, "vGPU (C-Series)": a figure per GPU model (`mmio_gib` of the catalogue), added up and
  rounded up to a power of two.

Too much costs some megabytes of overhead; with too little the power-on fails. Both rules are for whole GPUs and for
C-series vGPUs, which count as the GPU they are cut from. A, B and Q types need no such space, and neither does a GPU
with a BAR1 of 256 MB. For other devices than NVIDIA GPUs the first rule is used if their memory is known. If not, as
for most FPGAs and NICs, a warning tells that the space is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID
from gpuops.model.devices.other_device import DeviceKind
from gpuops.model.devices.vgpu import Series, parse
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, OtherPassthrough, VgpuDevice
from gpuops.plan.core.passthru_devices import signature, types_of
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu

USE_KEY: Final = "pciPassthru.use64bitMMIO"
SIZE_KEY: Final = "pciPassthru.64bitMMIOSizeGB"

SMALL_BAR: Final = frozenset({"T4"})
"""Short names of boards whose BAR1 is 256 MB (VMware vSphere docs name the T4)."""


@dataclass(frozen=True, slots=True)
class Mmio:
    """The MMIO space for all devices; `unknown` names the devices whose need is unknown."""

    size_gib: int
    """0 = no space is needed."""
    unknown: tuple[str, ...] = ()


def mmio_for(devices: Iterable[GpuDevice | NewDevice], host: Host | None, catalog: Catalog) -> Mmio:
    """Return the MMIO space that a VM with exactly these passthrough devices needs.

    Example: two GPUs with 80 GiB of memory, for which the vendor publishes 128 GiB each. By memory, 160 GiB are rounded
    up to 256 and doubled: 512 GiB. By the published sizes, 256 GiB. The VM needs 512 GiB.
    """
    memory_mib, table_gib = 0, 0
    unknown: list[str] = []
    for device in devices:
        if needs_large_bar(device, host, catalog) is False:
            continue
        board = board_of(device, host, catalog)
        device_mib = board.framebuffer_mib if board is not None else _memory_mib(device, host, catalog)
        if device_mib is None:
            unknown.append(signature(device))
        else:
            memory_mib += device_mib
            table_gib += (board.mmio_gib or 0) if board is not None else 0
    by_memory_gib = 2 * _power_of_two(-(-memory_mib // 1024))
    return Mmio(max(by_memory_gib, _power_of_two(table_gib)), tuple(unknown))


def needs_large_bar(device: GpuDevice | NewDevice, host: Host | None, catalog: Catalog) -> bool | None:
    """Whether the device maps a large BAR into the VM, which needs 64-bit MMIO and EFI firmware; None = unknown."""
    board = board_of(device, host, catalog)
    if board is not None and board.short_name in SMALL_BAR:
        return False
    match device:
        case VgpuDevice(profile=profile) | NewVgpu(profile=profile):
            return series_of(profile, catalog) is Series.C
        case DirectPathDevice() | NewDirectPath() | DynamicDevice() | NewDynamic():
            kinds = [_kind_of(*pair, host) for pair in types_of(device)]
            is_gpu = any(kind in (None, DeviceKind.GPU) for kind in kinds)
            return True if is_gpu or _memory_mib(device, host, catalog) is not None else None
        case OtherPassthrough():
            return False
        case _:
            assert_never(device)


def series_of(profile: str, catalog: Catalog) -> Series | None:
    """Return the series of a profile, by the catalogue or by its name."""
    facts = catalog.profile(profile)
    if facts is not None:
        return facts.series
    parts = parse(profile)
    return None if parts is None else parts.series


def board_of(device: GpuDevice | NewDevice, host: Host | None, catalog: Catalog) -> Board | None:
    """Return the GPU model of a device; None = no GPU, not in the catalogue, or not known."""
    match device:
        case VgpuDevice(profile=profile) | NewVgpu(profile=profile):
            return catalog.board_of(profile)
        case DirectPathDevice(address=address) | NewDirectPath(address=address):
            gpu = host.gpu(address) if host else None
            subsystem_id = gpu.subsystem_id if gpu else None
            return catalog.board_by_pci(device.vendor_id, device.device_id, subsystem_id)
        case DynamicDevice(allowed=allowed) | NewDynamic(allowed=allowed):
            boards = [board for pair in allowed if (board := catalog.board_by_pci(*pair)) is not None]
            # The host may give a device of any of these types: the type that needs most decides.
            all_known = bool(boards) and len(boards) == len(allowed)
            return max(boards, key=lambda board: board.framebuffer_mib) if all_known else None
        case OtherPassthrough():
            return None
        case _:
            assert_never(device)


def mmio_keys(needed: Mmio, extra_config: Mapping[str, str]) -> dict[str, str]:
    """Return the extraConfig keys to write; empty if the VM already has as much space or more."""
    if not needed.size_gib:
        return {}
    keys = {}
    if extra_config.get(USE_KEY, "").upper() != "TRUE":
        keys[USE_KEY] = "TRUE"
    size_text = extra_config.get(SIZE_KEY, "")
    size_gib = int(size_text) if size_text.isascii() and size_text.isdigit() else 0
    if size_gib < needed.size_gib:
        keys[SIZE_KEY] = str(needed.size_gib)
    return keys


def _memory_mib(device: GpuDevice | NewDevice, host: Host | None, catalog: Catalog) -> int | None:
    """Return the device's memory from its host or the catalogue; with several types, the largest one."""
    if isinstance(device, DirectPathDevice | NewDirectPath) and host is not None:
        host_device = host.device(device.address)
        if host_device is not None and host_device.memory_mib is not None:
            return host_device.memory_mib
    models = [catalog.device_model(*pair) for pair in types_of(device)]
    sizes = [model.memory_mib for model in models if model is not None and model.memory_mib is not None]
    return max(sizes) if sizes and len(sizes) == len(models) else None


def _kind_of(vendor_id: int, device_id: int, host: Host | None) -> DeviceKind | None:
    """Return the kind of a device of that type; None for an NVIDIA GPU and for an unknown type."""
    if vendor_id in (0, NVIDIA_VENDOR_ID):
        return None
    for device in host.others if host else ():
        if (device.vendor_id, device.device_id) == (vendor_id, device_id):
            return device.kind
    return DeviceKind.OTHER


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less; 0 stays 0.

    >>> [_power_of_two(number) for number in (0, 1, 3, 64, 65)]
    [0, 1, 4, 64, 128]
    """
    return 1 << (number - 1).bit_length() if number > 0 else 0
