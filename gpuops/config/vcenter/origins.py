"""Lists the settings in force for a vCenter, each with the place it comes from: `gpuops config show`.

`sources.resolve` decides what is in force; the origins are read from the same sources in the same order. Passwords are
not shown, only whether there is one and where it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuops.config.vcenter.destination import SERVED, Destination, Simulated
from gpuops.config.vcenter.journal_url import holds_password
from gpuops.config.vcenter.layers import DEFAULT, Flags
from gpuops.config.vcenter.login_settings import (
    Credential,
    PasswordSource,
    guest_user,
    other_password,
    vcenter_password,
)
from gpuops.config.vcenter.sources import label, resolve
from gpuops.model.vcenter.target import Secret

if TYPE_CHECKING:
    from gpuops.config.vcenter.sources import NamedTargets
    from gpuops.config.vcenter.targets import NamedTarget

NOT_SET: Final = "not set"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting in force, as text, and where it comes from: an option, a variable, FILE:LINE or the default."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class ShownTarget:
    """A vCenter by its name or address, with its settings."""

    name: str
    settings: tuple[Setting, ...]


_TABLES: Final = "broker|guest|measurements"


def shown_targets(
    flags: Flags, environ: Mapping[str, str], configuration: NamedTargets, lines: TargetLines
) -> tuple[ShownTarget, ...]:
    """Return the settings of the selected vCenter and, without --vcenter, of each target of the file.

    Raises TargetError for an invalid setting.
    """
    selected = label(flags.vcenter, environ, configuration.default)
    names = [] if flags.vcenter is not None else list(configuration.targets)
    targets = [ShownTarget(name, tuple(_settings(name, flags, environ, configuration, lines))) for name in names]
    # the selected vCenter is not a target of the file, or the only one to show
    if selected is not None and selected not in names:
        targets.insert(0, ShownTarget(selected, tuple(_settings(None, flags, environ, configuration, lines))))
    return tuple(targets)


@dataclass(frozen=True, slots=True)
class TargetLines:
    """The line numbers of the keys in the configuration file, by target (or `fleet`) and key."""

    file: Path
    lines: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, file: Path, text: str) -> TargetLines:
        """Return the lines of the keys and tables of each `[targets.NAME]`, and of `[fleet]`.

        Keys that are written in another form, such as `targets.prod.host = ...`, have no line.
        """
        line_numbers: dict[tuple[str, str], int] = {}
        target = ""  # of the present table; '' = a table without keys of a target
        for number, line in enumerate(text.splitlines(), 1):
            if table := re.match(rf"\s*\[\s*targets\s*\.\s*[\"']?(.+?)[\"']?\s*\.\s*({_TABLES})\s*\]\s*(#.*)?$", line):
                target = ""
                line_numbers.setdefault((table[1], table[2]), number)
            elif re.match(r"\s*\[\s*fleet\s*\]\s*(#.*)?$", line):
                target = "fleet"  # a target called `fleet` has none of the keys of this table
            elif header := re.match(r"\s*\[\s*targets\s*\.\s*[\"']?(.+?)[\"']?\s*\]\s*(#.*)?$", line):
                target = header[1]
            elif line.lstrip().startswith("["):
                target = ""
            elif target and (key := re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)):
                line_numbers.setdefault((target, key[1]), number)
        return cls(file, line_numbers)

    def place(self, target: str, key: str) -> str:
        """Return FILE:LINE of a key, or the file alone if the line is unknown."""
        line = self.lines.get((target, key))
        return f"{self.file}:{line}" if line is not None else str(self.file)


@dataclass(frozen=True, slots=True)
class _Origins:
    """Where the settings of one vCenter come from."""

    by_setting: Mapping[str, str]
    """`origins` of the destination."""
    entry: NamedTarget | None
    name: str
    lines: TargetLines

    def of(self, setting: str) -> str:
        """Return the option or variable that sets it, or the line of the file; else the default."""
        return self.place_of(self.by_setting.get(setting, DEFAULT))

    def place_of(self, origin: str) -> str:
        """Return FILE:LINE for the origin `targets.NAME.KEY`; other origins are returned unchanged."""
        if origin == "fleet.url":
            return self.lines.place("fleet", "url")
        key = origin.removeprefix(f"targets.{self.name}.")
        return origin if key == origin else self.in_file(key.partition(".")[0])

    def in_file(self, key: str) -> str:
        """Return FILE:LINE of a key of the target; the default if the file does not set it."""
        is_in_file = self.entry is not None and key in self.entry.given
        return self.lines.place(self.name, key) if is_in_file else DEFAULT


def _settings(
    name: str | None, flags: Flags, environ: Mapping[str, str], configuration: NamedTargets, lines: TargetLines
) -> Iterator[Setting]:
    """Yield the settings of the target `name`; None = of the vCenter that options or variables select."""
    flags = flags if name is None else replace(flags, vcenter=name)
    where = resolve(flags, environ, configuration)
    target_name = name or label(flags.vcenter, environ, configuration.default) or ""
    origins = _Origins(where.origins, configuration.targets.get(target_name), target_name, lines)
    if isinstance(where, Simulated):
        yield Setting("host", where.label, origins.of("vcenter"))
        yield Setting("reader", where.reader.value, origins.of("reader"))
        yield from _site(origins)
    elif where.label.startswith(SERVED):
        yield Setting("host", str(where.address), origins.of("vcenter"))
        yield Setting("username", where.username or NOT_SET, origins.of("vcenter"))
    else:
        yield from _destination_settings(where, origins, environ)


def _destination_settings(where: Destination, origins: _Origins, environ: Mapping[str, str]) -> Iterator[Setting]:
    """Yield all settings of a real vCenter, in the order in which they are shown."""
    host_origin = origins.of("vcenter")
    port_origin = origins.in_file("port")  # only the file has a setting for it
    # an unusual port that the file does not set came with the address
    if port_origin == DEFAULT and where.address.port not in (80, 443):
        port_origin = host_origin
    ca_files = ", ".join(map(str, where.ca_files))
    yield Setting("host", where.address.host, host_origin)
    yield Setting("port", str(where.address.port), port_origin)
    yield Setting("username", where.username or NOT_SET, origins.of("username"))
    yield _password(where, origins, environ)
    yield Setting("ca_file", ca_files or "the system's", origins.of("ca_files"))
    yield Setting("verify", "true" if where.verify else "false", origins.of("verify"))
    yield Setting("thumbprint", where.thumbprint or NOT_SET, origins.of("thumbprint"))
    yield Setting("proxy", where.proxy or NOT_SET, origins.of("proxy"))
    yield Setting("journal_url", _journal(where.journal_url), origins.of("journal_url"))
    yield Setting("reader", where.reader.value, origins.of("reader"))
    yield from _broker(where, origins, environ)
    yield from _guest(where, origins, environ)
    yield from _measurements(where, origins)
    yield from _site(origins)


def _broker(where: Destination, origins: _Origins, environ: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings of its connection broker, if it has one. The password is not read."""
    broker = where.broker
    if broker is None:
        return
    source = origins.in_file("broker")
    yield Setting("broker.url", str(broker.address), source)
    yield Setting("broker.username", f"{broker.domain}\\{broker.username}", source)
    yield _password_setting("broker.password", other_password("broker", broker, broker.name, environ), origins)
    yield Setting("broker.ca_file", ", ".join(map(str, broker.ca_files)) or "the system's", source)
    yield Setting("broker.thumbprint", broker.thumbprint or NOT_SET, source)


