"""Where a vCenter is and how to log in to it, with passwords that no message, log or traceback shows.

`config` makes it of files and the environment, `vsphere` uses it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Self

_SHOWN: Final = "Secret(…)"


class Secret:
    """A password from where it is read to where it is sent.

    `repr`, `str` and `format` say that there is one, without its length. Pickling and JSON are refused: what writes a
    value down without being asked would write this one too. Copies are the same object.
    """

    __slots__ = ("__text",)

    def __init__(self, text: str) -> None:
        self.__text = text

    def reveal(self) -> str:
        """Return the text itself; only for code that puts it on the wire."""
        return self.__text

    def __repr__(self) -> str:
        return _SHOWN

    def __format__(self, spec: str) -> str:
        return _SHOWN

    def __bool__(self) -> bool:
        return bool(self.__text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        ours, theirs = (text.encode("utf-8", "surrogatepass") for text in (self.__text, other.__text))
        return hmac.compare_digest(ours, theirs)

    __hash__ = None  # type: ignore[assignment]  # a key of a mapping is sorted, printed and kept

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not written down")


WITHHELD: Final = "[a password of gpuops, withheld]"
_SHORTEST_SECRET: Final = 4
"""Characters; a shorter one would be found everywhere."""


def without_secrets(text: str, secrets: Iterable[Secret]) -> str:
    """Return the output of a program with a fixed text in place of each password."""
    for secret_text in sorted({secret.reveal() for secret in secrets}, key=len, reverse=True):
        if len(secret_text) >= _SHORTEST_SECRET:
            text = text.replace(secret_text, WITHHELD)
    return text


@dataclass(frozen=True, slots=True)
class GuestLogin:
    """A user of guests, by whom VMware Tools runs programs there."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class Target:
    """One vCenter's SDK endpoint and the login for it. TLS is verified unless `verify` is False."""

    host: str
    username: str
    password: Secret
    port: int = 443
    tls: bool = True
    """False = plain HTTP: a simulated vCenter, never one across a network."""
    path: str = "/sdk"
    ca_files: tuple[str, ...] = ()
    """PEM files of authorities to trust instead of the system's; () = the system's."""
    verify: bool = True
    pin: str | None = None
    """SHA-256 of its certificate, 64 hexadecimal digits in lower case: compared beside verification, not instead."""
    proxy: str | None = None
    """`HOST:PORT` of an HTTP proxy that tunnels to it."""
    guest: GuestLogin | None = None
    """Whose checkpoint hooks are run in ML VMs; None = no program is run in a guest."""

    @property
    def address(self) -> str:
        """Return `host:port`, with an IPv6 address in brackets, as messages name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """A connection broker: its address with the login for it, and the domain of the user."""

    server: Target
    domain: str

    @property
    def user(self) -> str:
        """Return `DOMAIN\\user`, as messages name it."""
        return f"{self.domain}\\{self.server.username}"
