"""Chooses the API version of a session: the newest that both this vCenter and pyVmomi know."""

from __future__ import annotations

import http.client
from typing import Final

from gpuops import clock
from gpuops.errors import ProtocolError
from gpuops.vsphere.transport.exchange import exchange
from gpuops.vsphere.transport.network import AWAY, SILENCE_S, NoVcenterForUs, UnreadableReply
from gpuops.vsphere.transport.reply import elements

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
    """Return the version, such as "8.0.3.0".

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
        f"{address} speaks no API version known here: {', '.join(sorted(offered)[:_SHOWN]) or 'none'}",
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
