"""Rules for a VM and the passthrough devices it gets.

Each rule checks the future VM and yields its findings: a `Rejection` blocks the change, a line of text warns.

64-bit address space for GPUs (MMIO) is the larger of two published rules:

* VMware, Dell: twice the memory of all passthrough GPUs of the VM, rounded up to a power of two before it is doubled.
* NVIDIA AI Enterprise docs, "vGPU (C-Series)": a figure per GPU model (`mmio_gib` of the catalogue), added up and
  rounded up to a power of two.

Too much costs some megabytes of overhead; with too little the power-on fails. Both rules are for whole GPUs and for
C-series vGPUs, which count as the GPU they are cut from. A, B and Q types need no such space, and neither does a GPU
with a BAR1 of 256 MB. For other devices than NVIDIA GPUs the first rule is used if their memory is known. If not, as
for most FPGAs and NICs, a warning tells that the space is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from gpuops.model.devices.catalog import Board, Catalog, MultiVgpu
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID
from gpuops.model.devices.other_device import DeviceKind
from gpuops.model.devices.vgpu import Series, parse
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    Firmware,
    GpuDevice,
    OtherPassthrough,
    VgpuDevice,
    Vm,
)
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.passthru_devices import signature, types_of
from gpuops.plan.core.rejection import READ_VM, Rejection
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu
from gpuops.plan.core.versions import Release, release

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
    """Return whether the device maps a large BAR into the VM: that needs 64-bit MMIO and EFI. None = unknown."""
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


Finding = Rejection | str


@dataclass(frozen=True, slots=True)
class Case:
    """A VM with its future passthrough devices, and its future host."""

    vm: Vm
    devices: tuple[GpuDevice | NewDevice, ...]
    grouped: bool
    """Whether some of the devices are requested as a vendor device group."""
    host: Host | None
    catalog: Catalog

    @property
    def profiles(self) -> tuple[str, ...]:
        return tuple(device.profile for device in self.devices if isinstance(device, VgpuDevice | NewVgpu))

    @property
    def whole_devices(self) -> tuple[GpuDevice | NewDevice, ...]:
        """Devices given to the VM as a whole, by DirectPath I/O or Dynamic DirectPath I/O."""
        return tuple(device for device in self.devices if not isinstance(device, VgpuDevice | NewVgpu))

    @property
    def release(self) -> Release | None:
        """(8, 0, 2) of the host's ESXi; None = unknown."""
        return release(self.host.version if self.host else None)


def efi_firmware(case: Case) -> Iterator[Finding]:
    """Require EFI for a device with a BAR above 256 MB, which BIOS cannot map (NVIDIA AI Enterprise docs, C-series;
    VMware docs, DirectPath I/O)."""
    name, firmware = case.vm.name, case.vm.firmware
    if not case.devices or firmware is Firmware.EFI:
        return
    need_efi: list[str] = []
    may_need_efi: list[str] = []
    for device in case.devices:
        is_large = needs_large_bar(device, case.host, case.catalog)
        if is_large is not False:
            (need_efi if is_large else may_need_efi).append(signature(device))
    if need_efi and firmware is Firmware.BIOS:
        hint = "a guest installed under BIOS does not start under EFI: prepare another VM with EFI firmware"
        yield Rejection(name, f"firmware for {need_efi[0]}", "EFI", "BIOS", hint=hint)
    elif need_efi:
        rule = f"its firmware cannot be read, and {need_efi[0]} needs EFI"
        yield Rejection(name, rule, hint=READ_VM)
    elif may_need_efi and firmware is Firmware.BIOS:
        yield f"{name} has BIOS firmware, and whether {may_need_efi[0]} needs EFI is not known"
    elif firmware is Firmware.BIOS:
        yield f"{name} has BIOS firmware: enough for these devices, not for C-series profiles or whole GPUs"


