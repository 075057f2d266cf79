"""The connection broker of a target: its entry in the configuration file, and the login to it.

    [targets.prod.broker]
    url = "https://horizon.example.com"
    username = "gpuops"
    domain = "EXAMPLE"
    password_file = "/etc/gpuops/prod-broker.password"    # or a systemd credential
    ca_file = "/etc/gpuops/horizon-ca.pem"

The certificate of the broker is always verified. The password of the vCenter is never sent to the broker, and the
password of the broker never to the vCenter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from gpuops.config.decoding import Section
from gpuops.config.vcenter.destination import Address, sha256_of
from gpuops.config.vcenter.login_settings import other_password, read_password
from gpuops.errors import TargetError
from gpuops.model.file_keys import Reads
from gpuops.model.vcenter.target import BrokerTarget, Secret, Target

Filled = Annotated[str, Meta(min_length=1)]


def _broker_url(url: str) -> str:
    """Return the same text. Raises ValueError if it is not an encrypted address without user and password."""
    try:
        address = Address.parse(url)
    except TargetError:
        raise ValueError("this is not the address of a broker: write it as https://horizon.example.com") from None
    if address.password is not None or address.username is not None:
        raise ValueError("it contains a user or a password: use the keys username and password_file for them")
    if not address.tls and not address.is_this_machine:
        raise ValueError("it is not encrypted, so others could read the password: use https://")
    return url


class BrokerEntry(Section, omit_defaults=True):
    """One `[targets.NAME.broker]`. As in the target itself there is no `password` key."""

    url: Annotated[str, Reads(_broker_url, Filled)]
    username: Filled
    domain: Filled
    password_file: Path | None = None
    credential: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    """Name of a systemd credential; default `gpuops-broker-password-NAME`, then `gpuops-broker-password`."""
    ca_file: Path | None = None
    thumbprint: str | None = None
    """SHA-256 of its certificate, compared beside verification on every connection."""


@dataclass(frozen=True, slots=True)
class BrokerDestination:
    """A broker and how to reach it. `broker_login` finds the password if it is None here."""

    address: Address
    username: str
    domain: str
    name: str | None = None
    """The target's name in the configuration file."""
    password: Secret | None = None
    password_file: Path | None = None
    credential: str | None = None
    ca_files: tuple[Path, ...] = ()
    thumbprint: str | None = None


def broker_destination(name: str, entry: BrokerEntry, environ: Mapping[str, str]) -> BrokerDestination:
    """Return the broker of a target. Raises TargetError for a malformed thumbprint."""
    bundle = environ.get("REQUESTS_CA_BUNDLE")
    ca_file = entry.ca_file or (Path(bundle) if bundle else None)
    pin = sha256_of(entry.thumbprint, f"targets.{name}.broker.thumbprint") if entry.thumbprint is not None else None
    return BrokerDestination(
        Address.parse(entry.url),
        entry.username,
        entry.domain,
        name,
        password_file=entry.password_file,
        credential=entry.credential,
        ca_files=(ca_file,) if ca_file else (),
        thumbprint=pin,
    )


def broker_login(
    broker: BrokerDestination, environ: Mapping[str, str], ask: Callable[[str], str] | None
) -> BrokerTarget:
    """Return the broker with its password. `ask` prompts a person; None = no terminal.

    Raises TargetError for a source that cannot be read, and without any source.
    """
    source = other_password("broker", broker, broker.name, environ)
    if broker.password is not None:
        password = broker.password
    elif source is not None:
        password = read_password(source)
    elif ask is not None:
        password = Secret(ask(f"Password of {broker.domain}\\{broker.username} at the broker {broker.address}: "))
    else:
        raise TargetError(
            f"no password for {broker.domain}\\{broker.username} at the broker {broker.address}",
            hint=f"put password_file into [targets.{broker.name}.broker], or set GPUOPS_BROKER_PASSWORD_FILE",
        )
    server = Target(
        host=broker.address.host,
        port=broker.address.port,
        tls=broker.address.tls,
        path="/rest",
        username=broker.username,
        password=password,
        ca_files=tuple(map(str, broker.ca_files)),
        pin=broker.thumbprint,
    )
    return BrokerTarget(server, broker.domain)
