"""The SessionManager object: login, logout, and the list of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import vim, vmodl

from gpuops.sim.core.managed_object import UNSET, ManagedObject, Properties, method, prop

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
                raise vim.fault.NotFound(msg=f"There is no session {key}.")
            if session is call.session:
                raise vmodl.fault.InvalidArgument(msg="A session cannot end itself.", invalidProperty="sessionId")
            self.world.sessions.close(session)

    @method
    def SetLocale(self, call: Call, locale: str) -> None:
        if call.session is not None:
            call.session.locale = locale


def user_session(session: ClientSession) -> Any:
    """The UserSession of a login."""
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
