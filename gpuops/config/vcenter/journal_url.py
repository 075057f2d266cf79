"""Checks the URL of a journal in PostgreSQL, and makes the connection verify the certificate of the server.

SQLAlchemy parses the URL, because it passes the parts to the driver. libpq knows the possible parameters, and what its
environment (`PGHOST`, `PGHOSTADDR`, `PGSERVICE`, ...) adds to them.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from ipaddress import ip_address
from itertools import zip_longest
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from gpuops.distribution import install_extra
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import URL

VERIFIED: Final = "verify-full"
_DRIVER: Final = "postgresql+psycopg"
_SEVERAL_HOSTS: Final = re.compile(
    r"(?P<before>\w+(\+\w+)?://([^@/?#]*@)?)(?P<hosts>[^@/?#]*,[^@/?#]*)(?P<path>/[^@]*)"
)
"""A URL with several hosts, which SQLAlchemy cannot parse."""
_HOST: Final = re.compile(r"(?:(?P<name>[^\[\]:]*)|\[(?P<address>[0-9a-fA-F:.]+)\])(?::(?P<port>[0-9]*))?")
"""One host of such a list, with its port (PostgreSQL documentation, Connection URIs)."""
_SECRET: Final = re.compile("password|secret|^scram_", re.IGNORECASE)
"""Names of libpq's parameters that are secrets, such as `password` and `sslpassword`, but not `passfile`."""


def holds_password(text: str) -> bool:
    """Return whether a URL contains a secret. Other text counts as one if it has an @ or a word for a secret."""
    url = _url(text)
    if url is None:
        return "@" in text or _SECRET.search(text) is not None
    return bool(url.password) or any(_SECRET.search(name) for name in url.query)


def parsed(text: str) -> URL:
    """Return the URL for the driver. Raises UsageError, whose text never contains a password, for an unusable URL.

    libpq by default accepts any server, and one without encryption too. Therefore the server must prove itself by its
    certificate (`sslmode=verify-full`), except over a Unix socket or a literal loopback address.
    """
    url = _url(text)
    if url is None or url.drivername not in ("postgresql", "postgres", _DRIVER) or not url.database:
        raise UsageError(
            "the URL of the journal is not the URL of a PostgreSQL database",
            hint="write it as postgresql://gpuops@db.example.com/gpuops; the password belongs in ~/.pgpass",
        )
    # the part of a password after its @ would count as the host, and be printed in messages
    if "@" in f"{url.host}{url.database}":
        raise UsageError("the URL of the journal has more than one @", hint="write an @ in its password as %40")
    if find_spec("psycopg") is None:
        raise UsageError("a journal in PostgreSQL needs psycopg", hint=install_extra("postgresql"))
    url = url.set(drivername=_DRIVER)
    parameters = _parameters(url)
    if _stays_here(parameters):
        return url
    _refuse_weaker(parameters)
    # if the environment requests GSSAPI encryption, libpq would use it instead of TLS, and ignore `sslmode`
    return url.update_query_dict({"sslmode": VERIFIED, "gssencmode": "disable"})


