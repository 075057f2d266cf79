"""The settings that are in force for a vCenter, and where each comes from: `gpuops config show`.

`sources.resolve` decides what is in force; here the same sources are asked in the same order who says it. No password
is among it, only whether there is one and from where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuops.config.vcenter.destination import SERVED, Destination, Simulated
from gpuops.config.vcenter.journal_url import holds_password
from gpuops.config.vcenter.layers import Flags, Layer, flag_layer, govc_layer, gpuops_layer, vmware_layer
from gpuops.config.vcenter.login import BROKER_CREDENTIAL, GUEST_CREDENTIAL, VCENTER_CREDENTIAL, credential_file
from gpuops.config.vcenter.sources import label, resolve

if TYPE_CHECKING:
    from gpuops.config.vcenter.broker import BrokerDestination
    from gpuops.config.vcenter.sources import NamedTargets
    from gpuops.config.vcenter.targets import NamedTarget

DEFAULT: Final = "default"
NOT_SET: Final = "not set"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting in force, as text, and where it comes from: an option, a variable, FILE:LINE or the default."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class ShownTarget:
    """A vCenter by the name that means it, with its settings."""

    name: str
    settings: tuple[Setting, ...]


_NAMES: Final[tuple[Mapping[str, str], ...]] = (
    {
        "username": "--username",
        "password": "--password-stdin",
        "password_file": "--password-file",
        "verify": "--insecure",
        "ca_files": "--ca-file",
        "thumbprint": "--thumbprint",
        "proxy": "--proxy",
        "journal_url": "--journal-url",
        "reader": "--reader",
    },
    {
        "username": "GPUOPS_USERNAME",
        "password": "GPUOPS_PASSWORD",
        "password_file": "GPUOPS_PASSWORD_FILE",
        "verify": "GPUOPS_INSECURE",
        "ca_files": "GPUOPS_CA_FILE",
        "thumbprint": "GPUOPS_THUMBPRINT",
        "proxy": "GPUOPS_PROXY",
        "journal_url": "GPUOPS_JOURNAL_URL",
        "reader": "GPUOPS_READER",
    },
    {
        "username": "VMWARE_USER",
        "password": "VMWARE_PASSWORD",
        "verify": "VMWARE_VALIDATE_CERTS",
        "proxy": "VMWARE_PROXY_HOST",
    },
    {
        "username": "GOVC_USERNAME",
        "password": "GOVC_PASSWORD",
        "verify": "GOVC_INSECURE",
        "ca_files": "GOVC_TLS_CA_CERTS",
    },
)  # the names by which each layer says a setting, in the layers' order
_TABLES: Final = "broker|guest|measurements"
_VCENTERS: Final = ("--vcenter", "GPUOPS_VCENTER", "VMWARE_HOST", "GOVC_URL")


def shown_targets(
    flags: Flags, environ: Mapping[str, str], configuration: NamedTargets, lines: TargetLines
) -> tuple[ShownTarget, ...]:
    """What is in force for the vCenter that is named; without --vcenter also for each target of the file.

    Raises TargetError for a setting that cannot be meant.
    """
    named = label(flags.vcenter, environ, configuration.default)
    names = [] if flags.vcenter is not None else list(configuration.targets)
    targets = [ShownTarget(name, _settings(name, flags, environ, configuration, lines)) for name in names]
    if named is not None and named not in names:
        targets.insert(0, ShownTarget(named, _settings(None, flags, environ, configuration, lines)))
    return tuple(targets)


@dataclass(frozen=True, slots=True)
class TargetLines:
    """On which lines of the configuration file its keys stand."""

    file: Path
    lines: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, file: Path, text: str) -> TargetLines:
        """Of `[targets.NAME]`, of what stands below it, and of `[fleet]`; keys written in another way have no line."""
        line_numbers: dict[tuple[str, str], int] = {}
        target = ""
        for number, line in enumerate(text.splitlines(), 1):
            if table := re.match(rf"\s*\[\s*targets\s*\.\s*[\"']?(.+?)[\"']?\s*\.\s*({_TABLES})\s*\]\s*(#.*)?$", line):
                target = ""
                line_numbers.setdefault((table[1], table[2]), number)
            elif re.match(r"\s*\[\s*fleet\s*\]\s*(#.*)?$", line):
                target = "fleet"  # of its keys a target of that name has none
            elif header := re.match(r"\s*\[\s*targets\s*\.\s*[\"']?(.+?)[\"']?\s*\]\s*(#.*)?$", line):
                target = header[1]
            elif line.lstrip().startswith("["):
                target = ""
            elif target and (key := re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)):
                line_numbers.setdefault((target, key[1]), number)
        return cls(file, line_numbers)

    def place(self, target: str, key: str) -> str:
        """FILE:LINE, or the file alone."""
        line = self.lines.get((target, key))
        return f"{self.file}:{line}" if line is not None else str(self.file)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of a setting: the layers with their names for it, then the target's entry in the file."""

    layers: tuple[tuple[Layer, Mapping[str, str]], ...]
    named: NamedTarget | None
    name: str
    lines: TargetLines

    def origin(self, key: str, attribute: str = "") -> str:
        """Return the first source that has the setting, or the default. `attribute` is its name in a layer."""
        attribute = attribute or key
        source_names = next((names for layer, names in self.layers if getattr(layer, attribute) is not None), None)
        return source_names[attribute] if source_names is not None else self.in_file(key)

    @property
    def fleet(self) -> str:
        """Return the place of the database of `[fleet]`."""
        return self.lines.place("fleet", "url")

    def in_file(self, key: str) -> str:
        is_in_file = self.named is not None and key in self.named.given
        return self.lines.place(self.name, key) if is_in_file else DEFAULT


