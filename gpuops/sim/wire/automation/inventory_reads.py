"""The inventory as the vSphere Automation API lists it: com.vmware.vcenter.VM, host, cluster and the others.

`services.py` calls it for both wires. Names, types, filters, limits and errors are those of the vSphere Automation API
reference (the bindings of vmware-vcenter carry them); values are read from the properties that SOAP clients read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.core.registry import is_kind_of
from gpuops.sim.vcenter.vapi_values import (
    TEXT,
    TRUTH,
    Enumeration,
    ListOf,
    OptionalValue,
    Shape,
    Struct,
    StructureType,
    VapiFault,
    check,
    operation_input,
    operation_not_found,
    operation_unsupported,
    structure,
)
from gpuops.sim.wire.automation import vm_values
from gpuops.sim.wire.automation.vm_values import VCENTER, fields_of, structure_of

if TYPE_CHECKING:
    from gpuops.sim.world import World

_CONNECTIONS: Final = {"connected": "CONNECTED", "disconnected": "DISCONNECTED", "notResponding": "NOT_RESPONDING"}
_HOST_POWER: Final = {"poweredOn": "POWERED_ON", "poweredOff": "POWERED_OFF", "standBy": "STANDBY"}
_FOLDER_TYPES: Final = {
    "Datacenter": "DATACENTER",
    "VirtualMachine": "VIRTUAL_MACHINE",
    "ComputeResource": "HOST",
    "Datastore": "DATASTORE",
    "Network": "NETWORK",
}
"""What the folder may hold besides folders (Folder.childType) -> its type here."""
_NETWORK_TYPES: Final = {
    "Network": "STANDARD_PORTGROUP",
    "DistributedVirtualPortgroup": "DISTRIBUTED_PORTGROUP",
    "OpaqueNetwork": "OPAQUE_NETWORK",
}
_DATASTORE_TYPES: Final = ("VMFS", "NFS", "NFS41", "CIFS", "VSAN", "VFFS", "VVOL")

Value = Callable[[ManagedObject], object]


@dataclass(frozen=True, slots=True)
class _Filter:
    """One field of a filter: an object matches if the result of `value` for it is among the requested values."""

    shape: Shape
    value: Value


@dataclass(frozen=True, slots=True)
class InventoryService:
    """One service: the type of its objects, its filters and limit, and what `list` and `get` show of an object."""

    key: str
    """The name of the parameter, and of the field, with an object's identifier."""
    type: str
    noun: str
    own_filters: Mapping[str, _Filter]
    """The filters in addition to those by identifier, name and datacenter."""
    summary: Callable[[ManagedObject], Mapping[str, Any]]
    details: Callable[[ManagedObject], Struct] | None = None
    other_operations: tuple[str, ...] = ()
    """Operations of the API that are not simulated."""
    limit: int = 1000

    @property
    def name(self) -> str:
        return f"{VCENTER}.{'VM' if self.key == 'vm' else self.key}"

    @property
    def path(self) -> str:
        """The part of its URL after `vcenter`."""
        return self.key.replace("_", "-")

    @property
    def filters(self) -> Mapping[str, _Filter]:
        return {"datacenters": _IN_DATACENTERS, "names": _BY_NAME, f"{self.key}s": _BY_ID, **self.own_filters}

    @property
    def filter_type(self) -> StructureType:
        shapes = {name: list_filter.shape for name, list_filter in self.filters.items()}
        return StructureType(f"{self.name}.filter_spec", shapes, frozenset(shapes))


