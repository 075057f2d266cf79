"""Compare the roles defined in files with vCenter's, and write those that differ, each once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, runtime_checkable

from gpuops.errors import GpuopsError, NoPermission, OutcomeUnknown, PartlyDone, Refused
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import RoleState, RoleWish
from gpuops.plan.doctor.finding import Finding
from gpuops.plan.doctor.login_privileges import of_roles


@runtime_checkable
class RolesPort(Protocol):
    """A vCenter whose roles can be read and written."""

    def roles(self, wishes: Sequence[RoleWish]) -> tuple[RoleState, ...]:
        """Return each requested role with vCenter's role of the same name."""
        ...

    def granted(self, inventory: Inventory) -> tuple[Mapping[str, frozenset[str]], str]:
        """Return object -> all privileges of this login (unreadable objects are missing), and the root folder's id."""
        ...

    def write_role(self, wish: RoleWish, op_id: str) -> None:
        """Set vCenter's role of this name to the requested one. Raises OutcomeUnknown, NoPermission."""
        ...


def roles_port(vcenter: Vcenter) -> RolesPort:
    """Return the vCenter as a port for roles. Raises Refused for a saved inventory, which has no roles."""
    if not isinstance(vcenter, RolesPort):
        raise Refused("a saved inventory has no roles", hint="use --vcenter")
    return vcenter


def applied_roles(wishes: Sequence[RoleWish], roles_port: RolesPort, *, apply: bool) -> tuple[RoleState, ...]:
    """Return each requested role as vCenter has it, or, with `apply`, as it was before it was written.

    Raises NoPermission if nothing was changed, and PartlyDone, with the roles that were written, after a later failure.
    """
    states = roles_port.roles(wishes)
    if not apply:
        return states
    written: list[str] = []
    for state in states:
        if state.right:
            continue
        try:
            _write(state.wish, roles_port)
        except GpuopsError as error:
            if not written:
                raise
            raise PartlyDone(
                f"{error.message}; written before: {', '.join(written)}", hint=error.hint or "run the command again"
            ) from error
        written.append(state.wish.name)
    return tuple(replace(state, written=not state.right) for state in states)


def compare_login(wishes: Sequence[RoleWish], vcenter: Vcenter, inventory: Inventory) -> Iterator[Finding]:
    """Yield the privileges of the roles that a login lacks, and those it has beyond them; nothing without roles."""
    if wishes:
        granted, root = roles_port(vcenter).granted(inventory)
        yield from of_roles(wishes, granted, root, inventory)


def _write(wish: RoleWish, roles_port: RolesPort) -> None:
    """Write the role, and decide by reading it back, not by the reply. Raises OutcomeUnknown if it still differs."""
    try:
        with suppress(OutcomeUnknown):
            roles_port.write_role(wish, f"gpuops-roles-{secrets.token_hex(8)}")
    except NoPermission as refused:
        raise NoPermission(
            refused.message,
            hint="use a login with Authorization.ModifyRoles; the login of the nights needs no such right",
        ) from refused
    if not all(state.right for state in roles_port.roles([wish])):
        raise OutcomeUnknown(f"the role {wish.name} still differs from its file", hint="gpuops roles show lists how")
