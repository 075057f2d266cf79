"""Plans `gpuops host mode set`: graphics types, vGPU sizes and the assignment policy of hosts.

gpuops reads HostGraphicsConfig, changes the requested fields, and writes all of it back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import AssignmentPolicy, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.scheduler import SchedulerPolicy, VgpuScheduler
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import GraphicsDevice, GraphicsSettings, HostSettings, SharedType, SizeMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import ClusterName, GpusOfHosts, HostPattern, Option, command, hosts_called
from gpuops.plan.core.plan import Plan, refuse
from gpuops.plan.core.rejection import READ_HOST_AND_VMS, RECONNECT, TEST_LOGIN, Rejection
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import ConfigureGraphics, ConfigureModes, GpuDifference, HostStep, ModeChange
from gpuops.plan.core.versions import version_numbers
from gpuops.plan.hosts.graphics.device_mode_changes import (
    pending_sizes,
    refuse_unoffered_modes,
    size_changes,
    warn_of_reservations,
)
from gpuops.plan.hosts.host_plan import HostPart, combine_parts, select_hosts, vms_forbidding_change
from gpuops.plan.hosts.scheduler.scheduler_state import MIXED_SIZE_SINCE, scheduler_of

_EMPTY_FIRST: Final = "move or shut down these VMs first"


@dataclass(frozen=True, slots=True)
class SetMode:
    """A request to configure hosts and their GPUs; None leaves a setting as it is."""

    run_kind: ClassVar[str] = "setmode"

    default_type: Annotated[SharedType | None, Option("The graphics type of GPUs without their own setting.")] = None
    type: Annotated[SharedType | None, Option("How GPUs serve VMs: sharedDirect is vGPU.")] = None
    vgpu_mode: Annotated[
        SizeMode | None, Option("Whether vGPUs of several sizes may share a GPU (vSphere 8.0 Update 3).")
    ] = None
    assignment: Annotated[
        AssignmentPolicy | None, Option("Which GPU the host gives the next vGPU: the emptiest, or the fullest.")
    ] = None
    gpu: GpusOfHosts = ()
    """The GPUs that get `type` and `vgpu_mode`; empty = every GPU in the hosts' graphics configuration."""
    host: HostPattern = None
    cluster: ClusterName = None

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """Refs of the selected hosts. Raises UsageError, HostNotFound."""
        return tuple(host.ref for host in select_hosts("host mode set", self.host, self.cluster, inventory))

    def plan(self, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """Return the change of each host's graphics configuration. Raises UsageError."""
        gpus = self._named_gpus()
        hosts = select_hosts("host mode set", self.host, self.cluster, inventory)
        if not hosts:
            return refuse(Scope(self.cluster, self.host).nowhere("mode", inventory))
        parts = [self._plan_host(host, gpus, inventory, catalog) for host in hosts]
        return warn_of_reservations(combine_parts(parts, "mode"), inventory, catalog)

    def _named_gpus(self) -> tuple[PciAddress, ...]:
        """Return the addresses in `gpu`. Raises UsageError if nothing is set, or nothing that single GPUs have."""
        sets_single_gpus = self.type is not None or self.vgpu_mode is not None
        if not sets_single_gpus and self.default_type is None and self.assignment is None:
            hint = "add --type, --vgpu-mode, --default-type or --assignment"
            raise UsageError("host mode set has no setting to change", hint=hint)
        if self.gpu and not sets_single_gpus:
            hint = "remove --gpu: default type and assignment policy are settings of the host"
            raise UsageError("--gpu needs --type or --vgpu-mode", hint=hint)
        return tuple(PciAddress.parse(text) for text in self.gpu)

    def _plan_host(self, host: Host, gpus: tuple[PciAddress, ...], inventory: Inventory, catalog: Catalog) -> HostPart:
        """Return the part of the plan for one host: for these GPUs, or without `gpus` for all."""
        settings = host.settings or HostSettings()
        blockers = tuple(host_blockers(host, settings))
        if blockers or settings.graphics is None:  # one of `blockers` is then that it cannot be read
            return HostPart(host.name, blockers)
        before = settings.graphics
        after = self._after(before, gpus)
        rejections = (
            *_missing_gpus(host, before, gpus),
            *self._change_rejections(host, before, after, inventory, catalog),
        )
        if rejections:
            return HostPart(host.name, rejections)
        if after == before:
            due = self._due(host, settings, before)
            pending = "; a reboot is pending" if due else ""
            return HostPart(host.name, because=(f"{host.name} has these settings already{pending}",), due=due)
        types_change = before.default_type != after.default_type or any(
            old.graphics_type != new.graphics_type for old, new in _pairs(before, after)
        )
        differences = tuple(
            GpuDifference(new.address, _setting_text(old), _setting_text(new))
            for old, new in _pairs(before, after)
            if old != new
        )
        step: HostStep = ConfigureGraphics(host.ref, before, after, differences)
        changes = _as_mode_changes(settings, before, after)
        if changes is not None:
            if unoffered := tuple(refuse_unoffered_modes(host, settings, changes)):
                return HostPart(host.name, unoffered)
            step = ConfigureModes(host.ref, changes, (), differences)
        return HostPart(
            host.name,
            step=step,
            reboots=types_change or changes is not None,  # assumption: vgpu-mode-change
            warnings=tuple(self._warnings(host, before, after, catalog)),
        )

    def _due(self, host: Host, settings: HostSettings, before: GraphicsSettings) -> HostStep | None:
        """Return the step for settings that are already configured but wait for maintenance mode or a reboot."""
        if types_pending(host):
            return ConfigureGraphics(host.ref, before, before)
        gpus = self._named_gpus()
        sizes = [device.address for device in before.devices if not gpus or device.address in gpus]
        waiting = pending_sizes(host, settings, sizes if self.vgpu_mode is not None else ())
        return ConfigureModes(host.ref, waiting) if waiting and settings.sets_modes else None

    def _after(self, before: GraphicsSettings, gpus: tuple[PciAddress, ...]) -> GraphicsSettings:
        """Return the requested configuration: `before` with the new type and size of these GPUs, or without of all."""
        devices = []
        for device in before.devices:
            if not gpus or device.address in gpus:
                new_type, new_size = self.type or device.graphics_type, self.vgpu_mode or device.vgpu_mode
                device = replace(device, graphics_type=new_type, vgpu_mode=new_size)
            devices.append(device)
        return GraphicsSettings(
            self.default_type or before.default_type, self.assignment or before.assignment_policy, tuple(devices)
        )

    def _change_rejections(
        self, host: Host, before: GraphicsSettings, after: GraphicsSettings, inventory: Inventory, catalog: Catalog
    ) -> Iterator[Rejection]:
        """Yield the reasons against this change of the configuration."""
        pairs = _pairs(before, after)
        of_types = [new.address for old, new in pairs if old.graphics_type != new.graphics_type]
        of_modes = [new for old, new in pairs if old.vgpu_mode != new.vgpu_mode]
        if of_types or of_modes:
            yield from vms_forbidding_change(host, inventory)
        if of_types:
            yield from type_blockers(host, inventory)
        for device in of_modes:
            yield from mode_blockers(device, host, inventory, catalog)

    def _warnings(
        self, host: Host, before: GraphicsSettings, after: GraphicsSettings, catalog: Catalog
    ) -> Iterator[str]:
        """Yield a warning for each setting that may have no effect."""
        for old, new in _pairs(before, after):
            if old.vgpu_mode != new.vgpu_mode:
                yield from warn_of_unknown_mode(new, host, catalog)
        same_size = [device for device in after.devices if device.vgpu_mode in (None, SizeMode.SAME_SIZE)]
        if before.assignment_policy != after.assignment_policy and not same_size:
            yield f"{host.name}: the assignment policy counts in same-size mode only (VMware vSphere docs)"


def types_pending(host: Host) -> bool:
    """Return whether a GPU's configured graphics type differs from the one in use, and so waits for a reboot."""
    return any(
        gpu.graphics_type is not None
        and gpu.configured_graphics_type is not None
        and gpu.graphics_type is not gpu.configured_graphics_type
        for gpu in host.gpus
    )


def _as_mode_changes(
    settings: HostSettings, before: GraphicsSettings, after: GraphicsSettings
) -> tuple[ModeChange, ...] | None:
    """Return the change as mode changes; None if it also sets other things, or vCenter has no call for modes."""
    sizes = {new.address: new.vgpu_mode for old, new in _pairs(before, after) if old.vgpu_mode != new.vgpu_mode}
    as_before = tuple(replace(device, vgpu_mode=old.vgpu_mode) for old, device in _pairs(before, after))
    if replace(after, devices=as_before) != before:
        return None
    return size_changes(settings, sizes)


def _pairs(before: GraphicsSettings, after: GraphicsSettings) -> list[tuple[GraphicsDevice, GraphicsDevice]]:
    """Return each GPU before and after the change."""
    return list(zip(before.devices, after.devices, strict=True))


def _missing_gpus(host: Host, before: GraphicsSettings, gpus: Iterable[PciAddress]) -> Iterator[Rejection]:
    """Yield a refusal for each of these GPUs that is not in the host's graphics configuration."""
    graphics_addresses = {device.address for device in before.devices}
    for address in gpus:
        if address in graphics_addresses:
            continue
        if host.gpu(address) is None:
            yield Rejection(host.name, f"has no GPU {address}")
        else:
            off_command = command("host passthrough off", gpu=str(address), host=hosts_called(host.name))
            reason = "is in DirectPath I/O, not in the host's graphics"
            yield Rejection(f"{host.name} {address}", reason, hint=f"{off_command} gives it back to the host")


def _setting_text(device: GraphicsDevice) -> str:
    return device.graphics_type + (f", {device.vgpu_mode}" if device.vgpu_mode else "")


def host_blockers(host: Host, settings: HostSettings) -> Iterator[Rejection]:
    """Yield why the host's graphics cannot be configured at all."""
    if host.connected is not True:
        yield Rejection(host.name, "is not connected", hint=RECONNECT)
    elif settings.graphics is None:
        why = "; ".join(settings.unread) or "the host does not report it"
        yield Rejection(host.name, f"its graphics configuration cannot be read: {why}", hint=TEST_LOGIN)


def type_blockers(host: Host, inventory: Inventory) -> Iterator[Rejection]:
    """Yield why the host's graphics types cannot change: VMs run on its GPUs, or that cannot be read."""
    rule = "a graphics type changes only while no VM is on the host's GPUs (NVIDIA AI Enterprise docs)"
    listed = [gpu for gpu in host.gpus if gpu.graphics_type is not None]
    if any(gpu.vms is None for gpu in listed):
        yield Rejection(host.name, f"which VMs run on its GPUs cannot be read, and {rule}", hint=READ_HOST_AND_VMS)
    running = sorted({name for gpu in listed for name in _vm_names_on(gpu, inventory)})
    if running:
        yield Rejection(host.name, f"{rule}; VMs on them: {', '.join(running)}", hint=_EMPTY_FIRST)


def mode_blockers(device: GraphicsDevice, host: Host, inventory: Inventory, catalog: Catalog) -> Iterator[Rejection]:
    """Yield why the GPU cannot get the vGPU mode of `device` (NVIDIA AI Enterprise docs, vSphere API 8.0.3)."""
    subject = f"{host.name} {device.address}"
    gpu = host.gpu(device.address)
    if version_numbers(inventory.api_version) < version_numbers(MIXED_SIZE_SINCE):
        yield Rejection(subject, "vGPU modes need vSphere 8.0 Update 3", MIXED_SIZE_SINCE, inventory.api_version)
        return
    if gpu is None or gpu.vgpu_mode is None or gpu.vms is None:
        yield Rejection(subject, "its vGPU mode, or which VMs run on it, cannot be read", hint=READ_HOST_AND_VMS)
        return
    if gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE:
        options = {"gpu": str(device.address), "host": hosts_called(host.name), "host_shell": "ssh"}
        off_command = command("host mig off", **options)
        hint = f"{off_command} ends MIG mode"
        yield Rejection(subject, "is in MIG mode, which has no vGPU sizes (NVIDIA AI Enterprise docs)", hint=hint)
    elif running := _vm_names_on(gpu, inventory):
        rule = "the vGPU mode of a GPU changes only while it is empty (NVIDIA NVML docs)"
        yield Rejection(subject, f"{rule}; VMs on it: {', '.join(running)}", hint=_EMPTY_FIRST)
    if device.vgpu_mode == VgpuMode.MIXED_SIZE:
        yield from _refuse_mixed_size(gpu, subject, host, catalog)


def _refuse_mixed_size(gpu: PhysicalGpu, subject: str, host: Host, catalog: Catalog) -> Iterator[Rejection]:
    """Yield why the model or the scheduler of the GPU excludes mixed-size mode."""
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is not None and board.mixed_size_mode is False:
        yield Rejection(subject, f"{board.name} has no mixed-size mode (NVIDIA AI Enterprise docs)")
    schedulers = {gpu_scheduler.gpu.address: gpu_scheduler for gpu_scheduler in scheduler_of(host, catalog).gpus}
    configured = schedulers[gpu.address].configured
    if isinstance(configured, VgpuScheduler) and configured.policy is SchedulerPolicy.FIXED_SHARE:
        hint = "run gpuops host scheduler set --scheduler equal-share and reboot the host first"
        yield Rejection(subject, "mixed-size GPUs cannot have fixed share (NVIDIA AI Enterprise docs)", hint=hint)


def warn_of_unknown_mode(device: GraphicsDevice, host: Host, catalog: Catalog) -> Iterator[str]:
    """Yield a warning if it is unknown whether the GPU has a mixed-size mode."""
    gpu = host.gpu(device.address)
    if gpu is None or device.vgpu_mode != VgpuMode.MIXED_SIZE:
        return
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is None or board.mixed_size_mode is None:
        name = board.name if board else gpu.name
        yield f"{host.name} {gpu.address}: it is unknown whether {name} has a mixed-size mode; the host may refuse it"


def _vm_names_on(gpu: PhysicalGpu, inventory: Inventory) -> list[str]:
    return sorted(inventory.vms[ref].name if ref in inventory.vms else ref for ref in gpu.vms or ())