def _url(text: str) -> URL | None:
    """Return the parsed URL; None if the text is not a URL."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    for url_text in (text, _with_hosts_as_parameters(text)):
        try:
            return _decode_host(make_url(url_text))
        except (ArgumentError, ValueError):
            continue
    return None


def _with_hosts_as_parameters(text: str) -> str:
    """Return the URL with several hosts and their ports as SQLAlchemy reads them; any other text unchanged.

    >>> _with_hosts_as_parameters("postgresql://u@db1:5432,db2:5433/j")
    'postgresql://u@/j?host=db1,db2&port=5432,5433'
    """
    url = _SEVERAL_HOSTS.fullmatch(text)
    matches = [_HOST.fullmatch(host) for host in url["hosts"].split(",")] if url is not None else []
    if url is None or not all(matches):
        return text
    hosts = ",".join((match["name"] or match["address"]) for match in matches if match)
    ports = ",".join(match["port"] or "" for match in matches if match)
    separator = "&" if "?" in url["path"] else "?"
    return f"{url['before']}{url['path']}{separator}host={hosts}&port={ports}"


def _decode_host(url: URL) -> URL:
    """Return the URL with its host percent-decoded, as libpq does: `%2Frun%2Fpostgresql` is a directory of sockets
    (PostgreSQL documentation, Connection URIs). SQLAlchemy does not decode it.

    Raises ValueError for a host with unprintable characters.
    """
    from sqlalchemy import URL

    if url.host is None or "%" not in url.host or ":" in url.host:  # in an IPv6 address, % begins its zone
        return url
    host = unquote(url.host, errors="strict")
    if not host.isprintable():
        raise ValueError("the host contains characters that cannot be printed")
    port = {"port": str(url.port)} if url.port is not None else {}
    url_without_host = URL.create(url.drivername, url.username, url.password, database=url.database)
    return url_without_host.update_query_dict({"host": host, **port, **url.query})


def _parameters(url: URL) -> Mapping[str, str]:
    """Return the parameters for libpq, made by SQLAlchemy as for the connection and parsed by libpq.

    Raises UsageError.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from sqlalchemy.exc import ArgumentError

    try:
        _, arguments = url.get_dialect()().create_connect_args(url)
    except (ArgumentError, ValueError):
        raise UsageError("the hosts or ports in the URL of the journal are not valid",
                         hint="write several as ?host=db1,db2&port=5432,5432") from None  # fmt: skip
    for name, value in arguments.items():
        if isinstance(value, tuple):
            raise UsageError(f"the URL of the journal has the parameter {name!r} twice", hint="remove one of them")
    try:
        parameters = conninfo_to_dict(make_conninfo(**arguments))
    except ProgrammingError:  # its text may repeat a value: not chained, because a traceback would show it
        raise UsageError(
            "the URL of the journal has a parameter that libpq does not know",
            hint="its parameters are those of a PostgreSQL connection string, such as sslrootcert and passfile",
        ) from None
    return {name: str(value) for name, value in parameters.items()}


def _stays_here(parameters: Mapping[str, str]) -> bool:
    """Return whether each server that libpq may connect to is a Unix socket or a literal loopback address.

    A service of pg_service.conf is not read here, so it may lead anywhere. A name, even `localhost`, may resolve to
    another machine.
    """
    from psycopg.pq import Conninfo

    # a parameter of the URL overrides these defaults, which come from a service or the environment
    defaults = {option.keyword.decode(): (option.val or b"").decode() for option in Conninfo.get_defaults()}
    defaults.update(parameters)
    return not defaults["service"] and all(
        _is_this_machine(*server) for server in _servers(defaults["host"], defaults["hostaddr"])
    )


def _servers(hosts: str, addresses: str) -> Iterator[tuple[str, str]]:
    """Yield each host with its address; '' = none. libpq itself refuses lists of different lengths."""
    yield from zip_longest(hosts.split(","), addresses.split(","), fillvalue="")


def _is_this_machine(host: str, address: str) -> bool:
    """Return whether libpq connects to this machine; it uses the address if there is one, and a socket without both."""
    server = address or host
    if not server or (not address and server.startswith(("/", "@"))):  # a directory of sockets, or an abstract socket
        return True
    try:
        return ip_address(server).is_loopback
    except ValueError:
        return False


def _refuse_weaker(parameters: Mapping[str, str]) -> None:
    """Raise UsageError for a weaker sslmode: its author expects a server without a valid certificate."""
    mode, origin = parameters.get("sslmode"), "the journal URL sets sslmode"
    if mode is None:
        mode, origin = os.environ.get("PGSSLMODE"), "the environment sets PGSSLMODE"
    if mode and mode != VERIFIED:
        raise UsageError(
            f"{origin}={mode}, which is weaker than {VERIFIED}: a server on another machine must prove who it is",
            hint=f"set sslmode={VERIFIED} in the URL, and sslrootcert=FILE, the CA certificate of the server",
        )


def without_password(url: str) -> str:
    """Return the same URL. Raises ValueError if it contains a password: a file of settings must not."""
    if holds_password(url):
        raise ValueError("this file must not contain a password: put it into ~/.pgpass")
    return url
