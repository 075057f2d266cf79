"""The targets that runners play, in their common database, so that another runner can return their desktops.

The book has one record, a row of its table, for each target that a runner plays, or that was removed from the
configuration file and is not returned yet: the text of that file, with the policies. It holds no password, because the
file has none. After a complete return any runner removes the record.

Somebody who can write to the database must not be able to send a password of this machine to an address of their
choice, or to run a command here:

- If this machine's configuration file has a target with the same address, the settings of that target are used.
- Otherwise the address must match `[fleet].vcenters` and TLS must be verified. Commands, proxy and receivers of notices
  from the row are ignored.
- Commands for guests in the policies of the row are removed; only those in this machine's own files are run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuops.config.policy import parse_policy
from gpuops.config.vcenter.destination import SERVED, SIMULATED, Address
from gpuops.config.vcenter.targets import Configuration, NamedTarget, parsed_configuration
from gpuops.errors import PolicyError, Refused, StateDamaged
from gpuops.execute.journal.book import Book, BookKind, BookView
from gpuops.files.file import parse_json
from gpuops.files.yaml_file import parse_yaml
from gpuops.model.stored import stored_as

HELP: Final = "gpuops help sites"
UNPLAYED: Final = timedelta(minutes=30)
"""A target that no runner has played for this time may be taken by another runner."""


@stored_as("SharedTarget", configuration="configuration", policies="policies", is_left="is_left")
@dataclass(frozen=True, slots=True)
class SharedTarget:
    """A target as a runner knew it."""

    configuration: str
    """The text of the configuration file."""
    policies: str
    """JSON: text of each policy, by the path of its file."""
    is_left: bool = False
    """Whether it was removed from the file of its runner."""


TARGET: Final = BookKind("target", SharedTarget, "the row of {key} in the database of runners", HELP)
"""By site."""
_RUNNERS: Final = "runners"
"""In place of a vCenter: the targets of all vCenters are in one book."""


def shared_target(configuration: str, policies: Mapping[Path, str]) -> SharedTarget:
    """`policies`: text of each, by the path of its file."""
    return SharedTarget(configuration, json.dumps({str(file): text for file, text in policies.items()}, sort_keys=True))


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The state of the database afterwards."""

    known: frozenset[str]
    """All sites in it."""
    orphaned: Mapping[str, SharedTarget]
    """Targets that were removed from their runner's file, or that no runner has played for `UNPLAYED`."""
    unplayed: frozenset[str]
    """Those of them that were not removed from a file: after an outage of the database their runner may report soon."""


def exchange(
    url: str, played: Mapping[str, SharedTarget], left_file: Mapping[str, SharedTarget], ended: Collection[str]
) -> Exchanged:
    """Store the targets that a runner plays or that left its file, remove those in `ended`, and return the new state.

    Raises StateDamaged if the database does not answer.
    """
    opened = Book.open(Path(), url, _RUNNERS, write=True, keeps="database of runners", hint=HELP)
    with opened as book, book.changing() as records:
        for site in ended:
            records.remove(TARGET, site)
        left_targets = {site: replace(target, is_left=True) for site, target in left_file.items()}
        for site, target in sorted({**played, **left_targets}.items()):
            records.put(TARGET, site, target)
            records.confirm(TARGET, site)  # also if its text is unchanged: shows that a runner plays it
        sites, unconfirmed = records.keys(TARGET), records.unconfirmed(TARGET, UNPLAYED)
        targets = {site: _read(records, site) for site in sites}
    # no runner returns these: removed from a runner's file, or not confirmed by any runner for `UNPLAYED`
    orphaned = {site: target for site, target in targets.items() if target.is_left or site in unconfirmed}
    return Exchanged(
        frozenset(sites), orphaned, frozenset(site for site, target in orphaned.items() if not target.is_left)
    )


def _read(records: BookView, site: str) -> SharedTarget:
    """Return the target; without a configuration if it cannot be read, which then names it when it is taken over."""
    try:
        return records.read(TARGET, site) or SharedTarget("", "")
    except StateDamaged:
        return SharedTarget("", "")


_TRUSTED_KEYS: Final = (
    "host", "port", "username", "password_file", "credential", "keyring", "ca_file", "thumbprint", "reader", "broker",
    "guest", "zone",
)  # fmt: skip
"""Keys of such a target that are taken from the row. A password goes to none but the addresses that were believed."""


