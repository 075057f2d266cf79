"""The vCenter that a command connects to and how to reach it, as `sources` finds them: `Destination`, `Simulated`.

`Address` is the address as people write it (`vc.example.com`, `https://vc.example.com/sdk`, `user@vc:8443`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from gpuops.errors import NotTrusted, Refused, TargetError
from gpuops.model.measurements.measurement_settings import UNSAID, MeasurementSettings
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.target import Secret

if TYPE_CHECKING:
    from gpuops.config.vcenter.broker_entry import BrokerDestination
    from gpuops.config.vcenter.targets import GuestEntry, NotifySettings


@dataclass(frozen=True, slots=True)
class Address:
    """Host, port, and whether TLS is used. The user and password of the text do not count in comparisons."""

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
        not_an_address = TargetError(
            f"{_without_login(text)} is not the address of a vCenter", hint="write it as https://vc.example.com"
        )
        try:
            parts = urlsplit(text if "://" in text else f"https://{text}")
            written_port = parts.port
        except ValueError as error:
            raise not_an_address from error
        if parts.scheme not in ("https", "http") or not _is_host(parts.hostname) or not _is_sdk_path(parts):
            raise not_an_address
        return cls(
            host=str(parts.hostname).lower(),
            port=written_port or port or (443 if parts.scheme == "https" else 80),
            tls=parts.scheme == "https",
            username=_unquoted(parts.username),
            password=Secret(unquote(parts.password)) if parts.password else None,
        )

    @property
    def is_this_machine(self) -> bool:
        """Whether data for this address stays on this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default_port = self.port == (443 if self.tls else 80)
        return f"{'https' if self.tls else 'http'}://{host}{'' if is_default_port else f':{self.port}'}"


_NAME: Final = re.compile(r"[^\W_]([\w-]*[^\W_])?(\.[^\W_]([\w-]*[^\W_])?)*\.?")
"""Labels of letters (of any script), digits, - and _, separated by dots."""


def _is_host(text: str | None) -> bool:
    """Return whether the text is a host name, or an IPv4 or IPv6 address (without its brackets)."""
    return text is not None and (":" in text or _NAME.fullmatch(text) is not None)


def _without_login(text: str) -> str:
    """Return the text without user and password: the part after the last @, up to a query.

    Without an @, a colon may separate a user from a password, unless a port or nothing follows: then nothing is shown.
    """
    _, at, host = text.rpartition("@")
    host = re.split(r"[?#]", host)[0]
    # a colon that is followed by neither // nor a port, outside of the brackets of an IPv6 address
    if not at and re.search(r":(?!//)(?!\d{1,5}(/|$))", re.sub(r"\[[^]]*\]", "", host)):
        return "the given text"
    return repr(host)


def _is_sdk_path(parts: SplitResult) -> bool:
    """Return whether the path is empty or /sdk, without query and fragment."""
    return parts.path.rstrip("/") in ("", "/sdk") and not parts.query and not parts.fragment


def _unquoted(text: str | None) -> str | None:
    return unquote(text) if text else None


THUMBPRINT_HINT: Final = "openssl x509 -in vcenter.pem -noout -fingerprint -sha256 prints it"


def sha256_of(text: str, origin: str) -> str:
    """Return the 64 hexadecimal digits of the thumbprint in lower case; the text may have colons and a `SHA256=`.

    Raises TargetError that names `origin` for any other text.
    """
    digits = re.sub(r"^sha-?256( fingerprint)?[=:]", "", text.strip(), flags=re.IGNORECASE).replace(":", "").lower()
    if re.fullmatch(r"[0-9a-f]{40}", digits):
        raise TargetError(f"{origin} is a SHA-1 thumbprint, which can be forged", hint=THUMBPRINT_HINT)
    if re.fullmatch(r"[0-9a-f]{64}", digits) is None:
        raise TargetError(f"{origin} is not the SHA-256 of a certificate: 64 hexadecimal digits", hint=THUMBPRINT_HINT)
    return digits


SIMULATED: Final = "sim:"
SERVED: Final = "sim@"


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated vCenter that lives as long as the command: `sim:SCENARIO`."""

    scenario: str
    clock: str = "virtual"
    reader: BulkReader = BulkReader.AUTO
    notify: NotifySettings | None = None
    """As of a destination, where it is a target of the configuration file."""
    idle_command: tuple[str, ...] | None = None
    """As of a destination."""
    guest: GuestEntry | None = None
    """As of a destination."""
    measurements: MeasurementSettings = UNSAID
    """As of a destination."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """As of a destination."""

    @property
    def label(self) -> str:
        return SIMULATED + self.scenario


@dataclass(frozen=True, slots=True)
class Destination:
    """A vCenter and how to reach it. `login_settings.find_password` finds a password that is not set here."""

    label: str
    """Its name or address as the user wrote it, for caches and messages."""
    address: Address
    username: str | None
    password: Secret | None = None
    password_file: Path | None = None
    """The file with the password, in place of `password`."""
    verify: bool = True
    ca_files: tuple[Path, ...] = ()
    thumbprint: str | None = None
    """SHA-256 of its certificate, 64 hexadecimal digits in lower case."""
    proxy: str | None = None
    name: str | None = None
    """The target's name in the configuration file."""
    credential: str | None = None
    password_of_other: str | None = None
    """The user whose password the target has, if another user logs in; the password is then not used."""
    keyring: bool = False
    journal_url: str | None = field(default=None, repr=False)
    """The PostgreSQL database that keeps the journal; None = a file in the state directory."""
    reader: BulkReader = BulkReader.AUTO
    """Over which protocol inventories are read."""
    insecure_by_target: bool = False
    """Whether the entry of the target has `verify = false`: this also holds for unattended runs."""
    notify: NotifySettings | None = None
    """Where notices of its runs are sent; None = nowhere."""
    idle_command: tuple[str, ...] | None = None
    """The command that reports which desktops are used; None = no command."""
    broker: BrokerDestination | None = None
    """The connection broker that assigns its desktops; None = no broker."""
    guest: GuestEntry | None = None
    """The login to guests of its VMs that the target names; None = it names none."""
    measurements: MeasurementSettings = UNSAID
    """What is measured, and where the measurements are stored."""
    policies: tuple[Path, ...] = ()
    """The files of its policies."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The option, variable or key (`targets.prod.proxy`) by which each setting of a `Layer` is set."""


def certificate_warning(where: Destination | Simulated, *, guarded: bool, decided: bool = False) -> str | None:
    """Return a warning that the certificate is not verified; None if it is.

    Raises NotTrusted if the password would be sent unencrypted. `guarded`: the run changes many desktops, so it raises
    Refused, unless the target has `verify = false` or `decided` is set: an admin at a terminal sees the warning, or the
    caller chose not to verify.
    """
    if isinstance(where, Simulated) or (where.verify and _is_protected(where)):
        return None
    if where.verify:
        raise NotTrusted(
            f"{where.address} is not encrypted, so others could read the password",
            hint="give the address as https://HOST, or add --insecure to send the password all the same",
        )
    if guarded and not decided and not where.insecure_by_target:
        raise Refused(
            f"an unattended rotation refuses {where.origins['verify']}, because no admin would see the warning",
            hint="give the CA of the vCenter with --ca-file, or put `verify = false` into its [targets.NAME]",
        )
    return f"the certificate of {where.address} is not verified ({where.origins['verify']})"


def _is_protected(where: Destination) -> bool:
    """Return whether nobody on the network can read the password."""
    return where.address.tls or where.address.is_this_machine
