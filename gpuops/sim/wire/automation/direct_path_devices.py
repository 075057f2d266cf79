"""com.vmware.vcenter.host.hardware.direct_path_devices: a host's DirectPath devices, and the call that sets their mode.

With it com.vmware.cis.tasks, by which a client follows that call. Names, types and errors are those of the bindings of
vmware-vcenter 9.1; a vCenter before 9.1 has neither service here. Not documented, and chosen here: units that are
reserved in a cluster are laid on its GPUs in their order, and a VM class has the name of its DirectPath profile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.call import Call
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.operations.device_settings import set_direct_path_mode
from gpuops.sim.operations.reserved_capacity import capacity, is_device_of
from gpuops.sim.state.direct_path import DIRECT_PATH, HOST, configurable_modes, current_mode
from gpuops.sim.vcenter.vapi_values import (
    TEXT,
    TRUTH,
    Enumeration,
    ListOf,
    OptionalValue,
    Scalar,
    Struct,
    StructureType,
    VapiFault,
    check,
    operation_input,
    operation_not_found,
    operation_unsupported,
    structure,
    structure_type,
)

if TYPE_CHECKING:
    from gpuops.sim.core.sessions import ClientSession
    from gpuops.sim.inventory.entities import HostEntity
    from gpuops.sim.state.direct_path import DirectPathConfig, DirectPathProfileState
    from gpuops.sim.state.host_state import HostGpu
    from gpuops.sim.world import World

DEVICES: Final = "com.vmware.vcenter.host.hardware.direct_path_devices"
TASKS: Final = "com.vmware.cis.tasks"
CONFIGURE: Final = "configure$task"
SINCE: Final = (9, 1)
PAGE: Final = 256
"""Entries of a list if the request sets no number (vSphere Automation API 9.1, IterationSpec)."""

MODE_NAMES: Final = {
    "none": "NONE",
    "host": "HOST",
    "directPath": "DIRECTPATH",
    "enhancedDirectPath": "ENHANCED_DIRECTPATH",
    "vGpuSameSize": "VGPU_SAME_SIZE",
    "vGpuMixedSize": "VGPU_MIXED_SIZE",
    "systemSelect": "SYSTEM_SELECT",
}
"""Mode in the vSphere API -> mode in the vSphere Automation API."""
_MODES: Final = Enumeration(f"{DEVICES}.direct_path_device_mode", tuple(MODE_NAMES.values()))
_LIST: Final = operation_input(
    "filter_spec",
    "iteration_spec",
    "list_details",
    host=TEXT,
    filter_spec=StructureType(f"{DEVICES}.filter_spec", {"devices": ListOf(TEXT)}),
    iteration_spec=structure_type(
        f"{DEVICES}.iteration_spec", {"page_size": Scalar("INTEGER", int), "marker": TEXT}, "page_size", "marker"
    ),
    list_details=structure_type(f"{DEVICES}.list_details", {"vm_class": TRUTH}, "vm_class"),
)
_CONFIGURE: Final = operation_input(
    host=TEXT,
    configure_spec=structure_type(f"{DEVICES}.configure_spec", {"device": TEXT, "new_mode": _MODES}, "new_mode"),
)
_GET_TASK: Final = operation_input(
    "spec",
    task=TEXT,
    spec=structure_type(
        f"{TASKS}.get_spec", {"return_all": TRUTH, "exclude_result": TRUTH}, "return_all", "exclude_result"
    ),
)
_ERRORS: Final = (
    (vim.fault.NotFound, "not_found"),
    (vmodl.fault.InvalidArgument, "invalid_argument"),
    (vim.fault.NoPermission, "unauthorized"),
)


class DirectPathDevices:
    """The operations of both services in one simulated vCenter."""

    def __init__(self, world: World, find_host: Callable[[str, str], ManagedObject]) -> None:
        """`find_host(identifier, user)` returns the host; it raises VapiFault for one that the user may not see."""
        self._world = world
        self._find_host = find_host
        self._tasks: dict[str, _ConfigureTask] = {}

    @property
    def is_offered(self) -> bool:
        """Whether a vCenter of this version has the services."""
        return tuple(int(part) for part in self._world.api_version.split(".")[:2]) >= SINCE

    def invoke(self, session: ClientSession, service: str, operation: str, parameters: object) -> Any:
        """Return the result of one operation in a session. Raises VapiFault."""
        match service, operation:
            case (_, "list") if service == DEVICES:
                check(parameters, _LIST)
                return self._list(structure(parameters), session.user)
            case (_, "configure$task") if service == DEVICES:
                check(parameters, _CONFIGURE)
                return self._configure(structure(parameters), session)
            case (_, "get") if service == TASKS:
                check(parameters, _GET_TASK)
                return self._task(structure(parameters)["task"]).info()
            case (_, "list" | "cancel") if service == TASKS:
                raise operation_unsupported(service, operation)
        raise operation_not_found(service, operation)

    def _list(self, parameters: Mapping[str, Any], user: str) -> Struct:
        """Return the passthrough-capable devices of a host, filtered by id."""
        host: Any = self._find_host(parameters["host"], user)
        paging = parameters.get("iteration_spec") or {}
        if paging.get("marker"):
            raise VapiFault("unsupported", f"Lists of {DEVICES} in pages are not simulated.")
        device_ids = (parameters.get("filter_spec") or {}).get("devices")
        with_classes = bool((parameters.get("list_details") or {}).get("vm_class"))
        items = [
            Struct(
                f"{DEVICES}.list_item",
                {"device": device.id, "info": self._info(host, device, with_classes=with_classes)},
            )
            for device in host.read("config.pciPassthruInfo")
            if device.passthruCapable and (device_ids is None or device.id in device_ids)
        ]
        return Struct(f"{DEVICES}.list_result", {"items": items[: paging.get("page_size") or PAGE]})

    def _info(self, host: HostEntity, device: Any, *, with_classes: bool) -> Struct:
        gpu = host.state.gpu(device.id)
        names = {pci_device.id: pci_device.deviceName for pci_device in host.read("hardware.pciDevice")}
        fields = {
            "name": names[device.id],
            **(self._gpu_fields(host, gpu) if gpu is not None else _other_device_fields(device)),
        }
        if gpu is not None and with_classes:
            fields[_CLASSES] = OptionalValue([self._class(host, profile) for profile in self._profiles(gpu)])
        fields |= {name: OptionalValue(None) for name in _OPTIONAL if name not in fields}
        return Struct(f"{DEVICES}.info", fields)

    def _gpu_fields(self, host: HostEntity, gpu: HostGpu) -> dict[str, Any]:
        """Return the fields of a GPU: modes, driver, memory in MiB, VMs and DirectPath profiles."""
        holders = {
            vm.moid for vm in host.running_vms() if gpu.pci_id in (held_pci_id for _, held_pci_id in vm.state.held)
        }
        seats = [seat for seat in host.seats() if seat.pci_id == gpu.pci_id]
        total = gpu.board.framebuffer_mib
        reserved, in_use = self._reserved_mib(host, gpu)
        memory = {
            "used_memory": total if holders else sum(seat.type.framebuffer_mib for seat in seats),
            "total_memory": total,
            "reserved_used_memory": in_use,
            "total_reserved_memory": reserved,
        }
        link = "NVLink" if gpu.nvlink is not None else "PCIe"
        driver = host.state.driver_version.partition("-")[0] if gpu.listed else None
        return {
            "current_mode": MODE_NAMES[current_mode(gpu)],
            "configurable_modes": [MODE_NAMES[mode] for mode in configurable_modes(gpu)],
            "interconnect_type": OptionalValue(link),
            "driver_name": OptionalValue("nvidia" if gpu.listed else None),
            "driver_version": OptionalValue(driver),
            "memory_info": OptionalValue(
                Struct(f"{DEVICES}.memory_info", {name: OptionalValue(value) for name, value in memory.items()})
            ),
            "vms": OptionalValue(sorted({*holders, *(seat.vm for seat in seats)})),
            "direct_path_profiles": OptionalValue([profile.id for profile in self._profiles(gpu)]),
        }

    def _profiles(self, gpu: HostGpu) -> list[DirectPathProfileState]:
        """Return the DirectPath profiles whose vGPU type the GPU runs now, or that use the whole GPU."""
        types = {vgpu_type.name for vgpu_type in gpu.board.types_in(gpu.mode)} if gpu.serves_vgpus else set()
        return [
            profile
            for profile in self._world.direct_path.profiles.values()
            if profile.config.vgpu in types or is_device_of(profile.config, gpu)
        ]

    def _class(self, host: HostEntity, profile: DirectPathProfileState) -> Struct:
        """Return the profile's reservations in the host's cluster as the VM class of that name."""
        units, in_use = self._units(host, profile.config)
        counts = {"vm_class_reserved_in_use": in_use, "vm_class_reserved_total": units}
        usage_fields = {"zone": None, "zone_name": None, "dpp_id": profile.id, **counts}
        fields = {name: OptionalValue(value) for name, value in usage_fields.items()}
        return Struct(f"{DEVICES}.vm_class_info", {"vm_class": profile.name, **fields})

    def _units(self, host: HostEntity, config: DirectPathConfig) -> tuple[int, int]:
        """Return (units of the configuration that are reserved in the host's cluster, those of them in use)."""
        place = host.compute_resource()
        reserved = [
            reservation
            for reservation in self._world.direct_path.reservations
            if (reservation.config, reservation.place) == (config, place.moid)
        ]
        units = sum(reservation.units for reservation in reserved)
        return units, units - capacity(config, place.hosts(), reserved).unused_reservation

    def _reserved_mib(self, host: HostEntity, gpu: HostGpu) -> tuple[int, int]:
        """Return (reserved memory, reserved memory in use) of the GPU in MiB.

        Reserved units are not assigned to GPUs: they are counted onto the cluster's GPUs in order, each up to its
        maximum. Example: of 5 units of a type with 4 per GPU, the first GPU has 4 and the second 1.
        """
        all_mib, used_mib = 0, 0
        cluster_gpus = [candidate for member in host.compute_resource().hosts() for candidate in member.state.gpus]
        for profile in self._profiles(gpu):
            type_ = gpu.board.by_name.get(profile.config.vgpu)
            max_units, unit_mib = (
                (1, gpu.board.framebuffer_mib) if type_ is None else (type_.max_per_gpu, type_.framebuffer_mib)
            )
            units, used = self._units(host, profile.config)
            units_before = 0
            for gpu_of_cluster in cluster_gpus:
                if gpu_of_cluster is gpu:
                    break
                units_before += max_units if profile in self._profiles(gpu_of_cluster) else 0
            units_here, used_here = (max(0, min(max_units, number - units_before)) for number in (units, used))
            all_mib += units_here * unit_mib
            used_mib += used_here * unit_mib
        return all_mib, used_mib

    def _configure(self, parameters: Mapping[str, Any], session: ClientSession) -> str:
        """Configure a device at once and return the id of its task, which the first read shows as still running."""
        host: Any = self._find_host(parameters["host"], session.user)
        spec = parameters["configure_spec"]
        mode = next((name for name, word in MODE_NAMES.items() if word == spec.get("new_mode")), None)
        call = Call(method="ConfigureDirectPathDevice", version=self._world.api_version, session=session)
        try:
            self._world.authority.require(call, host, "Host.Config.PciPassthru")
            if host.state.connection != "connected":
                raise VapiFault("error", f"Host {host.name} is not connected.")
            device = spec["device"]
            self._refuse_host_device(host, device)
            configure_task = _ConfigureTask(
                set_direct_path_mode(host, call, device, mode), None, self._world.clock.now()
            )
        except (vim.fault.NotFound, vmodl.fault.InvalidArgument, vim.fault.NoPermission) as fault:
            raise _error(fault) from None  # these faults refuse the call; any other one ends its task in error
        except vmodl.MethodFault as fault:
            configure_task = _ConfigureTask(None, _error(fault), self._world.clock.now())
        task = f"{self._world.next_number()}:com.vmware.vcenter.host.hardware"
        self._tasks[task] = configure_task
        return task

    def _refuse_host_device(self, host: HostEntity, device: str) -> None:
        """Raises VapiFault for a device that the host itself needs, such as its NIC: its mode can only be read."""
        capable_ids = {device.id for device in host.read("config.pciPassthruInfo") if device.passthruCapable}
        if host.state.device(device) is None and device in capable_ids:
            raise VapiFault("unsupported", f"The mode of {device} cannot be changed in the simulated vCenter.")

    def _task(self, task: str) -> _ConfigureTask:
        if task not in self._tasks:
            raise VapiFault("not_found", f"There is no task {task}.", args=(task,))
        return self._tasks[task]


class _ConfigureTask:
    """The task of an accepted configure call: clients see it running at their first read, and ended at the second."""

    def __init__(self, impacts: list[str] | None, error: VapiFault | None, started_at: datetime) -> None:
        self._impacts = impacts
        self._error = error
        self._started_at = started_at.isoformat(timespec="milliseconds")[:23] + "Z"
        self._seen = False

    def info(self) -> Struct:
        """Return com.vmware.cis.task.info: RUNNING at the first call, later the outcome."""
        ended, self._seen = self._seen, True
        status = "RUNNING" if not ended else "SUCCEEDED" if self._error is None else "FAILED"
        result = Struct(f"{DEVICES}.configure_result", {"configure_impacts": OptionalValue(self._impacts)})
        # a VapiFault only to make its LocalizableMessage, which is also the type of these fields
        message = VapiFault("", "Configure a DirectPath device", message_id=f"{DEVICES}.configure").message()
        progress = {"total": 100, "completed": 100 if ended else 0, "message": message}
        fields = {
            "progress": OptionalValue(Struct("com.vmware.cis.task.progress", progress)),
            "result": OptionalValue(result if ended and self._error is None else None),
            "description": message,
            "service": DEVICES,
            "operation": CONFIGURE,
            "parent": OptionalValue(None),
            "target": OptionalValue(None),
            "status": status,
            "cancelable": False,
            "error": OptionalValue(self._error if ended else None),
            "start_time": OptionalValue(self._started_at),
            "end_time": OptionalValue(self._started_at if ended else None),
            "user": OptionalValue(None),
        }
        return Struct("com.vmware.cis.task.info", fields)


_CLASSES: Final = "vm_classes_info"
_OPTIONAL: Final = (
    "interconnect_type", "driver_name", "driver_version", "memory_info", "vms", _CLASSES, "direct_path_profiles",
)  # fmt: skip


def _other_device_fields(device: Any) -> dict[str, Any]:
    """Return the fields of a device other than a GPU: only its modes are shown."""
    mode = DIRECT_PATH if device.passthruActive else HOST
    return {"current_mode": MODE_NAMES[mode], "configurable_modes": [MODE_NAMES[HOST], MODE_NAMES[DIRECT_PATH]]}


def _error(fault: Any) -> VapiFault:
    kind = next((name for cause, name in _ERRORS if isinstance(fault, cause)), "error")
    return VapiFault(kind, str(fault.msg))
