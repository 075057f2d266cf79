"""The scenario that a snapshot becomes: what the simulator needs to be this vCenter, names aside.

It is a scenario file like any other (`gpuops sim serve --scenario`), with `as_read` where a vCenter was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, GraphicsType, Passthrough, PhysicalGpu, VgpuMode
from gpuops.model.devices.other_device import DeviceKind, OtherDevice
from gpuops.model.vcenter.host import AdmissionControl, Cluster, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.reservation import DeviceCapacity, ProfileCapacity
from gpuops.model.vcenter.vm import VmDrs
from gpuops.report.bundle.harmless import PACKAGE_VERSION
from gpuops.report.bundle.pseudonyms import NameKind, Pseudonyms
from gpuops.report.bundle.world_vms import GUESTS, WorldVms, board_key, datacenters, moment, utc

API_VERSIONS: Final = ("8.0.2.0", "8.0.3.0", "9.0.0.0", "9.1.0.0")
"""Those that the simulator is tested with."""
DRIVER: Final = "550.90.05-1OEM.800.1.0.20613240"
"""Where the version of the host's vGPU manager was not told."""
_MODES: Final = (VgpuMode.SAME_SIZE, VgpuMode.MIXED_SIZE, VgpuMode.MULTI_INSTANCE)
_TYPES: Final = (GraphicsType.BASIC, GraphicsType.SHARED, GraphicsType.SHARED_DIRECT)
_CLASSES: Final = {
    DeviceKind.GPU: "0380",
    DeviceKind.FPGA: "1200",
    DeviceKind.ACCELERATOR: "1200",
    DeviceKind.NIC: "0200",
    DeviceKind.STORAGE: "0100",
    DeviceKind.OTHER: "0880",
}
"""PCI base class and subclass by which a device is known for what it is."""
_DRS_OPTIONS: Final = frozenset(
    {
        "PassthroughDrsAutomation",
        "LBMaxVmotionPerHost",
        "VmDevicesStunTimeTolerated",
        "VgpuMMAutomationTimeoutSecs",
        "VgpuVmConsolidation",
        "CompatMaskForVMEvac",
    }
)


def world(inventory: Inventory, catalog: Catalog, names: Pseudonyms) -> dict[str, Any]:
    """The scenario of a snapshot, as plain values."""
    return _WorldWriter(inventory, catalog, names).write()


