"""Makes the scenario with which the simulator behaves as this vCenter, and the document of the first contact, no names.

The scenario is an ordinary file (`gpuops sim serve --scenario`), with the key `as_read` for properties that were read
from a vCenter. The table `scenario.yaml` has its fields and the properties that they come from. Fields that need more
than one property are computed by methods of `_WorldWriter`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from itertools import chain, cycle, islice
from typing import Any, Final

import yaml

from gpuops.extras.bundle.harmless import PACKAGE_VERSION, RELEASE, SETTINGS, NameKind, Pseudonyms, strays, table
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import NVIDIA_VENDOR_ID, PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Cluster, Host
from gpuops.model.vcenter.inventory import DeviceCapacity, Inventory, ProfileCapacity
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, PowerState, VgpuDevice, Vm, VmDrs
from gpuops.report.first_contact_view import NAMED, JudgedContact

_TABLE: Final = table("scenario.yaml")
_DEVICE_SETTING: Final = re.compile(
    r"pcipassthru(?P<number>[0-9]{1,3})\.cfg\.(?P<name>gpu-pci-id|enable_uvm|enable_debugging|enable_profiling)"
)
_HARMLESS_VALUE: Final = re.compile(r"true|false|[0-9]{1,6}([,-][0-9]{1,6}){0,64}", re.IGNORECASE)
_DRS_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")


def utc(at: datetime) -> str:
    """Return a moment in ISO 8601 and UTC, so that it does not show the time zone of the author.

    A moment without a time zone is not converted.
    """
    return (at if at.tzinfo is None else at.astimezone(UTC)).isoformat()


def world(inventory: Inventory, catalog: Catalog, names: Pseudonyms) -> dict[str, Any]:
    """Return the scenario of a snapshot, made of dicts, lists, texts and numbers."""
    return _WorldWriter(inventory, catalog, names).write()


def versions(programs: Mapping[str, str], build: str, inventory: Inventory) -> dict[str, Any]:
    """Return the versions of programs, vCenter's build, and the number of hosts by release of ESXi and vGPU manager.

    `programs`: the version that each program reports. A version that is not a release number could identify the site:
    it becomes None.
    """
    hosts = inventory.hosts.values()
    esxi = Counter(_release(host.version) for host in hosts if host.gpus)
    packages = Counter(chain.from_iterable(map(_vgpu_managers, hosts)))
    return {
        **{program: _release(version) for program, version in programs.items()},
        "vcenter_build": build if re.fullmatch(r"[0-9]{1,9}", build) else None,
        "hosts_with_gpus": [{"esxi": version, "hosts": number} for version, number in sorted(esxi.items(), key=str)],
        "packages": [{"package_version": version, "hosts": number} for version, number in sorted(packages.items())],
    }


def _release(text: str | None) -> str | None:
    return text if text and RELEASE.fullmatch(text) else None


def _vgpu_managers(host: Host) -> list[str]:
    packages = (host.settings.packages if host.settings is not None else None) or ()
    versions = [package.version for package in packages if "nvidia" in (package.vendor + package.name).lower()]
    return [version for version in versions if PACKAGE_VERSION.fullmatch(version)]


@cache
def _parse_entry(source: str) -> tuple[str, list[tuple[str, Any]]]:
    """Return the path of an entry of the table, and each filter with its argument.

    For example `name | or x` is the path `name` and the filter `or` with the argument `x`.
    """
    path, *filters = source.split(" | ")
    pairs = [filter_.partition(" ") for filter_ in filters]
    return path, [(name, yaml.safe_load(argument) if argument else None) for name, _, argument in pairs]


class _WorldWriter:
    """Writes one snapshot by the table, which names the methods of this class with their leading underscore."""

    def __init__(self, inventory: Inventory, catalog: Catalog, names: Pseudonyms) -> None:
        self._inventory, self._catalog, self._names = inventory, catalog, names
        self._model_names: dict[str, str] = {}
        self._functions: dict[str, Callable[[Any], Any]] = {
            "bool": bool, "text": str, "moment": utc, "hex": "{:04x}".format, "gib": lambda mib: mib >> 10,
            "ref": names.ref, "refs": lambda refs: [names.ref(ref) for ref in refs],
            "settings": lambda options: dict(harmless_settings(options)),
        }  # fmt: skip

    def write(self) -> dict[str, Any]:
        return self._fill("scenario", self._inventory) | self._reservations()

    def _fill(self, section: str, source_object: Any) -> dict[str, Any]:
        """Return the fields of a section of the table, with values from an object of the snapshot."""
        return {key: self._value(source_object, source) for key, source in _TABLE[section].items()}

    def _value(self, source_object: Any, source: Any) -> Any:
        """Return the value that an entry of the table (`source`) takes from an object of the snapshot.

        A text is a constant (`= text`), a method of this class (`_gpus`), or a path of attributes with filters; any
        other entry is the value itself.
        """
        if not isinstance(source, str):
            return source
        if source.startswith("= "):
            return source[2:]
        path, filters = _parse_entry(source)
        if path.startswith("_"):
            return getattr(self, path)(source_object)
        for part in path.split(".") if path != "." else ():
            source_object = None if source_object is None else getattr(source_object, part)
        for name, argument in filters:
            source_object = self._apply_filter(source_object, name, argument)
        return source_object

    def _apply_filter(self, content: Any, name: str, argument: Any) -> Any:
        """Return the content after one filter. None stays None, except for `or`, `else` and `bool`."""
        if name in ("or", "else"):
            return argument if content is None or (name == "or" and not content) else content
        if content is None and name != "bool":
            return None
        match name:
            case "in":
                return content if content in argument else None
            case "pick":
                return _TABLE[argument][content]
            case "as":
                return self._fill(argument, content)
            case "each":
                return [self._fill(argument, part) for part in content]
            case "plain" if not any(strays(content, ".")):
                return content
            case _ if name in self._functions:
                return self._functions[name](content)
            case _:  # a text that could identify the site: a pseudonym of this kind
                return self._names.of(NameKind(argument or name), content)

    def _options(self, inventory: Inventory) -> dict[str, bool]:
        hot_migrate = inventory.hot_migrate_enabled
        return {} if hot_migrate is None else {"vgpu.hotmigrate.enabled": hot_migrate}

    def _datacenter(self, inventory: Inventory) -> str:
        return self._names.of(NameKind.DATACENTER, next(iter(_datacenters(inventory)), ""))

    def _api_version(self, inventory: Inventory) -> str:
        """Return the latest version that the simulator has and that is not later than this vCenter's."""
        versions: list[str] = _TABLE["api_versions"]
        earlier = [
            version for version in versions if _version_numbers(version) <= _version_numbers(inventory.api_version)
        ]
        return (earlier or versions[:1])[-1]

    def _datastores(self, inventory: Inventory) -> list[dict[str, Any]]:
        stores = []
        for store in inventory.datastores.values():
            free_mib = 0 if store.accessible is False else store.free_mib or 0
            space = {"capacity_gib": (free_mib >> 10) + 1024, "free_gib": free_mib >> 10, "free_mib": free_mib}
            stores.append(self._fill("datastore", store) | space)
        return stores or [{"name": self._names.of(NameKind.DATASTORE, ""), "capacity_gib": 1024, "free_gib": 0}]

    def _reservations(self) -> dict[str, Any]:
        """Return DirectPath profiles (vSphere 9.0), and their reserved units that no VM uses yet."""
        capacities, clusters = self._inventory.reservations, self._inventory.clusters
        if capacities is None:
            return {}
        # each reservation with the DirectPath profile that it is for, as the scenario declares it
        parts: list[tuple[ProfileCapacity | DeviceCapacity, dict[str, Any]]] = [
            (profile_capacity, {"vgpu": name})
            for profile_capacity in capacities.capacities
            if (name := self._catalog_name(profile_capacity.profile))
        ]
        for device in (device for device in capacities.devices if device.allowed):
            ids = [f"{vendor_id & 0xFFFF:04x}:{device_id & 0xFFFF:04x}" for vendor_id, device_id in device.allowed]
            label = self._names.of(NameKind.LABEL, device.label) if device.label else None
            parts.append((device, {"devices": ids, "label": label}))
        names: dict[str, str] = {}  # by profile as JSON: equal profiles have one name
        reservations = []
        for capacity, profile in parts:
            name = names.setdefault(json.dumps(profile), f"profile-{len(names) + 1}")
            if capacity.unused_reservation > 0 and capacity.place in clusters:
                cluster = self._names.of(NameKind.CLUSTER, clusters[capacity.place].name)
                reservations.append({"profile": name, "units": capacity.unused_reservation, "on": cluster})
        declared = [{"name": name, **json.loads(profile)} for profile, name in names.items()]
        return {"direct_path_profiles": declared, "reservations": reservations}

    def _clusters(self, inventory: Inventory) -> list[dict[str, Any]]:
        standalone = [host for host in inventory.hosts.values() if host.cluster not in inventory.clusters]
        clusters = [self._fill("cluster", cluster) for cluster in inventory.clusters.values()]
        return clusters + [self._fill("standalone", host) for host in standalone]

    def _hosts_of(self, place: Cluster | Host) -> list[dict[str, Any]]:
        hosts = self._inventory.hosts.values()
        return [self._fill("host", host) for host in hosts if place is host or place.ref == host.cluster]

    def _drs(self, cluster: Cluster) -> str | None:
        return (cluster.drs_behavior or VmDrs.PARTIAL) if cluster.drs_enabled else None

    def _drs_options(self, cluster: Cluster) -> dict[str, str]:
        options = dict(cluster.drs_options or ())
        return {key: options[key] for key in _TABLE["drs_options"] if _DRS_NUMBER.fullmatch(options.get(key, ""))}

    def _overrides(self, cluster: Cluster) -> dict[str, str]:
        behaviors = (VmDrs.MANUAL, VmDrs.PARTIAL, VmDrs.FULL)
        overrides = {vm: str(behavior) for vm, behavior in cluster.drs_overrides if behavior in behaviors}
        excluded = dict.fromkeys(cluster.drs_excluded, VmDrs.OFF.value)
        return {self._names.ref(vm): behavior for vm, behavior in (overrides | excluded).items()}

    def _threads(self, host: Host) -> int:
        cores = host.cpu_cores or 1
        return max((host.cpu_threads or cores) // cores, 1)

    def _model(self, host: Host) -> str:
        """Return the name of the server model. Hosts of the same hardware share one."""
        model = json.dumps(self._fill("model", host))
        return self._model_names.setdefault(model, f"server-{len(self._model_names) + 1}")

    def _models(self, inventory: Inventory) -> dict[str, Any]:
        return {name: json.loads(model) for model, name in self._model_names.items()}

    def _driver(self, host: Host) -> str:
        """Return the version of the host's vGPU manager, or an empty text if no driver lists a GPU of it."""
        return next(iter(_vgpu_managers(host)), _TABLE["driver"]) if host.gpus else ""

    def _unmoved_profiles(self, host: Host) -> list[str]:
        """Return the profiles whose VMs the host cannot suspend or move."""
        offers = [offer for offer in host.profiles or () if offer.suspend is False or offer.migrate is False]
        return sorted(name for offer in offers if (name := self._catalog_name(offer.name)))

    def _gpus(self, host: Host) -> list[dict[str, Any]]:
        """Return the GPUs of models that are in the catalogue.

        A device group reports how many GPUs an NVLink bridge connects and their profile, but not which ones: each
        bridge gets the next GPUs of that model.
        """
        known_gpus = [gpu for gpu in host.gpus if gpu.vendor_id == NVIDIA_VENDOR_ID and self._board(gpu) is not None]
        gpus = [self._fill("gpu", gpu) | {"mode": self._mode(gpu, host).value, "nvlink": None} for gpu in known_gpus]
        groups = (host.settings.device_groups if host.settings is not None else None) or ()
        sizes = {(len(group.members), group.members[0].profile or "") for group in groups if group.members}
        for size, profile in sorted(sizes):
            board = self._catalog.board_of(profile)
            alike = [at for at, gpu in enumerate(gpus) if board is not None and gpu["board"] == board.key]
            for first in range(0, len(alike) - size + 1, size):
                members = [gpus[at] for at in alike[first : first + size]]
                if not any(gpu["nvlink"] for gpu in members):  # groups of two and of four may have the same GPUs
                    for gpu in members:
                        gpu["nvlink"] = f"nvlink-{alike[first]}"
        return gpus

    def _board(self, gpu: PhysicalGpu) -> str | None:
        board = self._catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
        return None if board is None else board.key

    def _mode(self, gpu: PhysicalGpu, host: Host) -> VgpuMode:
        """Return the vGPU mode of a GPU. Before API 8.0.3 vCenter does not report it.

        MIG is then assumed if the vGPUs on the GPU need it, or if none runs on it and its host offers only MIG-backed
        profiles for its model.
        """
        if gpu.vgpu_mode not in (None, VgpuMode.NONE):
            return VgpuMode(gpu.vgpu_mode)
        running = [vm for vm in self._inventory.vms_on(host) if vm.ref in (gpu.vms or ())]
        names = [name for vm in running for name in vm.profiles] or [offer.name for offer in host.profiles or ()]
        profiles = [profile for name in names if (profile := self._catalog.profile(name)) is not None]
        are_mig_backed = [profile.mig_backed for profile in profiles if profile.board == self._board(gpu)]
        return VgpuMode.MULTI_INSTANCE if are_mig_backed and all(are_mig_backed) else VgpuMode.SAME_SIZE

    def _device_name(self, device: OtherDevice) -> str:
        """Return `FPGA 8086:09c4` instead of the name in vCenter."""
        return f"{device.kind} {device.vendor_id:04x}:{device.device_id:04x}"

    def _vms(self, inventory: Inventory) -> list[dict[str, Any]]:
        """Return the VMs of known hosts. Running VMs come first, because they have their GPUs already."""
        vms = [vm for vm in inventory.vms.values() if inventory.host_of(vm) is not None]
        return [self._fill("vm", vm) for vm in sorted(vms, key=lambda vm: vm.power is not PowerState.ON)]

    def _host(self, vm: Vm) -> Host:
        host = self._inventory.host_of(vm)
        assert host is not None, "VMs without a host are left out"
        return host

    def _vm_read(self, vm: Vm) -> dict[str, Any]:
        """Return the devices of a VM as vCenter reports them: keys, NUMA nodes, GPUs, vGPU starts and the NVLink group.

        Only a running VM has GPUs, starts and held devices.
        """
        is_on, host = vm.power is PowerState.ON, self._host(vm)
        vgpus = [device for device in vm.vgpus if self._catalog_name(device.profile) is not None]
        addresses, starts = _gpus_of_vgpus(vm, host, vgpus) if is_on else ([], [])
        group = next((device for device in vgpus if device.group is not None), None)
        devices = vm.devices or ()
        return self._fill("vm_read", vm) | {
            "device_keys": [device.key for device in devices],
            "nodes": [device.numa_node if isinstance(device, VgpuDevice) else None for device in devices],
            "gpus": [str(address) for address in addresses],
            "starts": starts,
            "held": list(_held_devices(vm, host)) if is_on else [],
            "group": None if group is None else f"Nvidia:{len(vgpus)}@{self._catalog_name(group.profile)}%NVLink",
        }

    def _devices(self, vm: Vm) -> list[dict[str, Any]]:
        return [self._device(device, self._host(vm)) for device in vm.devices or ()]

    def _device(self, device: GpuDevice, host: Host) -> dict[str, Any]:
        """Return a GPU device of a VM; a device that a scenario cannot declare becomes `other`."""
        match device:
            case VgpuDevice(profile=profile) if self._catalog_name(profile) is not None:
                return {"vgpu": self._catalog_name(profile)}
            case DirectPathDevice(address=address) if (target := host.device(address)) is not None:
                is_declared = isinstance(target, OtherDevice) or self._board(target) is not None
                return {"direct_path": str(address)} if is_declared else {"other": True}
            case DynamicDevice(allowed=allowed, label=label):
                hidden = None if label is None else self._names.of(NameKind.LABEL, label)
                return {"dynamic": {"allowed": [list(pair) for pair in allowed], "label": hidden}}
            case _:
                return {"other": True}

    def _catalog_name(self, profile: str) -> str | None:
        catalog_profile = self._catalog.profile(profile)
        return None if catalog_profile is None else catalog_profile.name

    def _datastore(self, vm: Vm) -> str | None:
        return next((self._names.ref(ref) for ref in vm.datastores if ref in self._inventory.datastores), None)

    def _guest(self, vm: Vm) -> str:
        return "guest-without-tools" if vm.power is PowerState.ON and vm.tools_running is False else "guest"

    def _snapshot(self, vm: Vm) -> str | None:
        return self._names.of(NameKind.SNAPSHOT, vm.ref) if vm.snapshots else None

    def _folder(self, vm: Vm) -> str:
        """Return `folder-…/folder-…` below the datacenter's folder of VMs; several datacenters have a folder each."""
        datacenter, folders = _datacenter_and_folders(vm)
        has_many = len(_datacenters(self._inventory)) > 1
        top = [self._names.of(NameKind.DATACENTER, datacenter)] if datacenter and has_many else []
        return "/".join([*top, *(self._names.of(NameKind.FOLDER, name) for name in folders)])

    def _attributes(self, vm: Vm) -> dict[str, str]:
        """Return the custom attributes: those of gpuops with names and harmless values, pseudonyms for the rest.

        `gpuops.return` without a valid time counts as a foreign attribute. The marker of a night (`gpuops.rotation`) is
        left out.
        """
        attributes = {}
        for name, text in vm.attributes.items():
            value = text.lower() if name == "gpuops.opt-out" else text
            harmless_values = _TABLE["attributes"].get(name)
            if name == "gpuops.return" and (at := _utc_or_none(text)) is not None:
                attributes[name] = at
            elif harmless_values is not None:
                attributes[name] = value if value in harmless_values else self._names.of(NameKind.VALUE, text)
            elif name != "gpuops.rotation":
                attributes[self._names.of(NameKind.ATTRIBUTE, name)] = self._names.of(NameKind.VALUE, text)
        return attributes


def harmless_settings(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each extraConfig setting that plans use, if the value cannot identify the site.

    Such values are numbers, TRUE, FALSE, and PCI addresses of GPUs. The case of names does not matter to vCenter.
    """
    spellings = {key.lower(): key for key in SETTINGS}
    for key, setting in options.items():
        device_setting, name, address = _DEVICE_SETTING.fullmatch(key.lower()), spellings.get(key.lower()), None
        if device_setting is not None:
            name = f"pciPassthru{int(device_setting['number'])}.cfg.{device_setting['name']}"
        # only the setting of a GPU's address may hold one; it is written as gpuops writes addresses
        if name is not None and name.endswith("gpu-pci-id"):
            address = PciAddress.parse_or_none(setting)
            name = None if address is None else name
        if address is not None and name is not None:
            yield name, str(address)
        elif name is not None and _HARMLESS_VALUE.fullmatch(setting):
            yield name, setting.upper()


def _gpus_of_vgpus(vm: Vm, host: Host, vgpus: list[VgpuDevice]) -> tuple[list[PciAddress], list[int | None]]:
    """Return the GPU that has each vGPU, and the position of the vGPU on it.

    If the host does not report which vGPU is where, return the GPUs of the VM in turn, without positions.
    """
    placed = [(gpu.address, placement) for gpu in host.gpus for placement in gpu.vgpus or () if placement.vm == vm.ref]
    if sorted(placement.profile for _, placement in placed) == sorted(device.profile for device in vgpus):
        chosen = []
        for device in vgpus:
            chosen.append(next(pair for pair in placed if pair[1].profile == device.profile))
            placed.remove(chosen[-1])
        return [address for address, _ in chosen], [placement.start for _, placement in chosen]
    addresses = [gpu.address for gpu in host.gpus if vm.ref in (gpu.vms or ())]
    return list(islice(cycle(addresses), len(vgpus))), []


def _held_devices(vm: Vm, host: Host) -> Iterator[str | None]:
    """Yield the host device of each DirectPath device: that of its address, or else the next one bound to the VM."""
    bound_to_vm = iter([binding.address for binding in host.bindings if binding.vm == vm.ref])
    for device in vm.devices or ():
        if isinstance(device, DirectPathDevice):
            yield str(device.address)
        elif isinstance(device, DynamicDevice):
            address = device.assigned or next(bound_to_vm, None)
            yield None if address is None else str(address)


def _datacenters(inventory: Inventory) -> list[str]:
    return sorted({datacenter for vm in inventory.vms.values() if (datacenter := _datacenter_and_folders(vm)[0])})


def _datacenter_and_folders(vm: Vm) -> tuple[str, Sequence[str]]:
    """Return the datacenter of a VM, and the folders below its folder of VMs: `lab-dc` and `ml` for `lab-dc/vm/ml`."""
    names = list(vm.folders) or [name for name in vm.folder.split("/") if name]
    at = names.index("vm") if "vm" in names else len(names)
    return (names[at - 1] if 0 < at < len(names) else ""), names[at + 1 :]


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _utc_or_none(text: str) -> str | None:
    """Return the moment of an ISO 8601 text in UTC, or None if the text is not a moment."""
    try:
        return utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


_REFS: Final = frozenset({"ref", "created_vm", *NAMED})
"""Keys whose values are managed object ids."""


def contact_document(judged: JudgedContact, names: Pseudonyms, words: Collection[str]) -> dict[str, Any]:
    """Return the assumptions of gpuops with their standing, and vCenter's answers that support them, without names.

    `words`: words of the vSphere API that are not hidden, from `api_words`.
    """
    contact = judged.contact
    states = Counter((machine.state or "", machine.in_maintenance, machine.managed) for machine in contact.machines)
    answers = {
        "assumptions": [
            {
                "id": row.row.id,
                "standing": row.standing.value,
                "evidence": row.evidence and {"text": row.sentence, "facts": [row.evidence.facts]},
            }
            for row in judged.rows
        ],
        "tasks": [asdict(task) for task in contact.tasks],
        "events": [asdict(event) for event in contact.events],
        "counters": [{"host": host, "instances": instances} for host, instances in contact.counter_instances.items()],
        "reservations": [{"cluster": ref, "memory_mib": mib} for ref, mib in contact.reserved_mib.items()],
        "machines": [
            dict(zip(("state", "in_maintenance", "managed", "machines"), (*kind, number), strict=True))
            for kind, number in states.items()
        ],
        "unread": contact.unread,
    }
    return dict(_hide(answers, "", names, words))


def _hide(answer: Any, key: str, names: Pseudonyms, words: Collection[str]) -> Any:
    """Return an answer with pseudonyms for all texts, except words of the API, names of GPUs and numbers."""
    match answer:
        case Mapping():
            return {name: _hide(part, name, names, words) for name, part in answer.items()}
        case list() | tuple():
            return [_hide(part, key, names, words) for part in answer]
        case datetime():
            return utc(answer)
        case str() if key in _REFS:
            return names.ref(answer)
        case str() if answer not in words and any(strays(answer, ".")):
            return names.of(NameKind.REASON if key == "unread" else NameKind.TEXT, answer)
        case _:
            return answer


def api_words(judged: JudgedContact) -> frozenset[str]:
    """Return the words of the vSphere API in a first contact: kinds of tasks and events, types of faults."""
    tasks, events = judged.contact.tasks, judged.contact.events
    return frozenset(word for task in tasks for word in (task.kind, task.fault)) | {event.kind for event in events}
