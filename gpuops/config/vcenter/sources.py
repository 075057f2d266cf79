"""Decides which vCenter a command uses and how it is reached, from options, variables and the configuration file.

Options come before GPUOPS_*, these before VMWARE_*, then GOVC_*, then the configuration file. For the CA: --ca-file,
GPUOPS_CA_FILE, GOVC_TLS_CA_CERTS, the target's ca_file, REQUESTS_CA_BUNDLE (which is for every server), the system's.

It also selects the sites that `--site` names: targets of the file, each with its zone, its policy and its labels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from gpuops.config.vcenter.destination import SERVED, SIMULATED, Address, Destination, Simulated, sha256_of
from gpuops.config.vcenter.journal_url import holds_password
from gpuops.config.vcenter.layers import (
    DEFAULT,
    Flags,
    Layer,
    Sourced,
    Value,
    flag_layer,
    govc_layer,
    gpuops_layer,
    login_layer,
    merged,
    sourced,
    vmware_layer,
)
from gpuops.errors import TargetError, UsageError
from gpuops.files.file import NOT_PARSED, is_missing, parse_json, read_text
from gpuops.model.measurements.measurement_settings import UNSAID, MeasurementSettings
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.target import Secret

if TYPE_CHECKING:
    from gpuops.config.vcenter.broker_entry import BrokerDestination, BrokerEntry
    from gpuops.config.vcenter.targets import Configuration, FleetEntry, NamedTarget, NotifySettings


@dataclass(frozen=True, slots=True)
class NoConfiguration:
    """The configuration if there is no file."""

    default: str | None = None
    targets: Mapping[str, NamedTarget] = field(default_factory=dict)
    fleet: FleetEntry | None = None


Place = TypeVar("Place", Destination, Simulated)
NamedTargets: TypeAlias = "Configuration | NoConfiguration"


@dataclass(frozen=True, slots=True)
class _SelectedVcenter:
    """The selected vCenter, and the source that names it."""

    address: Address
    layer_index: int
    """The layer that names it: options, GPUOPS_*, VMWARE_*, GOVC_*; 4 = the configuration file."""
    origin: str
    """The option, variable or key that names it."""
    name: str | None = None
    entry: NamedTarget | None = None
    """Its target in the configuration file; None = it is given by its address."""


def label(flag: str | None, environ: Mapping[str, str], default: str | None) -> str | None:
    """Return the name or the address of the vCenter as the user wrote it; None = no vCenter is configured."""
    candidates = (flag, environ.get("GPUOPS_VCENTER"), environ.get("VMWARE_HOST"), environ.get("GOVC_URL"), default)
    target_text = next((text for text in candidates if text), None)
    # user@host: the user is not part of the label
    return target_text.rpartition("@")[2] if target_text and not target_text.startswith(SERVED) else target_text


def read_configuration(path: Path) -> NamedTargets:
    """Return the configuration, an empty one if there is no file. Raises TargetError: file, key and reason."""
    try:
        text = read_text(path, error=TargetError)
    except TargetError as error:
        if is_missing(error):  # a service account may have /dev/null as its home
            return NoConfiguration()
        raise
    # imported here, because a command without a configuration file does not need these classes
    from gpuops.config.vcenter.targets import parsed_configuration

    return parsed_configuration(text, path)


def resolve(flags: Flags, environ: Mapping[str, str], configuration: NamedTargets) -> Destination | Simulated:
    """Return the vCenter and how to reach it. Raises TargetError if none is configured."""
    # gpuops' own options and variables come before those of Ansible and govc
    ours = (flag_layer(flags), gpuops_layer(environ))
    named_text = merged(ours).vcenter
    if named_text is not None and named_text.value.startswith(SIMULATED):
        return _simulated(named_text, flags, environ)
    if named_text is not None and named_text.value.startswith(SERVED):
        return replace(
            _served(Path(named_text.value.removeprefix(SERVED))),
            journal_url=journal_url(flags, environ, configuration),
            reader=_value(merged(ours).reader) or BulkReader.AUTO,
            origins={"vcenter": named_text.origin},
        )
    layers = (*ours, vmware_layer(environ), govc_layer(environ))
    selected = _select_vcenter(layers, configuration)
    if selected.entry is not None and selected.entry.host.startswith(SIMULATED):
        simulated = _simulated(Sourced(selected.entry.host, selected.origin), flags, environ)
        return _with_entry(simulated, selected.name, selected.entry)
    _refuse_password(flags.vcenter, selected)
    return _destination(selected, layers, environ, _journal(flags, environ, configuration, selected.name))


def measurement_settings(
    flag: str | None, environ: Mapping[str, str], configuration: NamedTargets
) -> MeasurementSettings:
    """Return the settings of measurements of the target that the user names, or of the file's default one."""
    return _measured(configuration.targets.get(label(flag, environ, configuration.default) or ""))


