"""Compares a site file with one snapshot, and returns the settings of hosts, GPUs and VMs that differ."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from gpuops.errors import UsageError
from gpuops.extras.declare.entries import GPU_KEYS, HOST_KEYS, DeviceWish, HostEntry, MarkWish, SiteFile, VmEntry
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.nights.selector import Selector
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.host_settings import HostSettings
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, VgpuDevice, Vm, VmDrs, is_gpu
from gpuops.plan.core.passthru_devices import gpu_names, option_of
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.scope import Scope
from gpuops.plan.devices.goal import pci_type, profile_meant
from gpuops.plan.hosts.graphics.device_mode_changes import pending_sizes
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.plan.hosts.scheduler.scheduler_state import reason_unscheduled, scheduler_of
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class SiteDifference:
    """One setting that is not as the file says.

    `pending`: it is configured as the file says, but in force only after a reboot of the host.
    """

    kind: str
    """`host` or `vm`."""
    ref: str
    name: str
    key: str
    """The key in the file."""
    before: str
    after: str
    gpu: PciAddress | None = None
    pending: bool = False
    mark: str = ""
    """The name of the custom attribute, if `key` is `marks`."""
    by: str | None = field(default=None, compare=False)
    """The user who made the change; None = unknown. Only `gpuops drift` reads it."""

    @property
    def title(self) -> str:
        """Return the key as messages and documents show it: `mark NAME` for a mark."""
        return f"mark {self.mark}" if self.mark else self.key


class GpuWish(NamedTuple):
    """The wished value of one key of a GPU, and whether the entry names the GPU by its address."""

    setting: object
    is_named: bool


@dataclass(slots=True)
class HostWish:
    """The values that the file has for one host by key, and for each of its GPUs by key."""

    ref: str
    name: str
    keys: dict[str, object] = field(default_factory=dict)
    gpus: dict[PciAddress, dict[str, GpuWish]] = field(default_factory=dict)


@dataclass(slots=True)
class VmWish:
    """The entries that the file has for one VM."""

    ref: str
    name: str
    devices: DeviceWish | None = None
    drs: VmDrs | None = None
    marks: dict[str, MarkWish] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between a file and `snapshot`, and the wishes that they come from."""

    differences: tuple[SiteDifference, ...]
    hosts: tuple[HostWish, ...]
    vms: tuple[VmWish, ...]
    snapshot: Inventory
    rejections: tuple[Rejection, ...] = ()
    """Why the file does not fit this vCenter, for example because an entry selects nothing."""

    def only(self, refs: Collection[str]) -> Comparison:
        """Return the part about these hosts and VMs, without `rejections`."""
        differences = tuple(difference for difference in self.differences if difference.ref in refs)
        hosts = tuple(wish for wish in self.hosts if wish.ref in refs)
        vms = tuple(wish for wish in self.vms if wish.ref in refs)
        return Comparison(differences, hosts, vms, self.snapshot)


def selected_hosts(file: SiteFile, inventory: Inventory) -> Collection[str]:
    """Return the refs of the hosts that the file selects."""
    return tuple({host.ref: None for entry in file.hosts for host in _hosts_of(entry, inventory)})


def selected_vms(file: SiteFile, inventory: Inventory) -> Collection[str]:
    """Return the refs of the VMs that the file selects."""
    return tuple({vm.ref: None for entry in file.vms for vm in _vms_of(entry, inventory)})


def compare(file: SiteFile, inventory: Inventory, catalog: Catalog, now: datetime) -> Comparison:
    """Return how this snapshot differs from the file; it must contain the settings of the selected hosts."""
    rejections = [*file.misfits]
    hosts = _host_wishes(file, inventory, rejections)
    vms = _vm_wishes(file, inventory, rejections)
    differences: list[SiteDifference] = []
    for host_wish in hosts:
        differences += host_differences(host_wish, inventory.hosts[host_wish.ref], catalog)
    for vm_wish in vms:
        try:
            differences += vm_differences(vm_wish, inventory.vms[vm_wish.ref], inventory, catalog, now)
        except UsageError as error:  # an unknown profile
            rejections.append(Rejection(vm_wish.name, error.message, hint=error.hint))
    return Comparison(tuple(differences), hosts, vms, inventory, tuple(dict.fromkeys(rejections)))


# hosts


def _hosts_of(entry: HostEntry, inventory: Inventory) -> tuple[Host, ...]:
    names = entry.host or (None,)
    hosts = {host.ref: host for name in names for host in Scope(entry.cluster, name, entry.tag).hosts(inventory)}
    return tuple(hosts.values())


