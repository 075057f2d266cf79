"""Projects steps on a snapshot, so that a plan sees which GPUs its own steps free and take.

`project` raises VmNotFound for a VM that the snapshot lacks, and nothing else: a step that the host would refuse is
projected as far as possible. `take` gives a VM its GPUs (power-on), `release` takes them back (stop).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, assert_never

from gpuops.advise.occupancy import Tenant, gpu_states, with_expected
from gpuops.model.desktops.broker import Gate
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuPlacement
from gpuops.model.vcenter.host import Cluster, DeviceBinding, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    GpuDevice,
    OtherPassthrough,
    PowerState,
    VgpuDevice,
    Vm,
    VmDrs,
    next_device_keys,
    pins_of,
)
from gpuops.model.workloads.cluster import RdmaKind
from gpuops.plan.core.passthru_devices import with_passthru_numbers
from gpuops.plan.core.steps import (
    CloneVm,
    CloseGate,
    CreateVm,
    CreationStep,
    NewDevice,
    NewDirectPath,
    NewDynamic,
    NewVgpu,
    OpenGate,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
    VmChange,
)
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.vm_demand import demands_of

_NEW_KEY: Final = -1
"""Key of a device of a VM that does not exist yet."""


def project(step: Step, inventory: Inventory, catalog: Catalog | None = None) -> Inventory:
    """Return the snapshot after the step. A VM that starts, or arrives running, gets the GPUs that its host is expected
    to choose.

    Without a catalogue GPU models cannot be distinguished, so on a host with several GPUs the expected GPU is a guess.
    """
    if isinstance(step, CreationStep | RemoveVm):
        return _make_or_remove(step, inventory)
    vm = inventory.vm(step.vm)
    match step:
        case ReconfigureVm(change=change):
            return inventory.with_vm(_apply_change(vm, change))
        case RelocateVm(host=host):
            moved, runs = replace(vm, host=host), vm.power is PowerState.ON
            return take(moved, release(vm, inventory), catalog or Catalog()) if runs else inventory.with_vm(moved)
        case PowerOnVm(host=host) | ResumeVm(host=host):
            running = replace(vm, host=host or vm.host, power=PowerState.ON)
            return take(running, release(vm, inventory), catalog or Catalog())
        case SuspendVm() | PowerOffVm() | PowerOffForRemoval() | ShutDownGuest():
            power = PowerState.SUSPENDED if isinstance(step, SuspendVm) else PowerState.OFF
            return release(replace(vm, power=power), inventory)
        case RunInGuest():
            return inventory
        case SetVmDrs(drs=drs):
            cluster = inventory.cluster_of(vm)
            return inventory.with_cluster(_override_drs(cluster, vm.ref, drs)) if cluster is not None else inventory
        case SetAttribute(name=name, value=text):
            other_attributes = {key: old_text for key, old_text in vm.attributes.items() if key != name}
            return inventory.with_vm(
                replace(vm, attributes={**other_attributes, name: text} if text else other_attributes)
            )
        case CloseGate(machine=machine) | OpenGate(machine=machine):
            return inventory.with_vm(replace(vm, gate=Gate(isinstance(step, CloseGate), machine)))
        case _:
            assert_never(step)


def _make_or_remove(step: CreationStep | RemoveVm, inventory: Inventory) -> Inventory:
    if isinstance(step, CloneVm):
        return inventory.with_vm(_clone(step, inventory.vm(step.source)))
    if isinstance(step, CreateVm):
        new_vm = Vm(step.vm, step.name, host=step.host, power=PowerState.OFF, template=False, snapshots=0)
        return inventory.with_vm(new_vm)
    released = release(inventory.vm(step.vm), inventory)
    return replace(released, vms={ref: vm for ref, vm in released.vms.items() if ref != step.vm})


def _clone(step: CloneVm, source: Vm) -> Vm:
    """Return the new VM as it will be: the devices and settings of its template, powered off, in its own size.

    The devices of the template must be known. Custom attributes are not cloned (from memory).
    """
    is_memory_locked = step.memory_locked or source.memory_locked
    devices, cores, cores_per_node = source.devices, source.cores_per_socket, source.cores_per_numa_node
    if devices is not None and step.card is not None and step.card.kind is RdmaKind.SRIOV:
        devices = (*devices, OtherPassthrough(_NEW_KEY, "SR-IOV"))
    if cores_per_node and source.vcpus and cores_per_node >= source.vcpus:
        # a template that is in one virtual node was put there by its host, which does so with its clone as well
        cores_per_node = step.vcpus
    return replace(
        source,
        ref=step.vm,
        name=step.name,
        path=step.path,
        folders=source.folders if step.path == f"{source.folder}/{step.name}" else (),
        instance_uuid=None,
        host=step.host,
        power=PowerState.OFF,
        template=False,
        vcpus=step.vcpus,
        # Sockets must be full: a number of vCPUs that is no multiple of the template's cores gets one core per socket.
        cores_per_socket=cores if cores and step.vcpus % cores == 0 else 1,
        cores_per_numa_node=cores_per_node,
        memory_mib=step.memory_mib,
        memory_reservation_mib=step.memory_mib if is_memory_locked else source.memory_reservation_mib,
        memory_locked=is_memory_locked,
        cpu_reservation_mhz=source.cpu_reservation_mhz
        if step.cpu_reservation_mhz is None
        else step.cpu_reservation_mhz,
        devices=devices,
        extra_config={**(source.extra_config or {}), **step.settings} if step.settings else source.extra_config,
        datastores=source.datastores if step.datastore is None else (step.datastore,),
        cpu_usage_mhz=None,
        console_connections=None,
        question=None,
        tasks=(),
        attributes={},
        tags=None,
        vapp=None,
        snapshots=0,
        change_version=None,
        tools_running=False,
    )


def _override_drs(cluster: Cluster, ref: str, drs: VmDrs) -> Cluster:
    """Return the cluster with this DRS setting for the VM (ref) instead of its earlier one."""
    other_overrides = tuple(override for override in cluster.drs_overrides if override[0] != ref)
    excluded = tuple(excluded_ref for excluded_ref in cluster.drs_excluded if excluded_ref != ref)
    match drs:
        case VmDrs.CLUSTER:
            return replace(cluster, drs_overrides=other_overrides, drs_excluded=excluded)
        case VmDrs.OFF:
            return replace(cluster, drs_overrides=(*other_overrides, (ref, "")), drs_excluded=(*excluded, ref))
        case _:
            return replace(cluster, drs_overrides=(*other_overrides, (ref, drs.value)), drs_excluded=excluded)


def _apply_change(vm: Vm, change: VmChange) -> Vm:
    """Return the VM after the change."""
    reservation = change.memory_reservation_mib
    if reservation is None:
        reservation = vm.memory_mib if change.memory_locked else vm.memory_reservation_mib
    # If the VM's settings are unknown, only the changed ones are known afterwards.
    settings: dict[str, str] | None = dict(change.extra_config) or None
    if vm.extra_config is not None:
        # A setting without text is removed.
        settings = {key: text for key, text in {**vm.extra_config, **change.extra_config}.items() if text}
    return replace(
        vm,
        devices=_devices_after(vm, change),
        extra_config=settings,
        memory_locked=vm.memory_locked if change.memory_locked is None else change.memory_locked,
        memory_reservation_mib=reservation,
        cpu_hot_add=vm.cpu_hot_add if change.cpu_hot_add is None else change.cpu_hot_add,
        cores_per_numa_node=(
            vm.cores_per_numa_node if change.cores_per_numa_node is None else change.cores_per_numa_node
        ),
    )


def _devices_after(vm: Vm, change: VmChange) -> tuple[GpuDevice, ...] | None:
    """Return the VM's devices after the change, new ones with the keys that vCenter will give them; None = unknown."""
    if vm.devices is None:
        return None
    profiles = dict(change.replace_profile)
    devices: list[GpuDevice] = []
    for device in vm.devices:
        if isinstance(device, VgpuDevice) and device.key in profiles:
            device = replace(device, profile=profiles[device.key])
        if device.key not in change.remove:
            devices.append(device)
    group = None
    if change.device_group:  # the new devices form one group, with the next number
        group = 1 + max((getattr(device, "group", None) or 0 for device in devices), default=0)
    new_keys = next_device_keys(device.key for device in devices)
    devices += [_as_device(device, key, group) for device, key in zip(change.add, new_keys, strict=False)]
    return tuple(sorted(devices, key=lambda device: device.key))


