"""Chooses the API version of a session, and sends single calls without pyVmomi: over SOAP, or VI/JSON from 8.0 U1 on.

Logins and reads need no typed values. Importing pyVmomi, which has them, takes 100 ms: longer than reading a small
inventory. So `session` and `reader` use this module, and pyVmomi is imported for changes. Replies may be compressed,
because inventories are read over slow lines too. Answers over SOAP are lxml elements.

VI/JSON has a login of its own: the documents name one way to a session id for VI/JSON, its own SessionManager.Login,
whose reply has it in the header `vmware-api-session-id` (Broadcom, Virtual Infrastructure JSON API, authentication;
vSphere Web Services SDK Programming Guide 8.0, "Authenticating a JSON Client with the Session Manager"). It is not
documented that the cookie of a SOAP session works too, so it is not sent, and both sessions are logged out.

A call over VI/JSON is POST {path}/vim25/{release}/{type}/{id}/{method} with its parameters as a JSON object; void is
204, a fault is a status of 400 or more with the fault as a JSON object (same sources; govmomi,
vim25/soap/json_client.go). Connections, TLS, bytes and seconds are those of SOAP calls.
"""

from __future__ import annotations

import http
import http.client
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import quote

from gpuops import clock
from gpuops.errors import LoginRefused, NotConnected, ProtocolError
from gpuops.model.vcenter.target import Target
from gpuops.plan.core.versions import version_numbers
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.exchange import HttpReply, exchange
from gpuops.vsphere.transport.messages import elements, kind, reference, unwritable_surrogate
from gpuops.vsphere.transport.network import AWAY, SILENCE_S, UnreadableReply, UnusableVcenter

CALL_S: Final = 120
"""The limit for one call and its complete reply."""
_SOAP_STATUSES: Final = frozenset({200, 500})
_JSON_STATUSES: Final = frozenset({200, 204, 400, 401, 403, 404, 500})
"""HTTP statuses of results and faults (Broadcom, Virtual Infrastructure JSON API)."""
_COOKIE: Final = "vmware_soap_session"
_ENVELOPE: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    '<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"'
    ' xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body>{}</soapenv:Body></soapenv:Envelope>'
)


class SessionEnded(Exception):
    """The server does not know the session any more (missingSet may contain this error too)."""


class WireFault(Exception):
    """A fault of the server: `fault` is its vmomi type."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Wire:
    """One connection to a target. `cookie` is sent, and replaced by the one a reply sets."""

    def __init__(
        self, target: Target, api_version: str, cookie: str = "", connection: http.client.HTTPConnection | None = None
    ) -> None:
        self.target = target
        self.cookie = cookie
        self._api_version = api_version
        self._connection = connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(
        self,
        method: str,
        target: tuple[str, str],
        arguments: str = "",
        *,
        deadline: float | None = None,
        repeats: bool = True,
    ) -> Any:
        """Return the response element; `target` is (type, moid), `arguments` are XML.

        With `repeats` the call is repeated once if the connection broke off: right for reads, not for logins.
        Raises SessionEnded, WireFault, NotConnected and its subclasses.
        """
        reply = self.fetch(method, target, arguments, deadline=deadline, repeats=repeats)
        with network.decoding(self.target.address, method):
            return parse_reply(reply, self.target.address)

    def fetch(
        self,
        method: str,
        target: tuple[str, str],
        arguments: str = "",
        *,
        deadline: float | None = None,
        repeats: bool = True,
    ) -> bytes:
        """Return the unparsed reply. Raises NotConnected and its subclasses."""
        headers = {"Content-Type": "text/xml; charset=UTF-8", "SOAPAction": f'"urn:vim25/{self._api_version}"'}
        if self.cookie:
            headers["Cookie"] = self.cookie
        body = envelope(method, target, arguments)
        reply = self._exchange_with_retry(self.target.path, body, headers, _SOAP_STATUSES, deadline, repeats=repeats)
        return reply.body

    def post(self, path: str, body: bytes, headers: Mapping[str, str], *, deadline: float | None = None) -> HttpReply:
        """Return the reply to a call over VI/JSON, which may be a fault. Raises NotConnected and its subclasses."""
        return self._exchange_with_retry(path, body, headers, _JSON_STATUSES, deadline, repeats=True)

    def _exchange_with_retry(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        expected_statuses: Collection[int],
        deadline: float | None,
        *,
        repeats: bool,
    ) -> HttpReply:
        until = clock.passed_s() + CALL_S if deadline is None else deadline
        # two attempts with `repeats`, else one
        for is_last in (False, True) if repeats else (True,):
            try:
                return self._exchange(path, body, headers, expected_statuses, until)
            except (*network.LOST_ERRORS, network.UnreadableReply) as error:
                self.close()
                # vCenter may have closed a connection while it was idle: then repeat the call over a new one
                if is_last or not isinstance(error, network.BROKEN_OFF):
                    raise network.connection_error(self.target, error) from error
        raise AssertionError("the last attempt returns or raises")

    def _exchange(
        self, path: str, body: bytes, headers: Mapping[str, str], expected_statuses: Collection[int], deadline: float
    ) -> HttpReply:
        if self._connection is None:
            self._connection = network.open_connection(self.target, network.tls_context(self.target))
        reply = exchange(self._connection, "POST", path, until=deadline, body=body, headers=headers, compressed=True)
        if reply.status not in expected_statuses:
            raise http.client.HTTPException(f"{reply.status} {reply.reason}")
        self._store_cookie(reply.set_cookie)
        return reply

    def _store_cookie(self, set_cookie: Iterable[str]) -> None:
        """Store the session cookie of these Set-Cookie headers, if they have one."""
        for header in set_cookie:
            try:
                morsel = SimpleCookie(header).get(_COOKIE)
            except CookieError as error:
                raise network.UnreadableReply("an invalid cookie") from error
            if morsel is not None:
                self.cookie = f"{_COOKIE}={morsel.coded_value}"


def envelope(method: str, target: tuple[str, str], arguments: str = "") -> bytes:
    """Return the request of a call. Raises ProtocolError for an invalid id."""
    return _ENVELOPE.format(f'<{method} xmlns="urn:vim25">{reference(*target)}{arguments}</{method}>').encode()


def parse_reply(received: bytes, address: str) -> Any:
    """Return the method's response element. Raises SessionEnded, WireFault, and ProtocolError if it is not SOAP."""
    try:
        root = elements(received)
    except network.UnreadableReply as error:
        raise ProtocolError(f"{address} sends {error}", hint=network.NOT_USED_HINT) from error
    body = root.find("{http://schemas.xmlsoap.org/soap/envelope/}Body")
    if body is None or len(body) == 0:
        raise ProtocolError(f"{address} sends a reply without a SOAP body", hint=network.NOT_USED_HINT)
    if body[0].tag.endswith("}Fault"):
        raise _fault_error(body[0])
    return body[0]