class InventoryReads:
    """The operations `list` and `get` of these services, in one simulated vCenter."""

    def __init__(self, world: World) -> None:
        self._world = world

    def invoke(self, service: InventoryService, operation: str, parameters: object, user: str) -> Any:
        """The result of one operation for a user. Raises VapiFault."""
        if operation == "list":
            check(parameters, operation_input("filter", filter=service.filter_type))
            return self._list(service, structure(parameters).get("filter") or {}, user)
        if operation == "get" and service.details is not None:
            check(parameters, operation_input(**{service.key: TEXT}))
            return service.details(self.one(service, structure(parameters)[service.key], user))
        if operation in service.other_operations:
            raise operation_unsupported(service.name, operation)
        raise operation_not_found(service.name, operation)

    def _list(self, service: InventoryService, requested_filters: Mapping[str, Any], user: str) -> list[Struct]:
        """Return the objects that match all filters and that the user may see. Raises VapiFault above the limit.

        Source: vSphere Automation API reference; the message is vCenter's (vsphere-automation-sdk-python issue 142).
        """
        filters = service.filters
        active_filters = [
            (filters[name].value, value) for name, value in requested_filters.items() if value not in (None, [])
        ]
        entities = [
            managed_object
            for managed_object in self._listed_entities(service)
            if all(_matches(value_of(managed_object), value) for value_of, value in active_filters)
            and self._world.authority.may(user, managed_object, "System.View")
        ]
        if len(entities) > service.limit:
            raise VapiFault(
                "unable_to_allocate_resource",
                f"Too many {service.noun.lower()}s. Add more filter criteria to reduce the number.",
                message_id=f"com.vmware.api.vcenter.{service.path}.too_many_matches",
            )
        return [
            Struct(f"{service.name}.summary", {service.key: managed_object.moid, **service.summary(managed_object)})
            for managed_object in entities
        ]

    def one(self, service: InventoryService, identity: str, user: str) -> ManagedObject:
        """Return the object of that identifier. Raises VapiFault of kind not_found or unauthorized."""
        managed_object = self._world.find(identity)
        if (
            managed_object is None
            or not is_kind_of(managed_object.wsdl_name, service.type)
            or not _is_listed(managed_object)
        ):
            instance = self._world.find("ServiceInstance")
            text = f"{identity}:{getattr(instance, 'instance_uuid', '')}"
            raise VapiFault(
                "not_found",
                f"{service.noun} with identifier '{text}' does not exist.",
                message_id=f"com.vmware.api.vcenter.{service.path}.not_found",
                args=(text,),
            )
        if not self._world.authority.may(user, managed_object, "System.Read"):
            raise VapiFault("unauthorized", f"You have no permission to read {identity}.", args=(identity,))
        return managed_object

    def _listed_entities(self, service: InventoryService) -> Iterator[ManagedObject]:
        return filter(_is_listed, self._world.by_type(service.type))


def _is_listed(managed_object: ManagedObject) -> bool:
    """Whether the services know of it: not of a VM that is a template (vmware.vmware_rest issue 165, govmomi 3693)."""
    return managed_object.wsdl_name != "VirtualMachine" or not managed_object.read("config.template")


def _matches(value: object, filter_value: object) -> bool:
    return value in filter_value if isinstance(filter_value, list) else value == filter_value


# --- what filters compare, and what is shown ----------------------------------------------------------------------


_name: Final = attrgetter("display_name")


def _parent(managed_object: ManagedObject) -> str | None:
    """Return the direct parent: objects in folders below it do not match (vsphere-automation-sdk-python issue 87)."""
    parent = managed_object.parent_object()
    return parent.moid if parent is not None else None


def _nearest(kind: str) -> Value:
    """Return a function that finds the nearest ancestor of a type."""

    def find(managed_object: ManagedObject) -> str | None:
        return next(
            (ancestor.moid for ancestor in ancestors(managed_object) if is_kind_of(ancestor.wsdl_name, kind)), None
        )

    return find


def _linked(path: str) -> Value:
    """Return a function that reads the first object to which a property refers."""
    return lambda managed_object: next((linked.moid for linked in managed_object.linked(path)), None)


def _vm_cluster(managed_object: ManagedObject) -> object:
    return next((_cluster(host) for host in managed_object.linked("runtime.host")), None)


def _pool_host(managed_object: ManagedObject) -> str | None:
    """Return the host of a resource pool that is not in a cluster; None for a pool of a cluster."""
    owner = next(iter(managed_object.linked("owner")), None)
    if owner is None or owner.wsdl_name == "ClusterComputeResource":
        return None
    return next((host.moid for host in owner.linked("host")), None)


def _connection(managed_object: ManagedObject) -> str:
    return _CONNECTIONS[str(managed_object.read("runtime.connectionState"))]


def _folder_type(managed_object: ManagedObject) -> str:
    type_names = (kind._wsdlName for kind in managed_object.read("childType"))
    return next(_FOLDER_TYPES[name] for name in type_names if name in _FOLDER_TYPES)


_datacenter: Final = _nearest("Datacenter")
_cluster: Final = _nearest("ClusterComputeResource")
_TEXTS: Final = ListOf(TEXT)
_BY_ID: Final = _Filter(_TEXTS, lambda obj: obj.moid)
_BY_NAME: Final = _Filter(_TEXTS, _name)
_DIRECTLY_IN: Final = _Filter(_TEXTS, _parent)
_IN_DATACENTERS: Final = _Filter(_TEXTS, _datacenter)


def _host_summary(managed_object: ManagedObject) -> Mapping[str, Any]:
    state = _connection(managed_object)
    power = _HOST_POWER.get(str(managed_object.read("runtime").powerState)) if state == "CONNECTED" else None
    return {"name": _name(managed_object), "connection_state": state, "power_state": OptionalValue(power)}


def _cluster_details(managed_object: ManagedObject) -> Struct:
    pool = managed_object.linked("resourcePool")[0].moid
    return Struct(f"{VCENTER}.cluster.info", {"name": _name(managed_object), "resource_pool": pool})


