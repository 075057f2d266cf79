"""Rules for a VM and the passthrough devices it gets.

Each rule checks the future VM and yields its findings: a `Rejection` blocks the change, a line of text warns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.model.devices.catalog import Catalog, MultiVgpu
from gpuops.model.devices.vgpu import Series
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, Firmware, GpuDevice, VgpuDevice, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.passthru_devices import signature
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import NewDevice, NewDynamic, NewVgpu
from gpuops.plan.core.versions import Release, release
from gpuops.plan.devices.mmio import needs_large_bar, series_of

Finding = Rejection | str


@dataclass(frozen=True, slots=True)
class Case:
    """A VM with its future passthrough devices, and its future host."""

    vm: Vm
    devices: tuple[GpuDevice | NewDevice, ...]
    grouped: bool
    """Some of the devices come as a vendor device group."""
    host: Host | None
    catalog: Catalog

    @property
    def profiles(self) -> tuple[str, ...]:
        return tuple(device.profile for device in self.devices if isinstance(device, VgpuDevice | NewVgpu))

    @property
    def whole(self) -> tuple[GpuDevice | NewDevice, ...]:
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
    large: list[str] = []
    unknown: list[str] = []
    for device in case.devices:
        is_large = needs_large_bar(device, case.host, case.catalog)
        if is_large is not False:
            (large if is_large else unknown).append(signature(device))
    if large and firmware is Firmware.BIOS:
        hint = "a guest installed under BIOS does not start under EFI: prepare another VM with EFI firmware"
        yield Rejection(name, f"firmware for {large[0]}", "EFI", "BIOS", hint=hint)
    elif large:
        yield Rejection(name, f"its firmware cannot be read; {large[0]} needs EFI")
    elif unknown and firmware is Firmware.BIOS:
        yield f"{name} has BIOS firmware, and whether {unknown[0]} needs EFI is not known"
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
    has = "its snapshots cannot be read" if count is None else f"has {count} snapshot{'s' if count > 1 else ''}"
    hint = "delete its snapshots, then try again"
    if case.whole:
        yield Rejection(case.vm.name, f"{has}; a VM with DirectPath I/O can have none", hint=hint)
    for profile in dict.fromkeys(case.profiles):
        offered = case.host.offers(profile) if case.host else None
        if offered is None:
            continue
        if offered.disk_snapshot is False:
            yield Rejection(case.vm.name, f"{has}; {profile} allows none on this host", hint=hint)
        elif offered.disk_snapshot is None or offered.memory_snapshot is not True:
            yield f"{case.vm.name} {has}: reverting to one with memory may fail with {profile}"


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
        whole = board.is_whole(facts)
        if board.multi_vgpu is MultiVgpu.FULL_FRAMEBUFFER and not whole:
            yield Rejection(case.vm.name, f"several vGPUs on {board.name} are whole-GPU profiles; {profile} is not")
        elif case.release is not None and case.release < (8,) and not whole:
            yield Rejection(case.vm.name, f"several vGPUs on ESXi {version} are whole-GPU profiles; {profile} is not")
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
    """Passthrough devices of one VM by virtual hardware (VMware configuration maximums)."""
    version = case.vm.hardware_version
    if version is None:
        return
    limit = 16 if version < 20 else 32 if case.release is None or case.release < (8, 0, 1) else 64
    if len(case.devices) > limit:
        yield Rejection(case.vm.name, f"passthrough devices that vmx-{version} allows", len(case.devices), limit)


def no_nested_virtualization(case: Case) -> Iterator[Finding]:
    """A VM that exposes hardware virtualisation to its guest has no vGPU and no passthrough (Broadcom KB 437651)."""
    if case.devices and case.vm.nested_virtualization:
        hint = 'turn off "Expose hardware assisted virtualization to the guest OS" (vSphere Client, Edit Settings, CPU)'
        rule = "exposes hardware virtualization to its guest, which excludes vGPUs and passthrough (Broadcom KB 437651)"
        yield Rejection(case.vm.name, rule, hint=hint)


def nothing_lost(case: Case) -> Iterator[Finding]:
    """Warn of what a VM can no longer do with a whole device (VMware vSphere docs, DirectPath I/O)."""
    whole = [device for device in case.whole if isinstance(device, NewDevice)]
    if whole:
        yield f"with {signature(whole[0])} {case.vm.name} cannot be suspended, snapshotted or moved while it runs"


def checked_less(case: Case) -> Iterator[Finding]:
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
    nothing_lost,
    checked_less,
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
    if esxi_release is None:
        return None
    if esxi_release < (6, 7):
        return 1
    if esxi_release < (8,):
        return 4
    return 8 if esxi_release < (8, 0, 2) else 16