def journal_url(flags: Flags, environ: Mapping[str, str], configuration: NamedTargets) -> str | None:
    """Return the URL of the database with the journal; None = a file in the state directory. Raises TargetError."""
    return _value(_journal(flags, environ, configuration, None))


def _journal(
    flags: Flags, environ: Mapping[str, str], configuration: NamedTargets, name: str | None
) -> Sourced[str] | None:
    """Return the database URL of the journal, None for a local file. A target without one uses that of `[fleet]`.

    Without `name` the target is the one that the user names, or the file's default one.
    """
    url = merged((flag_layer(flags), gpuops_layer(environ))).journal_url
    if flags.journal_url is not None and holds_password(flags.journal_url):
        raise TargetError(
            "--journal-url contains a password, and every user of this machine can read a command line",
            hint="put it into ~/.pgpass, or set GPUOPS_JOURNAL_URL to the complete URL",
        )
    name = name or label(flags.vcenter, environ, configuration.default)
    named = configuration.targets.get(name or "")
    if url is not None or named is None:
        return url
    fleet_url = configuration.fleet.url if configuration.fleet is not None else None
    return sourced(named.journal_url, f"targets.{name}.journal_url") or sourced(fleet_url, "fleet.url")


def _value(setting: Sourced[Value] | None) -> Value | None:
    return setting.value if setting is not None else None


def sim_clock(environ: Mapping[str, str]) -> str:
    """Return the clock of a simulated vCenter that is started without `--clock`."""
    return environ.get("GPUOPS_SIM_CLOCK") or "virtual"


def _simulated(named_text: Sourced[str], flags: Flags, environ: Mapping[str, str]) -> Simulated:
    """Return a private simulated vCenter. Its journal lives as long as it does, so GPUOPS_JOURNAL_URL is not used."""
    if flags.journal_url is not None:
        raise TargetError(
            f"--journal-url cannot be used with {named_text.value}: its journal ends with this command",
            hint="gpuops sim serve starts one that keeps running: --vcenter sim@READY-FILE",
        )
    settings = replace(merged((flag_layer(flags), gpuops_layer(environ))), vcenter=named_text)
    reader = _value(settings.reader) or BulkReader.AUTO
    return Simulated(named_text.value.removeprefix(SIMULATED), sim_clock(environ), reader, origins=settings.origins)


def _select_vcenter(layers: tuple[Layer, ...], configuration: NamedTargets) -> _SelectedVcenter:
    """Return the vCenter that the first layer names, else the default target. Raises TargetError if there is none."""
    for index, layer in enumerate(layers):
        if layer.vcenter is not None and layer.address is not None:
            return _SelectedVcenter(layer.address, index, layer.vcenter.origin)
        if layer.vcenter is not None:
            return _named_or_address(layer.vcenter, index, configuration)
    if configuration.default is not None:
        return _named_or_address(Sourced(configuration.default, DEFAULT), len(layers), configuration)
    raise _no_vcenter(configuration)


