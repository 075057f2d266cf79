"""The policies that runners play, as their files say them now. Turns are processes that read the file as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpuops.config.policy import parse_policy
from gpuops.errors import GpuopsError, UsageError
from gpuops.files.yaml_file import read_text
from gpuops.model.nights.rotation import Policy
from gpuops.runner.due import refuse_clash, refuse_other_modes


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


def loaded(file: Path, known: Policy) -> Policy:
    """The policy of the file; the known one itself where the file is as it was. Raises PolicyError."""
    text = read_text(file)
    return known if text == known.text else parse_policy(text, str(file))


def read_anew(
    site: str,
    policies: Mapping[str, SitePolicy],
    now: datetime,
    load: Callable[[Path, Policy], Policy],
    say: Callable[[str], None],
) -> None:
    """Notes what the files of a site say by now. What cannot be obeyed is said once, and the last good policy stays."""
    changed: dict[str, Policy] = {}
    wrong: dict[str, str] = {}
    for name, known in policies.items():
        try:
            found = load(known.file, known.policy)
            if found is not known.policy:
                _require_like(name, found, known.file)
                changed[name] = found
        except GpuopsError as error:
            wrong[name] = error.message
    try:
        if changed:  # all of them at once, for several may have been edited together
            refuse_clash([changed.get(name, known.policy) for name, known in policies.items()], now)
    except UsageError as clash:
        wrong |= dict.fromkeys(changed, clash.message)
        changed = {}
    for name, known in policies.items():
        if name in changed:
            known.policy = changed[name]
            say(f"{site}: policy {name} is another one by now: {known.file}")
        why = wrong.get(name, "")
        if why and why != known.wrong:
            say(f"{site}: {why}: no night of {name} begins, and returns go by the policy as it was")
        known.wrong = why


def _require_like(name: str, found: Policy, file: Path) -> None:
    """Raises UsageError for what would have been refused at the start."""
    refuse_other_modes(found)
    if found.name != name:
        raise UsageError(
            f"{file}: the policy {name} is called {found.name} by now",
            hint="runners must be started anew for that",
        )