class _WorldWriter:
    def __init__(self, inventory: Inventory, catalog: Catalog, names: Pseudonyms) -> None:
        self._inventory = inventory
        self._catalog = catalog
        self._names = names
        self._models: dict[tuple[object, ...], str] = {}
        self._model_values: dict[str, dict[str, Any]] = {}

    def write(self) -> dict[str, Any]:
        inventory, names = self._inventory, self._names
        clusters = list(self._clusters())  # first: they name the models
        hot_migrate = inventory.hot_migrate_enabled
        return {
            "description": "read from a vCenter, by gpuops bundle",
            "start": utc(inventory.taken_at),
            "options": {} if hot_migrate is None else {"vgpu.hotmigrate.enabled": hot_migrate},
            "datacenter": names.of(NameKind.DATACENTER, next(iter(datacenters(inventory)), "")),
            "models": self._model_values,
            "guests": GUESTS,
            "datastores": list(self._datastores()),
            "networks": ["VM Network"],
            "clusters": clusters,
            "vms": list(WorldVms(inventory, self._catalog, names).declared()),
            "api_version": self._api_version(),
            **self._reserved(),
        }

    def _api_version(self) -> str:
        known = [each for each in API_VERSIONS if _numbers(each) <= _numbers(self._inventory.api_version)]
        return known[-1] if known else API_VERSIONS[0]

    def _datastores(self) -> Iterator[dict[str, Any]]:
        for each in self._inventory.datastores.values():
            free_mib = 0 if each.accessible is False else each.free_mib or 0
            yield {
                "name": self._names.of(NameKind.DATASTORE, each.name),
                "moid": self._names.ref(each.ref),
                "capacity_gib": (free_mib >> 10) + 1024,
                "free_gib": free_mib >> 10,
                "free_mib": free_mib,
            }
        if not self._inventory.datastores:
            yield {"name": self._names.of(NameKind.DATASTORE, ""), "capacity_gib": 1024, "free_gib": 0}

    # --- clusters -----------------------------------------------------------------------------------------------

    def _clusters(self) -> Iterator[dict[str, Any]]:
        hosts = list(self._inventory.hosts.values())
        for cluster in self._inventory.clusters.values():
            yield {
                "name": self._names.of(NameKind.CLUSTER, cluster.name),
                "drs": (cluster.drs_behavior or "partiallyAutomated") if cluster.drs_enabled else None,
                "drs_options": dict(self._drs_options(cluster)),
                "hosts": [self._host(host) for host in hosts if host.cluster == cluster.ref],
                "as_read": {
                    "moid": self._names.ref(cluster.ref),
                    "ha": None if cluster.admission is None else self._ha(cluster.admission),
                    "overrides": dict(self._overrides(cluster)),
                    "rules": list(self._rules(cluster)),
                },
            }
        for host in hosts:
            if host.cluster is None or host.cluster not in self._inventory.clusters:
                name = self._names.of(NameKind.HOST, host.name)
                yield {"name": name, "drs": None, "hosts": [self._host(host)], "as_read": {"standalone": True}}

    def _drs_options(self, cluster: Cluster) -> Iterator[tuple[str, str]]:
        for key, value in cluster.drs_options or ():
            if key in _DRS_OPTIONS and value.removeprefix("-").isdecimal() and value.isascii() and len(value) < 10:
                yield key, value

    def _ha(self, admission: AdmissionControl) -> dict[str, Any]:
        return {
            "failover_level": 1 if admission.failover_level is None else admission.failover_level,
            "memory_percent": admission.memory_percent,
            "cpu_percent": admission.cpu_percent,
            "failover_hosts": [self._names.ref(ref) for ref in admission.failover_hosts] or None,
        }

    def _overrides(self, cluster: Cluster) -> Iterator[tuple[str, str]]:
        for vm, behavior in cluster.drs_overrides:
            if behavior in (VmDrs.MANUAL, VmDrs.PARTIAL, VmDrs.FULL):
                yield self._names.ref(vm), str(behavior)
        for vm in cluster.drs_excluded:
            yield self._names.ref(vm), "off"

    def _rules(self, cluster: Cluster) -> Iterator[dict[str, Any]]:
        for rule in cluster.rules or ():
            yield {
                "name": self._names.of(NameKind.RULE, rule.name),
                "kind": rule.kind.value,
                "vms": [self._names.ref(ref) for ref in rule.vms],
                "on": None if rule.on is None else [self._names.ref(ref) for ref in rule.on],
                "off": [self._names.ref(ref) for ref in rule.off],
                "mandatory": rule.mandatory is not False,
            }

    # --- hosts --------------------------------------------------------------------------------------------------

    def _host(self, host: Host) -> dict[str, Any]:
        gpus = [each for gpu in host.gpus if (each := self._gpu(gpu, host)) is not None]
        return {
            "name": self._names.of(NameKind.HOST, host.name),
            "group": self._names.ref(host.ref),
            "model": self._model(host),
            "driver": _driver(host),
            "policy": "performance" if host.assignment_policy is None else host.assignment_policy.value,
            "no_suspend": sorted(self._never_moved(host)),
            "gpus": self._joined(gpus, host),
            "others": [self._other(device) for device in host.others],
            "as_read": {
                "moid": self._names.ref(host.ref),
                "connection": "disconnected" if host.connected is False else "connected",
                "in_maintenance": bool(host.in_maintenance),
                "booted": moment(host.booted),
                "default_graphics_type": (
                    "shared" if host.default_graphics_type is GraphicsType.SHARED else "sharedDirect"
                ),
                "datastores": None if host.datastores is None else [self._names.ref(ref) for ref in host.datastores],
            },
        }

    def _never_moved(self, host: Host) -> Iterator[str]:
        """Profiles whose VMs the host cannot suspend or move."""
        for offered in host.profiles or ():
            known = self._catalog.profile(offered.name)
            if known is not None and (offered.suspend is False or offered.migrate is False):
                yield known.name

    def _gpu(self, gpu: PhysicalGpu, host: Host) -> dict[str, Any] | None:
        board = board_key(self._catalog, gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
        if board is None or gpu.vendor_id != NVIDIA_VENDOR_ID:
            return None
        in_force = gpu.graphics_type if gpu.graphics_type in _TYPES else GraphicsType.SHARED_DIRECT
        configured = gpu.configured_graphics_type
        passthrough = gpu.passthrough
        return {
            "board": board,
            "at": str(gpu.address),
            "node": gpu.numa_node,
            "mode": self._mode(gpu, host).value,
            "type": str(in_force),
            "next_type": str(configured) if configured in _TYPES else None,
            "passthrough": passthrough is not None and passthrough.active,
            "next_passthrough": passthrough is not None and passthrough.enabled,
            "label": self._label(passthrough),
        }

    def _other(self, device: OtherDevice) -> dict[str, Any]:
        """A device that is no NVIDIA GPU: its kind and ids stand for its name, its kind for its class."""
        passthrough = device.passthrough
        return {
            "name": model_name(device),
            "vendor_name": "unknown",
            "vendor": f"{device.vendor_id:04x}",
            "device": f"{device.device_id:04x}",
            "class_code": _CLASSES[device.kind],
            "class_name": device.kind.value,
            "at": str(device.address),
            "node": device.numa_node,
            "passthrough": passthrough is not None and passthrough.active,
            "next_passthrough": passthrough is not None and passthrough.enabled,
            "label": self._label(passthrough),
        }

    def _label(self, passthrough: Passthrough | None) -> str | None:
        label = None if passthrough is None else passthrough.label
        return self._names.of(NameKind.LABEL, label) if label else None

    def _mode(self, gpu: PhysicalGpu, host: Host) -> VgpuMode:
        """Its vGPU mode; where that is not told (before API 8.0.3), MIG if what runs on it needs that, or if nothing
        runs on it and its host offers MIG-backed profiles alone for its model."""
        if gpu.vgpu_mode in _MODES:
            return VgpuMode(gpu.vgpu_mode)
        board = board_key(self._catalog, gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
        running = [vm for vm in self._inventory.vms_on(host) if vm.ref in (gpu.vms or ())]
        on_it = [name for vm in running for name in vm.profiles] or [each.name for each in host.profiles or ()]
        profiles = [found for name in on_it if (found := self._catalog.profile(name)) is not None]
        backed = [profile.mig_backed for profile in profiles if profile.board == board]
        return VgpuMode.MULTI_INSTANCE if backed and all(backed) else VgpuMode.SAME_SIZE

    def _joined(self, gpus: list[dict[str, Any]], host: Host) -> list[dict[str, Any]]:
        """Its GPUs with the NVLink bridges that its device groups tell of: of the first GPUs that have the profile."""
        groups = {
            (len(group.members), group.members[0].profile)
            for group in (host.settings.device_groups if host.settings is not None else None) or ()
            if group.members and group.members[0].profile
        }
        joined: dict[int, str] = {}
        for size, profile in sorted(groups, key=str):
            board = self._catalog.board_of(profile or "")
            alike = [at for at, gpu in enumerate(gpus) if board is not None and gpu["board"] == board.key]
            for first in range(0, len(alike) - size + 1, size):
                if not any(at in joined for at in alike[first : first + size]):
                    joined.update((at, f"nvlink-{alike[first]}") for at in alike[first : first + size])
        return [{**gpu, "nvlink": joined.get(at)} for at, gpu in enumerate(gpus)]

    def _model(self, host: Host) -> str:
        """The name of the server model; hosts alike share one."""
        cores, memory_mib = host.cpu_cores or 1, host.memory_mib or 0
        nodes = tuple((node.id, node.logical_cpus, node.memory_mib) for node in host.numa_nodes)
        threads = max((host.cpu_threads or cores) // cores, 1)
        size = (cores, threads, host.cpu_mhz or 2000, memory_mib, nodes)
        if size not in self._models:
            name = f"server-{len(self._models) + 1}"
            self._models[size] = name
            self._model_values[name] = {
                "vendor": "unknown",
                "model": "unknown",
                "cpu": "unknown",
                "sockets": 1,
                "cores_per_socket": cores,
                "threads_per_core": threads,
                "cpu_mhz": host.cpu_mhz or 2000,
                "memory_gib": memory_mib >> 10,
                "memory_mib": memory_mib,
                "numa_nodes": max(len(nodes), 1),
                "nodes": [{"id": id_, "logical_cpus": cpus, "memory_mib": memory} for id_, cpus, memory in nodes],
            }
        return self._models[size]

    # --- vSphere 9.0 --------------------------------------------------------------------------------------------

    def _reserved(self) -> dict[str, Any]:
        """DirectPath profiles, and what of them is reserved for VMs of others and not used yet."""
        told = self._inventory.reservations
        if told is None:
            return {}
        known = [each for each in told.capacities if self._catalog.profile(each.profile) is not None]
        vgpus = dict.fromkeys(each.profile for each in known)
        devices = {(each.allowed, each.label): each for each in told.devices if each.allowed}
        profiles = [
            *({"vgpu": self._named(profile)} for profile in vgpus),
            *(self._devices(each) for each in devices.values()),
        ]
        names = {thing: f"profile-{number}" for number, thing in enumerate((*vgpus, *devices), 1)}
        return {
            "direct_path_profiles": [
                {"name": name, **profile} for name, profile in zip(names.values(), profiles, strict=True)
            ],
            "reservations": [
                *self._units((each, {"vgpu": self._named(each.profile)}) for each in known),
                *self._units(
                    (each, {"profile": names[each.allowed, each.label]}) for each in told.devices if each.allowed
                ),
            ],
        }

    def _units(
        self, capacities: Iterable[tuple[ProfileCapacity | DeviceCapacity, dict[str, str]]]
    ) -> Iterator[dict[str, Any]]:
        """What of each is reserved and not used yet, and of what."""
        clusters = self._inventory.clusters
        for told, thing in capacities:
            if told.unused_reservation > 0 and told.place in clusters:
                on = self._names.of(NameKind.CLUSTER, clusters[told.place].name)
                yield {**thing, "units": told.unused_reservation, "on": on}

    def _devices(self, told: DeviceCapacity) -> dict[str, Any]:
        label = self._names.of(NameKind.LABEL, told.label) if told.label else None
        ids = [f"{vendor & 0xFFFF:04x}:{device & 0xFFFF:04x}" for vendor, device in told.allowed]
        return {"devices": ids, "label": label}

    def _named(self, profile: str) -> str:
        known = self._catalog.profile(profile)
        assert known is not None, "only those that the catalogue knows are asked for"
        return known.name


def model_name(device: OtherDevice) -> str:
    """`FPGA 8086:09c4`: in place of whatever the vCenter calls it."""
    return f"{device.kind} {device.vendor_id:04x}:{device.device_id:04x}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _driver(host: Host) -> str:
    """The version of its vGPU manager, as its packages tell; '' = it has no GPU that a driver lists."""
    packages = (host.settings.packages if host.settings is not None else None) or ()
    told = (each.version for each in packages if "nvidia" in (each.vendor + each.name).lower())
    version = next((each for each in told if PACKAGE_VERSION.fullmatch(each)), DRIVER)
    return version if host.gpus else ""
