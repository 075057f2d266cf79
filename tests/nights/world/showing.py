"""Showing: the inventory of a simulated vCenter as our client would decode it, made without a wire between them.

`test_showing.py` holds it to what is really read over the wire. What did not change since the last look is the same
object, as its XML is on the wire: a night looks at its VMs hundreds of times.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from typing import Any, Final

from gpuops.model.devices.gpu import AssignmentPolicy, GraphicsType, Passthrough, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.vcenter.host import Cluster, Datastore, DeviceBinding, Host, NumaNode, OfferedProfile
from gpuops.model.vcenter.inventory import DeviceCapacity, Inventory, ProfileCapacity, Reservations
from gpuops.model.vcenter.vm import (
    DynamicDevice,
    Firmware,
    GpuDevice,
    ManagedBy,
    PowerState,
    RunningTask,
    VgpuDevice,
    Vm,
)
from gpuops.plan.core.versions import version_numbers
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.objects.host_system import HostSystem
from gpuops.sim.objects.virtual_machine import VirtualMachine
from gpuops.sim.operations.reserved_capacity import capacity
from gpuops.sim.render.pci import device_name
from gpuops.sim.render.vm_runtime import tools_running
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.gpu_admission import offered_types, supported_types
from gpuops.sim.state.host_state import HostGpu, HostModel
from gpuops.sim.state.vm_state import DynamicBacking, PciDevice, Power, VgpuBacking
from gpuops.sim.world import World

NVIDIA = 0x10DE
_FIELDS = {
    "runtime.powerState": "power",
    "runtime.suspendTime": "suspended_at",
    "runtime.bootTime": "started_at",
    "runtime.host": "host",
    "runtime.connectionState": "connected",
    "runtime.numMksConnections": "console_connections",
    "summary.quickStats.overallCpuUsage": "cpu_usage_mhz",
    "config.hardware.device": "devices",
    "customValue": "attributes",
}
"""What may be hidden, and the field that it is read into."""
_HIDDEN: Final[dict[str, Any]] = {"customValue": {}}
"""How what is hidden is read, where that is not None."""
_POWERS: Final[dict[str, PowerState]] = {power.value: power for power in PowerState}
_FIRMWARES: Final[dict[str, Firmware]] = {firmware.value: firmware for firmware in Firmware}


class Showing:
    """What one world shows, now, less what a rule hides."""

    def __init__(self, world: World, *, as_it_is: bool = False) -> None:
        """`as_it_is`: what vCenter tells late is shown at once."""
        self._world = world
        self._as_it_is = as_it_is
        self._vms: dict[str, Vm] = {}
        self._hosts: dict[str, Host] = {}
        self._touched: set[str] = set()
        """VMs and hosts that are not as they were shown last."""
        self._changed_late: set[str] = set()
        """VMs that changed while vCenter showed old values of them."""
        self._devices: dict[str, tuple[tuple[PciDevice, ...], tuple[GpuDevice, ...]]] = {}
        """By VM, what it carries, and how that is shown: while it carries the very same, it is shown the same."""
        self._paths: dict[str, str] = {}
        self._offers: dict[Any, tuple[OfferedProfile, ...]] = {}

    def inventory(self, user: str = "l1") -> Inventory:
        """Everything, as this user sees it."""
        world = self._world
        return Inventory(
            vcenter=world.get("ServiceInstance").instance_uuid,
            api_version=world.api_version,
            taken_at=self.now,
            hosts={host.moid: self._host(host) for host in world.by_type("HostSystem")},
            vms={vm.moid: self._vm(vm) for vm in world.by_type("VirtualMachine")},
            clusters=self._clusters(),
            datastores={datastore.moid: self._datastore(datastore) for datastore in world.by_type("Datastore")},
            user=user,
            reservations=self._reservations(),
        )

    def _reservations(self) -> Reservations | None:
        """Return the DirectPath reservations that vCenter 9.0 shows, cluster by cluster, without device groups."""
        world = self._world
        if version_numbers(world.api_version) < (9,):
            return None
        types = dict.fromkeys(profile.config for profile in world.direct_path.profiles.values())
        profiles = []
        devices = []
        for cluster in world.by_type("ClusterComputeResource"):
            reservations_here = [
                reservation for reservation in world.direct_path.reservations if reservation.place == cluster.moid
            ]
            for config in types if any(host.state.gpus for host in cluster.hosts()) else ():
                cluster_capacity = capacity(config, cluster.hosts(), reservations_here)
                figures = (
                    cluster_capacity.consumed,
                    cluster_capacity.max,
                    cluster_capacity.remaining,
                    cluster_capacity.unused_reservation,
                )
                if config.vgpu:
                    profiles.append(ProfileCapacity(config.vgpu, cluster.moid, *figures))
                elif config.devices:
                    label = config.label
                    devices.append(DeviceCapacity(str(config), config.devices, label, cluster.moid, *figures))
        return Reservations(tuple(profiles), tuple(devices))

    def _clusters(self) -> dict[str, Cluster]:
        clusters = self._world.by_type("ClusterComputeResource")
        return {cluster.moid: Cluster(cluster.moid, cluster.name, **_drs(cluster.drs)) for cluster in clusters}

    def with_drs(self, inventory: Inventory) -> Inventory:
        """The same snapshot with its clusters as they are now."""
        return replace(inventory, clusters=self._clusters())

    def with_creation(self, inventory: Inventory, refs: Collection[str]) -> Inventory:
        """The same snapshot with the moments at which these VMs were made."""
        vms: dict[str, Any] = {ref: self._world.find(ref) for ref in refs if ref in inventory.vms}
        vms_with_creation = {
            ref: replace(inventory.vms[ref], created_at=vm.state.created_at)
            for ref, vm in vms.items()
            if vm is not None
        }
        return replace(inventory, vms={**inventory.vms, **vms_with_creation})

    def observed(self, inventory: Inventory, refs: Collection[str]) -> Inventory:
        """The same snapshot with these VMs, their datastores and their hosts' GPUs as they are now."""
        vm_entities = [self._world.find(ref) for ref in sorted(refs)]  # in one order: a fault may hide the first few
        fresh = {vm.moid: self._vm(vm) for vm in vm_entities if isinstance(vm, VirtualMachine)}
        touched = {vm.host for vm in (*fresh.values(), *(inventory.vms[ref] for ref in refs if ref in inventory.vms))}
        found_hosts = [self._world.find(ref) for ref in sorted(ref for ref in touched if ref)]
        hosts = {host.moid: self._host(host) for host in found_hosts if isinstance(host, HostSystem)}
        stores = {vm.state.datastore for vm in vm_entities if isinstance(vm, VirtualMachine)}
        datastores = {ref: self._datastore(store) for ref in sorted(stores) if (store := self._world.find(ref))}
        vms = dict(inventory.vms)
        for ref in refs:
            vms.pop(ref, None)  # what is looked at anew comes last, and what is gone does not come
        vms.update(fresh)
        return Inventory(
            vcenter=inventory.vcenter,
            api_version=inventory.api_version,
            taken_at=self.now,
            hosts={**inventory.hosts, **hosts},
            vms=vms,
            clusters=inventory.clusters,
            datastores={**inventory.datastores, **datastores},
            user=inventory.user,
            reservations=inventory.reservations,
        )

    @property
    def now(self) -> Any:
        return self._world.clock.now() + self._world.skew

    def object_touched(self, obj: ManagedObject, paths: Collection[str]) -> None:
        (self._changed_late if self._tells_old(obj.moid) else self._touched).add(obj.moid)

    def _tells_old(self, ref: str) -> bool:
        return self._world.fragments.is_frozen(ref) and not self._as_it_is

    def object_removed(self, obj: ManagedObject) -> None:
        """Forget it: no later read asks for it."""

    def _vm(self, vm: VirtualMachine) -> Vm:
        """Return the VM; the earlier record if it did not change, or only since vCenter shows its old values."""
        shown_vm, old = self._vms.get(vm.moid), self._tells_old(vm.moid)
        if shown_vm is None:
            self._world.registry.watch(vm.moid, self)
        # a task that begins to run touches itself alone
        changed = vm.moid in self._touched or (
            not old and (vm.moid in self._changed_late or (shown_vm and shown_vm.tasks))
        )
        if shown_vm is None or changed:
            shown_vm = self._vms[vm.moid] = self._fresh(vm)
            self._touched.discard(vm.moid)
            if not old:
                self._changed_late.discard(vm.moid)
        return self._without_hidden(vm, shown_vm) if self._world.injector.may_hide_properties else shown_vm

    def _without_hidden(self, vm: VirtualMachine, shown_vm: Vm) -> Vm:
        """The VM without what a rule hides. Raises what stands for it when the session is said to be over."""
        for path, fault in self._world.injector.hidden(vm, _FIELDS, "RetrievePropertiesEx").items():
            if type(fault).__name__.endswith("NotAuthenticated"):
                raise fault
            hidden: dict[str, Any] = {_FIELDS[path]: _HIDDEN.get(path)}
            if fault is not None:
                hidden["unreadable"] = (*shown_vm.unreadable, path)
            shown_vm = replace(shown_vm, **hidden)
        return shown_vm

    def _fresh(self, vm: VirtualMachine) -> Vm:
        state, on = vm.state, vm.state.power is Power.ON
        running = (task for task in self._world.tasks.recent(vm) if not task.ended)
        fields = self._world.custom_fields.fields
        return Vm(
            ref=vm.moid,
            name=state.name,
            path=f"{self._path(state.folder)}/{state.name}",
            instance_uuid=state.instance_uuid,
            host=state.host,
            power=_POWERS[state.power],
            suspended_at=state.suspend_time,
            started_at=state.boot_time if state.power is Power.ON else None,
            connected=vm._connection() == "connected",
            template=state.is_template,
            vcpus=state.cpus,
            memory_mib=state.memory_mib,
            cpu_usage_mhz=state.cpu_usage_mhz if on else 0,
            console_connections=state.console_connections if on else 0,
            question=state.question.text if state.question else None,
            tasks=tuple(RunningTask(task.moid, task.name, task.state.value) for task in running),
            attributes={fields[key].name: value for key, value in state.attributes.items() if value},
            datastores=(state.datastore,),
            snapshots=0,
            managed_by=ManagedBy(*state.managed_by) if state.managed_by else None,
            devices=self._carried_devices(vm.moid, state.devices),
            nics=(),
            extra_config=dict(state.extra_config),
            change_version=state.change_version,
            firmware=_FIRMWARES[state.firmware],
            hardware_version=state.hardware_version,
            cores_per_socket=state.cores_per_socket,
            cores_per_numa_node=state.cores_per_numa_node or 0,
            cpu_reservation_mhz=state.cpu_reservation_mhz,
            memory_reservation_mib=state.reserved_mib,
            memory_locked=state.memory_locked,
            cpu_hot_add=state.cpu_hot_add,
            nested_virtualization=state.nested_virtualization,
            tools_running=tools_running(state) == "guestToolsRunning",
        )

    def _carried_devices(self, ref: str, devices: tuple[PciDevice, ...]) -> tuple[GpuDevice, ...]:
        carried, devices_shown = self._devices.get(ref, ((), ()))
        if carried is not devices:
            devices_shown = tuple(_device(device) for device in devices)
            self._devices[ref] = (devices, devices_shown)
        return devices_shown

    def _path(self, folder: str) -> str:
        if folder not in self._paths:
            folder_entity = self._world.find(folder)
            parent = getattr(folder_entity, "parent", None)
            self._paths[folder] = (
                "" if folder_entity is None or parent is None else f"{self._path(parent)}/{folder_entity.display_name}"
            )
        return self._paths[folder]

    def _host(self, host: HostSystem) -> Host:
        """The host; the one made before when it was not touched."""
        shown_host = self._hosts.get(host.moid)
        if shown_host is None:
            self._world.registry.watch(host.moid, self)
        if shown_host is None or host.moid in self._touched:
            shown_host = self._hosts[host.moid] = self._built(host)
            self._touched.discard(host.moid)
        return shown_host

    def _built(self, host: HostSystem) -> Host:
        state, model, cluster = host.state, host.state.model, self._world.find(host.state.parent)
        seats, running = host.seats(), host.running_vms()
        return Host(
            ref=host.moid,
            name=state.name,
            cluster=state.parent if cluster is not None and cluster.wsdl_name == "ClusterComputeResource" else None,
            connected=state.connection == "connected",
            in_maintenance=state.in_maintenance,
            booted=state.boot_time,
            uuid=state.uuid,
            version=self._world.api_version.removesuffix(".0"),
            memory_mib=model.memory_mib,
            memory_used_mib=sum(vm.state.reserved_mib or vm.state.guest_memory_mib for vm in running),
            cpu_cores=model.cores,
            cpu_threads=model.threads,
            cpu_mhz=model.cpu_mhz,
            numa_nodes=_nodes(model, tuple((gpu.pci_id, gpu.numa_node) for gpu in state.gpus)),
            gpus=tuple(sorted((_gpu(gpu, seats) for gpu in state.gpus), key=lambda gpu: gpu.address)),
            profiles=self._profiles(host, seats),
            default_graphics_type=GraphicsType(state.default_graphics_type),
            assignment_policy=AssignmentPolicy(state.policy.value),
            bindings=tuple(DeviceBinding(_address(pci_id), vm.moid) for vm in running for _, pci_id in vm.state.held),
            datastores=state.datastores,
        )

    def _profiles(self, host: HostSystem, seats: Any) -> tuple[OfferedProfile, ...]:
        state = host.state
        sizes = {seat.pci_id: seat.type.framebuffer_mib for seat in seats}
        key = (state.gpu_settings, state.no_suspend, tuple(sorted(sizes.items())))  # on a GPU of one size they are one
        if key not in self._offers:
            supported = supported_types(state.for_admission(()))
            names = dict.fromkeys(
                (*offered_types(state.for_admission(seats)), *(vgpu_type.name for vgpu_type in supported))
            )
            able = {vgpu_type.name: vgpu_type.name not in state.no_suspend for vgpu_type in supported}
            self._offers[key] = tuple(OfferedProfile(name, able[name], able[name], True, able[name]) for name in names)
        return self._offers[key]

    def _datastore(self, store: Any) -> Datastore:
        return Datastore(store.moid, store.name, free_mib=store.free_mib, accessible=store.accessible)