def _fault_error(element: Any) -> WireFault | SessionEnded:
    detail = element.find("detail")
    typed_fault = detail[0] if detail is not None and len(detail) else None
    fault = kind(typed_fault) if typed_fault is not None else ""
    if fault == "NotAuthenticated":
        return SessionEnded()
    return WireFault(fault, element.findtext("faultstring") or "")


_VERSIONS_PATH: Final = "/sdk/vimServiceVersions.xml"
_VERSIONS_ROOT: Final = "namespaces"
"""The root element of that file."""
_LARGEST_LIST: Final = 1024 * 1024
_MOST_SHOWN: Final = 5

KNOWN: Final = (
    "9.1.1.0", "9.1.0.0", "9.0.0.0",
    "8.0.3.1", "8.0.3.0", "8.0.2.0", "8.0.1.0", "8.0.0.2", "8.0.0.1", "8.0.0.0",
    "7.0.3.2", "7.0.3.1", "7.0.3.0", "7.0.2.1", "7.0.2.0", "7.0.1.1", "7.0.1.0", "7.0.0.2", "7.0.0.0",
    "6.9.1", "6.8.7", "6.7.3", "6.7.2", "6.7.1", "6.7", "6.5",
)  # fmt: skip
"""The versions of urn:vim25 that pyVmomi knows, newest first; a test compares them."""


def negotiate(connection: http.client.HTTPConnection, address: str) -> str:
    """Return the newest API version that both this vCenter and pyVmomi know, such as "8.0.3.0".

    The connection's own errors pass through. Raises UnusableVcenter for a list without a version of `KNOWN`, and
    another ProtocolError for any other reply: a load balancer may send an HTML page while vCenter is down.
    """
    reply = exchange(connection, "GET", _VERSIONS_PATH, until=clock.passed_s() + SILENCE_S, largest=_LARGEST_LIST)
    if str(reply.status) in AWAY:
        raise http.client.HTTPException(f"{reply.status} {reply.reason}")
    if reply.status != http.HTTPStatus.OK:
        raise ProtocolError(
            f"{address} is not a vCenter: it answers {reply.status} {reply.reason} to {_VERSIONS_PATH}",
            hint="check the address",
        )
    offered = _offered_versions(reply.body, address)
    for version in KNOWN:
        if version in offered:
            return version
    raise UnusableVcenter(
        f"{address} offers no API version that gpuops knows: {', '.join(sorted(offered)[:_MOST_SHOWN]) or 'none'}",
        hint=f"use a vCenter with vSphere {KNOWN[-1]} or newer, or a newer gpuops",
    )


def _offered_versions(body: bytes, address: str) -> frozenset[str]:
    try:
        root = elements(body)
    except UnreadableReply as error:
        raise ProtocolError(f"{address} does not answer like a vCenter: {error}", hint="check the address") from error
    if root.tag != _VERSIONS_ROOT:
        raise ProtocolError(
            f"{address} does not answer like a vCenter: {_VERSIONS_PATH} is not a list of API versions",
            hint="check the address",
        )
    versions = set()
    for namespace in root.iter("namespace"):
        if namespace.findtext("name") == "urn:vim25":
            versions.add(namespace.findtext("version") or "")
            versions.update(prior.text or "" for prior in namespace.iterfind("priorVersions/version"))
    return frozenset(versions - {""})


