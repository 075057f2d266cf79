"""Roles: vCenter's own, by name; made, or given other privileges (vSphere API reference, AuthorizationManager)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from gpuops.errors import PolicyError, ProtocolError
from gpuops.model.role import RoleState, RoleWish

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session


def compared(session: Session, wishes: Sequence[RoleWish]) -> tuple[RoleState, ...]:
    """Each wanted role beside vCenter's of the same name. Raises PolicyError for a privilege that vCenter has not."""
    _require_known(session, wishes)
    found = {str(role.name): frozenset(map(str, role.privilege or ())) for role in _roles(session)}
    return tuple(RoleState(wish, found.get(wish.name)) for wish in wishes)


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
