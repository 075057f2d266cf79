"""Logs in to the vSphere Automation API, which has what SOAP does not offer: tags, and the modes of devices.

`vmware-vcenter` uses the JSON-RPC endpoint /api. Only the bindings of the services in use are imported, and only when
they are needed: loading all of them takes longer than a call.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import LoginRefused, NoPermission, ProtocolError, Refused
from gpuops.vsphere.transport import network

if TYPE_CHECKING:
    import requests

    from gpuops.model.vcenter.target import Target

_LONGEST_ERROR_TEXT: Final = 200
"""Characters of a server's message that are shown."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a login is for, with the words and hints of its error messages."""

    subject: str
    """The objects that are read, as a plural: `tags`."""
    hint_if_refused: str
    """Shown if this user may not read them."""
    hint_if_unreadable: str
    """Shown if the vCenter does not return them."""
    hint_without_tls: str
    """Shown if the address of the vCenter is http://."""


@contextmanager
def automation_login(target: Target, purpose: Purpose) -> Iterator[Any]:
    """Provide the SDK's configuration of a session that is logged in within the block.

    Raises Refused for a target without TLS, NotConnected and its subclasses, NoPermission.
    """
    from gpuops.vsphere.transport.automation import automation_session

    if not target.tls:
        raise Refused(
            f"{purpose.subject} cannot be read from {target.address} over http: the API for them needs https",
            hint=purpose.hint_without_tls,
        )
    with (
        _silence_sdk(),
        _translate_errors(target, purpose),
        automation_session(target) as requests_session,
        _log_in(target, requests_session) as configuration,
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
            return message_text[:_LONGEST_ERROR_TEXT]
    return ""


@contextmanager
def _log_in(target: Target, requests_session: requests.Session) -> Iterator[Any]:
    """Log in with the password, provide the configuration of that session, and log out."""
    from com.vmware.cis_client import Session as LoginService
    from vmware.vapi.lib.connect import get_requests_connector
    from vmware.vapi.security.client.security_context_filter import LegacySecurityContextFilter
    from vmware.vapi.security.session import create_session_security_context
    from vmware.vapi.security.user_password import create_user_password_security_context
    from vmware.vapi.stdlib.client.factories import StubConfigurationFactory

    def make_configuration(security_context: Any) -> Any:
        connector = get_requests_connector(
            session=requests_session,
            url=f"https://{target.address}/api",
            timeout=network.SILENCE_S,
            pool_size=None,  # a number would make it mount adapters of its own, with the system's trust
            provider_filter_chain=[LegacySecurityContextFilter(security_context=security_context)],
        )
        return StubConfigurationFactory.new_std_configuration(connector)

    # two configurations: the first logs in with the password, the second makes all further calls in that session
    by_password = make_configuration(create_user_password_security_context(target.username, target.password.reveal()))
    configuration = make_configuration(create_session_security_context(LoginService(by_password).create()))
    try:
        yield configuration
    finally:
        with suppress(*vapi_errors(), *network.LOST_ERRORS):
            LoginService(configuration).delete()


@contextmanager
def _silence_sdk() -> Iterator[None]:
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
            f"{target.address} refuses the login of {target.username} to read {purpose.subject}",
            hint="check the user name and password",
        ) from error
    except Unauthorized as error:
        raise NoPermission(f"{target.username} may not read {purpose.subject}", hint=purpose.hint_if_refused) from error
    except (*network.LOST_ERRORS, network.UnreadableReply) as error:
        raise network.connection_error(target, error) from error
    except vapi_errors() as error:
        reason = ": ".join(filter(None, (type(error).__name__, error_text(error))))
        message = f"{target.address} does not return {purpose.subject}: {reason}"
        raise ProtocolError(message, hint=purpose.hint_if_unreadable) from error
