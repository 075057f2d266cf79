"""The hosts that a workload may go to regardless of their room, and its VM, which the rules for VMs can judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu
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
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.scope import Scope, device_hosts, gpu_hosts
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu
from gpuops.plan.core.versions import hardware_on
from gpuops.plan.devices.requested import group_members, groups_of, profile_meant
from gpuops.plan.devices.rules import Case, findings
from gpuops.plan.placement.host_filters import Headroom
from gpuops.plan.placement.numa_nodes import AFFINITY_KEY, affinity
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
    whole = bool(workload.device or workload.gpus)
    everywhere = device_hosts(inventory) if whole else gpu_hosts(inventory)
    for host in everywhere:
        outside = scope.outside(host, inventory)
        if outside is not None:
            elsewhere.append(outside)
            continue
        against = [
            *_host_rejections(workload, apart_from, host),
            *_by_release(vm, workload, host, catalog, release_rejections),
        ]
        kept_free = headroom.refusal(host)
        if kept_free is not None:
            against.append(kept_free)
        if against:
            refused += against
        else:
            hosts.append(host.ref)
    if len(elsewhere) == len(everywhere):
        refused.append(scope.nowhere(workload.name, inventory))
    return EligibleHosts(tuple(hosts), tuple(elsewhere), tuple(dict.fromkeys(refused)))


def _host_rejections(workload: Workload, apart_from: Sequence[tuple[str, str]], host: Host) -> Iterator[Rejection]:
    for ref, name in apart_from:
        if ref == host.ref:
            yield Rejection(host.name, f"holds {name}, of the same anti-affinity {workload.anti_affinity}")
    if workload.device_group is not None and all(group.name != workload.device_group for group in groups_of(host)):
        unread = host.config_target is None
        why = "its device groups were not read" if unread else f"does not offer device group {workload.device_group}"
        yield Rejection(host.name, why)


def _by_release(
    vm: Vm,
    workload: Workload,
    host: Host,
    catalog: Catalog,
    release_rejections: dict[str | None, tuple[Rejection, ...]],
) -> tuple[Rejection, ...]:
    """Return why such a VM cannot be on this host. For a new VM that depends only on the host's release."""
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
    devices = tuple(
        _as_assigned(device, placement.seats.get(ordinal))
        for ordinal, device in with_passthru_numbers(vm.devices or ())
    )
    pins = {pin_key(ordinal): str(address) for ordinal, address in placement.pins.items()}
    local = numa is not NumaPolicy.NONE and placement.bound_to
    node = {AFFINITY_KEY: affinity(placement.bound_to)} if local else {}
    placed_vm = replace(vm, host=placement.host.ref, power=PowerState.ON, awaited=Awaited.REQUEST)
    return replace(placed_vm, devices=devices, extra_config={**pins, **node})


def choices_of_devices(
    workload: Workload, inventory: Inventory, catalog: Catalog
) -> tuple[Devices, ...] | tuple[Rejection, ...]:
    """Return the device choices that would do, the smallest GPU model first, or why no devices here would do."""
    if workload.device:
        return _given_by_address(workload, inventory)
    if workload.device_group is not None:
        return _grouped(workload, workload.device_group, inventory)
    if workload.profile is None:
        return _whole(workload, inventory, catalog)
    return _vgpus(workload, inventory, catalog)


def _vgpus(workload: Workload, inventory: Inventory, catalog: Catalog) -> tuple[Devices] | tuple[Rejection, ...]:
    """Return the vGPUs, largest first: a host seats them in this order, and large ones find room only if they are
    first."""
    profiles: list[str] = []
    unknown: list[Rejection] = []
    for requested in workload.vgpus:
        meaning = _resolve_profile(requested.profile, workload, inventory, catalog)
        if isinstance(meaning, Rejection):
            unknown.append(meaning)
        else:
            profiles += [meaning] * requested.count
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
    """GPU memory that the devices hold, as far as the catalogue knows them."""
    return sum(_memory_mib(device, catalog) for device in devices)


def _as_assigned(device: GpuDevice, seat: PciAddress | None) -> GpuDevice:
    """Return a device requested by type as the one that was found for it: a second search might find another."""
    if not isinstance(device, DynamicDevice) or seat is None:
        return device
    return DirectPathDevice(device.key, seat, *device.allowed[0], system_id="")


def _memory_mib(device: GpuDevice, catalog: Catalog) -> int:
    if isinstance(device, VgpuDevice):
        profile = catalog.profile(device.profile)
        return profile.framebuffer_mib if profile else 0
    if isinstance(device, DynamicDevice | DirectPathDevice):
        kinds = device.allowed if isinstance(device, DynamicDevice) else ((device.vendor_id, device.device_id),)
        boards = [catalog.board_by_pci(*kind) for kind in kinds]
        return max((board.framebuffer_mib for board in boards if board), default=0)
    return 0


