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
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gpuops.config.vcenter.broker import BrokerEntry
from gpuops.config.vcenter.fleet import FleetEntry
from gpuops.config.vcenter.guest import GuestEntry
from gpuops.config.vcenter.journal_url import holds_password
from gpuops.config.vcenter.measurements import MeasurementsEntry
from gpuops.config.vcenter.notices import checked_entry
from gpuops.errors import TargetError
from gpuops.files.file import parse_toml
from gpuops.files.wrong_value import reason
from gpuops.model.vcenter.login import BulkReader

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class NamedTarget(BaseModel):
    """One `[targets.NAME]`. There is no `password` key: a password in this file would be in every backup of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = Field(min_length=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    username: str | None = None
    password_file: Path | None = None
    credential: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of a systemd credential; default `gpuops-password-NAME`, then `gpuops-password`."""
    keyring: bool = False
    """Look the password up in the desktop's secret store, service `gpuops`."""
    ca_file: Path | None = None
    verify: bool = True
    thumbprint: str | None = None
    """SHA-256 of its certificate, compared beside verification on every connection."""
    proxy: str | None = None
    """HOST:PORT of an HTTP proxy."""
    journal_url: str | None = None
    """The PostgreSQL database that keeps the journal, for several machines; without it that of `[fleet]`, and without
    that a file of this machine."""

    reader: BulkReader = BulkReader.AUTO
    """Over which protocol inventories are read: auto, soap or json (`gpuops login test`)."""

    notify: tuple[str, ...] = Field(default=(), repr=False)
    """Where notices of its runs are sent; empty = nowhere (`gpuops help notices`)."""

    broker: BrokerEntry | None = None
    """The connection broker that hands its desktops out: `[targets.NAME.broker]` (`gpuops help broker`)."""
    guest: GuestEntry | None = None
    """The login to guests of its VMs: `[targets.NAME.guest]` (`gpuops help policy`)."""
    measurements: MeasurementsEntry | None = None
    """What is measured of it, and where that lies: `[targets.NAME.measurements]` (`gpuops help observe`)."""
    rotations: tuple[Path, ...] = ()
    """Policy files, by their whole paths, whose nights runners play on it (`gpuops help runner`)."""
    idle_command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The command that tells which desktops are used, with its arguments (`gpuops help idle`)."""

    zone: str | None = None
    """The IANA time zone of the site, Europe/Berlin, in which several sites say when each answered."""
    policy: Path | None = None
    """The rotation policy that commands read for this site with `--site` where no `--policy` is said; without it the
    only one of `rotations`."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """What groups of sites are named by: `--site region=emea` (`gpuops help sites`)."""

    @field_validator("zone")
    @classmethod
    def _known_zone(cls, zone: str | None) -> str | None:
        if zone is not None:
            try:
                ZoneInfo(zone)
            except (OSError, ValueError, KeyError) as error:
                raise ValueError("this machine knows no such time zone: write it as Europe/Berlin") from error
        return zone

    @field_validator("policy", "rotations")
    @classmethod
    def _whole_policy_path(cls, said: Path | tuple[Path, ...] | None) -> Path | tuple[Path, ...] | None:
        for policy in said if isinstance(said, tuple) else (said,):
            if policy is not None and not policy.is_absolute():
                raise ValueError("cron looks elsewhere for files: say the whole path of the policy, /etc/gpuops/...")
        return said

    @field_validator("labels")
    @classmethod
    def _plain_names(cls, labels: Mapping[str, str]) -> Mapping[str, str]:
        if any(not name or "=" in name for name in labels):
            raise ValueError("the name of a label is not empty and holds no =, for it is asked as --site NAME=VALUE")
        return labels

    @field_validator("idle_command")
    @classmethod
    def _whole_path(cls, command: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if command is not None and not command[0].startswith("/"):
            raise ValueError("cron looks elsewhere for programs: say the whole path of the command, /usr/local/bin/...")
        if command is not None and any("\0" in word for word in command):
            raise ValueError("a command cannot hold a NUL character")
        return command

    @field_validator("notify")
    @classmethod
    def _without_secret(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(checked_entry(entry) for entry in entries))

    @field_validator("journal_url")
    @classmethod
    def _without_password(cls, url: str | None) -> str | None:
        if url is not None and holds_password(url):
            raise ValueError("no password belongs in this file: put it into ~/.pgpass")
        return url


class Configuration(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    default: str | None = None
    fleet: FleetEntry | None = None
    """The database that runners share (`gpuops help runner`)."""
    targets: dict[str, NamedTarget] = Field(default_factory=dict)


TABLES: Final[Mapping[str, type[BaseModel]]] = {
    "broker": BrokerEntry, "guest": GuestEntry, "measurements": MeasurementsEntry,
}  # fmt: skip
"""Keys of a target that are tables of their own: `[targets.NAME.broker]`."""
HELP_PAGES: Final = {"broker": "broker", "guest": "policy", "measurements": "observe"}
"""The pages of the manual about them."""


def parsed_configuration(text: str, path: Path) -> Configuration:
    """What the text of the file at `path` says. Raises TargetError, naming file, key and reason."""
    try:
        configuration = Configuration.model_validate(parse_toml(text))
    except ValidationError as error:
        raise TargetError(f"{path}: {_first(error.errors())}", hint=_hint(error.errors())) from error
    except ValueError as error:
        raise TargetError(
            f"{path} is not TOML: {error}", hint='for example: [targets.prod] and below it host = "vc.example.com"'
        ) from error
    if configuration.default is not None and configuration.default not in configuration.targets:
        raise TargetError(
            f"{path}: default = {configuration.default!r}, and there is no [targets.{configuration.default}]",
            hint=f"targets there: {', '.join(sorted(configuration.targets)) or 'none'}",
        )
    _refuse_two_journals(configuration, path)
    return configuration


def _refuse_two_journals(configuration: Configuration, path: Path) -> None:
    """Raises TargetError where what runners play would be written elsewhere than a command looks for it."""
    if configuration.fleet is None:
        return
    for name, target in configuration.targets.items():
        if target.rotations and target.journal_url not in (None, configuration.fleet.url):
            raise TargetError(
                f"{path}: targets.{name}.journal_url: runners play its rotations, and write the journal to [fleet].url",
                hint="leave journal_url out: every command then uses the database of [fleet] (gpuops help runner)",
            )


def _first(found: list[ErrorDetails]) -> str:
    # a key that nobody knows is often the misspelt one that another error misses
    details = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{'.'.join(str(part) for part in details['loc'])}: {reason(details)}{more}"


def _hint(found: list[ErrorDetails]) -> str:
    if any("password" in details["loc"] for details in found):
        return "no password belongs in this file: say password_file, credential or keyring"
    for table, entry in TABLES.items():
        if any(table in details["loc"] for details in found):
            return f"keys of a target's {table}: {', '.join(entry.model_fields)}"
    unknown = any(details["type"] == "extra_forbidden" for details in found)
    return f"keys of a target: {', '.join(NamedTarget.model_fields)}" if unknown else "gpuops help targets"