def _guest(where: Destination, origins: _Origins, environ: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the login to guests, if there is one. The password is not read."""
    user = guest_user(environ, where.name, where.guest)
    if user is not None:
        username, source = user
        yield Setting("guest.username", username.value, origins.place_of(username.origin))
        yield _password_setting("guest.password", source, origins)


def _measurements(where: Destination, origins: _Origins) -> Iterator[Setting]:
    """Yield the settings of the target's measurements; nothing if the file has none."""
    settings, source = where.measurements, origins.in_file("measurements")
    if source == DEFAULT:
        return
    store = settings.store_dir if settings.store_dir is not None else _journal(settings.store_url or None)
    yield Setting("measurements.store", store if store != NOT_SET else "where the journal is", source)
    yield Setting(
        "measurements.counters", "all" if settings.counters is None else " ".join(sorted(settings.counters)), source
    )
    yield Setting("measurements.fine_days", str(settings.fine_days), source)
    yield Setting("measurements.hourly_days", str(settings.hourly_days), source)
    hosts = settings.hosts
    yield Setting("measurements.host_shell", "none" if hosts is None else f"ssh, as {hosts.username}", source)


def _site(origins: _Origins) -> Iterator[Setting]:
    """Yield the zone, the policy and the labels of the target, if the file has them (`gpuops help sites`)."""
    if (entry := origins.entry) is None:
        return
    labels = ", ".join(f"{name}={value}" for name, value in entry.labels.items())
    for key, value in (("zone", entry.zone), ("policy", entry.policy), ("labels", labels)):
        if value:
            yield Setting(key, str(value), origins.in_file(key))


def _journal(url: str | None) -> str:
    """Return the URL of a database, or a text in its place if it contains a password."""
    if url is None:
        return NOT_SET
    return "set, with a password in it" if holds_password(url) else url


def _password(where: Destination, origins: _Origins, environ: Mapping[str, str]) -> Setting:
    source = vcenter_password(where, environ)
    if source is None and where.keyring:
        return Setting("password", "from the keyring, service gpuops", origins.in_file("keyring"))
    return _password_setting("password", source, origins)


def _password_setting(name: str, source: PasswordSource | None, origins: _Origins) -> Setting:
    """Return whether the password is set and where it comes from; it is not read."""
    if source is None:
        return Setting(name, NOT_SET, DEFAULT)
    match source.value:
        case Secret():
            text = "set"
        case Path() as file:
            text = f"set, from file {file}{'' if file.exists() else ', which is not there'}"
        case Credential(credential, directory):
            missing_text = "" if directory else ", which a systemd unit alone has"
            text = f"set, from the credential {credential}{missing_text}"
    return Setting(name, text, origins.place_of(source.origin))