def _settings(
    name: str | None, flags: Flags, environ: Mapping[str, str], configuration: NamedTargets, lines: TargetLines
) -> tuple[Setting, ...]:
    flags = flags if name is None else replace(flags, vcenter=name)
    where = resolve(flags, environ, configuration)
    target_name = name or label(flags.vcenter, environ, configuration.default) or ""
    named = configuration.targets.get(target_name)
    host = lines.place(target_name, "host") if named is not None else _named_by(flags, environ)
    if isinstance(where, Simulated):
        sources = _Sources(_layers(flags, environ, None, host), named, target_name, lines)
        reader = Setting("reader", where.reader.value, sources.origin("reader"))
        return Setting("host", where.label, host), reader, *_site(sources)
    if (flags.vcenter or environ.get("GPUOPS_VCENTER") or "").startswith(SERVED):
        return (Setting("host", str(where.address), host), Setting("username", where.username or NOT_SET, host))
    sources = _Sources(_layers(flags, environ, where, host), named, target_name, lines)
    return tuple(_of_destination(where, sources, environ, host))


def _named_by(flags: Flags, environ: Mapping[str, str]) -> str:
    target_texts = (flags.vcenter, *(environ.get(variable) for variable in _VCENTERS[1:]))
    return next((origin for origin, text in zip(_VCENTERS, target_texts, strict=True) if text), DEFAULT)


def _layers(
    flags: Flags, environ: Mapping[str, str], where: Destination | None, host: str
) -> tuple[tuple[Layer, Mapping[str, str]], ...]:
    """Return the layers in the order of `sources`: `user@` in an address has the source of the address."""
    layers = (flag_layer(flags), gpuops_layer(environ), vmware_layer(environ), govc_layer(environ))
    if where is None:
        return tuple(zip(layers[:2], _NAMES[:2], strict=True))
    usable = [(layer.about(where.address), names) for layer, names in zip(layers, _NAMES, strict=True)]
    at = next((number for number, layer in enumerate(layers) if layer.address or layer.vcenter), len(layers))
    address = where.address
    address_layer = Layer("the address", username=address.username, password=address.password)
    usable.insert(at + 1, (address_layer, {"username": host, "password": host}))
    return tuple(usable)


def _of_destination(where: Destination, sources: _Sources, environ: Mapping[str, str], host: str) -> list[Setting]:
    named = sources.named
    port = sources.in_file("port") if named is not None and named.port is not None else DEFAULT
    ca_files = ", ".join(map(str, where.ca_files))
    bundle = sources.origin("ca_file", "ca_files")
    if where.ca_files and bundle == DEFAULT:
        bundle = "REQUESTS_CA_BUNDLE"
    journal, source = where.journal_url, sources.origin("journal_url")
    return [
        Setting("host", where.address.host, host),
        Setting("port", str(where.address.port), port if port != DEFAULT or where.address.port in (80, 443) else host),
        Setting("username", where.username or NOT_SET, sources.origin("username")),
        _password(where, sources, environ),
        Setting("ca_file", ca_files or "the system's", bundle),
        Setting("verify", "true" if where.verify else "false", sources.origin("verify")),
        Setting("thumbprint", where.thumbprint or NOT_SET, sources.origin("thumbprint")),
        Setting("proxy", where.proxy or NOT_SET, sources.origin("proxy")),
        Setting("journal_url", _journal(journal), source if source != DEFAULT or journal is None else sources.fleet),
        Setting("reader", where.reader.value, sources.origin("reader")),
        *_broker(where, sources, environ),
        *_guest(where, sources, environ),
        *_measurements(where, sources),
        *_site(sources),
    ]


def _broker(where: Destination, sources: _Sources, environ: Mapping[str, str]) -> Iterator[Setting]:
    """The settings of its connection broker, if it has one; nothing is read for its password."""
    broker = where.broker
    if broker is None:
        return
    source = sources.in_file("broker")
    yield Setting("broker.url", str(broker.address), source)
    yield Setting("broker.username", f"{broker.domain}\\{broker.username}", source)
    yield _broker_password(broker, source, environ)
    yield Setting("broker.ca_file", ", ".join(map(str, broker.ca_files)) or "the system's", source)
    yield Setting("broker.thumbprint", broker.thumbprint or NOT_SET, source)


