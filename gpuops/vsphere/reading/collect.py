"""Reads one immutable Inventory with a constant number of bulk reads, and reads parts of it anew.

The first read has a few properties of all folders, clusters, hosts, datastores, VMs and running tasks of VMs, through
one view. Further reads are about hosts with GPUs only: their PCI devices, and devices and extraConfig of their VMs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gpuops.errors import ProtocolError, UsageError
from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Cluster, Datastore, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import RunningTask, Vm
from gpuops.vsphere.reading.bulk import reader as paths
from gpuops.vsphere.reading.bulk.pages import ReadObject, flag, items, leaf_text, leaves, number, text, whole
from gpuops.vsphere.reading.bulk.reader import Reader, reading
from gpuops.vsphere.reading.decoding.decode_device import ADAPTERS, DISK_PATHS, NETWORK, read_device_uses
from gpuops.vsphere.reading.decoding.decode_host import ThinHost, decode_cluster, host_with_gpus, pci_devices, thin_host
from gpuops.vsphere.reading.decoding.decode_vm import ThinVm, running_task, thin_vm, with_detail
from gpuops.vsphere.reading.reservations import reservations
from gpuops.vsphere.session import OptionalRead, Session
from gpuops.vsphere.transport.messages import child, mebibytes, moment

HOT_MIGRATE: Final = "vgpu.hotmigrate.enabled"
_DEEPEST_FOLDER: Final = 100
_LONGEST_PATH: Final = 24_000
"""For the deepest folder, with names of 80 characters and room for escapes."""


@dataclass(frozen=True, slots=True)
class _Parent:
    """A folder, datacenter, vApp, cluster or standalone compute resource: a name with a parent."""

    ref: str
    name: str
    parent: str | None
    cluster: Cluster | None = None


@dataclass(frozen=True, slots=True)
class _RecentTask:
    ref: str
    running: RunningTask | None


@dataclass(frozen=True, slots=True)
class _CustomFields:
    """The custom attributes that this login may see."""

    names: Mapping[int, str]
    """By key."""
    keys_for_vms: Mapping[str, int]
    """By name, of those for VMs alone."""


_AROUND_VMS: Final = {
    "Task": paths.TASK,
    "Folder": paths.FOLDERS,
    "Datacenter": paths.FOLDERS,
    "VirtualApp": paths.VAPP,
    "Datastore": paths.DATASTORE,
}
"""Properties of the objects around VMs that `observe` reads."""

_FIELDS: Final = "CustomFieldsManager"

_Record = _Parent | ThinHost | Host | ThinVm | Datastore | _RecentTask | _CustomFields


def inventory(session: Session) -> Inventory:
    """Return the present inventory of the vCenter. Raises NotConnected and its subclasses."""
    with reading(session) as reader:
        version = session.api_version
        # few properties of all objects; devices are read only of hosts with GPUs, and of the VMs on them
        thin = reader.read_all(
            {
                "Folder": paths.FOLDERS,
                "Datacenter": paths.FOLDERS,
                "ComputeResource": paths.COMPUTE_RESOURCE,
                "ClusterComputeResource": paths.CLUSTER,
                "VirtualApp": paths.VAPP,
                "Datastore": paths.DATASTORE,
                "HostSystem": paths.supported_paths(paths.HOST, version),
                "VirtualMachine": paths.VM,
                "Task": paths.TASK,
                _FIELDS: paths.CUSTOM_FIELDS,
            },
            _decode,
            extra_objects=_custom_fields_manager(session),
        )
        for record in thin:
            if isinstance(record, _CustomFields):
                session.attribute_keys = dict(record.keys_for_vms)  # a marker is then written without another read
        places = {place.ref: place for place in thin if isinstance(place, _Parent)}
        hosts = _hosts_with_gpus(reader, [host for host in thin if isinstance(host, ThinHost)], places)
        gpu_hosts = {host.ref for host in hosts.values() if host.gpus or host.gives_others}
        vms_with_detail = _read_vm_detail(
            reader, version, [vm for vm in thin if isinstance(vm, ThinVm) and vm.host in gpu_hosts]
        )
        return Inventory(
            vcenter=session.about.get("instanceUuid") or "",
            api_version=version,
            taken_at=_read_vcenter_time(reader),
            hosts=hosts,
            vms=_complete_vms(
                [vms_with_detail.get(record.ref, record) if isinstance(record, ThinVm) else record for record in thin],
                places,
            ),
            clusters={place.ref: place.cluster for place in places.values() if place.cluster is not None},
            datastores={store.ref: store for store in thin if isinstance(store, Datastore)},
            user=session.target.username,
            hot_migrate_enabled=_hot_migrate(reader, session),
            reservations=reservations(reader, session, hosts),
        )


def observe(session: Session, inventory: Inventory, vms: Collection[str]) -> Inventory:
    """Return the snapshot after reading these VMs, their datastores and the GPUs of their hosts again.

    VMs that do not exist any more are removed. This takes one bulk read, and a second one if a VM has moved to another
    host. vCenter's time is read too: if the machine of gpuops was suspended, its own clock stood still, and only
    vCenter's shows that a lease has ended (`execute.lease`). Config targets of hosts and tags of VMs are copied from
    the snapshot.
    """
    version = session.api_version
    known_vms = [inventory.vms[ref] for ref in sorted(vms) if ref in inventory.vms]
    known_hosts = {ref for vm in known_vms if (ref := vm.host)}
    with reading(session) as reader:
        thin = reader.read_named(
            {
                "VirtualMachine": (*paths.VM, *paths.supported_paths(paths.VM_DETAIL, version)),
                "HostSystem": (*paths.supported_paths(paths.HOST, version), *paths.HOST_DEVICES),
                **_AROUND_VMS,
                _FIELDS: paths.CUSTOM_FIELDS,
            },
            [
                *_custom_fields_manager(session),
                *(("VirtualMachine", ref) for ref in sorted(vms)),
                *(("HostSystem", ref) for ref in sorted(known_hosts)),
            ],
            _decode_with_detail,
        )
        places = {place.ref: place for place in thin if isinstance(place, _Parent)}
        vms_now = {ref: _copy_tags(inventory.vms.get(ref), vm) for ref, vm in _complete_vms(thin, places).items()}
        # the host of a VM that has moved was not read yet
        moved_to = {ref for vm in vms_now.values() if (ref := vm.host)} - known_hosts
        hosts = {
            host.ref: _copy_placement(inventory.hosts.get(host.ref), host)
            for host in (
                *(host for host in thin if isinstance(host, Host)),
                *_read_hosts_with_devices(reader, version, moved_to),
            )
        }
        now = _read_vcenter_time(reader)
    unread_vms = {ref: vm for ref, vm in inventory.vms.items() if ref not in vms}
    stores = {**inventory.datastores, **{store.ref: store for store in thin if isinstance(store, Datastore)}}
    return replace(
        inventory, vms={**unread_vms, **vms_now}, hosts={**inventory.hosts, **hosts}, datastores=stores, taken_at=now
    )


def folder_at(session: Session, path: str) -> str:
    """Return the id of the folder for VMs at an inventory path of real names, `/lab-dc/vm/ml`.

    Raises UsageError if no folder, or more than one, has this path. FindByInventoryPath is not used, because it cannot
    find names that contain a slash.
    """
    with reading(session) as reader:
        paths_by_type = {"Folder": paths.FOLDERS, "Datacenter": paths.FOLDERS}
        types_and_places = reader.read_all(paths_by_type, lambda read_object: (read_object.type, _place(read_object)))
    places = {place.ref: place for _, place in types_and_places}
    folder_paths = dict[str | None, _FolderPath]()  # filled by `_folder_path`
    folders = [place.ref for kind, place in types_and_places if kind == "Folder"]
    matches = [ref for ref in folders if _folder_path(ref, places, folder_paths).path == f"/{path.strip('/')}"]
    if not matches:
        raise UsageError(
            f"no folder {path!r} in this vCenter",
            hint="give the path from the datacenter down to the folder, such as /lab-dc/vm/ml",
        )
    if len(matches) > 1:
        hint = "rename one of them: the slash in a name looks like the slash between two folders"
        raise UsageError(f"{len(matches)} folders have the path {path!r}", hint=hint)
    return matches[0]


def with_drs(session: Session, inventory: Inventory, vms: Collection[str]) -> Inventory:
    """Return the snapshot with the clusters of these VMs read again."""
    clusters = (inventory.cluster_of(inventory.vms[ref]) for ref in vms if ref in inventory.vms)
    names = {cluster.ref: cluster.name for cluster in clusters if cluster is not None}
    with reading(session) as reader:
        updated_clusters = reader.read_named(
            {"ClusterComputeResource": ("configurationEx",)},
            [("ClusterComputeResource", ref) for ref in sorted(names)],
            lambda cluster: decode_cluster(cluster, names[cluster.ref]),
        )
    return replace(inventory, clusters={**inventory.clusters, **{cluster.ref: cluster for cluster in updated_clusters}})


def with_creation(session: Session, inventory: Inventory, vms: Collection[str]) -> Inventory:
    """Return the snapshot with the creation times of these VMs."""
    with reading(session) as reader:
        created_at = reader.read_named(
            {"VirtualMachine": ("config.createDate",)},
            [("VirtualMachine", ref) for ref in sorted(vms) if ref in inventory.vms],
            lambda vm: (vm.ref, moment(text(vm.properties.get("config.createDate")))),
        )
    return inventory.completed(vms=[replace(inventory.vms[ref], created_at=at) for ref, at in created_at])


def with_all_devices(session: Session, inventory: Inventory, hosts: Collection[str]) -> Inventory:
    """Return the snapshot with all passthrough-capable devices of these hosts, and what the hosts use them for."""
    version = session.api_version
    host_paths = (*paths.supported_paths(paths.HOST, version), *paths.HOST_DEVICES, NETWORK, ADAPTERS, DISK_PATHS)
    with reading(session) as reader:
        refs = [("HostSystem", ref) for ref in sorted(hosts) if ref in inventory.hosts]
        devices_by_host = reader.read_named({"HostSystem": host_paths}, refs, _decode_other_devices) if refs else []
    return inventory.completed(
        hosts=[replace(inventory.hosts[ref], others=other_devices) for ref, other_devices in devices_by_host]
    )


def _decode_other_devices(read_object: ReadObject) -> tuple[str, tuple[OtherDevice, ...]]:
    uses = read_device_uses(read_object)
    devices = host_with_gpus(thin_host(read_object), pci_devices(read_object, include_all=True), uses or {}).others
    # without the uses it is unknown what the host uses each device for
    return read_object.ref, devices if uses is not None else tuple(replace(device, carries=None) for device in devices)


def _copy_tags(earlier_vm: Vm | None, updated_vm: Vm) -> Vm:
    """Return the VM with the tags of the earlier snapshot, which this read does not contain."""
    return updated_vm if earlier_vm is None else replace(updated_vm, tags=earlier_vm.tags)


def _copy_placement(earlier_host: Host | None, updated_host: Host) -> Host:
    """Return the host with the cluster and config target of the earlier snapshot, which this read does not contain."""
    if earlier_host is None:
        return updated_host
    return replace(updated_host, cluster=earlier_host.cluster, config_target=earlier_host.config_target)


def _read_hosts_with_devices(reader: Reader, version: str, refs: Collection[str]) -> list[Host]:
    paths_by_type = {"HostSystem": (*paths.supported_paths(paths.HOST, version), *paths.HOST_DEVICES)}
    return reader.read_named(paths_by_type, [("HostSystem", ref) for ref in sorted(refs)], _decode_host)


def _decode_with_detail(read_object: ReadObject) -> _Record:
    """Decode like `_decode`, with the details of VMs and the PCI devices of hosts."""
    if read_object.type == "HostSystem":
        return _decode_host(read_object)
    record = _decode(read_object)
    return with_detail(record, read_object) if isinstance(record, ThinVm) else record


def _decode_host(read_object: ReadObject) -> Host:
    """Return a host that was read with its PCI devices."""
    thin_paths = tuple(path for path in read_object.unreadable if path not in paths.HOST_DEVICES)
    thin = thin_host(replace(read_object, unreadable=thin_paths))
    return host_with_gpus(thin, pci_devices(read_object, thin.passed_through) if thin.has_devices else ())


def _decode(read_object: ReadObject) -> _Record:
    match read_object.type:
        case "HostSystem":
            return thin_host(read_object)
        case "VirtualMachine":
            return thin_vm(read_object)
        case "Task":
            return _RecentTask(read_object.ref, running_task(read_object))
        case "CustomFieldsManager":
            return _custom_fields(read_object)
        case "Datastore":
            return Datastore(
                read_object.ref,
                read_object.name,
                free_mib=mebibytes(number(read_object.properties.get("summary.freeSpace"))),
                accessible=flag(read_object.properties.get("summary.accessible")),
            )
        case "ClusterComputeResource":
            return replace(_place(read_object), cluster=decode_cluster(read_object, read_object.name))
        case _:
            return _place(read_object)


def _place(read_object: ReadObject) -> _Parent:
    # a vApp's parent is a resource pool; a vApp inside another one has no folder
    parent = text(read_object.properties.get("parentFolder")) or text(read_object.properties.get("parent"))
    return _Parent(read_object.ref, read_object.name, parent)


def _hosts_with_gpus(reader: Reader, thin_hosts: list[ThinHost], places: Mapping[str, _Parent]) -> dict[str, Host]:
    """Return the hosts with their clusters and GPUs, after reading the PCI devices of those that may have GPUs."""
    passed_through = {thin.host.ref: thin.passed_through for thin in thin_hosts if thin.has_devices}

    def decode_devices(read_object: ReadObject) -> tuple[str, tuple[PhysicalGpu | OtherDevice, ...]]:
        return read_object.ref, pci_devices(read_object, passed_through.get(read_object.ref, ()))

    refs = [("HostSystem", ref) for ref in passed_through]
    devices = dict(reader.read_named({"HostSystem": paths.HOST_DEVICES}, refs, decode_devices))
    hosts = {}
    for thin in thin_hosts:
        place = places.get(thin.parent or "")
        # the parent of a standalone host is a compute resource, but not a cluster
        cluster = thin.parent if place is not None and place.cluster is not None else None
        hosts[thin.host.ref] = replace(host_with_gpus(thin, devices.get(thin.host.ref, ())), cluster=cluster)
    return hosts


def _complete_vms(records: Sequence[_Record], places: Mapping[str, _Parent]) -> dict[str, Vm]:
    """Return the VMs with their paths, their custom attributes by name, and their running tasks."""
    folders: dict[str | None, _FolderPath] = {}
    fields = next((manager.names for manager in records if isinstance(manager, _CustomFields)), {})
    running = {task.ref: task.running for task in records if isinstance(task, _RecentTask)}
    # `make_vm` is a partial of Vm; these arguments need the other records of the read
    return {
        vm.ref: vm.make_vm(
            path=f"{(folder := _folder_path(vm.parent, places, folders)).path}/{vm.make_vm.keywords['name']}",
            folders=folder.names if folder.has_slash else (),
            vapp=places[vapp].name if (vapp := vm.make_vm.keywords["vapp"]) in places else vapp,
            attributes={
                fields[key]: attribute_text
                for key, attribute_text in vm.attribute_values
                if key in fields and attribute_text
            },
            tasks=tuple(task for ref in vm.recent_tasks if (task := running.get(ref)) is not None),
        )
        for vm in records
        if isinstance(vm, ThinVm)
    }


@dataclass(frozen=True, slots=True)
class _FolderPath:
    """The inventory path of a folder, and the names that it consists of."""

    path: str = ""
    names: tuple[str, ...] = ()
    has_slash: bool = False
    """Whether one of the names contains a slash, so that the path cannot be split into them."""


def _folder_path(
    ref: str | None, places: Mapping[str, _Parent], known_paths: dict[str | None, _FolderPath]
) -> _FolderPath:
    """Return the inventory path of a folder; it is empty for the root folder and for folders this login cannot see.

    `known_paths` are the paths found so far; this call adds those of the folder and of the folders above it. Raises
    ProtocolError for a cycle of folders, and for more or longer names than vCenter allows.
    """
    # up to a folder with a known path (ml -> vm -> lab-dc), then down again: /lab-dc, /lab-dc/vm, /lab-dc/vm/ml
    below: list[_Parent] = []
    while ref not in known_paths:
        place = places.get(ref or "")
        if place is None:
            known_paths[ref] = _FolderPath()
        elif len(below) == _DEEPEST_FOLDER:
            raise ProtocolError(f"vCenter lists more than {_DEEPEST_FOLDER} folders within each other")
        else:
            below.append(place)
            ref = place.parent
    path = known_paths[ref]
    for place in reversed(below):
        # the root folder has no parent, and its name is not in the path
        if place.parent is not None:
            has_slash = path.has_slash or "/" in place.name
            path = _FolderPath(f"{path.path}/{place.name}", (*path.names, place.name), has_slash)
        known_paths[place.ref] = path
        if len(path.path) > _LONGEST_PATH:
            raise ProtocolError(f"vCenter lists a folder with a path of more than {_LONGEST_PATH:,} characters")
    return path


def _read_vm_detail(reader: Reader, version: str, vms: Iterable[ThinVm]) -> dict[str, ThinVm]:
    by_ref = {vm.ref: vm for vm in vms}
    detailed_vms = reader.read_named(
        {"VirtualMachine": paths.supported_paths(paths.VM_DETAIL, version)},
        [("VirtualMachine", ref) for ref in by_ref],
        lambda read_object: with_detail(by_ref[read_object.ref], read_object),
    )
    return {vm.ref: vm for vm in detailed_vms}


def _custom_fields_manager(session: Session) -> Collection[tuple[str, str]]:
    manager = session.service.get("customFieldsManager")
    return [manager] if manager is not None and manager[0] == _FIELDS else []


def _custom_fields(read_object: ReadObject) -> _CustomFields:
    """Return the custom attributes; none if this login may not see them."""
    names: dict[int, str] = {}
    keys_for_vms: dict[str, int] = {}
    for field in map(leaves, items(read_object.properties.get("field"))):
        if (key := whole(field.get("key"))) is not None and (name := leaf_text(field.get("name"))):
            names[key] = name
            if leaf_text(field.get("managedObjectType")) == "VirtualMachine":
                keys_for_vms[name] = key
    return _CustomFields(names, keys_for_vms)


def _hot_migrate(reader: Reader, session: Session) -> bool | None:
    """Return whether vGPU hot migration is enabled; None without this setting, or if this login cannot read it."""
    setting = session.service.get("setting")
    if setting is not None:
        with OptionalRead():
            reply = reader.call("QueryOptions", setting, f"<name>{HOT_MIGRATE}</name>")
            # an option's value may be a boolean or its name
            return {"true": True, "false": False}.get((text(child(reply, "returnval"), "value") or "").lower())
    return None


def _read_vcenter_time(reader: Reader) -> datetime:
    """Return vCenter's time, with which the times of its tasks are compared. Raises ProtocolError."""
    # `serverClock` would come with the objects, but it is not necessarily current (vSphere API reference,
    # ServiceInstance): only this method tells the time.
    time_text = text(reader.call("CurrentTime", ("ServiceInstance", "ServiceInstance")), "returnval") or ""
    now = moment(time_text)
    if now is None:
        raise ProtocolError(f"vCenter returned no valid time: {time_text[:40]!r}")
    return now
