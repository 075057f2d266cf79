"""Checks the addresses that a guest reports before they are written to files and scripts of other guests: a guest may
report any text."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Final

_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")
_SIMULATED: Final = IPv4Network("127.64.0.0/15")
"""The addresses of guests that the simulator runs as processes of this machine (`sim/render/devices.py`)."""


def unicast_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address if other machines can reach exactly one machine at it, otherwise None.

    Loopback and the addresses that RFC 1122 and RFC 4291 reserve are refused, for example broadcast. An IPv6 address
    with a zone is refused because Python accepts any text as a zone, even with line ends.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        # loopback addresses, but each is one simulated guest
        if address in _SIMULATED:
            return address
        if address in _THIS_NETWORK:
            return None
    elif address.scope_id is not None or address.is_site_local:
        return None
    no_host = address.is_link_local or address.is_unspecified or address.is_multicast
    return None if no_host or address.is_loopback or address.is_reserved else address