def _as_device(device: NewDevice, key: int, group: int | None) -> GpuDevice:
    match device:
        case NewVgpu(profile=profile, numa_node=numa_node):
            return VgpuDevice(key, profile, numa_node, group)
        case NewDirectPath(address=address, vendor_id=vendor_id, device_id=device_id, system_id=system_id):
            return DirectPathDevice(key, address, vendor_id, device_id, system_id, group)
        case NewDynamic(allowed=allowed, label=label):
            return DynamicDevice(key, allowed, label, None, group)
        case _:
            assert_never(device)


def take(vm: Vm, inventory: Inventory, catalog: Catalog) -> Inventory:
    """Return the snapshot with this VM, which replaces its earlier state, on the GPUs that its host is expected to
    choose. If the host would refuse the VM, it is on no GPU: it is not known which GPUs it would hold."""
    host = inventory.hosts.get(vm.host or "")
    if host is None or not vm.devices:
        return inventory.with_vm(vm)
    seating = seat(vm, demands_of(vm.devices, pins_of(vm)), host, inventory, catalog)
    seats = seating.seats if seating.complete else {}
    shared: set[PciAddress] = set()
    bindings = list(host.bindings)
    for ordinal, device in with_passthru_numbers(vm.devices):
        if ordinal in seats and isinstance(device, VgpuDevice):
            shared.add(seats[ordinal])
        elif ordinal in seats:
            bindings.append(DeviceBinding(seats[ordinal], vm.ref))
    gpus = tuple(
        replace(gpu, vms=(*gpu.vms, vm.ref)) if gpu.address in shared and gpu.vms is not None else gpu
        for gpu in _with_expected_vgpus(vm, seats, host, inventory, catalog)
    )
    host_after = replace(host, gpus=gpus, bindings=tuple(bindings))
    return inventory.with_hosts([host_after]).with_vm(_assign_devices(vm, seats))


