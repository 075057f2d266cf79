"""Roles and permissions, and the check whether a user has a privilege on an object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.core.call import Call
from gpuops.sim.core.inventory_tree import ancestors
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.core.registry import is_kind_of, vmomi_type

ADMIN: Final = -1
READ_ONLY: Final = -2
NO_ACCESS: Final = -5

# Privileges that no method of the API declares but vCenter checks (vSphere API reference, ConfigSpec; VMware security
# guide, required privileges).
UNDECLARED: Final = (
    "System.Anonymous", "System.Read", "System.View",
    "Global.SetCustomField",
    "InventoryService.Tagging.AttachTag", "InventoryService.Tagging.CreateCategory",
    "InventoryService.Tagging.CreateTag", "InventoryService.Tagging.ObjectAttachable",
    "Network.Assign", "Resource.AssignVMToPool", "Resource.HotMigrate", "Resource.QueryVMotion",
    "Datastore.AllocateSpace",
    "VirtualMachine.Config.AddExistingDisk", "VirtualMachine.Config.AddNewDisk", "VirtualMachine.Config.RemoveDisk",
    "VirtualMachine.Config.AddRemoveDevice", "VirtualMachine.Config.AdvancedConfig", "VirtualMachine.Config.CPUCount",
    "VirtualMachine.Config.Annotation", "VirtualMachine.Config.Rename",
    "VirtualMachine.Config.EditDevice", "VirtualMachine.Config.Memory", "VirtualMachine.Config.RawDevice",
    "VirtualMachine.Config.Resource", "VirtualMachine.Config.Settings",
    "VirtualMachine.Config.SwapPlacement",
    "VirtualMachine.GuestOperations.Execute", "VirtualMachine.GuestOperations.Modify",
    "VirtualMachine.GuestOperations.Query",
    "VirtualMachine.Interact.AnswerQuestion", "VirtualMachine.Interact.ConsoleInteract",
    "VirtualMachine.Inventory.CreateFromExisting", "VirtualMachine.Inventory.Delete", "VirtualMachine.Inventory.Move",
    "VirtualMachine.Provisioning.Clone", "VirtualMachine.Provisioning.CloneTemplate",
    "VirtualMachine.Provisioning.CreateTemplateFromVM", "VirtualMachine.Provisioning.DeployTemplate",
)  # fmt: skip


@cache
def all_privileges() -> tuple[str, ...]:
    """Every privilege id that the API's tables or the vendor's guides name, sorted."""
    privileges = set(UNDECLARED)
    for key in list(VmomiSupport._managedDefMap):
        if not key.startswith(("vim.", "vmodl.")):
            continue
        cls = VmomiSupport.GetVmodlType(key)
        for info in (*cls._methodInfo.values(), *cls._propList):
            privileges.add(info.privId or "System.View")
    return tuple(sorted(privileges))


@dataclass(frozen=True, slots=True)
class PrivilegeRole:
    """A named set of privileges; None = all privileges."""

    id: int
    name: str
    privileges: frozenset[str] | None
    system: bool = False

    def grants(self, privilege: str) -> bool:
        return self.privileges is None or privilege in self.privileges


@dataclass(frozen=True, slots=True)
class Permission:
    """The role of a user on an entity, and on the objects below it if it propagates."""

    moid: str
    user: str
    role_id: int
    propagate: bool = True

    def to_vmomi(self, entity: ManagedObject | None) -> Any:
        """The Permission of the API; `entity` is the object of `moid`, None if it was removed."""
        return vim.AuthorizationManager.Permission(
            entity=entity.ref if entity is not None else vim.ManagedEntity(self.moid),
            principal=self.user,
            group=False,
            roleId=self.role_id,
            propagate=self.propagate,
        )


_READING: Final = frozenset({"System.Anonymous", "System.Read", "System.View"})
SYSTEM_ROLES: Final = (
    PrivilegeRole(ADMIN, "Admin", None, system=True),
    PrivilegeRole(READ_ONLY, "ReadOnly", _READING, system=True),
    PrivilegeRole(-3, "View", frozenset({"System.Anonymous", "System.View"}), system=True),
    PrivilegeRole(-4, "Anonymous", frozenset({"System.Anonymous"}), system=True),
    PrivilegeRole(NO_ACCESS, "NoAccess", frozenset(), system=True),
)


class Authority:
    """The roles and permissions of a vCenter. A user without any permission is an administrator."""

    def __init__(self) -> None:
        self.roles: dict[int, PrivilegeRole] = {role.id: role for role in SYSTEM_ROLES}
        self.permissions: list[Permission] = []

    def add_role(self, name: str, privileges: Iterable[str]) -> PrivilegeRole:
        role = PrivilegeRole(max(0, *self.roles) + 1, name, frozenset(privileges) | _READING)
        self.roles[role.id] = role
        return role

    def change_role(self, role: PrivilegeRole, name: str, privileges: Iterable[str]) -> None:
        """Change name and privileges of a role, also for the permissions that exist."""
        self.roles[role.id] = replace(role, name=name, privileges=frozenset(privileges) | _READING)

    def permit(self, user: str, role: PrivilegeRole | int, moid: str = "group-d1", *, propagate: bool = True) -> None:
        """Give a user a role on an entity, in place of the one they have there."""
        self.withdraw(user, moid)
        self.permissions.append(Permission(moid, user, role if isinstance(role, int) else role.id, propagate))

    def withdraw(self, user: str, moid: str) -> None:
        """Forget a user's permission on an entity."""
        self.permissions = [
            permission for permission in self.permissions if (permission.user, permission.moid) != (user, moid)
        ]

    def role_of(self, user: str, entity: ManagedObject) -> PrivilegeRole:
        """Return the user's role on the entity: the one of the nearest permission on it or above it.

        A user without any permission is an administrator. A host's managers count as the host, other objects outside
        the tree as the root folder.
        """
        permissions_of_user = {
            permission.moid: permission for permission in self.permissions if permission.user == user
        }
        if not permissions_of_user:
            return self.roles[ADMIN]
        governing = entity.governed_by
        for place in (governing, *ancestors(governing)):
            nearest = permissions_of_user.get(place.moid)
            if nearest is not None and (nearest.propagate or place is governing):
                return self.roles[nearest.role_id]
        root_permission = permissions_of_user.get("group-d1")  # the root folder
        return self.roles[root_permission.role_id if root_permission is not None else NO_ACCESS]

    def may(self, user: str, entity: ManagedObject, privilege: str) -> bool:
        """Whether a user has a privilege on an entity."""
        return not self.permissions or self.role_of(user, entity).grants(privilege)

    def hidden(self, user: str, entity: ManagedObject, paths: Iterable[str]) -> frozenset[str]:
        """Return the paths of an inventory object that the user's role on it does not allow to read."""
        if not self.permissions or not is_kind_of(entity.wsdl_name, "ManagedEntity"):
            return frozenset()
        role = self.role_of(user, entity)
        return frozenset(path for path in paths if not role.grants(reading_privilege(entity.wsdl_name, path)))

    def require(self, call: Call, entity: ManagedObject, privilege: str) -> None:
        """Raises vim.fault.NoPermission{object, privilegeId} unless the caller has the privilege there."""
        if not self.may(call.user, entity, privilege):
            raise refusal(entity, privilege)


@cache
def reading_privilege(wsdl_name: str, path: str) -> str:
    """Return the privilege to read a property: that of its first part, or System.Read if the type tables have none."""
    first_property = path.partition(".")[0].partition("[")[0]
    return str(vmomi_type(wsdl_name)._GetPropertyInfo(first_property).privId or "System.Read")


def refusal(entity: ManagedObject, privilege: str) -> Any:
    """vim.fault.NoPermission{object, privilegeId}."""
    return vim.fault.NoPermission(
        msg="Permission to perform this operation was denied.",
        object=entity.ref,
        privilegeId=privilege,
        missingPrivileges=[vim.fault.NoPermission.EntityPrivileges(entity=entity.ref, privilegeIds=[privilege])],
    )
