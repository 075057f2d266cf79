"""The policies that runners play, as their files say them now. Turns are processes that read the file as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpuops.config.policy import parse_policy
from gpuops.errors import GpuopsError, UsageError
from gpuops.extras.fleet.runner.due import refuse_clash, refuse_other_modes
from gpuops.files.yaml_file import read_text
from gpuops.model.nights.rotation import Policy


@dataclass(slots=True)
class SitePolicy:
    """A policy of a vCenter as its file said it when it could last be obeyed."""

    policy: Policy
    file: Path
    wrong: str = ""
    """Why the file cannot be obeyed now; empty = it is."""
    leaving: bool = False
    """Whether its target is in the configuration file no more (`leaving.py`): returns alone are played."""


Rotations = Mapping[str, Mapping[str, SitePolicy]]
"""By name of the site and of the policy."""


def load_policy_file(file: Path, known_policy: Policy) -> Policy:
    """Return the policy of the file; the known one itself where the file is as it was. Raises PolicyError."""
    text = read_text(file)
    return known_policy if text == known_policy.text else parse_policy(text, str(file))


def read_anew(
    site: str,
    policies: Mapping[str, SitePolicy],
    now: datetime,
    load: Callable[[Path, Policy], Policy],
    say: Callable[[str], None],
) -> None:
    """Note what the files of a site say by now. What cannot be obeyed is said once, and the last good policy stays."""
    changed: dict[str, Policy] = {}
    wrong: dict[str, str] = {}
    for name, site_policy in policies.items():
        try:
            loaded_policy = load(site_policy.file, site_policy.policy)
            if loaded_policy is not site_policy.policy:
                _require_like(name, loaded_policy, site_policy.file)
                changed[name] = loaded_policy
        except GpuopsError as error:
            wrong[name] = error.message
    try:
        if changed:  # all of them at once, for several may have been edited together
            refuse_clash([changed.get(name, site_policy.policy) for name, site_policy in policies.items()], now)
    except UsageError as clash:
        wrong |= dict.fromkeys(changed, clash.message)
        changed = {}
    for name, site_policy in policies.items():
        if name in changed:
            site_policy.policy = changed[name]
            say(f"{site}: policy {name} is another one by now: {site_policy.file}")
        why = wrong.get(name, "")
        if why and why != site_policy.wrong:
            say(f"{site}: {why}: no night of {name} begins, and returns go by the policy as it was")
        site_policy.wrong = why


def _require_like(name: str, policy: Policy, file: Path) -> None:
    """Raise UsageError for what would have been refused at the start."""
    refuse_other_modes(policy)
    if policy.name != name:
        raise UsageError(
            f"{file}: the policy {name} is called {policy.name} by now",
            hint="runners must be started anew for that",
        )
