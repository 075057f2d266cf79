"""Targets that were removed from the configuration file: their nights do not begin, but their desktops are returned.

An edit must not leave desktops suspended. So the runner stores the file's text about such a target in its state
directory, beyond its own end, until a complete return. If the file has the target again, or its vCenter under another
name, that target returns it. The last valid file is stored too, because it may be edited while no runner runs.

All of it is in the common database too (`shared_targets.py`), because a machine may be rebuilt without its directory. A
runner takes over a target that has no runner in the database, if it may trust its settings. Once a runner has returned
the target, or a runner plays it because its own file lists it, the others forget it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from gpuops.config.policy import parse_policy
from gpuops.config.vcenter.sites import refuse_one_login
from gpuops.config.vcenter.targets import Configuration, parsed_configuration
from gpuops.errors import GpuopsError, TargetError
from gpuops.execute.state.state_dir import prepare_state_dir
from gpuops.extras.fleet.runner.due import Rotations, SitePolicy
from gpuops.extras.fleet.runner.shared_targets import (
    SharedTarget,
    address_of,
    believed_configuration,
    exchange,
    named_in,
    policies_in,
    shared_target,
    without_commands,
)
from gpuops.files.file import read_text
from gpuops.files.private_file import replaceable, write_private

_SUFFIX: Final = ".toml"

Played = dict[str, dict[str, SitePolicy]]
ReadPolicies = Callable[[Configuration, str], Rotations]


@dataclass(slots=True)
class LeavingTargets:
    """Those that this machine knows, each as a copy of the configuration file that had it last."""

    folder: Path
    say: Callable[[str], None]
    url: str = field(default="", repr=False)
    """URL of the common database; empty = none is used."""
    shared: set[str] = field(default_factory=set)
    """Stored targets that were in the database too: one that is not there any more was returned by another runner."""
    not_read: dict[str, str] = field(default_factory=dict)
    """By site: why its stored text cannot be read."""
    unplayed: frozenset[str] = frozenset()
    """Targets that no runner played at the last look."""
    not_taken: dict[str, str] = field(default_factory=dict)
    """By site: why it is not taken over from the database."""

    def copy_of(self, site: str) -> Path:
        """Return the path of the stored configuration of this target."""
        return self.folder / f"{quote(site, safe='')}{_SUFFIX}"

    def with_left_targets(
        self, rotations: Rotations, played_before: Rotations, configured: Configuration, before: str, file: Path
    ) -> Played:
        """What is played by now: what was found, and each target of `known` that is not there any more, returns alone.

        `before` is what the file said when it had them. Raises UsageError, StateDamaged where it cannot be kept.
        """
        played = {
            site: {
                name: replace(site_policy, leaving=False) if site_policy.leaving else site_policy
                for name, site_policy in policies.items()
            }
            for site, policies in rotations.items()
        }
        old = parsed_configuration(before, file)
        for site, policies in self.still(played_before).items():
            if self._leaves(site, self._configuration(site) or old, configured, before):
                played[site] = self._alone(policies)
        return played

    def names(self, only: str | None) -> list[str]:
        """Of which something is kept here; `only` of that one."""
        sites = (unquote(copy.stem) for copy in self.folder.glob(f"*{_SUFFIX}"))
        return sorted(site for site in sites if only in (None, site))

    def begin(self, rotations: Rotations, configured: Configuration, only: str | None, read: ReadPolicies) -> Played:
        """Return what is played when a runner begins: what was found, and what an earlier one left to return here.

        `read` reads the policies of one target. What cannot be read is named. Raises UsageError as `kept`.
        """
        self._left_meanwhile(configured, only)
        return self.with_kept(rotations, configured, only, read)

    def with_kept(
        self, rotations: Rotations, configured: Configuration, only: str | None, read: ReadPolicies
    ) -> Played:
        """Return what was found, and what is kept here of others, for returns alone."""
        played = {site: dict(policies) for site, policies in rotations.items()}
        for site in self.names(only):
            if site in leaving(rotations):
                continue
            copy = self.copy_of(site)
            try:
                stored = parsed_configuration(read_text(copy, error=TargetError), copy)
                policies = read(stored, site)[site]
            except GpuopsError as error:
                if self.not_read.get(site) != error.message:
                    self.not_read[site] = error.message
                    self.say(
                        f"{site} was a target, and it is not known whether its night was returned: {error.message}; "
                        f"GPUOPS_CONFIG={copy} gpuops rotate day --vcenter {site} returns it, then remove the file"
                    )
                continue
            if self._leaves(site, stored, configured, ""):
                self.say(f"{site} is a target no more: returns of it go on until nothing is left to return ({copy})")
                played[site] = self._alone(policies)
        return played

    def share(self, played: Rotations, configured: Configuration, text: str, only: str | None) -> None:
        """Store played and stored targets in the common database, and take over targets without a runner.

        It waits for the database: not in the loop of a runner. Raises StateDamaged where that does not answer.
        """
        if not self.url:
            return
        mine = {
            site: shared_target(text, {target.file: target.policy.text for target in policies.values()})
            for site, policies in played.items()
            if site not in leaving(played)
        }
        stored_sites = self.names(only)
        new = {
            site: target
            for site in stored_sites
            if site not in self.shared and (target := self._shared_target(site)) is not None
        }
        exchanged = exchange(self.url, mine, new, self.shared.difference(stored_sites))
        for site in self.shared.intersection(stored_sites) - exchanged.nobodys.keys():
            self.say(f"{site}: another runner {'plays it' if site in exchanged.known else 'has returned it'}")
            self.forget_target(site)
        self.shared = set(exchanged.nobodys.keys() & stored_sites)
        named = {site for site, target in configured.targets.items() if target.rotations}
        # after an outage of the database a target's runner reports by the next call; a runner without targets of its
        # own would not live until then
        waits = exchanged.unplayed - self.unplayed if named else frozenset[str]()
        self.unplayed = exchanged.unplayed
        for site in sorted(exchanged.nobodys.keys() - named.union(stored_sites, waits)):
            if only in (None, site):
                try:
                    self._take_up(site, exchanged.nobodys[site], configured, named)
                except GpuopsError as error:
                    if self.not_taken.get(site) != error.message:
                        self.say(f"{site} is not returned from here: {error.line}")
                    self.not_taken[site] = error.message
                else:
                    self.not_taken.pop(site, None)

    def _take_up(self, site: str, row: SharedTarget, configured: Configuration, named: Collection[str]) -> None:
        """Store a target without a runner here. Raises GpuopsError if this machine may not, or the row is invalid."""
        row_configuration = named_in(site, row)
        if address_of(row_configuration, site) in {address_of(configured, target_name) for target_name in named} - {
            None
        }:
            self.shared.add(site)  # it has another name by now: the next call takes it away
            return
        refuse_one_login({*configured.targets, site}, os.environ)
        text, policies = believed_configuration(site, row_configuration, configured), policies_in(site, row)
        for file, policy in policies.items():
            policy_text = without_commands(policy, file)
            self._write(self._policy_file(file), policy_text)
            if policy_text != policy and not file.exists():
                self.say(
                    f"{site}: {file} is not on this machine: returns run none of the commands for guests that the "
                    "database has of it"
                )
        self._write(self.copy_of(site), text)
        self.shared.add(site)
        self.say(f"{site} was a target of runners, and no runner plays it")

    def _shared_target(self, site: str) -> SharedTarget | None:
        """Return what is kept here of it; None = it has just been removed."""
        stored = self._configuration(site)
        if stored is None or site not in stored.targets:
            return None
        files = ((file, self._policy_file(file)) for file in stored.targets[site].rotations)
        policies = {file: read_text(copy, error=TargetError) for file, copy in files if copy.exists()}
        return shared_target(read_text(self.copy_of(site), error=TargetError), policies)

    def store_obeyed(self, text: str, only: str | None, played: Rotations) -> None:
        """Keep what is obeyed from now on, for whichever runner begins next here; where that cannot be, it is said.
        Policies as well: their files may be taken away with their target."""
        try:
            self._write(self._obeyed_file(only), text)
            for policies in played.values():
                for site_policy in policies.values():
                    self._write(self._policy_file(site_policy.file), site_policy.policy.text)
        except GpuopsError as error:
            self.say(f"{error.message}: a target that is taken out while no runner goes on is not returned")

    def policy_of(self, file: Path) -> SitePolicy | None:
        """A policy whose file is not there any more, or can be written by others, as it was obeyed last; None = it is
        there, or was never obeyed. The database may name any path."""
        copy = self._policy_file(file)
        if not copy.exists() or (file.exists() and replaceable(file) is None):
            return None
        return SitePolicy(parse_policy(read_text(copy, error=TargetError), str(file), accepted_before=True), file)

    def _alone(self, policies: Mapping[str, SitePolicy]) -> dict[str, SitePolicy]:
        """Return the policies of a removed target, only for returns, with stored copies of their files."""
        alone = {}
        for name, site_policy in policies.items():
            policy_file = site_policy.file if site_policy.leaving else self._policy_file(site_policy.file)
            if not site_policy.leaving:
                self._write(policy_file, site_policy.policy.text)
            alone[name] = replace(site_policy, leaving=True, file=policy_file)
        return alone

    def _policy_file(self, file: Path) -> Path:
        return self.folder / f"policy-{sha256(bytes(file)).hexdigest()[:32]}"

    def _obeyed_file(self, only: str | None) -> Path:
        return self.folder / ("obeyed" if only is None else f"obeyed-{quote(only, safe='')}")

    def _left_meanwhile(self, configured: Configuration, only: str | None) -> None:
        """Keep each target that the last runner played, and that the file has no more."""
        last = self._obeyed_file(only)
        if not last.exists():
            return
        try:
            text = read_text(last, error=TargetError)
            old = parsed_configuration(text, last)
        except GpuopsError as error:
            self.say(f"it is not known which targets were played before: {error.message}")
            return
        for site, target in old.targets.items():
            if target.rotations and only in (None, site) and not self.copy_of(site).exists():
                self._leaves(site, old, configured, text)

    def _leaves(self, site: str, earlier: Configuration, configured: Configuration, before: str) -> bool:
        """Whether returns alone of it are to be played: `own` had it, `configured` has neither it nor its vCenter.

        What `own` said of it is kept from then on; of one that is there, nothing is.
        """
        old_address, configured_names = (
            address_of(earlier, site),
            {name for name, target in configured.targets.items() if target.rotations},
        )
        if site not in configured_names and (
            old_address is None or old_address not in {address_of(configured, name) for name in configured_names}
        ):
            if not self.copy_of(site).exists():
                self._write(self.copy_of(site), before)
                self.say(
                    f"{site} is a target no more: no night of it begins, and returns go on until nothing is left "
                    f"to return; {self.copy_of(site)} has what the file said of it: remove it where the vCenter is "
                    "gone for good"
                )
            return True
        if (
            site in configured_names
            and old_address is not None
            and (now := address_of(configured, site)) != old_address
        ):
            copy, moved_file = self.copy_of(site), self.folder / f"{quote(f'{site} at {old_address}', safe='')}.moved"
            self._write(moved_file, read_text(copy, error=TargetError) if copy.exists() else before)
            self.say(
                f"{site} was {old_address} and is {now or 'simulated'} by now: where these are two vCenters, nobody "
                f"returns what a night took at {old_address}: GPUOPS_CONFIG={moved_file} gpuops rotate day --vcenter "
                f"{site} does"
            )
        self.forget_target(site)
        return False

    def _write(self, path: Path, text: str) -> None:
        """Raise UsageError, StateDamaged."""
        prepare_state_dir(self.folder)
        write_private(path, text)

    def still(self, played: Rotations) -> Rotations:
        """Without those whose copy somebody has removed: their vCenter is given up."""
        given_up = {site for site in leaving(played) if not self.copy_of(site).exists()}
        for site in given_up:
            self.say(f"{site} is played no more: {self.copy_of(site)} is gone")
        return {site: policies for site, policies in played.items() if site not in given_up} if given_up else played

    def forget_target(self, site: str) -> None:
        """Nothing of it is left to return, or another target does it."""
        with suppress(FileNotFoundError):
            self.copy_of(site).unlink()

    def _configuration(self, site: str) -> Configuration | None:
        copy = self.copy_of(site)
        return parsed_configuration(read_text(copy, error=TargetError), copy) if copy.exists() else None


def leaving(played: Rotations) -> Collection[str]:
    """Return the targets of which returns alone are played."""
    return [site for site, policies in played.items() if any(site_policy.leaving for site_policy in policies.values())]
