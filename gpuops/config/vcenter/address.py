"""The address of a vCenter as people write it (`vc.example.com`, `https://vc.example.com/sdk`, `user@vc:8443`), and the
thumbprint of its certificate as they copy it. `sources` reads both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from gpuops.errors import TargetError
from gpuops.model.vcenter.target import Secret


@dataclass(frozen=True, slots=True)
class Address:
    """Host, port and whether TLS is spoken; the user and the password an address carried are apart."""

    host: str
    port: int = 443
    tls: bool = True
    username: str | None = field(default=None, compare=False)
    password: Secret | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, text: str, *, port: int | None = None) -> Address:
        """Return the address. The text may leave out `https`, `/sdk` and the port, which is then `port`, 443 or 80.

        Raises TargetError, whose message repeats only parts of the text that cannot be a password.
        """
        wrong = TargetError(
            f"{_without_login(text)} is not the address of a vCenter", hint="write it as https://vc.example.com"
        )
        try:
            parts = urlsplit(text if "://" in text else f"https://{text}")
            given_port = parts.port
        except ValueError as error:
            raise wrong from error
        if parts.scheme not in ("https", "http") or not _is_host(parts.hostname) or not _plain_path(parts):
            raise wrong
        return cls(
            host=str(parts.hostname).lower(),
            port=given_port or port or (443 if parts.scheme == "https" else 80),
            tls=parts.scheme == "https",
            username=_unquoted(parts.username),
            password=Secret(unquote(parts.password)) if parts.password else None,
        )

    @property
    def is_this_machine(self) -> bool:
        """Whether what is sent there does not leave this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.tls else 80)
        return f"{'https' if self.tls else 'http'}://{host}{'' if usual else f':{self.port}'}"


_NAME: Final = re.compile(r"[^\W_]([\w-]*[^\W_])?(\.[^\W_]([\w-]*[^\W_])?)*\.?")
"""Labels of letters (of any script), digits, - and _, parted by points."""


def _is_host(text: str | None) -> bool:
    """Return whether the text is a host name, or an IPv4 or IPv6 address (without its brackets)."""
    return text is not None and (":" in text or _NAME.fullmatch(text) is not None)


def _without_login(text: str) -> str:
    """Return the text without user and password: the part after the last @, up to a query.

    Without an @, a colon may separate a user from a password, unless a port or nothing follows: then nothing is shown.
    """
    _, at, host = text.rpartition("@")
    host = re.split(r"[?#]", host)[0]
    if not at and re.search(r":(?!//)(?!\d{1,5}(/|$))", re.sub(r"\[[^]]*\]", "", host)):
        return "what is given"
    return repr(host)


def _plain_path(parts: SplitResult) -> bool:
    return parts.path.rstrip("/") in ("", "/sdk") and not parts.query and not parts.fragment


def _unquoted(text: str | None) -> str | None:
    return unquote(text) if text else None


HINT: Final = "openssl x509 -in vcenter.pem -noout -fingerprint -sha256 prints it"


def sha256_of(text: str, origin: str) -> str:
    """64 hexadecimal digits in lower case. Raises TargetError, naming `origin`, for anything else, a SHA-1 too."""
    digits = re.sub(r"^sha-?256( fingerprint)?[=:]", "", text.strip(), flags=re.IGNORECASE).replace(":", "").lower()
    if re.fullmatch(r"[0-9a-f]{40}", digits):
        raise TargetError(f"{origin} is a SHA-1 thumbprint, which can be forged", hint=HINT)
    if re.fullmatch(r"[0-9a-f]{64}", digits) is None:
        raise TargetError(f"{origin} is not the SHA-256 of a certificate: 64 hexadecimal digits", hint=HINT)
    return digits
