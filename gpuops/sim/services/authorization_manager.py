"""The SessionManager and AuthorizationManager objects: login and sessions; roles, permissions, checks of privileges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import UNSET, ManagedObject, Methods, Properties, method, prop
from gpuops.sim.inventory import faults
from gpuops.sim.render.defaults import described
from gpuops.sim.services.service_instance import ROOT_FOLDER_MOID
from gpuops.sim.vcenter.authority import ADMIN, Permission, PrivilegeRole, all_privileges

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.core.sessions import ClientSession
    from gpuops.sim.world import World


class SessionManager(ManagedObject):
    """The sessions of this vCenter."""

    wsdl_name = "SessionManager"
    volatile = True
    world: World

    property_table: ClassVar[Properties] = {
        "sessionList": lambda self: (
            [user_session(session) for session in self.world.sessions] if self._caller() else UNSET
        ),
        "defaultLocale": lambda self: "en",
        "messageLocaleList supportedLocaleList": lambda self: ["en"],
    }

    @prop("currentSession")
    def _current_session(self) -> Any:
        session = self._caller()
        return UNSET if session is None else user_session(session)

    def _caller(self) -> ClientSession | None:
        return self.world.current_call.session if self.world.current_call else None

    @method
    def Login(self, call: Call, userName: str, password: str, locale: str | None) -> Any:
        if call.session is not None:
            raise vim.fault.InvalidLogin(msg="Cannot complete login: the session is already authenticated.")
        if not self.world.sessions.accepts(userName, password):
            raise vim.fault.InvalidLogin(msg="Cannot complete login due to an incorrect user name or password.")
        call.opened = self.world.sessions.open(userName, locale or "en")
        return user_session(call.opened)

    @method
    def Logout(self, call: Call) -> None:
        if call.session is not None:
            self.world.sessions.close(call.session)

    @method
    def SessionIsActive(self, call: Call, sessionID: str, userName: str) -> bool:
        session = self.world.sessions.by_key(sessionID)
        return session is not None and session.user == userName

    @method
    def TerminateSession(self, call: Call, sessionId: list[str]) -> None:
        for key in sessionId:
            session = self.world.sessions.by_key(key)
            if session is None:
                raise faults.not_found(f"There is no session {key}.")
            if session is call.session:
                raise faults.wrong_argument("sessionId", "A session cannot terminate itself; it ends with Logout.")
            self.world.sessions.close(session)

    @method
    def SetLocale(self, call: Call, locale: str) -> None:
        if call.session is not None:
            call.session.locale = locale


def user_session(session: ClientSession) -> Any:
    """Return the UserSession of a client's session."""
    return vim.UserSession(
        key=session.key,
        userName=session.user,
        fullName=session.user,
        loginTime=session.login_at,
        lastActiveTime=session.active_at,
        locale=session.locale,
        messageLocale=session.locale,
        extensionSession=False,
        ipAddress=session.address,
        userAgent=session.user_agent,
        callCount=session.calls,
    )