def _with_expected_vgpus(
    vm: Vm, seats: Mapping[int, PciAddress], host: Host, inventory: Inventory, catalog: Catalog
) -> tuple[PhysicalGpu, ...]:
    """Return the GPUs of the host. If the host reports the vGPUs on them, this VM's are added where they are expected
    to start.

    `seats`: the GPU of each device, by the device's ordinal (the N of its VMX name `pciPassthruN`).
    """
    if all(gpu.vgpus is None for gpu in host.gpus):
        return host.gpus
    # Each vGPU is added after the earlier ones of the VM, since these decide where it starts.
    states = {state.gpu.address: state for state in gpu_states(host, inventory, catalog)}
    for ordinal, device in with_passthru_numbers(vm.devices or ()):
        if isinstance(device, VgpuDevice) and ordinal in seats:
            tenant = Tenant(vm.ref, vm.name, device.profile)
            states[seats[ordinal]] = with_expected(states[seats[ordinal]], tenant, catalog)
    gpus = list(host.gpus)
    for number, gpu in enumerate(gpus):
        own_tenants = [tenant for tenant in states[gpu.address].tenants if tenant.vm == vm.ref]
        if gpu.vgpus is not None and own_tenants:
            own_vgpus = (VgpuPlacement(vm.ref, tenant.profile, tenant.start) for tenant in own_tenants)
            gpus[number] = replace(gpu, vgpus=(*gpu.vgpus, *own_vgpus))
    return tuple(gpus)


def release(vm: Vm, inventory: Inventory) -> Inventory:
    """Return the snapshot with this VM, which replaces its earlier state, on no GPU and with no device assigned."""
    released = inventory.with_vm(_assign_devices(vm, {}))
    host = inventory.hosts.get(vm.host or "")
    return released if host is None else released.with_hosts([_without(host, vm.ref)])


def _assign_devices(vm: Vm, seats: Mapping[int, PciAddress]) -> Vm:
    """Return the VM with these addresses (by ordinal) assigned to its Dynamic DirectPath I/O devices."""
    if not any(isinstance(device, DynamicDevice) for device in vm.devices or ()):
        return vm
    devices = tuple(
        replace(device, assigned=seats.get(ordinal)) if isinstance(device, DynamicDevice) else device
        for ordinal, device in with_passthru_numbers(vm.devices or ())
    )
    return replace(vm, devices=devices)


def _without(host: Host, ref: str) -> Host:
    """Return the host without this VM on its GPUs; the same object if the VM is on no GPU of it."""
    if not any(ref in (gpu.vms or ()) for gpu in host.gpus) and all(binding.vm != ref for binding in host.bindings):
        return host
    gpus = list(host.gpus)
    for number, gpu in enumerate(gpus):
        if gpu.vms and ref in gpu.vms:
            other_vms = tuple(other_ref for other_ref in gpu.vms if other_ref != ref)
            other_vgpus = None if gpu.vgpus is None else tuple(vgpu for vgpu in gpu.vgpus if vgpu.vm != ref)
            gpus[number] = replace(gpu, vms=other_vms, vgpus=other_vgpus)
    other_bindings = tuple(binding for binding in host.bindings if binding.vm != ref)
    return replace(host, gpus=tuple(gpus), bindings=other_bindings)
