"""Which addresses of those that a guest reports are used. A guest may report any text, and it ends up in the files and
scripts of other guests."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Final

_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")
_SIMULATED: Final = IPv4Network("127.64.0.0/15")
"""Guests of the simulator that run real processes have addresses of this machine (`sim/render/devices.py`)."""


def unicast_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address if other machines may reach one host by it, else None.

    An IPv6 zone is refused: Python accepts any text as one, line ends too. So is loopback, for it leads each guest to
    itself, and what RFC 1122 and RFC 4291 reserve, broadcast and IPv4-mapped addresses among it.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        if address in _SIMULATED:
            return address
        if address in _THIS_NETWORK:
            return None
    elif address.scope_id is not None or address.is_site_local:
        return None
    no_host = address.is_link_local or address.is_unspecified or address.is_multicast
    return None if no_host or address.is_loopback or address.is_reserved else address