def address_of(configured: Configuration, site: str) -> Address | None:
    """Return the address; None = a simulated vCenter, which only its process reaches. Raises TargetError."""
    target = configured.targets[site]
    return None if target.host.startswith((SIMULATED, SERVED)) else Address.parse(target.host, port=target.port)


def configuration_in(site: str, row: SharedTarget) -> Configuration:
    """Return the configuration in the row. Raises TargetError, and StateDamaged if it lacks the target."""
    configuration = parsed_configuration(row.configuration, Path(f"the row of {site}"))
    if site not in configuration.targets:
        raise StateDamaged(f"the row of {site} in the database of runners has no such target", hint=HELP)
    return configuration


def policies_in(site: str, row: SharedTarget) -> dict[Path, str]:
    """Return text of each policy, by the path of its file. Raises StateDamaged."""
    try:
        texts = parse_json(row.policies)
    except ValueError as error:
        raise StateDamaged(
            f"the policies of {site} in the database of runners are not JSON: {error}", hint=HELP
        ) from error
    if not isinstance(texts, dict) or not all(isinstance(policy, str) for policy in texts.values()):
        raise StateDamaged(f"the policies of {site} in the database of runners are not texts by file", hint=HELP)
    return {Path(file): text for file, text in texts.items()}


def without_commands(policy: str, file: Path) -> str:
    """Return a policy without the `hook` of any checkpoint; unchanged if it has none, or is no valid policy.

    A return then gives a guest the same time to keep its work while it shuts down.
    """
    with suppress(PolicyError):
        if any(ml_vm.checkpoint.hook for ml_vm in parse_policy(policy, str(file), accepted_before=True).ml):
            return json.dumps(_without_hooks(parse_yaml(policy, str(file))), ensure_ascii=False)
    return policy


def _without_hooks(section: Any) -> Any:
    if isinstance(section, dict):
        return {key: _without_hooks(section[key]) for key in section if key != "hook"}
    return [_without_hooks(part) for part in section] if isinstance(section, list) else section


def trusted_configuration(site: str, row_configuration: Configuration, configured: Configuration) -> str:
    """Return the TOML configuration that this machine uses to return the site. Raises Refused, TargetError."""
    theirs, address = row_configuration.targets[site], address_of(row_configuration, site)
    if address is None:
        raise Refused(f"{site} is a simulated vCenter of another machine", hint=HELP)
    own_targets = [target for name, target in configured.targets.items() if address_of(configured, name) == address]
    target = own_targets[0] if own_targets else _target_of_row(site, theirs, address, configured)
    import tomlkit  # of a runner that takes something up alone

    target = msgspec.structs.replace(target, journal_url=None, policy=None, rotations=theirs.rotations)
    return tomlkit.dumps({"targets": {site: msgspec.to_builtins(target, enc_hook=str)}})


def _target_of_row(site: str, theirs: NamedTarget, address: Address, configured: Configuration) -> NamedTarget:
    """Return the trusted settings of a target that is only in the database; the receivers are those of this machine.

    Raises Refused if a password would go to an address that [fleet] does not allow, or over unverified TLS.
    """
    hosts = configured.fleet.vcenters if configured.fleet is not None else ()
    addresses = [address, *([Address.parse(theirs.broker.url)] if theirs.broker is not None else [])]
    unknown = [address_used for address_used in addresses if not _matches_any(address_used, hosts)]
    if unknown:
        raise Refused(
            f"{site} is at {unknown[0]}, which no target of this configuration file names: gpuops sends no password to "
            "an address that only the database names",
            hint=f'set vcenters = ["{unknown[0].host}"] in [fleet] to let runners return it, or run '
            f"gpuops rotate day --vcenter {site} on a machine with this target in its configuration file",
        )
    if not theirs.verify or not all(address_used.tls for address_used in addresses):
        raise Refused(
            f"{site} is reached without verified TLS: gpuops sends it no password, because only the database names it",
            hint=f"run gpuops rotate day --vcenter {site} on a machine with this target in its configuration file",
        )
    receivers = dict.fromkeys(receiver for target in configured.targets.values() for receiver in target.notify)
    return NamedTarget(**{key: getattr(theirs, key) for key in _TRUSTED_KEYS}, notify=tuple(receivers))


def _matches_any(address: Address, hosts: Collection[str]) -> bool:
    return any(fnmatchcase(address.host, pattern.lower()) for pattern in hosts)
