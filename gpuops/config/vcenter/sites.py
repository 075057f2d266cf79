"""The sites that `--site` names: targets of the configuration file, each with its zone, its policy and its labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuops.errors import UsageError

if TYPE_CHECKING:
    from gpuops.config.vcenter.sources import NamedTargets
    from gpuops.config.vcenter.targets import NamedTarget

ALL: Final = "all"
_LOGINS: Final[Mapping[str, str]] = {
    "GPUOPS_USERNAME": "", "GPUOPS_PASSWORD": "", "GPUOPS_PASSWORD_FILE": "", "GPUOPS_BROKER_PASSWORD": "",
    "GPUOPS_BROKER_PASSWORD_FILE": "", "GPUOPS_GUEST_USERNAME": "", "GPUOPS_GUEST_PASSWORD": "",
    "GPUOPS_GUEST_PASSWORD_FILE": "", "VMWARE_USER": "VMWARE_HOST", "VMWARE_PASSWORD": "VMWARE_HOST",
    "GOVC_USERNAME": "GOVC_URL", "GOVC_PASSWORD": "GOVC_URL",
}  # fmt: skip
"""Variables that go to every vCenter, its broker or its guests, unless the variable beside them says to which."""


@dataclass(frozen=True, slots=True)
class ConfiguredSite:
    """One target of the configuration file, as commands that read several know it."""

    name: str
    zone: str | None
    """IANA time zone; None = the file says none."""
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
            f"--site {word}: there is no target in {file}",
            hint="gpuops config init writes the file; its targets are the sites",
        )
    matching_sites = tuple(site for site in sites_by_name.values() if _means(word, site))
    if matching_sites:
        return matching_sites
    near = get_close_matches(word, sites_by_name, n=3)
    suggestion = f"; did you mean {', '.join(near)}?" if near else ""
    raise UsageError(
        f"--site {word}: it matches no target of {file}{suggestion}", hint=f"sites there: {', '.join(sites_by_name)}"
    )


def _policy_of(target: NamedTarget) -> Path | None:
    """Return the policy of a target, else the only one that runners play on it; None if there is not exactly one."""
    return target.rotations[0] if target.policy is None and len(target.rotations) == 1 else target.policy


def refuse_one_login(sites: Collection[str], environ: Mapping[str, str], password_file: Path | None = None) -> None:
    """Raise UsageError if one login would be sent to several vCenters. `password_file`: the option --password-file."""
    login_options = ["--password-file"] if password_file is not None else []
    login_options += [name for name, where in _LOGINS.items() if environ.get(name) and not environ.get(where)]
    if login_options and len(sites) > 1:
        guests = ", and in [targets.NAME.guest]" if any("GUEST" in name for name in login_options) else ""
        raise UsageError(
            f"{', '.join(login_options)} would go to each of {len(sites)} vCenters: {', '.join(sites)}",
            hint=f"leave it out: each [targets.NAME] has its own username, password_file or credential{guests}",
        )


def _means(word: str, site: ConfiguredSite) -> bool:
    label, sign, value = word.partition("=")
    if sign and label in site.labels:
        return fnmatchcase(site.labels[label], value)
    return word == ALL or fnmatchcase(site.name, word)
