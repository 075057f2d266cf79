"""The hosts that a workload may go to regardless of their room, and its VM, which the rules for VMs can judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    FIRST_DEVICE_KEY,
    Awaited,
    DirectPathDevice,
    DynamicDevice,
    Firmware,
    GpuDevice,
    PowerState,
    VgpuDevice,
    Vm,
    pin_key,
)
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.passthru_devices import with_passthru_numbers
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.scope import Scope, device_hosts, gpu_hosts
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu
from gpuops.plan.core.versions import hardware_on
from gpuops.plan.devices.goal import group_members, groups_of, profile_meant
from gpuops.plan.devices.rules import Case, findings
from gpuops.plan.placement.host_filters import AFFINITY_KEY, Headroom, affinity
from gpuops.plan.placement.vm_demand import Placement


@dataclass(frozen=True, slots=True)
class EligibleHosts:
    """The hosts to check, and why the workload may not go to each other host."""

    hosts: tuple[str, ...]
    """Refs in the order of the hosts' names, in which equal hosts are chosen."""
    elsewhere: tuple[Rejection, ...]
    """Hosts outside the requested scope: shown on request, not a reason for a refusal."""
    refused: tuple[Rejection, ...]
    """Hosts inside the scope that can never run such a VM, or must not run this one in addition."""


def scope_of(workload: Workload) -> Scope:
    """Return the scope of hosts that the workload asks for."""
    return Scope(workload.cluster, workload.host, workload.tag)


def eligible_hosts(
    workload: Workload, vm: Vm, apart_from: Sequence[tuple[str, str]], inventory: Inventory, catalog: Catalog
) -> EligibleHosts:
    """Return where the workload may go. `apart_from`: (host ref, name) of workloads it must not share a host with."""
    scope, headroom = scope_of(workload), Headroom(vm, inventory)
    hosts: list[str] = []
    elsewhere: list[Rejection] = []
    refused: list[Rejection] = []
    release_rejections: dict[str | None, tuple[Rejection, ...]] = {}
    asks_for_whole = bool(workload.device or workload.gpus)
    all_hosts = device_hosts(inventory) if asks_for_whole else gpu_hosts(inventory)
    for host in all_hosts:
        outside = scope.outside(host, inventory)
        if outside is not None:
            elsewhere.append(outside)
            continue
        reasons = [
            *_host_rejections(workload, apart_from, host),
            *_vm_rejections(vm, workload, host, catalog, release_rejections),
        ]
        kept_for_ha = headroom.refusal(host)
        if kept_for_ha is not None:
            reasons.append(kept_for_ha)
        refused += reasons
        if not reasons:
            hosts.append(host.ref)
    if len(elsewhere) == len(all_hosts):
        refused.append(scope.nowhere(workload.name, inventory))
    return EligibleHosts(tuple(hosts), tuple(elsewhere), tuple(dict.fromkeys(refused)))


def _host_rejections(workload: Workload, apart_from: Sequence[tuple[str, str]], host: Host) -> Iterator[Rejection]:
    """Yield why the workload may not go to this host: anti-affinity, or a device group that the host lacks."""
    for ref, name in apart_from:
        if ref == host.ref:
            yield Rejection(host.name, f"already has {name}, which has the same anti-affinity {workload.anti_affinity}")
    if workload.device_group is not None and all(group.name != workload.device_group for group in groups_of(host)):
        unread = host.config_target is None
        why = "its device groups were not read" if unread else f"does not offer device group {workload.device_group}"
        yield Rejection(host.name, why)


def _vm_rejections(
    vm: Vm,
    workload: Workload,
    host: Host,
    catalog: Catalog,
    release_rejections: dict[str | None, tuple[Rejection, ...]],
) -> tuple[Rejection, ...]:
    """Return why such a VM cannot be on this host.

    For a new VM that depends only on the host's release, so `release_rejections` caches it by release.
    """
    if host.version not in release_rejections:
        vm_for_host = replace(vm, hardware_version=hardware_on(host.version))
        case = Case(
            vm_for_host,
            vm_for_host.devices or (),
            grouped=workload.device_group is not None,
            host=host,
            catalog=catalog,
        )
        release_rejections[host.version], _ = findings(case)
    return release_rejections[host.version]


Devices = tuple[GpuDevice, ...]

_WITHOUT_BRACKETS: Final = str.maketrans("[]", "  ")
"""PCI names have the product in brackets: `Aqua Vanjaram [Instinct MI355X]`."""