def _named_or_address(named_text: Sourced[str], index: int, configuration: NamedTargets) -> _SelectedVcenter:
    """Return the target of this name, or the vCenter at this address. `index` is that of the layer that names it.

    Raises TargetError if the text is neither a target nor an address.
    """
    text = named_text.value
    named = configuration.targets.get(text)
    if named is not None:
        simulated = named.host.startswith(SIMULATED)
        # a simulated vCenter has no address: "sim" is a placeholder
        address = Address("sim") if simulated else Address.parse(named.host, port=named.port)
        return _SelectedVcenter(address, index, f"targets.{text}.host", text, named)
    if not any(mark in text for mark in ".:/@[") and text != "localhost":
        target_names = ", ".join(sorted(configuration.targets)) or "none"
        raise TargetError(
            f"no target {text!r} in the configuration file{_near(text, configuration)}",
            hint=f"use one of its targets ({target_names}), or write an address as https://{text}",
        )
    return _SelectedVcenter(Address.parse(text), index, named_text.origin)


def _near(text: str, configuration: NamedTargets) -> str:
    """Return a suggestion with the names of similar targets; '' if there are none."""
    near = get_close_matches(text, configuration.targets, n=3)
    return f"; did you mean {', '.join(near)}?" if near else ""


def _destination(
    selected: _SelectedVcenter, layers: tuple[Layer, ...], environ: Mapping[str, str], journal: Sourced[str] | None
) -> Destination:
    """Return how to reach the selected vCenter. Of several layers with a setting, the first one counts."""
    entry, name, address = selected.entry, selected.name, selected.address
    usable = [layer.about(address) for layer in layers]
    # user@ in an address has the rank of the layer with the address
    usable.insert(selected.layer_index + 1, login_layer(address, selected.origin))
    # the password of the target is not sent for another user: each such login counts towards the lock of an account
    is_own = entry is not None and _is_own_login(_value(merged(usable).username), entry)
    if entry is not None:
        usable.append(_target_layer(f"targets.{name}", entry, is_own=is_own))
    bundle = environ.get("REQUESTS_CA_BUNDLE")
    usable.append(Layer(ca_files=sourced((Path(bundle),) if bundle else None, "REQUESTS_CA_BUNDLE")))
    settings = replace(merged(usable), vcenter=Sourced(str(address), selected.origin), journal_url=journal)
    password, thumbprint = _value(settings.password), settings.thumbprint
    destination = Destination(
        label=name or str(address),
        address=address,
        username=_value(settings.username),
        password=password if isinstance(password, Secret) else None,
        password_file=password if isinstance(password, Path) else None,
        verify=settings.verify is None or settings.verify.value,
        ca_files=_value(settings.ca_files) or (),
        thumbprint=sha256_of(thumbprint.value, thumbprint.origin) if thumbprint is not None else None,
        proxy=_proxy(_value(settings.proxy)),
        name=name,
        journal_url=_value(journal),
        reader=_value(settings.reader) or BulkReader.AUTO,
        origins=settings.origins,
    )
    if entry is None or name is None:
        return destination
    has_password = entry.credential is not None or entry.password_file is not None
    return replace(
        _with_entry(destination, name, entry),
        credential=entry.credential if is_own else None,
        password_of_other=entry.username if has_password and not is_own else None,
        keyring=entry.keyring,
        insecure_by_target=not entry.verify,
        broker=_broker(name, entry.broker, environ) if entry.broker is not None else None,
        policies=(*([entry.policy] if entry.policy is not None else []), *entry.rotations),
    )


def _target_layer(entry: str, named: NamedTarget, *, is_own: bool) -> Layer:
    """Return the settings of a target; its password only if `is_own`, that is, if its user logs in."""
    return Layer(
        username=sourced(named.username, f"{entry}.username"),
        password=sourced(named.password_file, f"{entry}.password_file") if is_own else None,
        verify=Sourced(named.verify, f"{entry}.verify"),
        ca_files=sourced((named.ca_file,) if named.ca_file is not None else None, f"{entry}.ca_file"),
        thumbprint=sourced(named.thumbprint, f"{entry}.thumbprint"),
        proxy=sourced(named.proxy, f"{entry}.proxy"),
        reader=Sourced(named.reader, f"{entry}.reader"),
    )


def _with_entry(where: Place, name: str | None, named: NamedTarget) -> Place:
    """Return the vCenter with the settings that only the entry of a target has."""
    return replace(
        where,
        notify=_notify(name, named),
        idle_command=named.idle_command,
        guest=named.guest,
        measurements=_measured(named),
    )


