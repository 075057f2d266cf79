"""Roles: vCenter's own, by name; made, or given other privileges (vSphere API reference, AuthorizationManager)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import GpuopsError, NotConnected, PolicyError, ProtocolError
from gpuops.model.role import RoleState, RoleWish
from gpuops.vsphere.managed import managed

if TYPE_CHECKING:
    from gpuops.model.inventory import Inventory
    from gpuops.vsphere.session import Session

_CLUSTER: Final = "ClusterComputeResource"
_AT_ONCE: Final = 200
"""Objects that one call asks about: of an administrator each brings hundreds of privileges."""


def compared(session: Session, wishes: Sequence[RoleWish]) -> tuple[RoleState, ...]:
    """Each wanted role beside vCenter's of the same name. Raises PolicyError for a privilege that vCenter has not."""
    _require_known(session, wishes)
    found = {str(role.name): frozenset(map(str, role.privilege or ())) for role in _roles(session)}
    return tuple(RoleState(wish, found.get(wish.name)) for wish in wishes)


def granted(session: Session, inventory: Inventory) -> Mapping[str, frozenset[str]]:
    """All privileges of this login on each VM, host and cluster, and on the root folder; a cluster's with its pool's.

    Nothing where vCenter does not tell. Raises NotConnected in its kinds.
    """
    kinds = (("VirtualMachine", inventory.vms), ("HostSystem", inventory.hosts), (_CLUSTER, inventory.clusters))
    entities = [managed(session, kind, ref) for kind, refs in kinds for ref in refs]
    entities.append(session.content.rootFolder)
    try:
        pools = _pools(session, inventory.clusters)
        login = session.read(lambda: session.content.sessionManager.currentSession)
        found = {} if login is None else _privileges(session, [*entities, *pools.values()], str(login.userName))
    except NotConnected:
        raise
    except GpuopsError:
        return {}
    for cluster, pool in pools.items():
        if cluster in found:
            found[cluster] |= found.get(str(pool._moId), frozenset())
    return found


def _pools(session: Session, clusters: Iterable[str]) -> dict[str, Any]:
    """The root resource pool of each cluster."""
    objects = {ref: managed(session, _CLUSTER, ref) for ref in clusters}
    found = {ref: session.read(getattr, cluster, "resourcePool") for ref, cluster in objects.items()}
    return {ref: pool for ref, pool in found.items() if pool is not None}


def _privileges(session: Session, entities: Sequence[Any], user: str) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for start in range(0, len(entities), _AT_ONCE):
        asked = entities[start : start + _AT_ONCE]
        told = session.read(_manager(session).FetchUserPrivilegeOnEntities, list(asked), user) or ()
        with session.decoding("FetchUserPrivilegeOnEntities"):
            found |= {str(each.entity._moId): frozenset(map(str, each.privileges or ())) for each in told}
    return found


def write(session: Session, wish: RoleWish, op_id: str) -> None:
    """vCenter's role of that name is the wanted one from then on.

    Raises OutcomeUnknown when the reply was lost, NoPermission, or the error of vCenter's fault.
    """
    manager, privileges = _manager(session), sorted(wish.privileges)
    there = next((role for role in _roles(session) if role.name == wish.name), None)
    if there is None:
        session.change(manager.AddAuthorizationRole, wish.name, privileges, subject=wish.name, op_id=op_id)
    else:
        session.change(
            manager.UpdateAuthorizationRole, there.roleId, wish.name, privileges, subject=wish.name, op_id=op_id
        )


def _require_known(session: Session, wishes: Sequence[RoleWish]) -> None:
    """An older vCenter refuses a whole role for one name that it does not know, without saying which."""
    known = {str(each.privId) for each in session.read(lambda: _manager(session).privilegeList) or ()}
    for wish in wishes:
        if unknown := sorted(wish.privileges - known):
            raise PolicyError(
                f"role {wish.name}: this vCenter has no privilege {', '.join(unknown)}",
                hint="take it out of the file; nothing was changed",
            )


def _roles(session: Session) -> Collection[Any]:
    return session.read(lambda: _manager(session).roleList) or ()


def _manager(session: Session) -> Any:
    manager = session.content.authorizationManager
    if manager is None:
        raise ProtocolError("this vCenter has no AuthorizationManager")
    return manager