def vm_of(workload: Workload, devices: Devices = (), version: str | None = None) -> Vm:
    """Return the VM that the workload asks for, powered off and not on a host, with the settings that its devices need.
    `version` is the release of the host that it is made on; None = not known yet."""
    return Vm(
        ref=f"workload:{workload.name}",
        name=workload.name,
        power=PowerState.OFF,
        connected=True,
        template=False,
        vcpus=workload.vcpus,
        memory_mib=workload.memory_mib,
        memory_reservation_mib=workload.memory_mib,
        cpu_reservation_mhz=0,
        memory_locked=True,
        snapshots=0,
        devices=devices,
        extra_config={},
        firmware=Firmware.EFI,
        hardware_version=hardware_on(version),
        cores_per_numa_node=0,
        cpu_hot_add=False,
    )


def running(vm: Vm, placement: Placement, numa: NumaPolicy) -> Vm:
    """Return the VM as it will run at this place, with the pins of the placement and its memory on the expected node.

    ESXi usually keeps a VM next to its GPU if it fits there; only `required` binds it. Plans count both in the same
    way, so that the memory of a node is not promised twice. Whole devices are those that the VM is expected to get.
    """
    devices: list[GpuDevice] = []
    for ordinal, device in with_passthru_numbers(vm.devices or ()):
        seat = placement.seats.get(ordinal)
        if isinstance(device, DynamicDevice) and seat is not None:
            # From a type to the device that was found for it: a second search might find another.
            device = DirectPathDevice(device.key, seat, *device.allowed[0], system_id="")
        devices.append(device)
    extra_config = {pin_key(ordinal): str(address) for ordinal, address in placement.pins.items()}
    if numa is not NumaPolicy.NONE and placement.local_nodes:
        extra_config[AFFINITY_KEY] = affinity(placement.local_nodes)
    placed_vm = replace(vm, host=placement.host.ref, power=PowerState.ON, awaited=Awaited.REQUEST)
    return replace(placed_vm, devices=tuple(devices), extra_config=extra_config)


def choices_of_devices(
    workload: Workload, inventory: Inventory, catalog: Catalog
) -> tuple[Devices, ...] | tuple[Rejection, ...]:
    """Return the device choices that would do, the smallest GPU model first, or why no devices here would do."""
    if workload.device:
        return _devices_at_addresses(workload, inventory)
    if workload.device_group is not None:
        return _device_group(workload, workload.device_group, inventory)
    if workload.profile is None:
        return _whole_devices(workload, inventory, catalog)
    return _vgpus(workload, inventory, catalog)


def _vgpus(workload: Workload, inventory: Inventory, catalog: Catalog) -> tuple[Devices] | tuple[Rejection, ...]:
    """Return the vGPUs, largest first: a host seats them in this order, and large ones find room only if they are
    first."""
    profiles: list[str] = []
    unknown: list[Rejection] = []
    for requested in workload.vgpus:
        profile_or_rejection = _resolve_profile(requested.profile, workload, inventory, catalog)
        if isinstance(profile_or_rejection, Rejection):
            unknown.append(profile_or_rejection)
        else:
            profiles += [profile_or_rejection] * requested.count
    if unknown:
        return tuple(unknown)
    names = sorted(profiles, key=lambda name: -(profile.framebuffer_mib if (profile := catalog.profile(name)) else 0))
    return (tuple(VgpuDevice(key, name) for key, name in enumerate(names, FIRST_DEVICE_KEY)),)


def unknown_profiles(workload: Workload, inventory: Inventory, catalog: Catalog) -> tuple[str, ...]:
    """Return the requested profiles that are unknown here."""
    names = (requested.profile for requested in workload.vgpus)
    return tuple(name for name in names if isinstance(_resolve_profile(name, workload, inventory, catalog), Rejection))


def _resolve_profile(profile: str, workload: Workload, inventory: Inventory, catalog: Catalog) -> str | Rejection:
    try:
        return profile_meant(profile, vm_of(workload), None, inventory, catalog)
    except UsageError as error:
        return Rejection(workload.name, error.message, hint=error.hint)


def framebuffer_mib(devices: Devices, catalog: Catalog) -> int:
    """Return the GPU memory of the devices, as far as the catalogue knows them. A device that is requested by several
    types counts as the largest of them."""
    total_mib = 0
    for device in devices:
        if isinstance(device, VgpuDevice):
            profile = catalog.profile(device.profile)
            total_mib += profile.framebuffer_mib if profile else 0
        elif isinstance(device, DynamicDevice | DirectPathDevice):
            types = device.allowed if isinstance(device, DynamicDevice) else ((device.vendor_id, device.device_id),)
            boards = [board for pci_type in types if (board := catalog.board_by_pci(*pci_type))]
            total_mib += max((board.framebuffer_mib for board in boards), default=0)
    return total_mib


