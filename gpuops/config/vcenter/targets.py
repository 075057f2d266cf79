"""Decodes and checks the configuration file, which names vCenters (targets).

default = "prod"

[targets.prod]
host = "vc.example.com"                # or an URL; or sim:lab
username = "gpuops@vsphere.local"
password_file = "/etc/gpuops/prod"     # or credential = "prod" (systemd), or keyring = true
ca_file = "/etc/gpuops/ca.pem"

The key `notify` of a target lists the receivers of notices. Their apprise URLs contain passwords or tokens, so the
file has only the places of these URLs: `env:VARIABLE`, `file:/etc/gpuops/chat.url`, `credential:NAME` of systemd. A
`mailto:` URL without a password may be in the file itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Final
from urllib.parse import parse_qsl, urlsplit
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from gpuops.config.decoding import UNKNOWN_KEY, Section, WrongContent, decode, keys_of
from gpuops.config.vcenter.broker_entry import BrokerEntry
from gpuops.config.vcenter.journal_url import without_password
from gpuops.config.vcenter.login_settings import read_password_file
from gpuops.errors import TargetError
from gpuops.files.file import parse_toml
from gpuops.model.file_keys import Reads
from gpuops.model.measurements.measurement_settings import MeasurementSettings
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.target import Secret

_PLACE_OF_URL: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|credential:[A-Za-z0-9._-]+|file:.+", re.DOTALL)
_MAIL: Final = frozenset({"mailto", "mailtos"})
_OPEN_KEYS: Final = frozenset({"from", "to", "cc", "bcc", "name", "reply", "smtp", "mode", "cto", "rto", "verify"})
"""The parameters that a mailto: URL in the file may have: none of these is a secret."""
_SCHEMES_WITH_HOST: Final = _MAIL | {"json", "jsons", "xml", "xmls", "form", "forms"}
"""Schemes whose URLs have a host after `://`; URLs of chats have a token there, which must not be shown."""


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """The receivers of a target's notices."""

    vcenter: str
    """The target's name."""
    entries: tuple[str, ...]
    """As they stand in the configuration file, without a secret."""


def checked_entry(text: str) -> str:
    """Return the same text. Raises ValueError, which never repeats it, if it holds a secret or is not an entry."""
    if _PLACE_OF_URL.fullmatch(text) or _is_open_mail(text):
        return text
    raise ValueError(
        "this URL may contain a password or a token: write env:VARIABLE, file:PATH or credential:NAME instead "
        "(only a mailto: URL without a password is allowed here)"
    )


def url_of(entry: str, environ: Mapping[str, str]) -> Secret:
    """Return the apprise URL of an entry: `env:NAME`, `file:PATH`, `credential:NAME`, or the URL itself.

    Raises TargetError if the variable or file is missing, or if other users can read the file.
    """
    kind, _, name = entry.partition(":")
    if kind == "env":
        if not environ.get(name):
            raise TargetError(f"notify: {name} is not set", hint=f"set {name} to the apprise URL of the receiver")
        return Secret(environ[name].strip())
    if kind == "file":
        return Secret(read_password_file(Path(name).expanduser(), private=True, content_name="URL").reveal().strip())
    if kind == "credential":
        folder = environ.get("CREDENTIALS_DIRECTORY")
        if folder is None:
            raise TargetError(
                f"notify: {entry} needs CREDENTIALS_DIRECTORY, which is not set",
                hint=f"add LoadCredential={name}:/path to the systemd unit",
            )
        return Secret(read_password_file(Path(folder) / name, content_name="URL").reveal().strip())
    return Secret(entry)


def receiver_label(entry: str, url: Secret | None) -> str:
    """Return what messages call a receiver: scheme, host (unless it may be a token), and the place of the URL."""
    place = entry if _PLACE_OF_URL.fullmatch(entry) else ""
    # without a place, the entry is a URL in the file itself, which only a mailto: URL may be
    if url is None:
        return place or "mailto"
    scheme, address_part, _ = url.reveal().partition("://")  # a text without :// may be a token
    scheme = scheme.lower() if address_part and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,30}", scheme) else "?"
    host = ""
    if scheme in _SCHEMES_WITH_HOST:
        try:
            host = urlsplit(url.reveal()).hostname or ""
        except ValueError:
            host = ""
    address = f"{scheme}://{host}"
    return f"{address} ({place})" if place else address


