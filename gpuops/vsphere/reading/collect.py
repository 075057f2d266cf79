"""Reads one immutable Inventory with a constant number of bulk reads, and reads parts of it anew.

First everything thin: folders, clusters, hosts, datastores, VMs, and the tasks now running on VMs, through one view.
Then, only where GPUs are: the PCI devices of hosts that show one, and devices and extraConfig of the VMs on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gpuops.errors import GpuopsError, NotConnected, ProtocolError, UsageError
from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Cluster, Datastore, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import RunningTask, Vm
from gpuops.vsphere.reading.bulk import property_paths as paths
from gpuops.vsphere.reading.bulk.pages import ReadObject
from gpuops.vsphere.reading.bulk.reader import Reader, reading
from gpuops.vsphere.reading.bulk.values import flag, items, leaves, number, said, text, whole
from gpuops.vsphere.reading.decoding.decode_cluster import decode_cluster
from gpuops.vsphere.reading.decoding.decode_device import ADAPTERS, DISK_PATHS, NETWORK, carried
from gpuops.vsphere.reading.decoding.decode_host import ThinHost, host_with_gpus, pci_devices, thin_host
from gpuops.vsphere.reading.decoding.decode_vm import ThinVm, running_task, thin_vm, with_detail
from gpuops.vsphere.reading.reservations import reservations
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.xml_values import child, mebibytes, moment

HOT_MIGRATE: Final = "vgpu.hotmigrate.enabled"
_DEEPEST_FOLDER: Final = 100
_LONGEST_PATH: Final = 24_000
"""So many folders, each with a name of vCenter's 80 characters, and room for escapes."""


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
    """Names of the custom attributes by key."""

    names: Mapping[int, str]


_AROUND_VMS: Final = {
    "Task": paths.TASK,
    "Folder": paths.FOLDERS,
    "Datacenter": paths.FOLDERS,
    "VirtualApp": paths.VAPP,
    "Datastore": paths.DATASTORE,
}
"""What a look at some VMs reads with them."""

_FIELDS: Final = "CustomFieldsManager"

_Record = _Parent | ThinHost | Host | ThinVm | Datastore | _RecentTask | _CustomFields


def inventory(session: Session) -> Inventory:
    """What this vCenter looks like now. Raises NotConnected in its kinds."""
    with reading(session) as reader:
        version = session.api_version
        thin = reader.read_all(
            {
                "Folder": paths.FOLDERS,
                "Datacenter": paths.FOLDERS,
                "ComputeResource": paths.COMPUTE_RESOURCE,
                "ClusterComputeResource": paths.CLUSTER,
                "VirtualApp": paths.VAPP,
                "Datastore": paths.DATASTORE,
                "HostSystem": paths.known(paths.HOST, version),
                "VirtualMachine": paths.VM,
                "Task": paths.TASK,
                _FIELDS: paths.CUSTOM_FIELDS,
            },
            _decode,
            beside=_custom_fields_manager(session),
        )
        places = {each.ref: each for each in thin if isinstance(each, _Parent)}
        hosts = _hosts(reader, [each for each in thin if isinstance(each, ThinHost)], places)
        gpu_hosts = {host.ref for host in hosts.values() if host.gpus or host.gives_others}
        detailed = _detailed(reader, version, [vm for vm in thin if isinstance(vm, ThinVm) and vm.host in gpu_hosts])
        return Inventory(
            vcenter=session.about.get("instanceUuid") or "",
            api_version=version,
            taken_at=_now(reader),
            hosts=hosts,
            vms=_vms([detailed.get(each.ref, each) if isinstance(each, ThinVm) else each for each in thin], places),
            clusters={each.ref: each.cluster for each in places.values() if each.cluster is not None},
            datastores={each.ref: each for each in thin if isinstance(each, Datastore)},
            user=session.target.username,
            hot_migrate_enabled=_hot_migrate(reader, session),
            reservations=reservations(reader, session, hosts),
        )