def _devices_at_addresses(workload: Workload, inventory: Inventory) -> tuple[Devices, ...] | tuple[Rejection]:
    """Return the devices at these addresses on the first requested host that has all of them."""
    scope_hosts = scope_of(workload).device_hosts(inventory)
    for host in scope_hosts:
        devices = [device for address in workload.device if (device := host.device(address)) is not None]
        if len(devices) == len(workload.device):
            # one choice of devices: those of this host
            numbered = enumerate(devices, FIRST_DEVICE_KEY)
            return (
                tuple(
                    DirectPathDevice(key, device.address, device.vendor_id, device.device_id, system_id="")
                    for key, device in numbered
                ),
            )
    all_devices = [device for host in scope_hosts for device in host.devices]
    active = {str(d.address) for d in all_devices if d.passthrough is not None and d.passthrough.active}
    rule = f"no requested host has a GPU or another device at {' and at '.join(map(str, workload.device))}"
    return (Rejection(workload.name, f"{rule} (in passthrough: {', '.join(sorted(active)) or 'none'})"),)


def _device_group(workload: Workload, name: str, inventory: Inventory) -> tuple[Devices, ...] | tuple[Rejection]:
    """Return the members of the vendor device group, from the first requested host that offers it."""
    scope_hosts = scope_of(workload).hosts(inventory)
    group = next((group for host in scope_hosts for group in groups_of(host) if group.name == name), None)
    if group is None:
        if scope_hosts and all(host.config_target is None for host in scope_hosts):
            hint = "saved inventories and vCenter before 8.0 have none: connect to a vCenter 8.0 or later"
            return (Rejection(workload.name, "the device groups of the hosts were not read", hint=hint),)
        offered_groups = sorted({group.name for host in scope_hosts for group in groups_of(host)})
        rule = f"no requested host offers device group {name} (offered: {', '.join(offered_groups) or 'none'})"
        return (Rejection(workload.name, rule),)
    members, unknown_kinds = group_members(group)
    if unknown_kinds:
        rule = f"device group {name} has members that gpuops cannot place ({', '.join(sorted(unknown_kinds))})"
        return (Rejection(workload.name, rule),)
    return (tuple(_member(FIRST_DEVICE_KEY + number, device) for number, device in enumerate(members)),)


def _member(key: int, device: NewDevice) -> GpuDevice:
    match device:
        case NewVgpu(profile=profile):
            return VgpuDevice(key, profile, group=1)
        case NewDynamic(allowed=allowed, label=label):
            return DynamicDevice(key, allowed, label, group=1)
        case NewDirectPath(address=address):
            return DirectPathDevice(key, address, device.vendor_id, device.device_id, system_id="", group=1)
        case _:
            assert_never(device)


def _whole_devices(
    workload: Workload, inventory: Inventory, catalog: Catalog
) -> tuple[Devices, ...] | tuple[Rejection]:
    """Return the requested number of devices for each matching model that hosts have in passthrough. A workload without
    a model and a label asks for NVIDIA GPUs."""
    label = workload.label
    may_be_other_device = label is not None or workload.model is not None
    models: dict[str, list[PhysicalGpu | OtherDevice]] = {}
    for host in inventory.hosts.values():
        for gpu in host.devices if may_be_other_device else host.gpus:
            if gpu.passthrough is not None and gpu.passthrough.active and label in (None, gpu.passthrough.label):
                board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
                models.setdefault(board.name if board else gpu.name, []).append(gpu)
    choices: list[Devices] = []
    for name, gpus in sorted(models.items()):
        if _is_meant(workload.model, name, gpus, catalog):
            allowed = tuple(sorted({(gpu.vendor_id, gpu.device_id) for gpu in gpus}))
            keys = range(FIRST_DEVICE_KEY, FIRST_DEVICE_KEY + workload.gpus)
            choices.append(tuple(DynamicDevice(key, allowed, label) for key in keys))
    if choices:
        return tuple(sorted(choices, key=lambda devices: framebuffer_mib(devices, catalog)))
    device_text = f"whole GPU of model {workload.model!r}" if workload.model else "whole GPU"
    device_text += f" with label {label}" if label else ""
    model_names = ", ".join(sorted(models)) or "none"
    hint = "a vGPU profile of the GPU's full size also takes a whole GPU, for example --profile a40-48c"
    rule = f"no host has a {device_text} in passthrough (models in passthrough: {model_names})"
    return (Rejection(workload.name, rule, hint=hint),)


def _is_meant(text: str | None, name: str, gpus: Sequence[PhysicalGpu | OtherDevice], catalog: Catalog) -> bool:
    """Return whether `text` names this model: by its key, its short name, or words of its name."""
    if text is None:
        return True
    board = catalog.board_by_pci(gpus[0].vendor_id, gpus[0].device_id, gpus[0].subsystem_id)
    words = text.lower()
    if board is not None and words in (board.key.lower(), board.short_name.lower()):
        return True
    return set(words.split()) <= set(name.lower().translate(_WITHOUT_BRACKETS).split())