def _is_open_mail(text: str) -> bool:
    """Return whether the text is a mailto: URL without a password or any other secret."""
    try:
        parts = urlsplit(text)
        parameters = parse_qsl(parts.query, keep_blank_values=True)
        return (
            parts.scheme in _MAIL
            and bool(parts.hostname)
            and parts.password is None
            and {key.lower() for key, _ in parameters} <= _OPEN_KEYS
        )
    except ValueError:
        return False


_Command = Annotated[tuple[str, ...], Meta(min_length=1)]


def _check_zone(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError("it is not an IANA time zone that this machine knows: write it as Europe/Berlin") from error
    return zone


def _check_absolute(policy: Path) -> Path:
    if not policy.is_absolute():
        raise ValueError("it is not an absolute path, which cron needs: write it as /etc/gpuops/...")
    return policy


def _check_all_absolute(policies: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(map(_check_absolute, policies))


def _check_labels(labels: dict[str, str]) -> dict[str, str]:
    if any(not name or "=" in name for name in labels):
        raise ValueError("the name of a label must not be empty or contain =, because of --site NAME=VALUE")
    return labels


def _check_command(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command[0].startswith("/"):
        raise ValueError("it needs the absolute path of the command, because of cron: write it as /usr/local/bin/...")
    if any("\0" in word for word in command):
        raise ValueError("a command cannot contain a NUL character")
    return command


def _receivers(entries: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(checked_entry, entries)))


def _absolute_folder(folder: Path) -> str:
    if not folder.is_absolute():
        raise ValueError("it is not an absolute path, which cron needs: write it as /srv/...")
    return str(folder)


@dataclass(frozen=True, slots=True)
class MeasurementsEntry(MeasurementSettings):
    """One `[targets.NAME.measurements]`."""

    store_dir: Annotated[str, Reads(_absolute_folder, Path)] | None = None
    """The directory of `measurements.sqlite`; by default the state directory."""
    store_url: Annotated[str, Reads(without_password)] | None = field(default=None, repr=False)
    """The PostgreSQL database that keeps them instead; by default that of the journal."""
    ssh_known_hosts: Annotated[str, Reads(str, Path)] | None = None
    ssh_key: Annotated[str, Reads(str, Path)] | None = None


class GuestEntry(Section, omit_defaults=True):
    """One `[targets.NAME.guest]`. As in the target itself there is no `password` key."""

    username: Annotated[str, Meta(min_length=1)]
    password_file: Path | None = None
    credential: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    """Name of a systemd credential; default `gpuops-guest-password-NAME`, then `gpuops-guest-password`."""


class NamedTarget(Section, omit_defaults=True, dict=True):
    """One `[targets.NAME]`. There is no `password` key: a password in this file would be in every backup of it."""

    given: ClassVar[frozenset[str]] = frozenset()
    """Its keys in the file."""

    host: Annotated[str, Meta(min_length=1)]
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    username: str | None = None
    password_file: Path | None = None
    credential: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    """Name of a systemd credential; default `gpuops-password-NAME`, then `gpuops-password`."""
    keyring: bool = False
    """Look the password up in the desktop's secret store, service `gpuops`."""
    ca_file: Path | None = None
    verify: bool = True
    thumbprint: str | None = None
    """SHA-256 of its certificate, compared beside verification on every connection."""
    proxy: str | None = None
    """HOST:PORT of an HTTP proxy."""
    journal_url: Annotated[str, Reads(without_password)] | None = None
    """The PostgreSQL database that keeps the journal, for several machines; without it that of `[fleet]`, and without
    that a file of this machine."""

    reader: BulkReader = BulkReader.AUTO
    """Over which protocol inventories are read: auto, soap or json (`gpuops login test`)."""

    notify: Annotated[tuple[str, ...], Reads(_receivers, tuple[str, ...])] = ()
    """Where notices of its runs are sent; empty = nowhere (`gpuops help timers`)."""

    broker: BrokerEntry | None = None
    """The connection broker that hands its desktops out: `[targets.NAME.broker]` (`gpuops help broker`)."""
    guest: GuestEntry | None = None
    """The login to guests of its VMs: `[targets.NAME.guest]` (`gpuops help policy`)."""
    measurements: MeasurementsEntry | None = None
    """What is measured of it, and where that lies: `[targets.NAME.measurements]` (`gpuops help observe`)."""
    rotations: Annotated[tuple[Path, ...], Reads(_check_all_absolute, tuple[Path, ...])] = ()
    """Policy files, by their whole paths, whose nights runners play on it (`gpuops help sites`)."""
    idle_command: Annotated[tuple[str, ...], Reads(_check_command, _Command)] | None = None
    """The command that tells which desktops are used, with its arguments (`gpuops help idle`)."""

    zone: Annotated[str, Reads(_check_zone)] | None = None
    """The IANA time zone of the site, Europe/Berlin, in which several sites say when each answered."""
    policy: Annotated[Path, Reads(_check_absolute, Path)] | None = None
    """The rotation policy that commands read for this site with `--site` where no `--policy` is said; without it the
    only one of `rotations`."""
    labels: Annotated[dict[str, str], Reads(_check_labels, dict[str, str])] = msgspec.field(default_factory=dict)
    """What groups of sites are named by: `--site region=emea` (`gpuops help sites`)."""


def _check_host_patterns(hosts: tuple[str, ...]) -> tuple[str, ...]:
    if any(not host.strip("*?.") for host in hosts):
        raise ValueError("it matches every host: write the domain of your vCenters, such as *.example.com")
    return hosts


class FleetEntry(Section):
    """`[fleet]`: the PostgreSQL that runners share."""

    url: Annotated[str, Reads(without_password, Annotated[str, Meta(min_length=1)])]
    """The database of the queue, and of the journal of each target that names none of its own."""

    vcenters: Annotated[tuple[str, ...], Reads(_check_host_patterns, tuple[str, ...])] = ()
    """Host names, or patterns of them, of vCenters (and of their brokers) that runners return by what that database
    says, where this file names them no more: passwords of this machine go there."""


class Configuration(Section):
    """The whole file."""

    default: str | None = None
    fleet: FleetEntry | None = None
    """The database that runners share (`gpuops help sites`)."""
    targets: dict[str, NamedTarget] = msgspec.field(default_factory=dict)


TABLES: Final[Mapping[str, type]] = {
    "broker": BrokerEntry, "guest": GuestEntry, "measurements": MeasurementsEntry,
}  # fmt: skip
"""Keys of a target that are tables of their own: `[targets.NAME.broker]`."""
HELP_PAGES: Final = {"broker": "broker", "guest": "policy", "measurements": "observe"}
"""The pages of the manual about them."""


def parsed_configuration(text: str, path: Path) -> Configuration:
    """Return the configuration in the text of the file at `path`. Raises TargetError with file, key and reason."""
    try:
        content = parse_toml(text)
        configuration = decode(Configuration, content, strict=False)
    except WrongContent as error:
        raise TargetError(f"{path}: {error.describe(error.most_telling)}", hint=_hint(error)) from error
    except ValueError as error:
        raise TargetError(
            f"{path} is not TOML: {error}", hint='write [targets.prod] and below it host = "vc.example.com"'
        ) from error
    for name, target in configuration.targets.items():
        msgspec.structs.force_setattr(target, "given", frozenset(content["targets"][name]))
    if configuration.default is not None and configuration.default not in configuration.targets:
        raise TargetError(
            f"{path}: default = {configuration.default!r}, but there is no [targets.{configuration.default}]",
            hint=f"use one of its targets: {', '.join(sorted(configuration.targets)) or 'it has none yet'}",
        )
    _refuse_two_journals(configuration, path)
    return configuration


def _refuse_two_journals(configuration: Configuration, path: Path) -> None:
    """Raise TargetError if runners would write a target's nights to another journal than commands read."""
    if configuration.fleet is None:
        return
    for name, target in configuration.targets.items():
        if target.rotations and target.journal_url not in (None, configuration.fleet.url):
            raise TargetError(
                f"{path}: targets.{name}.journal_url: it differs from [fleet].url, where runners write the journal",
                hint="remove journal_url: every command then uses the database of [fleet] (gpuops help sites)",
            )


def _hint(error: WrongContent) -> str:
    """Return the hint for the mistakes of the file, for example the keys that a target may have."""
    places = [mistake.place for mistake in error.mistakes]
    if any("password" in place for place in places):
        return "use password_file, credential or keyring: this file must not contain a password"
    for table, entry in TABLES.items():
        if any(table in place for place in places):
            return f"keys of a target's {table}: {', '.join(keys_of(entry))}"
    unknown = any(mistake.reason == UNKNOWN_KEY for mistake in error.mistakes)
    return f"keys of a target: {', '.join(keys_of(NamedTarget))}" if unknown else "gpuops help targets"
