"""Chooses the API version of a session, and sends single SOAP calls without pyVmomi; answers are lxml elements.

Logins and reads need no typed values. Importing pyVmomi, which has them, takes 100 ms: longer than reading a small
inventory. So `session` and `reader` use this module, and pyVmomi is imported for changes. Replies may be compressed,
because inventories are read over slow lines too.
"""

from __future__ import annotations

import http.client
from collections.abc import Collection, Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final

from gpuops import clock
from gpuops.errors import ProtocolError
from gpuops.model.vcenter.target import Target
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.exchange import HttpReply, exchange
from gpuops.vsphere.transport.messages import elements, kind, reference
from gpuops.vsphere.transport.network import AWAY, SILENCE_S, NoVcenterForUs, UnreadableReply

CALL_S: Final = 120
"""The limit for one call and its complete reply."""
_SOAP_ANSWERS: Final = frozenset({200, 500})
_JSON_ANSWERS: Final = frozenset({200, 204, 400, 401, 403, 404, 500})
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
        reply = self._exchange_with_retry(self.target.path, body, headers, _SOAP_ANSWERS, deadline, repeats=repeats)
        return reply.body

    def post(self, path: str, body: bytes, headers: Mapping[str, str], *, deadline: float | None = None) -> HttpReply:
        """Return the reply to a call over VI/JSON, which may be a fault. Raises NotConnected and its subclasses."""
        return self._exchange_with_retry(path, body, headers, _JSON_ANSWERS, deadline, repeats=True)

    def _exchange_with_retry(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        answers: Collection[int],
        deadline: float | None,
        *,
        repeats: bool,
    ) -> HttpReply:
        until = clock.passed_s() + CALL_S if deadline is None else deadline
        for is_last in (False, True) if repeats else (True,):
            try:
                return self._exchange(path, body, headers, answers, until)
            except (*network.LOST_ERRORS, network.UnreadableReply) as error:
                self.close()
                # vCenter may have closed a connection while it was idle: then repeat the call over a new one
                if is_last or not isinstance(error, network.BROKEN_OFF):
                    raise network.connection_error(self.target, error) from error
        raise AssertionError("the last attempt returns or raises")

    def _exchange(
        self, path: str, body: bytes, headers: Mapping[str, str], answers: Collection[int], deadline: float
    ) -> HttpReply:
        if self._connection is None:
            self._connection = network.open_connection(self.target, network.tls_context(self.target))
        reply = exchange(self._connection, "POST", path, until=deadline, body=body, headers=headers, compressed=True)
        if reply.status not in answers:
            raise http.client.HTTPException(f"{reply.status} {reply.reason}")
        self._keep_cookie(reply.set_cookie)
        return reply

    def _keep_cookie(self, set_cookie: Iterable[str]) -> None:
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
        raise ProtocolError(f"{address} sends {error}") from error
    body = root.find("{http://schemas.xmlsoap.org/soap/envelope/}Body")
    if body is None or len(body) == 0:
        raise ProtocolError(f"{address} sends a reply without a SOAP body")
    if body[0].tag.endswith("}Fault"):
        raise _fault(body[0])
    return body[0]


def _fault(element: Any) -> WireFault | SessionEnded:
    detail = element.find("detail")
    typed = detail[0] if detail is not None and len(detail) else None
    fault = kind(typed) if typed is not None else ""
    if fault == "NotAuthenticated":
        return SessionEnded()
    return WireFault(fault, element.findtext("faultstring") or "")


_PATH: Final = "/sdk/vimServiceVersions.xml"
_LIST: Final = "namespaces"
"""The root element of that file."""
_LARGEST: Final = 1024 * 1024
_SHOWN: Final = 5

KNOWN: Final = (
    "9.1.1.0", "9.1.0.0", "9.0.0.0",
    "8.0.3.1", "8.0.3.0", "8.0.2.0", "8.0.1.0", "8.0.0.2", "8.0.0.1", "8.0.0.0",
    "7.0.3.2", "7.0.3.1", "7.0.3.0", "7.0.2.1", "7.0.2.0", "7.0.1.1", "7.0.1.0", "7.0.0.2", "7.0.0.0",
    "6.9.1", "6.8.7", "6.7.3", "6.7.2", "6.7.1", "6.7", "6.5",
)  # fmt: skip
"""The versions of urn:vim25 that pyVmomi knows, newest first; a test compares them."""


def negotiate(connection: http.client.HTTPConnection, address: str) -> str:
    """Return the newest API version that both this vCenter and pyVmomi know, such as "8.0.3.0".

    The connection's own errors pass through. Raises NoVcenterForUs for a list without a version of `KNOWN`, and another
    ProtocolError for any other reply: a load balancer may send an HTML page while vCenter is down.
    """
    reply = exchange(connection, "GET", _PATH, until=clock.passed_s() + SILENCE_S, largest=_LARGEST)
    if str(reply.status) in AWAY:
        raise http.client.HTTPException(f"{reply.status} {reply.reason}")
    if reply.status != http.HTTPStatus.OK:
        raise ProtocolError(
            f"{address} is not a vCenter: {_PATH} answers {reply.status} {reply.reason}", hint="check the address"
        )
    offered = _offered_versions(reply.body, address)
    for version in KNOWN:
        if version in offered:
            return version
    raise NoVcenterForUs(
        f"{address} offers no API version that gpuops knows: {', '.join(sorted(offered)[:_SHOWN]) or 'none'}",
        hint=f"vSphere {KNOWN[-1]} is the oldest that works",
    )


def _offered_versions(body: bytes, address: str) -> frozenset[str]:
    try:
        root = elements(body)
    except UnreadableReply as error:
        raise ProtocolError(f"{address} does not answer like a vCenter: {error}", hint="check the address") from error
    if root.tag != _LIST:
        raise ProtocolError(
            f"{address} does not answer like a vCenter: {_PATH} is not a list of API versions", hint="check the address"
        )
    versions = set()
    for namespace in root.iter("namespace"):
        if namespace.findtext("name") == "urn:vim25":
            versions.add(namespace.findtext("version") or "")
            versions.update(prior.text or "" for prior in namespace.iterfind("priorVersions/version"))
    return frozenset(versions - {""})
