"""The policies that runners play, which half of its rotation each is in now, and since when a turn of it is due. Pure.

A turn is a process of its own, which reads the files of the policies again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Final

from gpuops.config.policy import parse_policy
from gpuops.errors import GpuopsError, UsageError
from gpuops.files.yaml_file import read_text
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.runners import Half
from gpuops.model.time_text import format_minute
from gpuops.model.window import Night, Window

EVERY: Final = timedelta(minutes=10)
"""How often a half is continued: as often as cron calls it (`gpuops help timers`)."""
_MINUTE: Final = timedelta(minutes=1)
_COMPARED_PERIOD: Final = timedelta(days=370)
"""How far ahead windows of two policies are compared: a year has every change of the clocks."""


@dataclass(frozen=True, slots=True)
class DueTurn:
    """One turn: which half, and since when it is due. Every runner names the same moment for the same turn."""

    half: Half
    since: datetime


def due(policy: Policy, now: datetime) -> DueTurn:
    """Return the turn that is due now: a night while a window of the policy is open, else a return.

    It is due anew with each full ten minutes, and where a window has opened or closed since.
    """
    tenth = now.replace(minute=now.minute - now.minute % 10, second=0, microsecond=0)
    half = half_of(policy, now)
    moment = now.replace(second=0, microsecond=0)
    while moment > tenth and half_of(policy, moment - _MINUTE) is half:
        moment -= _MINUTE
    return DueTurn(half, moment)


def half_of(policy: Policy, now: datetime) -> Half:
    """Return the night while a window is open and its return is not due, else the return."""
    night = policy.night_at(now)
    return Half.NIGHT if night is not None and now < night.returns_from else Half.DAY


def refuse_other_modes(policy: Policy) -> None:
    """Raise UsageError for a policy without nights that begin at a known time."""
    if policy.spare is not None:
        raise UsageError(
            f"policy {policy.name} has `mode: {policy.mode}`, and a runner plays only nights",
            hint="run a service of its own for this mode, on a vCenter that no runner plays (gpuops help watch)",
        )
    if not policy.windows:
        raise UsageError(
            f"policy {policy.name} has no windows, so a runner cannot know when its night begins",
            hint="add `windows` to the policy (gpuops help policy)",
        )


def waits(half: Half, policies: Iterable[Policy], now: datetime) -> bool:
    """Return whether a turn waits because a window of one of these policies, those of its vCenter, is open.

    A return ends every night of its vCenter, so it is played only while no window is open.
    """
    return half is Half.DAY and any(half_of(policy, now) is Half.NIGHT for policy in policies)


def refuse_clash(policies: Sequence[Policy], now: datetime) -> None:
    """Raise UsageError if one policy returns desktops while the window of another policy of its vCenter is open.

    The return would wait for the end of that window, and be late.
    """
    for moving, other in permutations(policies, 2):
        hours = _moves_in_a_night(moving, other, now)
        if hours is not None:
            raise UsageError(
                f"`defrag` of {moving.name} moves VMs from {format_minute(hours.opens)} UTC on, in a night of "
                f"{other.name}",
                hint="choose a window of `defrag` in which no policy of this vCenter has a night",
            )
    for returning, waiting in permutations(policies, 2):
        for night in _nights(returning.windows, now):
            until = max(night.back_by, night.closes + _MINUTE)  # a return takes time, even if it is due at the close
            begun = (near_night for window in waiting.windows for near_night in window.nights_begun(until))
            if any(near_night.opens < until and near_night.closes > night.closes for near_night in begun):
                raise UsageError(
                    f"desktops of {returning.name} come back from {format_minute(night.closes)} UTC on, and a window "
                    f"of {waiting.name} is open then: a return ends every night of its vCenter",
                    hint="let windows of one vCenter close together, or open after `back_by` of the others",
                )


def _moves_in_a_night(moving: Policy, other: Policy, now: datetime) -> Night | None:
    """Return the first hours of `moving`'s `defrag` in which `other` has a night; None = there are none in a year."""
    windows = moving.defrag.windows if moving.defrag is not None else ()
    for hours in _nights(windows, now):
        begun = (night for window in other.windows for night in window.nights_begun(hours.closes))
        if any(night.opens < hours.closes and night.back_by > hours.opens for night in begun):
            return hours
    return None


def _nights(windows: Iterable[Window], now: datetime) -> Iterator[Night]:
    """Yield the nights of a year, for one window after another."""
    for window in windows:
        night = window.next_night(now - timedelta(days=3))
        while night is not None and night.opens < now + _COMPARED_PERIOD:
            yield night
            night = window.next_night(night.opens)


@dataclass(slots=True)
class SitePolicy:
    """A policy of a vCenter, by the last valid text of its file."""

    policy: Policy
    file: Path
    wrong: str = ""
    """Why the file is invalid now; empty = it is valid."""
    leaving: bool = False
    """Whether its target was removed from the configuration file (`leaving.py`): only returns are played."""


Rotations = Mapping[str, Mapping[str, SitePolicy]]
"""Policies by the name of the site and their own."""


def load_policy_file(file: Path, known_policy: Policy) -> Policy:
    """Return the policy of the file, or `known_policy` itself if the file is unchanged. Raises PolicyError."""
    text = read_text(file)
    return known_policy if text == known_policy.text else parse_policy(text, str(file))


def read_anew(
    site: str,
    policies: Mapping[str, SitePolicy],
    now: datetime,
    load: Callable[[Path, Policy], Policy],
    say: Callable[[str], None],
) -> None:
    """Read the policy files of a site again. An invalid file is logged once, and its last valid policy stays.

    `load` returns the given policy itself if its file is unchanged.
    """
    changed: dict[str, Policy] = {}
    error_by_policy: dict[str, str] = {}
    for name, site_policy in policies.items():
        try:
            loaded_policy = load(site_policy.file, site_policy.policy)
            if loaded_policy is not site_policy.policy:
                _require_playable(name, loaded_policy, site_policy.file)
                changed[name] = loaded_policy
        except GpuopsError as error:
            error_by_policy[name] = error.message
    try:
        if changed:  # checked together, because several files may have been edited together
            refuse_clash([changed.get(name, site_policy.policy) for name, site_policy in policies.items()], now)
    except UsageError as clash:
        error_by_policy |= dict.fromkeys(changed, clash.message)
        changed = {}
    for name, site_policy in policies.items():
        if name in changed:
            site_policy.policy = changed[name]
            say(f"{site}: policy {name} has changed: {site_policy.file}")
        why = error_by_policy.get(name, "")
        if why and why != site_policy.wrong:
            say(f"{site}: {why}: no night of {name} begins, and returns use the last valid policy")
        site_policy.wrong = why


def _require_playable(name: str, policy: Policy, file: Path) -> None:
    """Raise UsageError for a policy that would have been refused at the start."""
    refuse_other_modes(policy)
    if policy.name != name:
        raise UsageError(
            f"{file}: the policy {name} is now called {policy.name}",
            hint="restart the runners to use the new name",
        )