def observe(session: Session, inventory: Inventory, vms: Collection[str]) -> Inventory:
    """The same snapshot with these VMs, their datastores and the GPUs of their hosts read anew; a VM that is gone is
    dropped. Each is where it is now, under its name of now.

    One bulk read, and a second one where a VM has moved to a host that nobody asked for; then the clock, each time: a
    machine that stood still, its own clocks with it, learns of that by nothing else (`execute.lease`).
    A host keeps what QueryConfigTarget told of it, and a VM its tags.
    """
    version, before = session.api_version, [inventory.vms[ref] for ref in sorted(vms) if ref in inventory.vms]
    asked = {ref for vm in before if (ref := vm.host)}
    with reading(session) as reader:
        thin = reader.read_named(
            {
                "VirtualMachine": (*paths.VM, *paths.known(paths.VM_DETAIL, version)),
                "HostSystem": (*paths.known(paths.HOST, version), *paths.HOST_DEVICES),
                **_AROUND_VMS,
                _FIELDS: paths.CUSTOM_FIELDS,
            },
            [
                *_custom_fields_manager(session),
                *(("VirtualMachine", ref) for ref in sorted(vms)),
                *(("HostSystem", ref) for ref in sorted(asked)),
            ],
            _decode_whole,
        )
        places = {each.ref: each for each in thin if isinstance(each, _Parent)}
        known = {ref: _tagged_as(inventory.vms.get(ref), vm) for ref, vm in _vms(thin, places).items()}
        # only of a VM that has moved is the host not among those that were asked for
        moved_to = {ref for vm in known.values() if (ref := vm.host)} - asked
        hosts = {
            host.ref: _placed_as(inventory.hosts.get(host.ref), host)
            for host in (*(each for each in thin if isinstance(each, Host)), *_whole_hosts(reader, version, moved_to))
        }
        now = _now(reader)
    kept = {ref: vm for ref, vm in inventory.vms.items() if ref not in vms}
    stores = {**inventory.datastores, **{each.ref: each for each in thin if isinstance(each, Datastore)}}
    return replace(
        inventory, vms={**kept, **known}, hosts={**inventory.hosts, **hosts}, datastores=stores, taken_at=now
    )


def folder_at(session: Session, path: str) -> str:
    """The id of the folder for VMs at an inventory path of real names, `/lab-dc/vm/ml`. Raises UsageError where there
    is none, or more than one.

    Not by FindByInventoryPath: where a name contains a slash, only the folders themselves say which slashes of a path
    separate names.
    """
    with reading(session) as reader:
        wanted = {"Folder": paths.FOLDERS, "Datacenter": paths.FOLDERS}
        places = {ref: (kind, place) for kind, ref, place in reader.read_all(wanted, _decode_place)}
    parents, known = {ref: place for ref, (_, place) in places.items()}, dict[str | None, _FolderPath]()
    folders = [ref for ref, (kind, _) in places.items() if kind == "Folder"]
    matches = [ref for ref in folders if _folder_path(ref, parents, known).path == f"/{path.strip('/')}"]
    if not matches:
        raise UsageError(f"no folder {path!r} in this vCenter", hint="write it from the datacenter on: /lab-dc/vm/ml")
    if len(matches) > 1:
        hint = "rename one of them: a name with a slash looks like two folders"
        raise UsageError(f"{len(matches)} folders have the path {path!r}", hint=hint)
    return matches[0]


def _decode_place(found: ReadObject) -> tuple[str, str, _Parent]:
    return found.type, found.ref, _Parent(found.ref, found.name, text(found.properties.get("parent")))


def with_drs(session: Session, inventory: Inventory, vms: Collection[str]) -> Inventory:
    """The same snapshot with the clusters of these VMs read anew."""
    found = (inventory.cluster_of(inventory.vms[ref]) for ref in vms if ref in inventory.vms)
    named = {cluster.ref: cluster.name for cluster in found if cluster is not None}
    refs = [("ClusterComputeResource", ref) for ref in sorted(named)]
    with reading(session) as reader:
        fresh = reader.read_named(
            {"ClusterComputeResource": ("configurationEx",)}, refs, lambda each: decode_cluster(each, named[each.ref])
        )
    return replace(inventory, clusters={**inventory.clusters, **{cluster.ref: cluster for cluster in fresh}})


def with_creation(session: Session, inventory: Inventory, vms: Collection[str]) -> Inventory:
    """The same snapshot with the moments at which these VMs were made."""
    refs = [("VirtualMachine", ref) for ref in sorted(vms)]
    with reading(session) as reader:
        moments = dict(reader.read_named({"VirtualMachine": ("config.createDate",)}, refs, _decode_creation))
    known = inventory.vms
    return inventory.completed(vms=[replace(known[ref], created_at=at) for ref, at in moments.items() if ref in known])


