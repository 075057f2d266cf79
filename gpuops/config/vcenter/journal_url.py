"""The URL of a journal in PostgreSQL: what it may hold, where it leads, and how the server there proves itself.

SQLAlchemy takes the URL apart, for it hands the parts to the driver; libpq says which parameters there are, and what
its environment (`PGHOST`, `PGHOSTADDR`, `PGSERVICE`, ...) adds to them.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from gpuops.distribution import install_extra
from gpuops.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import URL

VERIFIED: Final = "verify-full"
_DRIVER: Final = "postgresql+psycopg"
_SEVERAL_HOSTS: Final = re.compile(r"(?P<before>\w+(\+\w+)?://([^@/?#]*@)?)(?P<ways>[^@/?#]*,[^@/?#]*)(?P<rest>/[^@]*)")
_HOST: Final = re.compile(r"(?:(?P<name>[^\[\]:]*)|\[(?P<address>[0-9a-fA-F:.]+)\])(?::(?P<port>[0-9]*))?")
"""One of libpq's list, with a port of its own (PostgreSQL documentation, Connection URIs)."""
_SECRET: Final = re.compile("password|secret|^scram_", re.IGNORECASE)
"""Names of libpq's parameters that are secrets, such as `password` and `sslpassword`, but not `passfile`."""


def holds_password(text: str) -> bool:
    """Return whether a URL holds a secret. Other text counts as holding one if it has an @ or a word for a secret."""
    url = _url(text)
    if url is None:
        return "@" in text or _SECRET.search(text) is not None
    return bool(url.password) or any(_SECRET.search(name) for name in url.query)


def parsed(text: str) -> URL:
    """Return the URL for the driver. Raises UsageError, whose text never holds a password, if no journal can be opened.

    libpq by itself would accept any server, and talk in the clear to one that cannot encrypt. So a server proves itself
    by its certificate (`sslmode=verify-full`) on every way but a Unix socket and a literal loopback address.
    """
    url = _url(text)
    if url is None or url.drivername not in ("postgresql", "postgres", _DRIVER) or not url.database:
        raise UsageError(
            "the URL of the journal is not the URL of a PostgreSQL database",
            hint="write it as postgresql://gpuops@db.example.com/gpuops; the password belongs in ~/.pgpass",
        )
    if "@" in f"{url.host}{url.database}":  # the rest of a password, which would be called a host and be printed
        raise UsageError("the URL of the journal has more than one @", hint="write an @ in its password as %40")
    if find_spec("psycopg") is None:
        raise UsageError("a journal in PostgreSQL needs psycopg", hint=install_extra("postgresql"))
    url = url.set(drivername=_DRIVER)
    parameters = _parameters(url)
    if _stays_here(parameters):
        return url
    _refuse_weaker(parameters)
    # GSSAPI, where the environment asks for it, would take the place of TLS, whatever `sslmode` says
    return url.update_query_dict({"sslmode": VERIFIED, "gssencmode": "disable"})


def _url(text: str) -> URL | None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    for spelled in (text, _with_hosts_as_parameters(text)):
        try:
            return _decoded(make_url(spelled))
        except (ArgumentError, ValueError):
            continue
    return None


def _with_hosts_as_parameters(text: str) -> str:
    """Return the URL with several hosts and their ports as SQLAlchemy reads them; any other text unchanged.

    >>> _with_hosts_as_parameters("postgresql://u@db1:5432,db2:5433/j")
    'postgresql://u@/j?host=db1,db2&port=5432,5433'
    """
    url = _SEVERAL_HOSTS.fullmatch(text)
    ways = [_HOST.fullmatch(way) for way in url["ways"].split(",")] if url is not None else []
    if url is None or not all(ways):
        return text
    hosts = ",".join((way["name"] or way["address"]) for way in ways if way)
    ports = ",".join(way["port"] or "" for way in ways if way)
    sign = "&" if "?" in url["rest"] else "?"
    return f"{url['before']}{url['rest']}{sign}host={hosts}&port={ports}"


def _decoded(url: URL) -> URL:
    """Return the URL with its host percent-decoded, as libpq does: `%2Frun%2Fpostgresql` is a directory of sockets
    (PostgreSQL documentation, Connection URIs). SQLAlchemy does not decode it.

    Raises ValueError for a host with unprintable characters.
    """
    from sqlalchemy import URL

    if url.host is None or "%" not in url.host or ":" in url.host:  # in an IPv6 address, % begins its zone
        return url
    host = unquote(url.host, errors="strict")
    if not host.isprintable():
        raise ValueError("a host of characters that cannot be printed")
    port = {"port": str(url.port)} if url.port is not None else {}
    bare = URL.create(url.drivername, url.username, url.password, database=url.database)
    return bare.update_query_dict({"host": host, **port, **url.query})


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
            raise UsageError(f"the URL of the journal has {name!r} more than once", hint="write it once")
    try:
        parameters = conninfo_to_dict(make_conninfo(**arguments))
    except ProgrammingError:  # its text may repeat a value; not chained, for a traceback would show it
        raise UsageError(
            "the URL of the journal has a parameter that libpq does not know",
            hint="its parameters are those of a PostgreSQL connection string, such as sslrootcert and passfile",
        ) from None
    return {name: str(value) for name, value in parameters.items()}


def _stays_here(parameters: Mapping[str, str]) -> bool:
    """Return whether each way to a server is a Unix socket or a literal loopback address.

    A service of pg_service.conf is not read here, so it may lead anywhere. A name, even `localhost`, may resolve to
    another machine.
    """
    from psycopg.pq import Conninfo

    # an option of the URL beats a service, which beats the environment; the defaults hold the latter two
    defaults = {option.keyword.decode(): (option.val or b"").decode() for option in Conninfo.get_defaults()}
    defaults.update(parameters)
    return not defaults["service"] and all(_is_here(*way) for way in _ways(defaults["host"], defaults["hostaddr"]))


def _ways(hosts: str, addresses: str) -> Iterator[tuple[str, str]]:
    """Each host with its address; several stand in lists, and where the lists differ in length libpq refuses them."""
    several = hosts.split(","), addresses.split(",")
    for number in range(max(map(len, several))):
        host, address = (parts[number] if number < len(parts) else "" for parts in several)
        yield host, address


def _is_here(host: str, address: str) -> bool:
    """libpq goes by the address where there is one; without either it takes the socket of this machine's server."""
    way = address or host
    if not way or (not address and way.startswith(("/", "@"))):
        return True
    try:
        return ip_address(way).is_loopback
    except ValueError:
        return False


def _refuse_weaker(parameters: Mapping[str, str]) -> None:
    """Raise UsageError for a weaker mode than ours: its author expects a server without a valid certificate."""
    mode, origin = parameters.get("sslmode"), "the journal URL sets sslmode"
    if mode is None:
        mode, origin = os.environ.get("PGSSLMODE"), "the environment sets PGSSLMODE"
    if mode and mode != VERIFIED:
        raise UsageError(
            f"{origin}={mode}, which is weaker than {VERIFIED}: a server on another machine must prove who it is",
            hint=f"set sslmode={VERIFIED} in the URL, and sslrootcert=FILE, the CA certificate of the server",
        )


def without_password(url: str) -> str:
    """Return the URL as a file of settings may hold it. Raises ValueError."""
    if holds_password(url):
        raise ValueError("no password belongs in this file: put it into ~/.pgpass")
    return url
