"""Session: one login to one vCenter, logged out on every way out.

pyVmomi drives it through a plain stub. Its session stub is not used: that one submits a call again when the reply is
lost, and a power-on would run twice. Here a read whose session ended logs in once more and asks again; a change never.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from gpuops.errors import GpuopsError, LoginRefused, OutcomeUnknown, ProtocolError
from gpuops.model.target import Target
from gpuops.vsphere import door
from gpuops.vsphere.api_version import negotiate
from gpuops.vsphere.faults import translate

Answer = TypeVar("Answer")

IDLE_CONNECTION_S: Final = 60
"""Idle connections are not used again after this: servers and firewalls cut them without a word."""


class Session:
    """A logged-in session. `content` is vCenter's ServiceContent, `api_version` the negotiated one ("8.0.3.0")."""

    def __init__(self, target: Target) -> None:
        """Connects and logs in. Raises NotConnected in its kinds, with the address in the message."""
        from pyVmomi import SoapAdapter, vim

        self.target = target
        self._relogin = threading.Lock()
        self._logins = 0
        try:
            context = door.tls_context(target)
            connection = door.open_connection(target, context)
            try:
                negotiated = negotiate(connection, target.address)
            finally:
                connection.close()
        except (*door.LOST_ERRORS, *door.UNREADABLE_ERRORS) as error:
            raise door.barred(target, error) from error
        self.api_version = negotiated[1]
        proxy = door.proxy_of(target)
        self.stub = SoapAdapter.SoapStubAdapter(
            host=target.host,
            port=target.port if target.tls else -target.port,
            path=target.path,
            version=negotiated[0],
            sslContext=door.tls_context(target),
            httpProxyHost=proxy[0] if proxy else None,
            httpProxyPort=proxy[1] if proxy else 80,
            httpConnectionTimeout=door.SILENCE_S,
            connectionPoolTimeout=IDLE_CONNECTION_S,
        )
        self.instance = vim.ServiceInstance("ServiceInstance", self.stub)
        try:
            self.content: Any = self.read(self.instance.RetrieveContent)
            self._require_vcenter()
            self._login()
        except GpuopsError:
            self.stub.DropConnections()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Log out. A vCenter that cannot be reached any more ends the session by itself when it idles."""
        from pyVmomi import vmodl

        with suppress(*door.LOST_ERRORS, *door.UNREADABLE_ERRORS, vmodl.MethodFault):
            if self._logins:
                self._answer(self.content.sessionManager.Logout)
        self.stub.DropConnections()

    @property
    def cookie(self) -> str:
        """The session cookie, for the bulk reader's own connection."""
        return str(self.stub.cookie or "").partition(";")[0]

    def read(self, call: Callable[..., Answer], *arguments: Any, subject: str = "") -> Answer:
        """The answer of a call that changes nothing, asked again once when session or reply broke off.

        Raises NotConnected in its kinds, or the error of its fault.
        """
        from pyVmomi import vmodl

        try:
            return self._answer(call, *arguments)
        except vmodl.MethodFault as fault:
            raise translate(fault, subject) from fault
        except (*door.LOST_ERRORS, *door.UNREADABLE_ERRORS) as error:
            raise door.barred(self.target, error) from error

    def _answer(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        from pyVmomi import vim

        seen = self._logins
        try:
            return call(*arguments)
        except vim.fault.NotAuthenticated:
            if not seen:
                raise
            self.login_again(seen)
        except door.BROKEN_OFF:
            if not seen:
                raise
        return call(*arguments)

    def change(self, call: Callable[..., Answer], *arguments: Any, subject: str, op_id: str) -> Answer:
        """The answer of a call that changes something, sent exactly once, with `op_id` in its header.

        Raises OutcomeUnknown when the reply was lost: whoever asked must read vCenter before doing anything else.
        """
        from pyVmomi import VmomiSupport, vmodl

        headers = VmomiSupport.GetRequestContext()  # of this thread
        headers["operationID"] = op_id
        try:
            return call(*arguments)
        except vmodl.MethodFault as fault:
            raise translate(fault, subject) from fault
        except (*door.LOST_ERRORS, *door.UNREADABLE_ERRORS) as error:
            raise OutcomeUnknown(
                f"{subject}: the reply was lost ({type(error).__name__}); whether it happened is not known yet",
                hint="gpuops reads vCenter before it does anything else",
            ) from error
        finally:
            headers.pop("operationID", None)

    def login_again(self, seen: int) -> None:
        """Log in once more, unless another thread has done so since `logins` was `seen`."""
        with self._relogin:
            if self._logins == seen:
                self._login()

    @property
    def logins(self) -> int:
        """How often this session has logged in."""
        return self._logins

    def _login(self) -> None:
        from pyVmomi import vim, vmodl

        try:
            self.content.sessionManager.Login(self.target.username, self.target.password, None)
        except vim.fault.InvalidLogin as fault:
            raise self._refused("user name or password refused") from fault
        except vmodl.MethodFault as fault:
            raise self._refused(translate(fault).message) from fault
        except (*door.LOST_ERRORS, *door.UNREADABLE_ERRORS) as error:
            raise door.barred(self.target, error) from error
        self._logins += 1

    def _refused(self, reason: str) -> GpuopsError:
        return LoginRefused(
            f"{self.target.address} refuses {self.target.username}: {reason}",
            hint="check the user name and where the password comes from (not tried again: accounts lock)",
        )

    def _require_vcenter(self) -> None:
        if self.content.about.apiType != "VirtualCenter":
            raise ProtocolError(
                f"{self.target.address} is a single ESXi host, not a vCenter", hint="name the vCenter that manages it"
            )
