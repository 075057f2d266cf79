"""The configuration file as runners use it: their common database, and the policies of each target.

A runner reads the file at every look. An invalid file changes nothing: turns continue with the last valid text, and the
processes that play them get a copy of it, because they read the file too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from gpuops.config.policy import load_policy
from gpuops.config.vcenter.destination import SIMULATED, Address
from gpuops.config.vcenter.journal_url import parsed
from gpuops.config.vcenter.sources import refuse_one_login
from gpuops.config.vcenter.targets import Configuration, parsed_configuration
from gpuops.errors import GpuopsError, TargetError, UsageError
from gpuops.extras.fleet.runner.due import Rotations, SitePolicy, refuse_clash, refuse_other_modes
from gpuops.extras.fleet.runner.leaving import LeavingTargets, ReadPolicies, leaving
from gpuops.files.file import read_text
from gpuops.files.private_file import write_private

_EXAMPLE: Final = (
    'for example: [fleet] and below it url = "postgresql://gpuops@db.example.com/gpuops" (gpuops help sites)'
)


def database_of(configured: Configuration, preferred_url: str | None) -> str:
    """Return the URL of the queue's database, for libpq. `preferred_url`: from an option or a variable.

    Raises TargetError if none is configured, UsageError if a target has its journal in another database.
    """
    text = preferred_url or (configured.fleet.url if configured.fleet is not None else None)
    if text is None:
        raise TargetError("no database of runners is configured", hint=_EXAMPLE)
    for name, target in configured.targets.items():
        if target.rotations and target.journal_url not in (None, text):
            raise UsageError(
                f"targets.{name}.journal_url is not the database of the runners, which must hold its journal",
                hint=f"remove journal_url from [targets.{name}], and set [fleet].url in the file (gpuops help sites)",
            )
    return parsed(text).set(drivername="postgresql").render_as_string(hide_password=False)


def rotations_of(
    configured: Configuration, only: str | None, now: datetime, obeyed_rotations: Rotations | None = None
) -> dict[str, dict[str, SitePolicy]]:
    """Return the policies of each target with rotations; with `only` those of that target.

    A file in `obeyed_rotations` is not read again: its last valid policy is used.
    Raises UsageError, PolicyError; TargetError also if no target has rotations.
    """
    rotations = _some_rotations(configured, only, now, obeyed_rotations)
    if not rotations:
        configured_names = [name for name, target in configured.targets.items() if target.rotations]
        raise TargetError(
            f"no policy is configured for {only or 'any target'}",
            hint=f"targets with `rotations`: {', '.join(configured_names)}"
            if configured_names
            else 'below [targets.NAME]: rotations = ["/etc/gpuops/vdi.yaml"] (gpuops help sites)',
        )
    return rotations


def _some_rotations(
    configured: Configuration, only: str | None, now: datetime, obeyed_rotations: Rotations | None = None
) -> dict[str, dict[str, SitePolicy]]:
    """Return the same as `rotations_of`, but {} if no target has rotations."""
    _refuse_one_vcenter_twice(configured)
    known_policies = {
        (site, site_policy.file): site_policy
        for site, policies in (obeyed_rotations or {}).items()
        for site_policy in policies.values()
    }
    rotations: dict[str, dict[str, SitePolicy]] = {}
    for site, target in configured.targets.items():
        if only in (None, site) and target.rotations:
            rotations[site] = {}
            for file in target.rotations:
                site_policy = known_policies.get((site, file)) or _read(file)
                if site_policy.policy.name in rotations[site]:
                    raise UsageError(
                        f"two policies of {site} are called {site_policy.policy.name}",
                        hint=f"change `name` in {file}, or remove this file from rotations of [targets.{site}]",
                    )
                rotations[site][site_policy.policy.name] = site_policy
            refuse_clash([site_policy.policy for site_policy in rotations[site].values()], now)
    return rotations


def _refuse_one_vcenter_twice(configured: Configuration) -> None:
    """Raise UsageError if two targets with policies are the same vCenter.

    Each target is played separately, and a return of one would end the nights of the other. Raises TargetError for an
    invalid address.
    """
    named: dict[Address, str] = {}
    for name, target in configured.targets.items():
        if not target.rotations or target.host.startswith(SIMULATED):  # each simulated target is a vCenter of its own
            continue
        address = Address.parse(target.host, port=target.port)
        if address in named:
            raise UsageError(
                f"targets.{named[address]} and targets.{name} are the same vCenter ({address}) and both have "
                "rotations: the return of one target would end the nights of the other",
                hint=f"move all its policies to rotations of [targets.{named[address]}]",
            )
        named[address] = name


def _read(file: Path) -> SitePolicy:
    policy = load_policy(file)
    refuse_other_modes(policy)
    return SitePolicy(policy, file)


def describe_rotations(rotations: Rotations) -> str:
    """Return one line that lists the played targets and policies."""
    leaving_sites = leaving(rotations)
    played = [f"{site}: {', '.join(policies)}" for site, policies in rotations.items() if site not in leaving_sites]
    return f"plays {', '.join(played) or 'no target'}"


@dataclass(slots=True)
class ObeyedConfiguration:
    """The last valid text of the configuration file."""

    file: Path
    text: str
    """The last valid text."""
    only: str | None
    """The target that is played alone; None = all."""
    database: Callable[[Configuration], str]
    url: str
    """What `database` found when the runner began."""
    copy: Path
    """A copy of that text, for processes while the file is invalid."""
    environment: dict[str, str]
    """Variables of those processes; GPUOPS_CONFIG is set and removed here."""
    say: Callable[[str], None]
    leaving: LeavingTargets
    wrong: str = field(default="", init=False)
    """Why the file is invalid now; empty = it is valid."""
    not_shared: str = field(default="", init=False)
    """Why the common database could not be updated; empty = it was."""

    def __post_init__(self) -> None:
        write_private(self.copy, self.text)

    def read_anew(self, played: Rotations, now: datetime) -> Rotations | None:
        """Return the rotations to play from now on, or None if they are the same. An invalid file is logged once."""
        try:
            text = read_text(self.file, error=TargetError)
            rotations = self._obey(text, played, now) if text != self.text else None
        except GpuopsError as error:
            self._go_on_as_before(error.message)
            return None
        if self.wrong:
            self.say(f"{self.file} is valid again")
        self.text, self.wrong = text, ""
        self.environment.pop("GPUOPS_CONFIG", None)  # the file is valid: processes read it instead of the copy
        if rotations is None:  # the text is the same, but stored targets may have been added or removed
            current = self._with_kept(self.leaving.still(played), now)
            return current if current is not played else None  # both return their argument itself without a change
        if _files(rotations) == _files(played) and leaving(rotations) == leaving(played):
            return None
        self.say(f"{self.file} has changed: {describe_rotations(rotations)}")
        return rotations

    def _obey(self, text: str, current: Rotations, now: datetime) -> Rotations:
        configured = parsed_configuration(text, self.file)
        if self.database(configured) != self.url:
            raise TargetError(f"{self.file} names another database of runners: restart the runners to use it")
        rotations = _some_rotations(configured, self.only, now, current)
        played = self.leaving.with_removed_targets(rotations, current, configured, self.text, self.file)
        refuse_one_login(played, os.environ)
        write_private(self.copy, text)
        self.leaving.store_obeyed(text, self.only, rotations)
        return played

    def configuration_of(self, site: str) -> Path | None:
        """Return the stored configuration for processes of a removed site; None = the current file lists the site."""
        copy = self.leaving.copy_of(site)
        return copy if copy.exists() else None

    def begin(self, now: datetime) -> Rotations:
        """Return the rotations of a new runner, also those of removed targets that an earlier runner did not return.

        Raises UsageError, PolicyError; TargetError also if there is nothing to play.
        """
        configured = parsed_configuration(self.text, self.file)
        rotations = _some_rotations(configured, self.only, now)
        self.share({})  # first: it stores targets that have no runner, and the next line reads all stored targets
        played = self.leaving.begin(rotations, configured, self.only, self._read_kept(now))
        refuse_one_login(played, os.environ)
        self.leaving.store_obeyed(self.text, self.only, played)
        return played or rotations_of(configured, self.only, now)  # raises the TargetError: nothing to play

    def share(self, played: Rotations) -> None:
        """Store in the common database what this runner plays, and take over targets without a runner.

        It waits for the database. If that does not answer, this is logged once.
        """
        try:
            self.leaving.share(played, parsed_configuration(self.text, self.file), self.text, self.only)
        except GpuopsError as error:
            if error.message != self.not_shared:
                self.say(f"{error.message}: the played targets are stored only on this machine")
            self.not_shared = error.message
        else:
            self.not_shared = ""

    def _with_kept(self, current: Rotations, now: datetime) -> Rotations:
        """Return the rotations and, for returns only, targets that were taken over meanwhile.

        Returns `current` itself if nothing changed.
        """
        if current.keys() >= {*self.leaving.names(self.only)} - self.leaving.not_read.keys():
            return current
        configured = parsed_configuration(self.text, self.file)
        with_kept = self.leaving.with_kept(current, configured, self.only, self._read_kept(now))
        return with_kept if with_kept.keys() != current.keys() else current

    def _read_kept(self, now: datetime) -> ReadPolicies:
        def read(stored: Configuration, site: str) -> Rotations:
            files = stored.targets[site].rotations if site in stored.targets else ()
            stored_policies = {
                str(file): site_policy for file in files if (site_policy := self.leaving.policy_of(file)) is not None
            }
            return rotations_of(stored, site, now, {site: stored_policies})

        return read

    def _go_on_as_before(self, why: str) -> None:
        if why != self.wrong:
            self.say(f"{why}: the runner continues with the last valid file")
        self.wrong = why
        self.environment["GPUOPS_CONFIG"] = str(self.copy)


def _files(rotations: Rotations) -> Mapping[str, Mapping[str, Path]]:
    return {
        site: {name: site_policy.file for name, site_policy in policies.items()} for site, policies in rotations.items()
    }