SINCE: Final = "8.0.1.0"
"""Source: Broadcom, About the Virtual Infrastructure JSON API: from vCenter 8.0 Update 1 on."""
SESSION_HEADER: Final = "vmware-api-session-id"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,1024}")
_LONGEST_ERROR_TEXT: Final = 200
"""Characters of a server's text that are shown."""


def offers_vi_json(api_version: str) -> bool:
    """Return whether a vCenter of this API version offers VI/JSON."""
    return version_numbers(api_version) >= version_numbers(SINCE)


class JsonLogin:
    """The separate login for VI/JSON: `log_in`, then `call`, then `log_out`."""

    def __init__(self, target: Target, api_version: str, session_manager: tuple[str, str]) -> None:
        self._target = target
        self._release = api_version
        self._session_manager = session_manager
        self._login_lock = threading.Lock()
        self.key = ""
        """The session's id; '' = not logged in."""

    def call(
        self,
        wire: Wire,
        method: str,
        target: tuple[str, str],
        body: Mapping[str, Any] | None = None,
        *,
        deadline: float | None = None,
    ) -> bytes:
        """Return the unparsed reply of a call that changes nothing; b"" for void.

        Raises SessionEnded, WireFault, NotConnected and its subclasses.
        """
        return self._body_or_raise(self._send(wire, method, target, body or {}, deadline))

    def log_in(self, wire: Wire, *, earlier_key: str) -> str:
        """Log in and return the key. If the key is not `earlier_key` any more, return it: another thread has logged in.

        Raises NotConnected and its subclasses.
        """
        with self._login_lock:
            if self.key != earlier_key:
                return self.key
            self.key = ""
            vcenter = self._target
            credentials = {"userName": vcenter.username, "password": vcenter.password.reveal()}
            reply = self._send(wire, "Login", self._session_manager, credentials, None)
            try:
                self._body_or_raise(reply)
            except (SessionEnded, WireFault) as refused:
                raise LoginRefused(
                    f"{vcenter.address} refuses {vcenter.username} over VI/JSON: {str(refused) or 'no reason given'}",
                    hint="add --reader soap to read without VI/JSON",
                ) from None  # the chain holds the request
            if _KEY.fullmatch(reply.session_key) is None:
                raise ProtocolError(
                    f"{vcenter.address} accepts the login over VI/JSON but returns no session key",
                    hint="add --reader soap to read without VI/JSON",
                )
            self.key = reply.session_key
            return self.key

    def log_out(self, wire: Wire) -> None:
        """End the session. If that fails, vCenter ends it when it is idle."""
        if self.key:
            with suppress(NotConnected, SessionEnded, WireFault):
                self._body_or_raise(self._send(wire, "Logout", self._session_manager, {}, None))
            self.key = ""

    def _send(
        self, wire: Wire, method: str, target: tuple[str, str], body: Mapping[str, Any], deadline: float | None
    ) -> HttpReply:
        import msgspec

        reference(*target)  # refuses invalid ids
        kind, moid = target
        path = f"{self._target.path}/vim25/{self._release}/{kind}/{quote(moid, safe='')}/{method}"
        headers = {"Content-Type": "application/json", **({SESSION_HEADER: self.key} if self.key else {})}
        try:
            encoded = msgspec.json.encode(body)
        except UnicodeEncodeError:
            raise unwritable_surrogate() from None
        return wire.post(path, encoded, headers, deadline=deadline)

    def _body_or_raise(self, reply: HttpReply) -> bytes:
        """Return the body of the reply. Raises SessionEnded or WireFault for a fault, else ProtocolError."""
        if reply.status == http.HTTPStatus.OK:
            return reply.body
        if reply.status == http.HTTPStatus.NO_CONTENT:
            return b""
        fault: Any = None
        with suppress(ProtocolError), network.decoding(self._target.address, "a call"):
            fault = decode_reply(reply.body)
        name = fault.get("_typeName") if isinstance(fault, dict) else None
        if name == "NotAuthenticated":
            raise SessionEnded
        status_text = f"{reply.status} {reply.reason}"
        if not isinstance(name, str):
            raise ProtocolError(
                f"{self._target.address} answers a call over VI/JSON with {status_text[:_LONGEST_ERROR_TEXT]}",
                hint="add --reader soap to read without VI/JSON",
            )
        fault_text = fault.get("faultstring")
        raise WireFault(
            name[:_LONGEST_ERROR_TEXT],
            (fault_text if isinstance(fault_text, str) else status_text)[:_LONGEST_ERROR_TEXT],
        )


def decode_reply(received: bytes) -> Any:
    """Return the values of a reply; None for an empty one. Raises UNREADABLE_ERRORS."""
    import msgspec

    return msgspec.json.decode(received) if received else None