def _host_wishes(file: SiteFile, inventory: Inventory, rejections: list[Rejection]) -> tuple[HostWish, ...]:
    """Return the wishes for each selected host; a later entry replaces earlier ones. Add misfits to `rejections`."""
    wishes: dict[str, HostWish] = {}
    for entry in file.hosts:
        for name in entry.host or (None,):
            scope = Scope(entry.cluster, name, entry.tag)
            if not scope.hosts(inventory):
                rejections.append(scope.nowhere("hosts", inventory))
        has_gpu = False
        for host in _hosts_of(entry, inventory):
            wish = wishes.setdefault(host.ref, HostWish(host.ref, host.name))
            wish.keys |= {key: getattr(entry, key) for key in HOST_KEYS if getattr(entry, key) is not None}
            gpus = _gpus_of(entry, host)
            has_gpu = has_gpu or bool(gpus)
            rejections += [
                Rejection(host.name, f"has no GPU {address}", hint="gpuops inventory shows the addresses")
                for address in entry.gpu
                if host.gpu(address) is None
            ]
            for gpu in gpus:
                wish.gpus.setdefault(gpu.address, {}).update(_gpu_keys(entry))
        if entry.model is not None and not has_gpu:
            rejections.append(
                Rejection(
                    "hosts",
                    f"no selected host has a GPU of model {entry.model}",
                    hint="gpuops inventory shows the models",
                )
            )
    return tuple(sorted(wishes.values(), key=lambda wish: (wish.name, wish.ref)))


def _gpus_of(entry: HostEntry, host: Host) -> list[PhysicalGpu]:
    return [
        gpu
        for gpu in host.gpus
        if (not entry.gpu or gpu.address in entry.gpu) and (entry.model is None or fnmatchcase(gpu.name, entry.model))
    ]


def _gpu_keys(entry: HostEntry) -> dict[str, GpuWish]:
    settings = {key: getattr(entry, key) for key in GPU_KEYS} | {"scheduler": entry.scheduler_request()}
    return {key: GpuWish(setting, bool(entry.gpu)) for key, setting in settings.items() if setting is not None}


def host_differences(wish: HostWish, host: Host, catalog: Catalog) -> Iterator[SiteDifference]:
    """Yield each setting of the host and its GPUs that is not as wished."""
    graphics = (host.settings or HostSettings()).graphics
    present_values = {  # None = cannot be read
        "default_graphics": graphics and graphics.default_type,
        "assignment": graphics and graphics.assignment_policy,
    }
    for key, setting in wish.keys.items():
        if present_values[key] != setting:
            yield SiteDifference("host", host.ref, host.name, key, present_values[key] or UNKNOWN, str(setting))
    for address, keys in wish.gpus.items():
        gpu = host.gpu(address)
        if gpu is None:
            continue
        for key, gpu_wish in keys.items():
            if _applies(key, gpu_wish, gpu, keys, catalog):
                configured, in_force = gpu_state(key, gpu, host, catalog)
                after = _setting_text(gpu_wish.setting)
                if configured != after or in_force not in (None, after):
                    is_pending = configured == after
                    before = in_force if is_pending else configured
                    before = UNKNOWN if before is None else before  # an empty label is known
                    yield SiteDifference("host", host.ref, host.name, key, before, after, address, pending=is_pending)


def _setting_text(setting: object) -> str:
    if isinstance(setting, SetScheduler):
        return str(setting.requested_scheduler())
    return _on_off(setting) if isinstance(setting, bool) else str(setting)


def _on_off(on: bool) -> str:
    return "on" if on else "off"