def _device(device: Any) -> GpuDevice:
    if isinstance(device.backing, DynamicBacking):
        return DynamicDevice(device.key, device.backing.allowed, device.backing.label)
    assert isinstance(device.backing, VgpuBacking), "nights have vGPUs, and what somebody adds while they go on"
    return VgpuDevice(device.key, device.backing.type_name, numa_node=device.numa_node)


def _gpu(gpu: HostGpu, seats: Any) -> PhysicalGpu:
    listed = gpu.listed
    return PhysicalGpu(
        _address(gpu.pci_id),
        device_name(gpu),
        NVIDIA,
        gpu.board.device_id,
        gpu.board.subsystem_id,
        memory_mib=gpu.board.framebuffer_mib if listed else None,
        graphics_type=GraphicsType(gpu.graphics_type) if listed else None,
        vgpu_mode=VgpuMode((gpu.mode if gpu.serves_vgpus else GpuMode.NONE).value) if listed else None,
        configured_graphics_type=GraphicsType(gpu.configured_type) if listed else None,
        numa_node=gpu.numa_node,
        passthrough=Passthrough(True, gpu.passthrough_enabled, gpu.passthrough_active, gpu.label),
        vms=tuple(dict.fromkeys(seat.vm for seat in seats if seat.pci_id == gpu.pci_id)) if listed else None,
    )


@cache
def _nodes(model: HostModel, gpus: tuple[tuple[str, int], ...]) -> tuple[NumaNode, ...]:
    """The nodes of a host of this model with GPUs at these addresses, each on its node."""
    return tuple(
        NumaNode(
            node,
            model.threads // model.numa_nodes,
            model.memory_mib // model.numa_nodes,
            tuple(_address(pci_id) for pci_id, of in gpus if of == node),
        )
        for node in range(model.numa_nodes)
    )


_address = cache(PciAddress.parse)


def _drs(drs: Any) -> dict[str, Any]:
    """Return the DRS settings as in ClusterConfigInfoEx, which every cluster has."""
    assert not drs.rules, "these nights have no rules"
    return {
        "rules": (),
        "drs_enabled": drs.enabled,
        "drs_behavior": drs.behavior.value,
        "drs_overrides": tuple(
            (vm, override.behavior.value if override.behavior else "") for vm, override in drs.overrides.items()
        ),
        "drs_excluded": tuple(vm for vm, override in drs.overrides.items() if not override.enabled),
        "drs_options": tuple(sorted(drs.options.items())),
    }
