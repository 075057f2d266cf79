"""Reads the privileges of this login, and reads and writes roles (vSphere API reference, AuthorizationManager).

One call asks for the privileges that a plan needs on all its VMs, hosts or clusters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import PolicyError, ProtocolError
from gpuops.model.vcenter.login import ASSIGN_TO_POOL, DEFINE_ATTRIBUTE, ObjectKind, RoleState, RoleWish
from gpuops.vsphere.session import OptionalRead

if TYPE_CHECKING:
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.vsphere.session import Session

WRITE_ATTRIBUTE: Final = "Global.SetCustomField"
_CLUSTER: Final = "ClusterComputeResource"
_OBJECTS_PER_CALL: Final = 200
"""vCenter returns hundreds of privileges of an administrator for each object."""


def lacking(
    session: Session, needed: Mapping[str, Collection[str]], attributes: Collection[str] = ()
) -> Mapping[str, frozenset[str]]:
    """Return the needed privileges that this login does not have, by VM.

    `attributes` are the custom attributes to write. If vCenter has no such attribute yet, the privilege to define it is
    needed too. The result is empty if vCenter does not answer (an old version, or a login that may not ask): a missing
    privilege is then noticed when the step is sent. Raises NotConnected and its subclasses.
    """
    with OptionalRead():
        missing = _refused_privileges(session, {ref: session.vm(ref) for ref in needed}, needed)
        if missing and not _may_define(session, attributes):
            for ref in missing:  # all VMs that vCenter answered for, also those that lack nothing
                if WRITE_ATTRIBUTE in needed.get(ref, ()):
                    missing[ref] |= {DEFINE_ATTRIBUTE}
        return {ref: privileges for ref, privileges in missing.items() if privileges}
    return {}  # vCenter refused a read, and OptionalRead suppressed the error


def lacking_on_objects(
    session: Session, needed: Mapping[ObjectKind, Mapping[str, Collection[str]]]
) -> Mapping[str, frozenset[str]]:
    """Return the needed privileges that this login does not have, by object; none where vCenter does not answer.

    The privilege to assign a VM to a resource pool is checked on the root pool of the cluster or standalone host.
    Raises NotConnected and its subclasses.
    """
    missing: dict[str, frozenset[str]] = {}
    for kind, by_object in needed.items():
        without_pool = {ref: frozenset(privileges) - ASSIGN_TO_POOL for ref, privileges in by_object.items()}
        needed_on_objects = {ref: privileges for ref, privileges in without_pool.items() if privileges}
        missing |= _lacking_on_type(session, _TYPES[kind], needed_on_objects)
        for ref, privileges in by_object.items():
            if ASSIGN_TO_POOL & frozenset(privileges):
                missing[ref] = missing.get(ref, frozenset()) | _lacking_on_pool(session, kind, ref)
    return {ref: privileges for ref, privileges in missing.items() if privileges}


def _lacking_on_pool(session: Session, kind: ObjectKind, ref: str) -> frozenset[str]:
    """Return the privilege that is missing on the root pool of the cluster or standalone host `ref`."""
    with OptionalRead():
        place = session.managed_object(_TYPES[kind], ref)
        compute = session.read(lambda: place.parent) if kind is ObjectKind.HOST else place
        pool = session.read(lambda: compute.resourcePool)
        if pool is not None:
            pool_ref = str(pool._moId)
            return _lacking_on_type(session, "ResourcePool", {pool_ref: ASSIGN_TO_POOL}).get(pool_ref, frozenset())
    return frozenset()


def _lacking_on_type(
    session: Session, kind: str, needed: Mapping[str, Collection[str]]
) -> Mapping[str, frozenset[str]]:
    """Return what this login lacks on objects of one vmomi type, by object; empty if vCenter refuses the read."""
    with OptionalRead():
        entities = {ref: session.managed_object(kind, ref) for ref in needed}
        return _refused_privileges(session, entities, needed)
    return {}


_TYPES: Final = {
    ObjectKind.VM: "VirtualMachine",
    ObjectKind.TEMPLATE: "VirtualMachine",
    ObjectKind.HOST: "HostSystem",
    ObjectKind.CLUSTER: _CLUSTER,
    ObjectKind.DATASTORE: "Datastore",
    ObjectKind.FOLDER: "Folder",
    ObjectKind.PORT_GROUP: "DistributedVirtualPortgroup",
}


def held_on(
    session: Session,
    objects: Mapping[ObjectKind, Collection[str]],
    privileges_by_kind: Mapping[ObjectKind, frozenset[str]],
) -> Mapping[str, frozenset[str]]:
    """Return by object which of the privileges in `privileges_by_kind` for its kind this login has.

    One call for each kind. The privilege to assign a VM to a resource pool is checked on the root pools of the
    clusters. Empty if vCenter does not answer. Raises NotConnected and its subclasses.
    """
    held_privileges: dict[str, frozenset[str]] = {}
    with OptionalRead():
        for kind, refs in objects.items():
            # the privilege to assign is checked below, on the root pools
            privileges = privileges_by_kind[kind] - (ASSIGN_TO_POOL if kind is ObjectKind.CLUSTER else frozenset())
            entities = {ref: session.managed_object(_TYPES[kind], ref) for ref in refs}
            held_privileges |= _granted_privileges(session, entities, privileges)
        if ASSIGN_TO_POOL & privileges_by_kind.get(ObjectKind.CLUSTER, frozenset()):
            pools = _root_pools(session, objects[ObjectKind.CLUSTER])
            pools_by_ref = {str(pool._moId): pool for pool in pools.values()}
            _add_pool_privileges(held_privileges, pools, _granted_privileges(session, pools_by_ref, ASSIGN_TO_POOL))
        return held_privileges
    return {}  # vCenter refused a read, and OptionalRead suppressed the error


def _add_pool_privileges(
    privileges_by_object: dict[str, frozenset[str]],
    pools: Mapping[str, Any],
    held_on_pools: Mapping[str, frozenset[str]],
) -> None:
    """Add to the privileges on each cluster those on its root resource pool."""
    for cluster, pool in pools.items():
        if cluster in privileges_by_object:
            privileges_by_object[cluster] |= held_on_pools.get(str(pool._moId), frozenset())


def _granted_privileges(
    session: Session, entities: Mapping[str, Any], privileges: frozenset[str]
) -> dict[str, frozenset[str]]:
    """Return which of these privileges this login has, by entity, without entities that have no answer."""
    refused = _refused_privileges(session, entities, dict.fromkeys(entities, privileges))
    return {ref: privileges - refused_privileges for ref, refused_privileges in refused.items() if ref in entities}


def _refused_privileges(
    session: Session, entities: Mapping[str, Any], needed: Mapping[str, Collection[str]]
) -> dict[str, frozenset[str]]:
    """Return the needed privileges that this login lacks, by entity; `frozenset()` if it lacks none.

    Entities that have no answer are left out. Empty if vCenter cannot be asked.
    """
    requested = sorted({privilege for privileges in needed.values() for privilege in privileges})
    manager = session.content.authorizationManager
    if not requested or manager is None or session.login_key is None:
        return {}
    replies = session.read(
        lambda: manager.HasPrivilegeOnEntities(list(entities.values()), session.login_key, requested)
    )
    refused = {}
    with session.decoding("HasPrivilegeOnEntities"):
        for reply in replies or []:
            ref = str(reply.entity._moId)
            not_granted = {answer.privId for answer in reply.privAvailability if not answer.isGranted}
            # one call asks for all privileges on all entities, also for those that this entity does not need
            refused[ref] = frozenset(not_granted & set(needed.get(ref, ())))
    return refused


def _may_define(session: Session, attributes: Collection[str]) -> bool:
    """Return whether all of these attributes are defined, or this login may define them."""
    content: Any = session.content
    if content.customFieldsManager is None or session.attribute_keys.keys() >= set(attributes):
        return True
    defined = {field.name for field in session.read(lambda: content.customFieldsManager.field) or ()}
    if defined.issuperset(attributes):
        return True
    granted = session.read(
        lambda: content.authorizationManager.HasPrivilegeOnEntity(
            content.rootFolder, session.login_key, [DEFINE_ATTRIBUTE]
        )
    )
    return bool(granted and granted[0])


def roles(session: Session, wishes: Sequence[RoleWish]) -> tuple[RoleState, ...]:
    """Return each requested role with the privileges of vCenter's role of that name.

    Raises PolicyError for a privilege that vCenter does not know.
    """
    _require_known(session, wishes)
    privileges_by_name = {str(role.name): frozenset(map(str, role.privilege or ())) for role in _roles(session)}
    return tuple(RoleState(wish, privileges_by_name.get(wish.name)) for wish in wishes)


def granted(session: Session, inventory: Inventory) -> tuple[Mapping[str, frozenset[str]], str]:
    """Return all privileges of this login by object, and the id of the root folder.

    The objects are VMs, hosts, clusters and the root folder; those of a cluster include those on its root resource
    pool. Empty if vCenter does not answer. Raises NotConnected and its subclasses.
    """
    kinds = (("VirtualMachine", inventory.vms), ("HostSystem", inventory.hosts), (_CLUSTER, inventory.clusters))
    entities = [session.managed_object(kind, ref) for kind, refs in kinds for ref in refs]
    entities.append(session.content.rootFolder)
    privileges_by_object: dict[str, frozenset[str]] = {}
    with OptionalRead():
        pools = _root_pools(session, inventory.clusters)
        login = session.read(lambda: session.content.sessionManager.currentSession)
        if login is not None:
            privileges_by_object = _all_privileges(session, [*entities, *pools.values()], str(login.userName))
        # all of them were read in one call: the pools are among the objects
        _add_pool_privileges(privileges_by_object, pools, privileges_by_object)
    return privileges_by_object, session.service["rootFolder"][1]


def _root_pools(session: Session, clusters: Iterable[str]) -> dict[str, Any]:
    """Return the root resource pool of each cluster in one read, without those that this login cannot read."""
    from pyVmomi import vim

    objects = [session.managed_object(_CLUSTER, ref) for ref in clusters]
    properties_by_cluster = session.read_properties(objects, ["resourcePool"])
    pools = {ref: properties.get("resourcePool") for ref, properties in properties_by_cluster.items()}
    return {ref: pool for ref, pool in pools.items() if isinstance(pool, vim.ResourcePool)}


def _all_privileges(session: Session, entities: Sequence[Any], user: str) -> dict[str, frozenset[str]]:
    """Return all privileges of the user, by object."""
    privileges_by_object: dict[str, frozenset[str]] = {}
    for start in range(0, len(entities), _OBJECTS_PER_CALL):
        page = entities[start : start + _OBJECTS_PER_CALL]
        replies = session.read(_manager(session).FetchUserPrivilegeOnEntities, list(page), user) or ()
        with session.decoding("FetchUserPrivilegeOnEntities"):
            privileges_by_object |= {
                str(reply.entity._moId): frozenset(map(str, reply.privileges or ())) for reply in replies
            }
    return privileges_by_object


def write_role(session: Session, wish: RoleWish, op_id: str) -> None:
    """Add vCenter's role of that name, or replace its privileges.

    Raises OutcomeUnknown when the reply was lost, NoPermission, or the error of vCenter's fault.
    """
    manager, name, privileges = _manager(session), wish.name, sorted(wish.privileges)
    role = next((role for role in _roles(session) if role.name == name), None)
    if role is None:
        session.change(manager.AddAuthorizationRole, name, privileges, subject=name, op_id=op_id)
    else:
        session.change(manager.UpdateAuthorizationRole, role.roleId, name, privileges, subject=name, op_id=op_id)


def _require_known(session: Session, wishes: Sequence[RoleWish]) -> None:
    """Raise PolicyError for unknown privileges: an older vCenter refuses the role without naming the unknown one."""
    offered = session.read(lambda: _manager(session).privilegeList) or ()
    known_privileges = {str(privilege.privId) for privilege in offered}
    for wish in wishes:
        if unknown := sorted(wish.privileges - known_privileges):
            raise PolicyError(
                f"role {wish.name}: this vCenter has no privilege {', '.join(unknown)}",
                hint="remove it from the file of the role; nothing was changed",
            )


def _roles(session: Session) -> Collection[Any]:
    return session.read(lambda: _manager(session).roleList) or ()


def _manager(session: Session) -> Any:
    manager = session.content.authorizationManager
    if manager is None:
        raise ProtocolError("this vCenter offers no AuthorizationManager", hint="check that the address is a vCenter")
    return manager