def _decode_creation(vm: ReadObject) -> tuple[str, datetime | None]:
    return vm.ref, moment(text(vm.properties.get("config.createDate")))


def with_all_devices(session: Session, inventory: Inventory, hosts: Collection[str]) -> Inventory:
    """The same snapshot with every device of these hosts that could be passed through, and what the host has it for."""
    version = session.api_version
    wanted = (*paths.known(paths.HOST, version), *paths.HOST_DEVICES, NETWORK, ADAPTERS, DISK_PATHS)
    with reading(session) as reader:
        refs = [("HostSystem", ref) for ref in sorted(hosts) if ref in inventory.hosts]
        found = reader.read_named({"HostSystem": wanted}, refs, _others) if refs else []
    before = inventory.hosts
    return inventory.completed(hosts=[replace(before[ref], others=others) for ref, others in found if ref in before])


def _others(found: ReadObject) -> tuple[str, tuple[OtherDevice, ...]]:
    whole = host_with_gpus(thin_host(found), pci_devices(found, every=True), carried(found) or {})
    if carried(found) is not None:
        return found.ref, whole.others
    return found.ref, tuple(replace(device, carries=None) for device in whole.others)


def _tagged_as(seen: Vm | None, fresh: Vm) -> Vm:
    """The VM with its tags, which this API does not tell."""
    return fresh if seen is None else replace(fresh, tags=seen.tags)


def _placed_as(seen: Host | None, fresh: Host) -> Host:
    """The host with its cluster and with what QueryConfigTarget told of it, which such a read does not tell."""
    return fresh if seen is None else replace(fresh, cluster=seen.cluster, config_target=seen.config_target)


def _whole_hosts(reader: Reader, version: str, refs: Collection[str]) -> list[Host]:
    wanted = {"HostSystem": (*paths.known(paths.HOST, version), *paths.HOST_DEVICES)}
    return reader.read_named(wanted, [("HostSystem", ref) for ref in sorted(refs)], _decode_host)


def _decode_whole(found: ReadObject) -> _Record:
    """The same as `_decode`, of VMs that were read with their detail, and of hosts with their PCI devices."""
    if found.type == "HostSystem":
        return _decode_host(found)
    record = _decode(found)
    return with_detail(record, found) if isinstance(record, ThinVm) else record


def _decode_host(found: ReadObject) -> Host:
    """A host that was read with its PCI devices."""
    thin_paths = tuple(path for path in found.unreadable if path not in paths.HOST_DEVICES)
    thin = thin_host(replace(found, unreadable=thin_paths))
    return host_with_gpus(thin, pci_devices(found, thin.passed_through) if thin.has_devices else ())


def _decode(found: ReadObject) -> _Record:
    match found.type:
        case "HostSystem":
            return thin_host(found)
        case "VirtualMachine":
            return thin_vm(found)
        case "Task":
            return _RecentTask(found.ref, running_task(found))
        case "CustomFieldsManager":
            return _CustomFields(_field_names(found))
        case "Datastore":
            return Datastore(
                found.ref,
                found.name,
                free_mib=mebibytes(number(found.properties.get("summary.freeSpace"))),
                accessible=flag(found.properties.get("summary.accessible")),
            )
        case _:
            cluster = decode_cluster(found, found.name) if found.type == "ClusterComputeResource" else None
            # a vApp's parent is a resource pool; a vApp inside another one has no folder
            parent = text(found.properties.get("parentFolder")) or text(found.properties.get("parent"))
            return _Parent(found.ref, found.name, parent, cluster)


def _hosts(reader: Reader, thin: list[ThinHost], places: Mapping[str, _Parent]) -> dict[str, Host]:
    devices = _pci_devices(reader, thin)
    hosts = {}
    for each in thin:
        host = host_with_gpus(each, devices.get(each.host.ref, ()))
        place = places.get(each.parent or "")
        in_cluster = place is not None and place.cluster is not None
        hosts[host.ref] = replace(host, cluster=each.parent if in_cluster else None)
    return hosts


def _pci_devices(reader: Reader, thin: Iterable[ThinHost]) -> dict[str, tuple[PhysicalGpu | OtherDevice, ...]]:
    given = {each.host.ref: each.passed_through for each in thin if each.has_devices}
    refs = [("HostSystem", ref) for ref in given]

    def devices(found: ReadObject) -> tuple[str, tuple[PhysicalGpu | OtherDevice, ...]]:
        return found.ref, pci_devices(found, given.get(found.ref, ()))

    return dict(reader.read_named({"HostSystem": paths.HOST_DEVICES}, refs, devices))