def gpu_state(key: str, gpu: PhysicalGpu, host: Host, catalog: Catalog) -> tuple[str | None, str | None]:
    """Return what is configured for this key of the GPU (None = cannot be read), and what is in force.

    None in the second place = it cannot be read, or is what is configured.
    """
    settings = host.settings or HostSettings()
    graphics = {device.address: device for device in settings.graphics.devices} if settings.graphics else {}
    passthrough = {state.address: state for state in settings.passthrough or ()}
    device, state = graphics.get(gpu.address), passthrough.get(gpu.address)
    match key:
        case "graphics":
            return device.graphics_type if device is not None else None, gpu.graphics_type
        case "vgpu_mode":
            waits_for_reboot = settings.sets_modes and pending_sizes(host, settings, [gpu.address])
            return device.vgpu_mode if device is not None else None, gpu.vgpu_mode if waits_for_reboot else None
        case "mig":
            smi = next((smi for smi in settings.mig or () if smi.address == gpu.address and not smi.unread), None)
            if smi is not None and smi.pending is not None and smi.current is not None:
                return _on_off(smi.pending), _on_off(smi.current)
            return gpu.vgpu_mode and _on_off(gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE), None
        case "scheduler":
            schedulers = {of_gpu.gpu.address: of_gpu for of_gpu in scheduler_of(host, catalog).gpus}
            scheduler = schedulers[gpu.address]
            readings = scheduler.configured, scheduler.effective
            configured, in_force = (None if reading is None else str(reading) for reading in readings)
            return configured, in_force
        case "passthrough":
            return (_on_off(state.enabled), _on_off(state.active)) if state is not None else (None, None)
        case _:
            return (state.label or "") if state is not None else None, None


def _applies(key: str, wish: GpuWish, gpu: PhysicalGpu, wishes: Mapping[str, GpuWish], catalog: Catalog) -> bool:
    """Return whether the GPU has this setting, by its state and by the other wishes for it.

    A GPU that is or will be in DirectPath I/O has no graphics type, vGPU mode, MIG mode and scheduler; a GPU in MIG
    mode has no vGPU mode and scheduler. An entry that names the GPU by its address applies in any case, so that the
    plan refuses it with the reason.
    """
    if key in ("passthrough", "label"):
        return True
    states = [("passthrough", gpu.passed_through)]
    if key in ("vgpu_mode", "scheduler"):
        states.append(("mig", gpu.vgpu_mode is VgpuMode.MULTI_INSTANCE))
    for other_key, is_on in states:
        other = wishes.get(other_key)
        # `mig: true` for all hosts does not apply to a GPU that has no MIG mode
        if other is not None and _applies(other_key, other, gpu, wishes, catalog):
            # also if the file switches it off: the key applies only after that
            if other.setting is True or is_on:
                return False
        elif is_on:
            return wish.is_named
    if key == "mig" and not wish.is_named:
        board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
        return board is None or board.mig is not None
    return wish.is_named or key != "scheduler" or reason_unscheduled(gpu) is None


# VMs


def _vms_of(entry: VmEntry, inventory: Inventory) -> tuple[Vm, ...]:
    vms = {vm.ref: vm for name in entry.vm or (None,) for vm in inventory.vms.values() if _is_selected(vm, entry, name)}
    return tuple(vms.values())


def _is_selected(vm: Vm, entry: VmEntry, name: str | None) -> bool:
    return (
        not vm.template
        and (name is None or vm.is_called(name) or fnmatchcase(vm.path if "/" in name else vm.name, name))
        and (entry.folder is None or Selector(folder=entry.folder).in_folder(vm))
        and set(entry.tag) <= set(vm.tags or ())
    )


def _vm_wishes(file: SiteFile, inventory: Inventory, rejections: list[Rejection]) -> tuple[VmWish, ...]:
    """Return the wishes for each selected VM; a later entry replaces earlier ones. Add misfits to `rejections`."""
    wishes: dict[str, VmWish] = {}
    for entry in file.vms:
        for name in entry.vm or (None,):
            vms = [vm for vm in inventory.vms.values() if _is_selected(vm, entry, name)]
            if not vms:
                names = [part for part in (name, entry.folder, *entry.tag) if part]
                rejections.append(
                    Rejection(
                        "vms", f"no VM is selected by {', '.join(names)}", hint="gpuops inventory --vms shows names"
                    )
                )
            for vm in vms:
                wish = wishes.setdefault(vm.ref, VmWish(vm.ref, vm.name))
                wish.devices = entry.devices or wish.devices
                wish.drs = entry.drs or wish.drs
                wish.marks |= {mark.attribute: mark for mark in entry.marks}
    return tuple(sorted(wishes.values(), key=lambda wish: (wish.name, wish.ref)))