class AuthorizationManager(ManagedObject):
    """The world's `authority` on the wire."""

    wsdl_name = "AuthorizationManager"
    world: World

    property_table: ClassVar[Properties] = {
        "privilegeList": lambda self: [
            vim.AuthorizationManager.Privilege(
                privId=privilege,
                onParent=False,
                name=privilege.rpartition(".")[2],
                privGroupName=privilege.rpartition(".")[0],
            )
            for privilege in all_privileges()
        ],
        "roleList": lambda self: [_role(role) for role in self.world.authority.roles.values()],
    }

    method_table: ClassVar[Methods] = {
        "HasPrivilegeOnEntities": lambda self, call, entity, sessionId, privId: self._availability(
            entity, self._user(sessionId), privId
        ),
        "HasUserPrivilegeOnEntities": lambda self, call, entities, userName, privId: self._availability(
            entities, userName, privId
        ),
        "FetchUserPrivilegeOnEntities": lambda self, call, entities, userName: [
            vim.AuthorizationManager.UserPrivilegeResult(
                entity=reference,
                privileges=_privileges(self.world.authority.role_of(userName, self.world.get(reference))),
            )
            for reference in entities
        ],
        "RetrieveAllPermissions": lambda self, call: [self._to_vmomi(grant) for grant in self._all()],
    }

    @prop("description")
    def _description(self) -> Any:
        groups = sorted({privilege.rpartition(".")[0] for privilege in all_privileges()})
        return vim.AuthorizationDescription(
            privilege=[
                described(privilege, privilege.rpartition(".")[2] or privilege) for privilege in all_privileges()
            ],
            privilegeGroup=[described(privilege, privilege.rpartition(".")[2] or privilege) for privilege in groups],
        )

    # --- questions ------------------------------------------------------------------------------------------------

    @method
    def HasPrivilegeOnEntity(self, call: Call, entity: Any, sessionId: str, privId: list[str]) -> list[bool]:
        managed_object, user = self.world.get(entity), self._user(sessionId)
        return [self.world.authority.may(user, managed_object, privilege) for privilege in privId]

    def _availability(self, entities: list[Any], user: str, privileges: list[str]) -> list[Any]:
        """Return for each entity which of these privileges the user has there."""
        entity_privileges = []
        for reference in entities:
            managed_object = self.world.get(reference)
            availability = [
                vim.AuthorizationManager.PrivilegeAvailability(
                    privId=privilege, isGranted=self.world.authority.may(user, managed_object, privilege)
                )
                for privilege in privileges
            ]
            entity_privileges.append(
                vim.AuthorizationManager.EntityPrivilege(entity=reference, privAvailability=availability)
            )
        return entity_privileges

    def _user(self, session_id: str) -> str:
        session = self.world.sessions.by_key(session_id)
        if session is None:
            raise faults.not_found(f"There is no session {session_id}.")
        return session.user

    # --- roles and permissions ------------------------------------------------------------------------------------

    @method
    def AddAuthorizationRole(self, call: Call, name: str, privIds: list[str]) -> int:
        self._refuse_name(name)
        role = self.world.authority.add_role(name, privIds)
        self.touch("roleList")
        return role.id

    @method
    def UpdateAuthorizationRole(self, call: Call, roleId: int, newName: str, privIds: list[str] | None) -> None:
        role = self._role_by_id(roleId)
        if role.system:
            raise faults.wrong_argument("roleId", f"The system role {role.name} cannot be changed.")
        self._refuse_name(newName, role)
        self.world.authority.change_role(role, newName, privIds or ())
        self.touch("roleList")

    def _refuse_name(self, name: str, excluding: PrivilegeRole | None = None) -> None:
        """Raises InvalidName for an empty name, AlreadyExists for that of another role."""
        if not name:
            raise faults.invalid_name(name)
        if any(role.name == name and role is not excluding for role in self.world.authority.roles.values()):
            raise vim.fault.AlreadyExists(msg=f"The role {name} already exists.", name=name)

    @method
    def RemoveAuthorizationRole(self, call: Call, roleId: int, failIfUsed: bool) -> None:
        """Remove a role and its permissions. Raises RemoveFailed if it is in use and `failIfUsed` is set."""
        self._role_by_id(roleId)
        permissions_of_role = [
            permission for permission in self.world.authority.permissions if permission.role_id == roleId
        ]
        if permissions_of_role and failIfUsed:
            raise vim.fault.RemoveFailed(msg="The role is in use.")
        del self.world.authority.roles[roleId]
        self.world.authority.permissions = [
            permission for permission in self.world.authority.permissions if permission not in permissions_of_role
        ]
        self.touch("roleList")

    @method
    def SetEntityPermissions(self, call: Call, entity: Any, permission: list[Any]) -> None:
        target = self.world.get(entity)
        for grant in permission:
            self._role_by_id(grant.roleId)
            self.world.authority.permit(grant.principal, grant.roleId, target.moid, propagate=grant.propagate)
        target.touch("permission")

    @method
    def RemoveEntityPermission(self, call: Call, entity: Any, user: str, isGroup: bool) -> None:
        target = self.world.get(entity)
        self.world.authority.withdraw(user, target.moid)
        target.touch("permission")

    @method
    def RetrieveEntityPermissions(self, call: Call, entity: Any, inherited: bool) -> list[Any]:
        moid = self.world.get(entity).moid
        return [self._to_vmomi(grant) for grant in self._all() if grant.moid == moid]

    @method
    def RetrieveRolePermissions(self, call: Call, roleId: int) -> list[Any]:
        self._role_by_id(roleId)
        return [self._to_vmomi(grant) for grant in self._all() if grant.role_id == roleId]

    def _to_vmomi(self, permission: Permission) -> Any:
        return permission.to_vmomi(self.world.find(permission.moid))

    def _all(self) -> list[Permission]:
        """Return the granted permissions, and an administrator permission for each user who has none."""
        permissions = self.world.authority.permissions
        users = {permission.user for permission in permissions}
        users_without_permission = [user for user in self.world.sessions.passwords if user not in users]
        return [*permissions, *(Permission(ROOT_FOLDER_MOID, user, ADMIN) for user in users_without_permission)]

    def _role_by_id(self, role_id: int) -> PrivilegeRole:
        role = self.world.authority.roles.get(role_id)
        if role is None:
            raise faults.not_found(f"There is no role {role_id}.")
        return role


def _privileges(role: PrivilegeRole) -> list[str]:
    return list(all_privileges()) if role.privileges is None else sorted(role.privileges)


LABELS: Final = {"Admin": "Administrator", "ReadOnly": "Read-only", "NoAccess": "No access"}
"""The labels of system roles in vCenter's user interface, if they differ from their names."""


def _role(role: PrivilegeRole) -> Any:
    label = LABELS.get(role.name, role.name)
    return vim.AuthorizationManager.Role(
        roleId=role.id,
        system=role.system,
        name=role.name,
        info=vim.Description(label=label, summary=label),
        privilege=_privileges(role),
    )