def _vms(thin: Sequence[_Record], places: Mapping[str, _Parent]) -> dict[str, Vm]:
    """VMs with their paths, their custom attributes by name, and the tasks that run on them."""
    folders: dict[str | None, _FolderPath] = {}
    fields = next((each.names for each in thin if isinstance(each, _CustomFields)), {})
    running = {each.ref: each.running for each in thin if isinstance(each, _RecentTask)}
    return {
        each.ref: each.known(
            path=f"{(folder := _folder_path(each.parent, places, folders)).path}/{each.known.keywords['name']}",
            folders=folder.names if folder.has_slash else (),
            vapp=places[vapp].name if (vapp := each.known.keywords["vapp"]) in places else vapp,
            attributes={fields[key]: value for key, value in each.attribute_values if key in fields and value},
            tasks=tuple(task for ref in each.recent_tasks if (task := running.get(ref)) is not None),
        )
        for each in thin
        if isinstance(each, ThinVm)
    }


@dataclass(frozen=True, slots=True)
class _FolderPath:
    """The inventory path of a folder, and the names that it consists of."""

    path: str = ""
    names: tuple[str, ...] = ()
    has_slash: bool = False
    """Whether one of the names contains a slash, so that the path cannot be split into them."""


def _folder_path(ref: str | None, places: Mapping[str, _Parent], known: dict[str | None, _FolderPath]) -> _FolderPath:
    """The inventory path of a folder; the root folder and what this login cannot see have none.

    Raises ProtocolError for folders that are within themselves, or deeper or longer than a vCenter's.
    """
    below: list[_Parent] = []
    while ref not in known:
        place = places.get(ref or "")
        if place is None:
            known[ref] = _FolderPath()
        elif len(below) == _DEEPEST_FOLDER:
            raise ProtocolError(f"vCenter tells of more than {_DEEPEST_FOLDER} folders within each other")
        else:
            below.append(place)
            ref = place.parent
    path = known[ref]
    for place in reversed(below):
        # the root folder has no parent, and no place in a path
        if place.parent is not None:
            has_slash = path.has_slash or "/" in place.name
            path = _FolderPath(f"{path.path}/{place.name}", (*path.names, place.name), has_slash)
        known[place.ref] = path
        if len(path.path) > _LONGEST_PATH:
            raise ProtocolError(f"vCenter tells of a folder with a path of more than {_LONGEST_PATH:,} characters")
    return path


def _detailed(reader: Reader, version: str, vms: Iterable[ThinVm]) -> dict[str, ThinVm]:
    by_ref = {vm.ref: vm for vm in vms}
    wanted = {"VirtualMachine": paths.known(paths.VM_DETAIL, version)}
    refs = [("VirtualMachine", ref) for ref in by_ref]
    return dict(reader.read_named(wanted, refs, lambda found: (found.ref, with_detail(by_ref[found.ref], found))))


def _custom_fields_manager(session: Session) -> Collection[tuple[str, str]]:
    manager = session.service.get("customFieldsManager")
    return [manager] if manager is not None and manager[0] == _FIELDS else []


def _field_names(found: ReadObject) -> Mapping[int, str]:
    """None for a login that may not see them."""
    fields = map(leaves, items(found.properties.get("field")))
    return {
        key: name for each in fields if (key := whole(each.get("key"))) is not None and (name := said(each.get("name")))
    }


def _hot_migrate(reader: Reader, session: Session) -> bool | None:
    """vCenter's setting; None where it does not have it, or this login may not read it."""
    setting = session.service.get("setting")
    if setting is None:
        return None
    try:
        told = reader.call("QueryOptions", setting, f"<name>{HOT_MIGRATE}</name>")
    except NotConnected:
        raise
    except GpuopsError:
        return None
    # an option's value may be a boolean or its name
    return {"true": True, "false": False}.get((text(child(told, "returnval"), "value") or "").lower())


def _now(reader: Reader) -> datetime:
    """vCenter's own time: what it says of its tasks is compared with it. Raises ProtocolError."""
    told = text(reader.call("CurrentTime", ("ServiceInstance", "ServiceInstance")), "returnval") or ""
    now = moment(told)
    if now is None:
        raise ProtocolError(f"vCenter's time is not one: {told[:40]!r}")
    return now