def hardware_version(case: Case) -> Iterator[Finding]:
    """Require the virtual hardware of each feature (VMware vSphere docs, virtual hardware versions; several vGPUs since
    vSphere 6.7 U2, above vmx-13)."""
    features = []
    if any(isinstance(device, DynamicDevice | NewDynamic) for device in case.devices):
        features.append((17, "Dynamic DirectPath I/O"))
    if case.grouped:
        features.append((20, "device groups"))
    if len(case.profiles) > 1:
        features.append((14, "several vGPUs"))
    version = case.vm.hardware_version
    hint = "upgrade its virtual hardware (vSphere Client: Compatibility); gpuops never does"
    for needed, feature in features:
        rule = f"virtual hardware for {feature}"
        if version is None:
            yield Rejection(case.vm.name, rule, f"vmx-{needed}", "an unreadable version")
        elif version < needed:
            yield Rejection(case.vm.name, rule, f"vmx-{needed}", f"vmx-{version}", hint=hint)


def tied_to_its_host(case: Case) -> Iterator[Finding]:
    """Refuse a move with a static DirectPath device: its backing carries its host's system id (vSphere API,
    VirtualPCIPassthroughDeviceBackingInfo)."""
    if case.host is None or case.vm.host in (None, case.host.ref):
        return
    for device in case.devices:
        if isinstance(device, DirectPathDevice):
            rule = f"{signature(device)} ties it to its host; it cannot move to {case.host.name}"
            hint = command("detach", vm=called(case.vm), device=str(device.address))
            yield Rejection(case.vm.name, rule, hint=hint)


def no_snapshots(case: Case) -> Iterator[Finding]:
    """Refuse snapshots that the devices exclude (VMware vSphere docs, DirectPath I/O; vSphere API,
    HostSharedGpuCapabilities: snapshots by profile)."""
    count = case.vm.snapshots
    if count == 0:
        return
    has_text = "its snapshots cannot be read" if count is None else f"has {count} snapshot{'s' if count > 1 else ''}"
    hint = "delete its snapshots, then try again"
    if case.whole_devices:
        yield Rejection(case.vm.name, f"{has_text}; a VM with DirectPath I/O can have none", hint=hint)
    for profile in dict.fromkeys(case.profiles):
        offered = case.host.offers(profile) if case.host else None
        if offered is None:
            continue
        if offered.disk_snapshot is False:
            yield Rejection(case.vm.name, f"{has_text}; {profile} allows none on this host", hint=hint)
        elif offered.disk_snapshot is None or offered.memory_snapshot is not True:
            yield f"{case.vm.name} {has_text}: reverting to one with memory may fail with {profile}"


def several_vgpus(case: Case) -> Iterator[Finding]:
    """Refuse vGPUs that cannot be in one VM (NVIDIA host driver configuration: A and B types alone; VMware docs: vGPU
    count by release)."""
    count = len(case.profiles)
    if count < 2:
        return
    version = case.host.version if case.host else None
    for profile in dict.fromkeys(case.profiles):
        series = series_of(profile, case.catalog)
        if series in (Series.A, Series.B):
            yield Rejection(
                case.vm.name, f"{profile} (series {series}) must be the only vGPU of its VM; {count} are requested"
            )
            continue
        facts, board = case.catalog.profile(profile), case.catalog.board_of(profile)
        if facts is None or board is None:
            continue
        if facts.max_per_vm is not None and count > facts.max_per_vm:
            yield Rejection(case.vm.name, f"vGPUs allowed in one VM with {profile}", count, facts.max_per_vm)
        is_whole_gpu = board.is_whole(facts)
        needs_whole = "several vGPUs in one VM must have whole-GPU profiles"
        if board.multi_vgpu is MultiVgpu.FULL_FRAMEBUFFER and not is_whole_gpu:
            yield Rejection(case.vm.name, f"{needs_whole} on {board.name}; {profile} is smaller")
        elif case.release is not None and case.release < (8,) and not is_whole_gpu:
            yield Rejection(case.vm.name, f"{needs_whole} on ESXi {version}; {profile} is smaller")
    limit = _vgpu_limit(case.release)
    if limit is not None and count > limit:
        yield Rejection(case.vm.name, f"vGPUs that ESXi {version} allows in one VM", count, limit)


