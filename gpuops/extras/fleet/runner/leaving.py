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
from gpuops.config.vcenter.sources import refuse_one_login
from gpuops.config.vcenter.targets import Configuration, parsed_configuration
from gpuops.errors import GpuopsError, TargetError
from gpuops.execute.state.state_dir import prepare_state_dir
from gpuops.extras.fleet.runner.due import Rotations, SitePolicy
from gpuops.extras.fleet.runner.shared_targets import (
    SharedTarget,
    address_of,
    configuration_in,
    exchange,
    policies_in,
    shared_target,
    trusted_configuration,
    without_commands,
)
from gpuops.files.file import read_text
from gpuops.files.private_file import replaceable, write_private

_SUFFIX: Final = ".toml"

Played = dict[str, dict[str, SitePolicy]]
ReadPolicies = Callable[[Configuration, str], Rotations]


@dataclass(slots=True)
class LeavingTargets:
    """The removed targets that this machine knows, each with a copy of the last configuration file that listed it."""

    folder: Path
    say: Callable[[str], None]
    url: str = field(default="", repr=False)
    """URL of the common database; empty = none is used."""
    shared: set[str] = field(default_factory=set)
    """Stored targets that were also in the database: if one disappears there, another runner has returned it."""
    not_read: dict[str, str] = field(default_factory=dict)
    """Why the stored text of a site cannot be read, by site."""
    unplayed: frozenset[str] = frozenset()
    """Targets that no runner played at the last look."""
    not_taken: dict[str, str] = field(default_factory=dict)
    """Why a site is not taken over from the database, by site."""

    def copy_of(self, site: str) -> Path:
        """Return the path of the stored configuration of this target."""
        return self.folder / f"{quote(site, safe='')}{_SUFFIX}"

    def with_removed_targets(
        self, rotations: Rotations, played_before: Rotations, configured: Configuration, old_text: str, file: Path
    ) -> Played:
        """Return the rotations of the file, and those of targets that were removed from it: of these only returns are
        played, until all their desktops are back. Stores each such target, so that any runner can go on.

        `played_before`: the rotations until now. `old_text`: the text of the file until now. Raises UsageError, and
        StateDamaged if a removed target cannot be stored.
        """
        played = {  # a target that the file lists again is no longer for returns only
            site: {
                name: replace(site_policy, leaving=False) if site_policy.leaving else site_policy
                for name, site_policy in policies.items()
            }
            for site, policies in rotations.items()
        }
        old_configuration = parsed_configuration(old_text, file)
        for site, policies in self.still(played_before).items():
            if self._store_if_removed(site, self._configuration(site) or old_configuration, configured, old_text):
                played[site] = self._only_returns(policies)
        return played

    def names(self, only: str | None) -> list[str]:
        """Return the stored targets; with `only` at most that one."""
        sites = (unquote(copy.stem) for copy in self.folder.glob(f"*{_SUFFIX}"))
        return sorted(site for site in sites if only in (None, site))

    def begin(self, rotations: Rotations, configured: Configuration, only: str | None, read: ReadPolicies) -> Played:
        """Return the rotations of a new runner: those of the file, and those that an earlier runner did not return.

        `read` reads the policies of one target. A target that cannot be read is logged. Raises UsageError.
        """
        self._left_meanwhile(configured, only)
        return self.with_kept(rotations, configured, only, read)

    def with_kept(
        self, rotations: Rotations, configured: Configuration, only: str | None, read: ReadPolicies
    ) -> Played:
        """Return these rotations, and those of stored targets for returns only. An unreadable one is logged once."""
        played = {site: dict(policies) for site, policies in rotations.items()}
        for site in self.names(only):
            if site in leaving(rotations):  # it is played for returns already
                continue
            copy = self.copy_of(site)
            try:
                stored = parsed_configuration(read_text(copy, error=TargetError), copy)
                policies = read(stored, site)[site]
            except GpuopsError as error:
                if self.not_read.get(site) != error.message:
                    self.not_read[site] = error.message
                    self.say(
                        f"{site} was a target, and it is unknown whether its desktops are back: {error.message}; "
                        f"run GPUOPS_CONFIG={copy} gpuops rotate day --vcenter {site}, then remove the file"
                    )
                continue
            if self._store_if_removed(site, stored, configured, ""):
                self.say(f"{site} is no longer a target: returns continue until all desktops are back ({copy})")
                played[site] = self._only_returns(policies)
        return played

    def share(self, played: Rotations, configured: Configuration, text: str, only: str | None) -> None:
        """Store played and stored targets in the common database, and take over targets without a runner.

        It waits for the database, so call it outside the loop. Raises StateDamaged if the database does not answer.
        """
        if not self.url:
            return
        played_targets = {
            site: shared_target(text, {target.file: target.policy.text for target in policies.values()})
            for site, policies in played.items()
            if site not in leaving(played)
        }
        stored_sites = self.names(only)
        newly_left = {
            site: target
            for site in stored_sites
            if site not in self.shared and (target := self._shared_target(site)) is not None
        }
        # a shared target without a stored text has been returned here: its row in the database is removed
        exchanged = exchange(self.url, played_targets, newly_left, self.shared.difference(stored_sites))
        for site in self.shared.intersection(stored_sites) - exchanged.orphaned.keys():
            self.say(f"{site}: another runner {'plays it' if site in exchanged.known else 'has returned it'}")
            self.forget_target(site)
        self.shared = set(exchanged.orphaned.keys() & stored_sites)
        configured_sites = {site for site, target in configured.targets.items() if target.rotations}
        # after an outage of the database a target's runner reports by the next call; a runner without targets of its
        # own would not live until then
        maybe_played = exchanged.unplayed - self.unplayed if configured_sites else frozenset[str]()
        self.unplayed = exchanged.unplayed
        for site in sorted(exchanged.orphaned.keys() - configured_sites.union(stored_sites, maybe_played)):
            if only in (None, site):
                try:
                    self._take_up(site, exchanged.orphaned[site], configured, configured_sites)
                except GpuopsError as error:
                    if self.not_taken.get(site) != error.message:
                        self.say(f"this runner does not return {site}: {error.line}")
                    self.not_taken[site] = error.message
                else:
                    self.not_taken.pop(site, None)

    def _take_up(
        self, site: str, row: SharedTarget, configured: Configuration, configured_sites: Collection[str]
    ) -> None:
        """Store on this machine a target that no runner plays, so that this runner returns its desktops.

        `configured_sites`: the targets of this configuration file that have policies. Raises GpuopsError if the
        settings in the row are not trusted on this machine, or if the row is invalid.
        """
        row_configuration = configuration_in(site, row)
        # None = simulated: each of them is a vCenter of its own
        if address_of(row_configuration, site) in {
            address_of(configured, target_name) for target_name in configured_sites
        } - {None}:
            self.shared.add(site)  # the same vCenter under another name: the next call removes the row
            return
        refuse_one_login({*configured.targets, site}, os.environ)
        text, policies = trusted_configuration(site, row_configuration, configured), policies_in(site, row)
        for file, policy in policies.items():
            policy_text = without_commands(policy, file)
            self._write(self._policy_file(file), policy_text)
            if policy_text != policy and not file.exists():
                self.say(
                    f"{site}: {file} is not on this machine: returns run no commands for guests, because those in "
                    "the database are not trusted"
                )
        self._write(self.copy_of(site), text)
        self.shared.add(site)
        self.say(f"this runner takes over {site}: it was a target, and no runner plays it")

    def _shared_target(self, site: str) -> SharedTarget | None:
        """Return the stored target; None = it has just been removed."""
        stored = self._configuration(site)
        if stored is None or site not in stored.targets:
            return None
        files = ((file, self._policy_file(file)) for file in stored.targets[site].rotations)
        policies = {file: read_text(copy, error=TargetError) for file, copy in files if copy.exists()}
        return shared_target(read_text(self.copy_of(site), error=TargetError), policies)

    def store_obeyed(self, text: str, only: str | None, played: Rotations) -> None:
        """Store the valid text and its policies for the next runner on this machine; log a failure.

        The policies are stored too, because their files may be removed together with their target.
        """
        try:
            self._write(self._obeyed_file(only), text)
            for policies in played.values():
                for site_policy in policies.values():
                    self._write(self._policy_file(site_policy.file), site_policy.policy.text)
        except GpuopsError as error:
            self.say(f"{error.message}: a target that is removed while no runner runs will not be returned")

    def policy_of(self, file: Path) -> SitePolicy | None:
        """Return the last valid policy of a file that is missing or that others can write.

        None = the file is there and safe, or was never used. The path may come from the database, so it is not trusted.
        """
        copy = self._policy_file(file)
        if not copy.exists() or (file.exists() and replaceable(file) is None):
            return None
        return SitePolicy(parse_policy(read_text(copy, error=TargetError), str(file), accepted_before=True), file)

    def _only_returns(self, policies: Mapping[str, SitePolicy]) -> dict[str, SitePolicy]:
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
        """Store each target that the last runner played and that was removed from the file since then."""
        last = self._obeyed_file(only)
        if not last.exists():
            return
        try:
            old_text = read_text(last, error=TargetError)
            old_configuration = parsed_configuration(old_text, last)
        except GpuopsError as error:
            self.say(f"it is unknown which targets were played before: {error.message}")
            return
        for site, target in old_configuration.targets.items():
            if target.rotations and only in (None, site) and not self.copy_of(site).exists():
                self._store_if_removed(site, old_configuration, configured, old_text)

    def _store_if_removed(
        self, site: str, old_configuration: Configuration, configured: Configuration, old_text: str
    ) -> bool:
        """Store the target if `configured` lists neither it nor its vCenter, and return whether this is so.

        Only returns of a stored target are played. `old_configuration`: the one that listed it; `old_text`: its text.
        If the target or its vCenter is listed, its stored text is removed instead.
        """
        old_address = address_of(old_configuration, site)
        configured_names = {name for name, target in configured.targets.items() if target.rotations}
        if site not in configured_names and (
            old_address is None or old_address not in {address_of(configured, name) for name in configured_names}
        ):
            if not self.copy_of(site).exists():
                self._write(self.copy_of(site), old_text)
                self.say(
                    f"{site} is no longer a target: no night of it begins, and returns continue until all desktops are "
                    f"back; if the vCenter does not exist any more, remove {self.copy_of(site)}"
                )
            return True
        if (
            site in configured_names
            and old_address is not None
            and (now := address_of(configured, site)) != old_address
        ):
            copy, moved_file = self.copy_of(site), self.folder / f"{quote(f'{site} at {old_address}', safe='')}.moved"
            self._write(moved_file, read_text(copy, error=TargetError) if copy.exists() else old_text)
            self.say(
                f"{site} was {old_address} and is now {now or 'simulated'}: if these are two vCenters, no runner "
                f"returns the desktops of {old_address}; run GPUOPS_CONFIG={moved_file} gpuops rotate day "
                f"--vcenter {site}"
            )
        self.forget_target(site)
        return False

    def _write(self, path: Path, text: str) -> None:
        prepare_state_dir(self.folder)
        write_private(path, text)

    def still(self, played: Rotations) -> Rotations:
        """Return the rotations without removed targets whose stored text an admin has deleted to give them up."""
        given_up = {site for site in leaving(played) if not self.copy_of(site).exists()}
        for site in given_up:
            self.say(f"{site} is no longer played: {self.copy_of(site)} was removed")
        return {site: policies for site, policies in played.items() if site not in given_up} if given_up else played

    def forget_target(self, site: str) -> None:
        """Remove the stored text: all desktops are back, or another target returns them."""
        with suppress(FileNotFoundError):
            self.copy_of(site).unlink()

    def _configuration(self, site: str) -> Configuration | None:
        copy = self.copy_of(site)
        return parsed_configuration(read_text(copy, error=TargetError), copy) if copy.exists() else None


def leaving(played: Rotations) -> Collection[str]:
    """Return the removed targets, for which only returns are played."""
    return [site for site, policies in played.items() if any(site_policy.leaving for site_policy in policies.values())]
