"""Which API version to speak: the newest that both this vCenter and pyVmomi know."""

from __future__ import annotations

import http.client
import re
from typing import Final

from gpuops.errors import ProtocolError
from gpuops.plan.spoken import version_numbers

_PATH: Final = "/sdk/vimServiceVersions.xml"
_LARGEST: Final = 1024 * 1024
_OLDEST: Final = (6, 7)
_NUMBERED: Final = re.compile(r"\d+(\.\d+)+")


def negotiate(connection: http.client.HTTPConnection, address: str) -> tuple[str, str]:
    """(pyVmomi's version name, wire version), such as ("vim.version.v8_0_3_0", "8.0.3.0").

    The connection's own errors pass through. Raises ProtocolError when this is no vCenter, or one too old.
    """
    connection.request("GET", _PATH, headers={"Accept-Encoding": "identity"})
    reply = connection.getresponse()
    body = reply.read(_LARGEST)
    if reply.status != http.HTTPStatus.OK:
        raise ProtocolError(
            f"{address} is not a vCenter: {_PATH} answers {reply.status} {reply.reason}", hint="check the address"
        )
    offered = _offered(body, address)
    for name, wire in _known():
        if wire in offered:
            return name, wire
    raise ProtocolError(
        f"{address} speaks no API version known here: {', '.join(sorted(offered)) or 'none'}",
        hint=f"vSphere {_OLDEST[0]}.{_OLDEST[1]} is the oldest that works",
    )


def _offered(body: bytes, address: str) -> frozenset[str]:
    from lxml import etree

    from gpuops.vsphere.elements import safe_parser

    try:
        root = etree.fromstring(body, safe_parser())
    except etree.XMLSyntaxError as error:
        raise ProtocolError(f"{address} does not answer like a vCenter: not XML", hint="check the address") from error
    found = set()
    for namespace in root.iter("namespace"):
        if namespace.findtext("name") == "urn:vim25":
            found.add(namespace.findtext("version") or "")
            found.update(prior.text or "" for prior in namespace.iterfind("priorVersions/version"))
    return frozenset(found - {""})


def _known() -> list[tuple[str, str]]:
    """pyVmomi's versions of urn:vim25, newest first, down to the oldest that has what gpuops reads."""
    from pyVmomi import VmomiSupport

    namespace = "vim25/"
    wires = [key.removeprefix(namespace) for key in VmomiSupport.versionMap if key.startswith(namespace)]
    dotted = sorted((wire for wire in wires if _NUMBERED.fullmatch(wire)), key=version_numbers, reverse=True)
    return [(VmomiSupport.versionMap[namespace + wire], wire) for wire in dotted if version_numbers(wire) >= _OLDEST]