def vm_differences(
    wish: VmWish, vm: Vm, inventory: Inventory, catalog: Catalog, now: datetime
) -> Iterator[SiteDifference]:
    """Yield each setting of the VM that is not as wished. Raises ProfileUnknown, ProfileAmbiguous."""
    if wish.devices is not None:
        request = device_request(wish.devices, vm, inventory, catalog)
        if request is not None:
            before = UNKNOWN if vm.devices is None else gpu_names(vm)
            yield SiteDifference("vm", vm.ref, vm.name, "devices", before, device_words(wish.devices))
        elif wish.devices.numa is NumaPolicy.REQUIRED and not wish.devices.absent:
            plan = attach_request(wish.devices, vm, None).plan(inventory, catalog, now)
            if plan.steps or not plan.feasible:  # no steps: the VM is bound to the node
                yield SiteDifference("vm", vm.ref, vm.name, "numa", "not bound to the node of its GPU", "required")
    if wish.drs is not None and (present_drs := inventory.drs_of(vm)) is not wish.drs:
        yield SiteDifference("vm", vm.ref, vm.name, "drs", present_drs or UNKNOWN, wish.drs)
    for name, mark in wish.marks.items():
        present_value, wished_value = vm.attributes.get(name, ""), mark.value or ""
        if present_value != wished_value:
            before, after = present_value or "none", wished_value or "none"
            yield SiteDifference("vm", vm.ref, vm.name, "marks", before, after, mark=name)


def device_words(devices: DeviceWish) -> str:
    """Return the devices as messages show them: `2 x grid_a100-3-20c`."""
    if devices.absent:
        return "none"
    if devices.device:
        return ", ".join(f"directpath {address}" for address in devices.device)
    name = devices.profile
    if name is None:
        types = ",".join(devices.device_type)
        name = " ".join(filter(None, ("dynamic", types, f"label {devices.label}" if devices.label else "")))
    return name if devices.count in (None, 1) else f"{devices.count} x {name}"


def device_request(devices: DeviceWish, vm: Vm, inventory: Inventory, catalog: Catalog) -> Attach | Detach | None:
    """Return the request that gives the VM these devices; None if it has them. Raises ProfileUnknown."""
    if vm.devices is None:
        return attach_request(devices, vm, None)
    gpus = [device for device in vm.devices if is_gpu(device)]
    if devices.absent:
        return Detach(f"moid:{vm.ref}", all=True, power=devices.power) if gpus else None
    present_devices = list(_present_devices(devices, vm, inventory, catalog))
    other_gpus = [device for device in gpus if device not in present_devices]
    # without a number in the file: as many as the VM has, at least one
    count = len(devices.device) or devices.count or max(1, len(present_devices))
    if len(present_devices) > count:
        return Detach(
            f"moid:{vm.ref}",
            profile=devices.profile,
            dynamic=devices.dynamic,
            label=devices.label,
            device_type=devices.device_type,
            count=count,
            power=devices.power,
        )
    is_replaced = devices.others == "replace" and bool(other_gpus)
    if len(present_devices) < count:
        return attach_request(devices, vm, option_of(other_gpus[0]) if is_replaced else None)
    return _detach_request(other_gpus[0], vm, devices) if is_replaced else None


def _present_devices(devices: DeviceWish, vm: Vm, inventory: Inventory, catalog: Catalog) -> Iterator[GpuDevice]:
    """Yield the devices of the VM that the wish has."""
    types = {pci_type(text) for text in devices.device_type}
    profile = devices.profile
    if profile is not None:
        profile = profile_meant(profile, vm, inventory.host_of(vm), inventory, catalog)
    for device in vm.devices or ():
        match device:
            case VgpuDevice() if device.profile == profile:
                yield device
            case DirectPathDevice() if device.address in devices.device:
                yield device
            case DynamicDevice() if devices.is_dynamic:
                if devices.label in (None, device.label) and (not types or types == set(device.allowed)):
                    yield device


def attach_request(devices: DeviceWish, vm: Vm, replaced: str | None) -> Attach:
    """Return the attach command for these devices; `replaced` is what they take the place of, None = nothing."""
    return Attach(
        f"moid:{vm.ref}",
        profile=devices.profile,
        count=devices.count,
        device=tuple(map(str, devices.device)),
        dynamic=devices.dynamic,
        label=devices.label,
        device_type=devices.device_type,
        replace=replaced,
        add=devices.others == "keep",
        move=devices.move,
        pin=devices.pin,
        numa=devices.numa,
        power=devices.power,
    )


def _detach_request(device: GpuDevice, vm: Vm, devices: DeviceWish) -> Detach:
    """Return the detach command for this device of the VM."""
    option = option_of(device)
    match device:
        case VgpuDevice():
            return Detach(f"moid:{vm.ref}", profile=option, power=devices.power)
        case DirectPathDevice():
            return Detach(f"moid:{vm.ref}", device=(option,), power=devices.power)
        case _:
            return Detach(f"moid:{vm.ref}", dynamic=True, power=devices.power)