def _given_by_address(workload: Workload, inventory: Inventory) -> tuple[Devices, ...] | tuple[Rejection]:
    """Return the devices at these addresses on the first requested host that has all of them."""
    addresses = workload.device
    scope_hosts = scope_of(workload).device_hosts(inventory)
    host = next((host for host in scope_hosts if all(host.device(address) for address in addresses)), None)
    if host is None:
        passthrough_addresses = sorted(
            {
                str(device.address)
                for host in scope_hosts
                for device in host.devices
                if device.passthrough is not None and device.passthrough.active
            }
        )
        rule = f"no host here has a GPU or another device at {' and at '.join(map(str, addresses))}"
        return (Rejection(workload.name, f"{rule} (in passthrough: {', '.join(passthrough_addresses) or 'none'})"),)
    gpus = [gpu for address in addresses if (gpu := host.device(address)) is not None]
    return (
        tuple(
            DirectPathDevice(FIRST_DEVICE_KEY + number, gpu.address, gpu.vendor_id, gpu.device_id, system_id="")
            for number, gpu in enumerate(gpus)
        ),
    )


def _grouped(workload: Workload, name: str, inventory: Inventory) -> tuple[Devices, ...] | tuple[Rejection]:
    """Return the members of the vendor device group, from the first requested host that offers it."""
    scope_hosts = scope_of(workload).hosts(inventory)
    group = next((group for host in scope_hosts for group in groups_of(host) if group.name == name), None)
    if group is None:
        if scope_hosts and all(host.config_target is None for host in scope_hosts):
            hint = "saved inventories and vCenter before 8.0 have none: connect to a vCenter 8.0 or later"
            return (Rejection(workload.name, "the device groups of the hosts were not read", hint=hint),)
        offered_groups = sorted({group.name for host in scope_hosts for group in groups_of(host)})
        rule = f"no host here offers device group {name} (there: {', '.join(offered_groups) or 'none'})"
        return (Rejection(workload.name, rule),)
    members, strange = group_members(group)
    if strange:
        rule = f"device group {name} has members that gpuops cannot place ({', '.join(sorted(strange))})"
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


def _whole(workload: Workload, inventory: Inventory, catalog: Catalog) -> tuple[Devices, ...] | tuple[Rejection]:
    """Return the requested number of devices for each matching model that hosts have in passthrough. A workload without
    a model and a label asks for NVIDIA GPUs."""
    label = workload.label
    named = label is not None or workload.model is not None
    passthrough_devices = [
        gpu
        for host in inventory.hosts.values()
        for gpu in (host.devices if named else host.gpus)
        if gpu.passthrough is not None and gpu.passthrough.active and label in (None, gpu.passthrough.label)
    ]
    models: dict[str, list[PhysicalGpu | OtherDevice]] = {}
    for gpu in passthrough_devices:
        models.setdefault(_model(gpu, catalog), []).append(gpu)
    matching_models = {name: gpus for name, gpus in models.items() if _is_meant(workload.model, name, gpus, catalog)}
    if not matching_models:
        device_text = f"whole GPU of model {workload.model!r}" if workload.model else "whole GPU"
        device_text += f" with label {label}" if label else ""
        model_names = ", ".join(sorted(models)) or "none"
        hint = "a profile of the GPU's full size is a whole GPU too, as a vGPU: --profile a40-48c"
        return (
            Rejection(workload.name, f"no host has a {device_text} in passthrough (there: {model_names})", hint=hint),
        )
    choices = [_devices(workload.gpus, gpus, label) for _, gpus in sorted(matching_models.items())]
    return tuple(sorted(choices, key=lambda devices: framebuffer_mib(devices, catalog)))


def _devices(count: int, gpus: Iterable[PhysicalGpu | OtherDevice], label: str | None) -> Devices:
    allowed = tuple(sorted({(gpu.vendor_id, gpu.device_id) for gpu in gpus}))
    return tuple(DynamicDevice(key, allowed, label) for key in range(FIRST_DEVICE_KEY, FIRST_DEVICE_KEY + count))


def _model(gpu: PhysicalGpu | OtherDevice, catalog: Catalog) -> str:
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    return board.name if board else gpu.name


def _is_meant(text: str | None, name: str, gpus: Sequence[PhysicalGpu | OtherDevice], catalog: Catalog) -> bool:
    """Whether `text` names this model: by its key, its short name, or words of its name."""
    if text is None:
        return True
    board = catalog.board_by_pci(gpus[0].vendor_id, gpus[0].device_id, gpus[0].subsystem_id)
    words = text.lower()
    if board is not None and words in (board.key.lower(), board.short_name.lower()):
        return True
    return set(words.split()) <= set(name.lower().translate(_WITHOUT_BRACKETS).split())