def _datastore_details(managed_object: ManagedObject) -> Struct:
    thin = bool(managed_object.read("capability").perFileThinProvisioningSupported)
    return structure_of("datastore.info", managed_object.read("summary"), thin_provisioning_supported=thin)


def _name_of(managed_object: ManagedObject) -> Mapping[str, Any]:
    return {"name": _name(managed_object)}


def _datacenter_details(managed_object: ManagedObject) -> Struct:
    kinds = ("datastore", "host", "network", "vm")
    folders = {f"{kind}_folder": managed_object.linked(f"{kind}Folder")[0].moid for kind in kinds}
    return Struct(f"{VCENTER}.datacenter.info", {"name": _name(managed_object), **folders})


def _pool_details(managed_object: ManagedObject) -> Struct:
    config = managed_object.read("config")
    return structure_of(
        "resource_pool.info",
        None,
        name=_name(managed_object),
        resource_pools=[pool.moid for pool in managed_object.linked("resourcePool")],
        cpu_allocation=_allocation(config.cpuAllocation),
        memory_allocation=_allocation(config.memoryAllocation),
    )


def _allocation(allocation: Any) -> Struct:
    number = allocation.shares.shares if allocation.shares.level == "custom" else None
    shares = structure_of("resource_pool.shares_info", allocation.shares, shares=number)
    return structure_of("resource_pool.resource_allocation_info", allocation, shares=shares)


# --- the services ---------------------------------------------------------------------------------------------------


def _enum(name: str, values: Iterable[str]) -> Enumeration:
    return Enumeration(f"{VCENTER}.{name}", tuple(values))


_FOLDERS: Final = {"folders": _DIRECTLY_IN}
_SERVICES: Final = (
    InventoryService(
        "vm", "VirtualMachine", "Virtual machine",
        {
            **_FOLDERS,
            "hosts": _Filter(_TEXTS, _linked("runtime.host")),
            "clusters": _Filter(_TEXTS, _vm_cluster),
            "resource_pools": _Filter(_TEXTS, _linked("resourcePool")),
            "power_states": _Filter(ListOf(vm_values.POWER_STATE), vm_values.power_state),
        },
        vm_values.summary, vm_values.info,
        ("create", "clone", "relocate", "instant_clone", "delete", "register", "unregister"), 4000,
    ),
    InventoryService(
        "host", "HostSystem", "Host",
        {
            "folders": _Filter(_TEXTS, _nearest("Folder")),
            "standalone": _Filter(TRUTH, lambda host: _cluster(host) is None),
            "clusters": _Filter(_TEXTS, _cluster),
            "connection_states": _Filter(ListOf(_enum("host.connection_state", _CONNECTIONS.values())), _connection),
        },
        _host_summary, None, ("create", "delete", "connect", "disconnect"), 2500,
    ),
    InventoryService(
        "cluster", "ClusterComputeResource", "Cluster", _FOLDERS,
        lambda cluster: fields_of("cluster.summary", cluster.read("configurationEx"), name=_name(cluster)),
        _cluster_details,
    ),
    InventoryService(
        "datastore", "Datastore", "Datastore",
        {
            **_FOLDERS,
            "types": _Filter(
                ListOf(_enum("datastore.type", _DATASTORE_TYPES)), lambda store: str(store.read("summary").type).upper()
            ),
        },
        lambda store: fields_of("datastore.summary", store.read("summary")), _datastore_details, (), 2500,
    ),
    InventoryService(
        "datacenter", "Datacenter", "Datacenter", _FOLDERS, _name_of, _datacenter_details, ("create", "delete")
    ),
    InventoryService(
        "folder", "Folder", "Folder",
        {"parent_folders": _DIRECTLY_IN, "type": _Filter(_enum("folder.type", _FOLDER_TYPES.values()), _folder_type)},
        lambda folder: {"name": _name(folder), "type": _folder_type(folder)},
    ),
    InventoryService(
        "network", "Network", "Network",
        {
            **_FOLDERS,
            "types": _Filter(
                ListOf(_enum("network.type", _NETWORK_TYPES.values())),
                lambda network: _NETWORK_TYPES[network.wsdl_name],
            ),
        },
        lambda network: {"name": _name(network), "type": _NETWORK_TYPES[network.wsdl_name]},
    ),
    InventoryService(
        "resource_pool", "ResourcePool", "Resource pool",
        {
            "parent_resource_pools": _DIRECTLY_IN,
            "hosts": _Filter(_TEXTS, _pool_host),
            "clusters": _Filter(_TEXTS, _cluster),
        },
        _name_of, _pool_details, ("create", "delete", "update"),
    ),
)  # fmt: skip
BY_NAME: Final = {service.name: service for service in _SERVICES}
BY_PATH: Final = {service.path: service for service in _SERVICES}
