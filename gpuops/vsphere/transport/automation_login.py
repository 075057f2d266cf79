"""Logs in to the vSphere Automation API, which has what SOAP does not offer: tags, and the modes of devices.

`vmware-vcenter` uses the JSON-RPC endpoint /api. Only the bindings of the services in use are imported, and only when
they are needed: loading all of them takes longer than a call.

The `requests` session of the vSphere Automation SDK for `tags`; every call goes through `exchange`.

`requests` itself follows redirects, with the login in their headers, unpacks compressed replies and reads without
limits, and the environment can override even `verify=False`. Here it only carries the calls of the SDK: connections,
trust and limits are those of every other call to a vCenter."""

from __future__ import annotations

import http.client
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from requests import Response, Session
from requests.adapters import BaseAdapter

from gpuops import clock
from gpuops.errors import LoginRefused, NoPermission, ProtocolError, Refused
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.exchange import exchange
from gpuops.vsphere.transport.stub import CALL_S

if TYPE_CHECKING:
    import requests
    from requests import PreparedRequest

    from gpuops.model.vcenter.target import Target

DEADLINE_S: Final = 600
"""The limit for all calls of one session together."""
LARGEST_REPLY: Final = 8 * 1024 * 1024
"""The tags of 1,000 objects, 50 of each."""
MOST_VALUES: Final = 150_000
"""Lists, mappings and values in one reply: each becomes several objects of the SDK."""


@contextmanager
def automation_session(target: Target) -> Iterator[Session]:
    """Provide a session with the trust settings of the target, not of the environment."""
    with Session() as session:
        session.trust_env = False
        session.adapters.clear()  # nothing but https
        session.mount("https://", _Adapter(target))
        yield session


class _Adapter(BaseAdapter):
    """Sends the calls of one session over one connection, and receives within bytes, values and seconds."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self._until = clock.passed_s() + DEADLINE_S
        self._connection: http.client.HTTPConnection | None = None

    def send(self, request: PreparedRequest, **options: Any) -> Response:  # type: ignore[override]
        """Send the request over `exchange` and return the response. Options of `requests` have no effect.

        Raises UnreadableReply for a redirect or a reply that is compressed or too large; errors of the connection pass.
        """
        if self._connection is None:
            self._connection = network.open_connection(self._target, network.tls_context(self._target))
        assert isinstance(request.body, bytes), "the SDK writes its calls as bytes"
        try:
            reply = exchange(
                self._connection,
                request.method or "POST",
                request.path_url,
                until=min(clock.passed_s() + CALL_S, self._until),
                body=request.body,
                headers={
                    name: header if isinstance(header, str) else header.decode("latin-1")
                    for name, header in request.headers.items()
                    if name != "Accept-Encoding"  # `exchange` sets it
                },
                largest=LARGEST_REPLY,
            )
        except BaseException:
            self.close()  # half a reply may be left in it
            raise
        if 300 <= reply.status < 400:
            raise network.UnreadableReply("a redirect, which no vCenter does")
        if reply.body.count(b",") + reply.body.count(b"{") + reply.body.count(b"[") > MOST_VALUES:
            raise network.UnreadableReply(f"more than {MOST_VALUES:,} values in one reply")
        response = Response()
        response.status_code, response.reason = reply.status, reply.reason
        response.request, response.url = request, request.url or ""
        response.raw = io.BytesIO(reply.body)
        return response

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_LONGEST_SAID: Final = 200


@dataclass(frozen=True, slots=True)
class Purpose:
    """The purpose of a login, for error messages."""

    subject: str
    access: str
    """The hint if the login may not read it."""
    otherwise: str
    """The hint if the vCenter does not return it."""
    without_tls: str
    """The hint if the vCenter is used without TLS."""


@contextmanager
def automation_login(target: Target, purpose: Purpose) -> Iterator[Any]:
    """Provide the SDK's configuration of a session that is logged in within the block.

    Raises Refused for a target without TLS, NotConnected and its subclasses, NoPermission.
    """

    if not target.tls:
        raise Refused(
            f"{purpose.subject} cannot be read from {target.address}: the API for them needs https",
            hint=purpose.without_tls,
        )
    with (
        _quiet(),
        _translate_errors(target, purpose),
        automation_session(target) as http,
        _log_in(target, http) as configuration,
    ):
        yield configuration


def vapi_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that the SDK raises for an error reply, and for an unreadable one."""
    from vmware.vapi.bindings.error import VapiError
    from vmware.vapi.data.serializers.jsonrpc import JsonRpcError
    from vmware.vapi.exception import CoreException

    return (VapiError, JsonRpcError, CoreException, *network.UNREADABLE_ERRORS)


def error_text(error: Exception) -> str:
    """Return the message of the server's error reply, or of the SDK; empty = no message."""
    for message in getattr(error, "messages", None) or ():
        message_text = getattr(message, "default_message", None) or getattr(message, "def_msg", None)
        if isinstance(message_text, str):
            return message_text[:_LONGEST_SAID]
    return ""


@contextmanager
def _log_in(target: Target, http: requests.Session) -> Iterator[Any]:
    """Log in with the password, provide the configuration of that session, and log out."""
    from com.vmware.cis_client import Session as LoginService
    from vmware.vapi.lib.connect import get_requests_connector
    from vmware.vapi.security.client.security_context_filter import LegacySecurityContextFilter
    from vmware.vapi.security.session import create_session_security_context
    from vmware.vapi.security.user_password import create_user_password_security_context
    from vmware.vapi.stdlib.client.factories import StubConfigurationFactory

    def make_configuration(security: Any) -> Any:
        connector = get_requests_connector(
            session=http,
            url=f"https://{target.address}/api",
            timeout=network.SILENCE_S,
            pool_size=None,  # a number would make it mount adapters of its own, with the system's trust
            provider_filter_chain=[LegacySecurityContextFilter(security_context=security)],
        )
        return StubConfigurationFactory.new_std_configuration(connector)

    password = create_user_password_security_context(target.username, target.password.reveal())
    configuration = make_configuration(
        create_session_security_context(LoginService(make_configuration(password)).create())
    )
    try:
        yield configuration
    finally:
        with suppress(*vapi_errors(), *network.LOST_ERRORS):
            LoginService(configuration).delete()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and log lines of the SDK: the error of gpuops has the same information."""
    logging.getLogger("vmware").addHandler(logging.NullHandler())
    with warnings.catch_warnings():
        # the SDK loads its messages by functions that newer Pythons deprecate
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(vmware|com)\.")
        warnings.filterwarnings("ignore", message="Unverified HTTPS request")  # the command line has warned already
        yield


@contextmanager
def _translate_errors(target: Target, purpose: Purpose) -> Iterator[None]:
    from com.vmware.vapi.std.errors_client import Unauthenticated, Unauthorized

    try:
        yield
    except Unauthenticated as error:
        raise LoginRefused(
            f"{target.address} refuses {target.username} for {purpose.subject}", hint="check the user name and password"
        ) from error
    except Unauthorized as error:
        raise NoPermission(f"this login may not read {purpose.subject}", hint=purpose.access) from error
    except (*network.LOST_ERRORS, network.UnreadableReply) as error:
        raise network.connection_error(target, error) from error
    except vapi_errors() as error:
        reason = ": ".join(filter(None, (type(error).__name__, error_text(error))))
        message = f"{target.address} does not return {purpose.subject}: {reason}"
        raise ProtocolError(message, hint=purpose.otherwise) from error