def one_model(case: Case) -> Iterator[Finding]:
    """Require one GPU model for all vGPUs of a VM (NVIDIA AI Enterprise docs, several vGPUs in one VM)."""
    boards = [board for profile in case.profiles if (board := case.catalog.board_of(profile)) is not None]
    names = sorted({board.name for board in boards})
    if len(names) > 1:
        yield Rejection(case.vm.name, f"its vGPUs must be of one GPU model, not of {' and '.join(names)}")
    elif len(set(case.profiles)) > 1:
        yield "vGPUs of different profiles in one VM start only where the host's driver supports it"


def device_count(case: Case) -> Iterator[Finding]:
    """Limit the passthrough devices of one VM by its virtual hardware (VMware configuration maximums)."""
    version = case.vm.hardware_version
    if version is None:
        return
    limit = 16
    if version >= 20:
        # 32 on ESXi 8.0 before Update 1 or on an unknown release, else 64
        limit = 32 if case.release is None or case.release < (8, 0, 1) else 64
    if len(case.devices) > limit:
        yield Rejection(case.vm.name, f"passthrough devices that vmx-{version} allows", len(case.devices), limit)


def no_nested_virtualization(case: Case) -> Iterator[Finding]:
    """Refuse a VM that exposes hardware virtualisation to its guest: it can have no vGPU and no passthrough device
    (Broadcom KB 437651)."""
    if case.devices and case.vm.nested_virtualization:
        hint = 'turn off "Expose hardware assisted virtualization to the guest OS" (vSphere Client, Edit Settings, CPU)'
        rule = "exposes hardware virtualization to its guest, which excludes vGPUs and passthrough (Broadcom KB 437651)"
        yield Rejection(case.vm.name, rule, hint=hint)


def warn_of_whole_device(case: Case) -> Iterator[Finding]:
    """Warn of what a VM can no longer do with a whole device (VMware vSphere docs, DirectPath I/O)."""
    new_devices = [device for device in case.whole_devices if isinstance(device, NewDevice)]
    if new_devices:
        yield f"with {signature(new_devices[0])} {case.vm.name} cannot be suspended, snapshotted or moved while it runs"


def warn_of_unknown_profile(case: Case) -> Iterator[Finding]:
    for profile in dict.fromkeys(case.profiles):
        if case.catalog.profile(profile) is None:
            yield f"{profile} is not in the catalogue: its size, its count per GPU and its GPU model are not checked"


RULES: Final[tuple[Callable[[Case], Iterator[Finding]], ...]] = (
    efi_firmware,
    hardware_version,
    tied_to_its_host,
    no_snapshots,
    several_vgpus,
    one_model,
    device_count,
    no_nested_virtualization,
    warn_of_whole_device,
    warn_of_unknown_profile,
)
START_RULES: Final = (
    efi_firmware,
    hardware_version,
    several_vgpus,
    one_model,
    device_count,
    no_nested_virtualization,
)
"""The rules about the VM itself. A VM that breaks one of them starts on no host."""


def start_obstacles(case: Case) -> tuple[Rejection, ...]:
    """Return why a VM that is not running cannot start on any host with its current devices."""
    all_findings = (finding for rule in START_RULES for finding in rule(case))
    return tuple(finding for finding in all_findings if isinstance(finding, Rejection))


def findings(case: Case) -> tuple[tuple[Rejection, ...], tuple[str, ...]]:
    """Return (every blocker, every warning) about the VM's future devices."""
    all_findings = [finding for rule in RULES for finding in rule(case)]
    blockers = tuple(finding for finding in all_findings if isinstance(finding, Rejection))
    return blockers, tuple(dict.fromkeys(finding for finding in all_findings if isinstance(finding, str)))


def _vgpu_limit(esxi_release: Release | None) -> int | None:
    """Return how many vGPUs one VM may have on this release; None = unknown."""
    if esxi_release is None:
        return None
    if esxi_release < (6, 7):
        return 1
    if esxi_release < (8,):
        return 4
    return 8 if esxi_release < (8, 0, 2) else 16
