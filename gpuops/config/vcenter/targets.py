"""Named vCenters of the configuration file, checked at the door.

default = "prod"

[targets.prod]
host = "vc.example.com"                # or an URL; or sim:lab
username = "gpuops@vsphere.local"
password_file = "/etc/gpuops/prod"     # or credential = "prod" (systemd), or keyring = true
ca_file = "/etc/gpuops/ca.pem"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Final
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from gpuops.config.decoding import UNKNOWN_KEY, Section, WrongContent, decode, keys_of
from gpuops.config.vcenter.broker import BrokerEntry
from gpuops.config.vcenter.journal_url import without_password
from gpuops.config.vcenter.notices import checked_entry
from gpuops.errors import TargetError
from gpuops.files.file import parse_toml
from gpuops.model.file_keys import Reads
from gpuops.model.measurements.measurement_settings import MeasurementSettings
from gpuops.model.vcenter.bulk_reader import BulkReader

_Command = Annotated[tuple[str, ...], Meta(min_length=1)]


def _known_zone(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError("this machine knows no such time zone: write it as Europe/Berlin") from error
    return zone


def _whole_policy_path(policy: Path) -> Path:
    if not policy.is_absolute():
        raise ValueError("cron looks elsewhere for files: say the whole path of the policy, /etc/gpuops/...")
    return policy


def _whole_policy_paths(policies: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(map(_whole_policy_path, policies))


def _plain_names(labels: dict[str, str]) -> dict[str, str]:
    if any(not name or "=" in name for name in labels):
        raise ValueError("the name of a label is not empty and holds no =, for it is asked as --site NAME=VALUE")
    return labels


def _whole_command(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command[0].startswith("/"):
        raise ValueError("cron looks elsewhere for programs: say the whole path of the command, /usr/local/bin/...")
    if any("\0" in word for word in command):
        raise ValueError("a command cannot hold a NUL character")
    return command


def _receivers(entries: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(checked_entry, entries)))


def _from_the_root(folder: Path) -> str:
    if not folder.is_absolute():
        raise ValueError("cron starts elsewhere: say the whole path, /srv/...")
    return str(folder)


@dataclass(frozen=True, slots=True)
class MeasurementsEntry(MeasurementSettings):
    """One `[targets.NAME.measurements]`."""

    store_dir: Annotated[str, Reads(_from_the_root, Path)] | None = None
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
    rotations: Annotated[tuple[Path, ...], Reads(_whole_policy_paths, tuple[Path, ...])] = ()
    """Policy files, by their whole paths, whose nights runners play on it (`gpuops help sites`)."""
    idle_command: Annotated[tuple[str, ...], Reads(_whole_command, _Command)] | None = None
    """The command that tells which desktops are used, with its arguments (`gpuops help idle`)."""

    zone: Annotated[str, Reads(_known_zone)] | None = None
    """The IANA time zone of the site, Europe/Berlin, in which several sites say when each answered."""
    policy: Annotated[Path, Reads(_whole_policy_path, Path)] | None = None
    """The rotation policy that commands read for this site with `--site` where no `--policy` is said; without it the
    only one of `rotations`."""
    labels: Annotated[dict[str, str], Reads(_plain_names, dict[str, str])] = msgspec.field(default_factory=dict)
    """What groups of sites are named by: `--site region=emea` (`gpuops help sites`)."""


def _some_domain(hosts: tuple[str, ...]) -> tuple[str, ...]:
    if any(not host.strip("*?.") for host in hosts):
        raise ValueError("that is every host: name the domain of your vCenters, *.example.com")
    return hosts


class FleetEntry(Section):
    """`[fleet]`: the PostgreSQL that runners share."""

    url: Annotated[str, Reads(without_password, Annotated[str, Meta(min_length=1)])]
    """The database of the queue, and of the journal of each target that names none of its own."""

    vcenters: Annotated[tuple[str, ...], Reads(_some_domain, tuple[str, ...])] = ()
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
            hint=f"targets there: {', '.join(sorted(configuration.targets)) or 'none'}",
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
                f"{path}: targets.{name}.journal_url: runners play its rotations, and write the journal to [fleet].url",
                hint="leave journal_url out: every command then uses the database of [fleet] (gpuops help sites)",
            )


def _hint(error: WrongContent) -> str:
    places = [mistake.place for mistake in error.mistakes]
    if any("password" in place for place in places):
        return "no password belongs in this file: say password_file, credential or keyring"
    for table, entry in TABLES.items():
        if any(table in place for place in places):
            return f"keys of a target's {table}: {', '.join(keys_of(entry))}"
    unknown = any(mistake.reason == UNKNOWN_KEY for mistake in error.mistakes)
    return f"keys of a target: {', '.join(keys_of(NamedTarget))}" if unknown else "gpuops help targets"
