"""Access to the page: by a name with its password, or by a reverse proxy; and the accepted Host headers.

A request with another Host header is refused: it may come from a foreign page whose name was pointed at this address
(DNS rebinding), and the browser would let the script of that page read the answer. Passwords are kept as keyed digests
(BLAKE2b, a key of this process). All digests are compared, each in constant time, whether the name is known or not.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.vcenter.target import Secret

Headers = Iterable[tuple[bytes, bytes]]
SECRET_HEADER: Final = "X-Gpuops-Proxy-Secret"  # noqa: S105 - the name of a header
SHORTEST: Final = 12
"""The least number of characters of a password or a proxy's secret: on an open address many can be tried."""
_KEY: Final = secrets.token_bytes(32)


def _digest(text: bytes) -> bytes:
    return blake2b(text, key=_KEY).digest()


def _single_value(headers: Headers, name: bytes) -> bytes | None:
    """Return the header's value; None = it is not there, or there more than once."""
    values = [content for key, content in headers if key == name]
    return values[0] if len(values) == 1 else None


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """Names and passwords, for HTTP's basic login (RFC 7617)."""

    digests: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def parse(cls, lines: Secret, name: str) -> PasswordLogin:
        """Return the logins of a file with lines NAME:PASSWORD. `name`: the file, for messages.

        Raises UsageError; its message holds no password.
        """
        digests = []
        for number, line in enumerate(lines.reveal().splitlines(), 1):
            user, colon, password = line.partition(":")
            if not line:
                continue
            if not colon or not user or not line.isprintable():
                raise UsageError(
                    f"{name}, line {number}, is not NAME:PASSWORD", hint="write one login on each line: NAME:PASSWORD"
                )
            _require_long(f"the password in {name}, line {number},", password)
            digests.append(_digest(line.encode()))
        if not digests:
            raise UsageError(f"{name} contains no logins", hint="write one login per line: NAME:PASSWORD")
        return cls(tuple(digests))

    def lets_in(self, headers: Headers, peer: str) -> bool:
        """Return whether the request has the name and password of one of these logins. `peer` is not used."""
        header = _single_value(headers, b"authorization")
        scheme, _, credentials = (header or b"").partition(b" ")
        if scheme.lower() != b"basic":
            return False
        try:
            digest = _digest(base64.b64decode(credentials.strip(), validate=True))
        except binascii.Error:
            return False
        is_known = False
        for login_digest in self.digests:  # no early exit: the time must not show which login matched
            is_known |= hmac.compare_digest(digest, login_digest)
        return is_known


@dataclass(frozen=True, slots=True)
class ProxyLogin:
    """The login by a reverse proxy: it sends the name of the user in a header, and its own secret in a second one.

    Both are accepted only from the addresses of the proxy.
    """

    header: bytes
    """The name of the header with the user, in lower case."""
    addresses: tuple[IPv4Network | IPv6Network, ...]
    secret: bytes = field(repr=False)
    """Its digest."""

    @classmethod
    def parse(cls, header: str, addresses: Sequence[str], secret: Secret) -> ProxyLogin:
        """Return the login by this header, accepted from these addresses and networks together with the secret.

        Raises UsageError for an invalid header name, address or network, and for a short secret.
        """
        if not header.isascii() or not header.replace("-", "").isalnum():
            message = f"--proxy-header {header!r} is not a valid header name"
            raise UsageError(message, hint="use letters, digits and hyphens: --proxy-header X-Remote-User")
        text = secret.reveal()
        _require_long("the secret of the proxy", text)
        try:
            networks = tuple(ip_network(address) for address in addresses)
        except ValueError as error:
            raise UsageError(f"--proxy-from: {error}", hint="use --proxy-from 10.0.0.5, or 10.0.0.0/29") from error
        return cls(header.lower().encode(), networks, _digest(text.encode()))

    def lets_in(self, headers: Headers, peer: str) -> bool:
        """Return whether the request has the secret and a user, and comes from an address of the proxy."""
        address = parsed_address(peer)
        sent_secret = _single_value(headers, SECRET_HEADER.lower().encode())
        has_secret = hmac.compare_digest(_digest(sent_secret or b""), self.secret)
        user = _single_value(headers, self.header)
        return (
            has_secret and bool(user) and address is not None and any(address in network for network in self.addresses)
        )


def _require_long(subject: str, text: str) -> None:
    if len(text) < SHORTEST:
        hint = "generate one: openssl rand -base64 18"
        raise UsageError(f"{subject} has {len(text)} characters, and needs at least {SHORTEST}", hint=hint)


def parsed_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address; None if the text is none. An IPv4 address in IPv6 form (`::ffff:10.0.0.5`) becomes IPv4."""
    try:
        address = ip_address(text.partition("%")[0])  # without the zone of `fe80::1%eth0`
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a service that listens there.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.5", "gpus.example.com")]
    [True, True, True, False, False, False]
    """
    address = parsed_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of access to the page. Without logins every client that reaches the address has access."""

    passwords: PasswordLogin | None = None
    proxy: ProxyLogin | None = None
    hosts: tuple[str, ...] = ()
    """Accepted host names in addition to the address of the server, in lower case."""

    @property
    def open(self) -> bool:
        """Return whether the page needs no login."""
        return self.passwords is None and self.proxy is None

    def lets_in(self, headers: Headers, peer: str) -> bool:
        """Return whether a request with these headers from the address `peer` has a login, or needs none."""
        logins = [login for login in (self.passwords, self.proxy) if login is not None]
        return not logins or any(login.lets_in(headers, peer) for login in logins)

    def answers_to(self, headers: Headers, reached: str) -> bool:
        """Return whether the Host header is the address `reached`, at which the request arrived, or one of `hosts`.

        The port is ignored: DNS rebinding needs a name, and only names in `hosts` and localhost are accepted.
        """
        host_header = _single_value(headers, b"host")
        if host_header is None:
            return False
        name = _without_port(host_header.decode("latin-1")).lower().rstrip(".")
        if name in self.hosts:
            return True
        reached_address = parsed_address(reached)
        if name == "localhost":
            return reached_address is not None and reached_address.is_loopback
        return reached_address is not None and parsed_address(name) == reached_address


def _without_port(host: str) -> str:
    """Return the host of a Host header.

    >>> [_without_port(host) for host in ("gpus.example.com:8080", "[::1]:8080", "127.0.0.1", "[::1]", "a:b:1")]
    ['gpus.example.com', '::1', '127.0.0.1', '::1', 'a:b:1']
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.partition(":")
    return name if not colon or port.isdigit() else host