def _measured(named: NamedTarget | None) -> MeasurementSettings:
    return named.measurements if named is not None and named.measurements is not None else UNSAID


def _broker(name: str, entry: BrokerEntry, environ: Mapping[str, str]) -> BrokerDestination:
    from gpuops.config.vcenter.broker_entry import broker_destination

    return broker_destination(name, entry, environ)


def _is_own_login(username: str | None, named: NamedTarget) -> bool:
    """Return whether the target's password is for this login; without a user in the target, it is for any login."""
    return username is None or named.username is None or username.casefold() == named.username.casefold()


def notify_settings(flag: str | None, environ: Mapping[str, str], configuration: NamedTargets) -> NotifySettings | None:
    """Return the receivers of the named target, or of the file's default one; None = no receivers."""
    name = label(flag, environ, configuration.default)
    return _notify(name, configuration.targets.get(name)) if name is not None else None


def no_notices(name: str | None, configuration: NamedTargets) -> UsageError:
    """Return the error for a target without receivers of notices; `name` None = no vCenter is named."""
    targets = sorted(configuration.targets)
    if name is not None and name not in targets:
        return UsageError(
            f"no target {name!r} in the configuration file{_near(name, configuration)}; notices belong to a target",
            hint=f"use one of its targets: {', '.join(targets)}"
            if targets
            else "gpuops config init writes a file with a target",
        )
    targets_with_notices = [target for target in targets if configuration.targets[target].notify]
    names = f" (with notices: {', '.join(targets_with_notices)})" if targets_with_notices else ""
    return UsageError(
        f"no notices are configured for {name}" if name else "no notices are configured, because no target is named",
        hint=f"put notify = [...] into its [targets.{name}] (gpuops help timers)"
        if name
        else f"name a target: --vcenter NAME{names}",
    )


def _notify(name: str | None, named: NamedTarget | None) -> NotifySettings | None:
    if name is None or named is None or not named.notify:
        return None
    from gpuops.config.vcenter.targets import NotifySettings

    return NotifySettings(name, named.notify)