def _guest(where: Destination, sources: _Sources, environ: Mapping[str, str]) -> Iterator[Setting]:
    """The login to guests, if there is one, in the order in which `login.guest_login` looks; nothing is read for it."""
    entry, spoken = where.guest, environ.get("GPUOPS_GUEST_USERNAME")
    own_entry = entry if entry is not None and spoken in (None, "", entry.username) else None
    if not spoken and entry is None:
        return
    name, source = "guest.password", sources.in_file("guest")
    user = spoken or (entry.username if entry is not None else NOT_SET)
    yield Setting("guest.username", user, "GPUOPS_GUEST_USERNAME" if spoken else source)
    if file := environ.get("GPUOPS_GUEST_PASSWORD_FILE"):
        yield replace(_from_file(Path(file), "GPUOPS_GUEST_PASSWORD_FILE"), name=name)
    elif environ.get("GPUOPS_GUEST_PASSWORD"):
        yield Setting(name, "set", "GPUOPS_GUEST_PASSWORD")
    elif own_entry is not None and own_entry.password_file is not None:
        yield replace(_from_file(own_entry.password_file, source), name=name)
    else:
        named = own_entry.credential if own_entry is not None else None
        yield replace(_from_credential(GUEST_CREDENTIAL, named, source, where.name, environ), name=name)


def _measurements(where: Destination, sources: _Sources) -> Iterator[Setting]:
    """What is said of its measurements, if anything is."""
    settings, source = where.measurements, sources.in_file("measurements")
    if source == DEFAULT:
        return
    store = str(settings.store_dir) if settings.store_dir is not None else _journal(settings.store_url or None)
    yield Setting("measurements.store", store if store != NOT_SET else "where the journal is", source)
    yield Setting(
        "measurements.counters", "all" if settings.counters is None else " ".join(sorted(settings.counters)), source
    )
    yield Setting("measurements.fine_days", str(settings.retention.fine_days), source)
    yield Setting("measurements.hourly_days", str(settings.retention.hourly_days), source)
    hosts = settings.hosts
    yield Setting("measurements.host_shell", "none" if hosts is None else f"ssh, as {hosts.username}", source)


def _site(sources: _Sources) -> Iterator[Setting]:
    """What the file says of the target as a site, if anything (`gpuops help sites`)."""
    if (named := sources.named) is None:
        return
    labels = ", ".join(f"{name}={value}" for name, value in named.labels.items())
    for key, value in (("zone", named.zone), ("policy", named.policy), ("labels", labels)):
        if value:
            yield Setting(key, str(value), sources.in_file(key))


def _broker_password(broker: BrokerDestination, source: str, environ: Mapping[str, str]) -> Setting:
    """In the order in which `broker.broker_login` looks."""
    name = "broker.password"
    if file := environ.get("GPUOPS_BROKER_PASSWORD_FILE"):
        return replace(_from_file(Path(file), "GPUOPS_BROKER_PASSWORD_FILE"), name=name)
    if environ.get("GPUOPS_BROKER_PASSWORD"):
        return Setting(name, "set", "GPUOPS_BROKER_PASSWORD")
    if broker.password_file is not None:
        return replace(_from_file(broker.password_file, source), name=name)
    return replace(_from_credential(BROKER_CREDENTIAL, broker.credential, source, broker.name, environ), name=name)


def _journal(url: str | None) -> str:
    if url is None:
        return NOT_SET
    return "set, with a password in it" if holds_password(url) else url


def _password(where: Destination, sources: _Sources, environ: Mapping[str, str]) -> Setting:
    """In the order in which `login.find_password` looks; nothing is read for it."""
    if where.password is not None:
        return Setting("password", "set", sources.origin("password"))
    if where.password_file is not None:
        return _from_file(where.password_file, sources.origin("password_file"))
    if where.target_password_file is not None:
        return _from_file(where.target_password_file, sources.in_file("password_file"))
    setting = _from_credential(VCENTER_CREDENTIAL, where.credential, sources.in_file("credential"), where.name, environ)
    if setting.value == NOT_SET and where.keyring:
        return Setting("password", "from the keyring, service gpuops", sources.in_file("keyring"))
    return setting


def _from_credential(
    usual: str, configured_name: str | None, source: str, target: str | None, environ: Mapping[str, str]
) -> Setting:
    """Return the credential that the entry names at `source`, or one of the usual names."""
    if configured_name is not None:
        missing_text = "" if environ.get("CREDENTIALS_DIRECTORY") else ", which a systemd unit alone has"
        return Setting("password", f"set, from the credential {configured_name}{missing_text}", source)
    credential_path = credential_file(usual, None, "", target, environ)
    if credential_path is None:
        return Setting("password", NOT_SET, DEFAULT)
    return Setting("password", f"set, from the credential {credential_path.name}", "CREDENTIALS_DIRECTORY")


def _from_file(path: Path, origin: str) -> Setting:
    missing_text = "" if path.exists() else ", which is not there"
    return Setting("password", f"set, from file {path}{missing_text}", origin)