def _proxy(text: str | None) -> str | None:
    """Return the text if it is HOST:PORT. The error never repeats it, because it may contain a password."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host) or not port.isascii() or not port.isdigit():
        raise TargetError(
            "the proxy setting is not the address of an HTTP proxy",
            hint="write it as HOST:PORT, such as proxy.example.com:3128",
        )
    return text


def _refuse_password(flag: str | None, selected: _SelectedVcenter) -> None:
    """Raise TargetError if the address in --vcenter (`flag`) contains a password."""
    is_by_flag = flag is not None and selected.layer_index == 0
    if is_by_flag and selected.address.password is not None:
        raise TargetError(
            "--vcenter contains a password, and every user of this machine can read a command line",
            hint="remove it, and use --password-file, --password-stdin or GPUOPS_PASSWORD",
        )


def _served(path: Path) -> Destination:
    """Return the simulated vCenter that `gpuops sim serve --ready-file PATH` runs. Raises TargetError."""
    try:
        ready = parse_json(read_text(path, error=TargetError))
        password, ca_files = Secret(ready["password"]), (Path(ready["ca_file"]),) if ready.get("ca_file") else ()
        return Destination(
            label=SERVED + str(path),
            address=Address.parse(ready["url"]),
            username=ready["username"],
            password=password,
            ca_files=ca_files,
            broker=_served_broker(ready["broker"], password, ca_files) if ready.get("broker") else None,
        )
    except (*NOT_PARSED, AttributeError, TargetError) as error:
        raise TargetError(
            f"{path} is not the ready file of a simulated vCenter",
            hint=f"start one: gpuops sim serve --scenario lab --ready-file {path}",
        ) from error


def _served_broker(ready_broker: Mapping[str, str], password: Secret, ca_files: tuple[Path, ...]) -> BrokerDestination:
    """Return the simulated Connection Server of a served simulated vCenter."""
    from gpuops.config.vcenter.broker_entry import BrokerDestination

    address = Address.parse(ready_broker["url"])
    return BrokerDestination(
        address, ready_broker["username"], ready_broker["domain"], password=password, ca_files=ca_files
    )


def _no_vcenter(configuration: NamedTargets) -> TargetError:
    """Return the error for a command that no vCenter is configured for."""
    targets = ", ".join(sorted(configuration.targets))
    option = f"--vcenter NAME ({targets})" if targets else "--vcenter https://vc.example.com"
    return TargetError(
        "no vCenter is configured",
        hint=f"use {option}, or run gpuops config init; --vcenter sim:lab tries everything on a simulated one",
    )


ALL: Final = "all"
_LOGINS: Final[Mapping[str, str]] = {
    "GPUOPS_USERNAME": "", "GPUOPS_PASSWORD": "", "GPUOPS_PASSWORD_FILE": "", "GPUOPS_BROKER_PASSWORD": "",
    "GPUOPS_BROKER_PASSWORD_FILE": "", "GPUOPS_GUEST_USERNAME": "", "GPUOPS_GUEST_PASSWORD": "",
    "GPUOPS_GUEST_PASSWORD_FILE": "", "VMWARE_USER": "VMWARE_HOST", "VMWARE_PASSWORD": "VMWARE_HOST",
    "GOVC_USERNAME": "GOVC_URL", "GOVC_PASSWORD": "GOVC_URL",
}  # fmt: skip
"""Variables with a login, each with the variable that names its vCenter; '' = it is sent to every vCenter."""


@dataclass(frozen=True, slots=True)
class ConfiguredSite:
    """One target of the configuration file, for commands that read several vCenters (`--site`)."""

    name: str
    zone: str | None
    """IANA time zone; None = the file does not set it."""
    policy: Path | None
    labels: Mapping[str, str]


def chosen_sites(word: str, configuration: NamedTargets, file: Path) -> tuple[ConfiguredSite, ...]:
    """Return the sites that match a word, in the order of the file: `all`, a name, a pattern `muc-*`, `region=emea`.

    Raises UsageError if none matches; its hint lists all sites.
    """
    sites_by_name = {name: ConfiguredSite(name, target.zone, _policy_of(target), target.labels) for name, target in
             configuration.targets.items()}  # fmt: skip
    if not sites_by_name:
        raise UsageError(
            f"--site {word}: {file} has no targets",
            hint="gpuops config init writes the file; each of its targets is a site",
        )
    matching_sites = tuple(site for site in sites_by_name.values() if _matches(word, site))
    if matching_sites:
        return matching_sites
    near = get_close_matches(word, sites_by_name, n=3)
    suggestion = f"; did you mean {', '.join(near)}?" if near else ""
    raise UsageError(
        f"--site {word} matches no target of {file}{suggestion}", hint=f"use one of: {', '.join(sites_by_name)}"
    )


def _policy_of(target: NamedTarget) -> Path | None:
    """Return the policy of a target, else the only one of its `rotations`; None if there is not exactly one."""
    return target.rotations[0] if target.policy is None and len(target.rotations) == 1 else target.policy


def refuse_one_login(sites: Collection[str], environ: Mapping[str, str], password_file: Path | None = None) -> None:
    """Raise UsageError if one login would be sent to several vCenters. `password_file`: the option --password-file."""
    login_options = ["--password-file"] if password_file is not None else []
    login_options += [name for name, where in _LOGINS.items() if environ.get(name) and not environ.get(where)]
    if login_options and len(sites) > 1:
        guests = ", and in [targets.NAME.guest]" if any("GUEST" in name for name in login_options) else ""
        raise UsageError(
            f"{', '.join(login_options)} would go to each of {len(sites)} vCenters: {', '.join(sites)}",
            hint=f"remove it: put username and password_file or credential into each [targets.NAME]{guests}",
        )


def _matches(word: str, site: ConfiguredSite) -> bool:
    """Return whether the word is `all`, the name of the site or a pattern of it, or a label with its value."""
    label, equals, value = word.partition("=")
    if equals and label in site.labels:
        return fnmatchcase(site.labels[label], value)
    return word == ALL or fnmatchcase(site.name, word)
