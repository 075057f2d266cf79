"""Which half of its rotation a policy is in now, and the moment from which a turn of it is due. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import permutations
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.nights.rotation import Policy
from gpuops.model.nights.runners import Half
from gpuops.model.time_text import format_minute
from gpuops.model.window import Night

EVERY: Final = timedelta(minutes=10)
"""How often a half is continued: as often as cron calls it (`gpuops help timers`)."""
_MINUTE: Final = timedelta(minutes=1)
_AHEAD: Final = timedelta(days=370)
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
    """Raise UsageError for a policy that no clock can call."""
    if policy.spare is not None:
        raise UsageError(
            f"policy {policy.name} says `mode: {policy.mode}`: a runner plays nights",
            hint="gpuops help watch: it has a service of its own, on a vCenter that no runner returns",
        )
    if not policy.windows:
        raise UsageError(
            f"policy {policy.name} has no windows: the begin of its night is not known",
            hint="give it `windows` (gpuops help policy)",
        )


def waits(half: Half, policies: Iterable[Policy], now: datetime) -> bool:
    """Return whether a turn waits for the nights of these policies, which are those of its vCenter.

    A return ends every night of its vCenter for good, so it is played while no window is open.
    """
    return half is Half.DAY and any(half_of(policy, now) is Half.NIGHT for policy in policies)


def refuse_clash(policies: Sequence[Policy], now: datetime) -> None:
    """Raise UsageError where the desktops of one policy are to come back while the window of another one of the same
    vCenter is open: its return would wait, and be late."""
    for returning, waiting in permutations(policies, 2):
        for night in _nights(returning, now):
            until = max(night.back_by, night.closes + _MINUTE)
            begun = (near_night for window in waiting.windows for near_night in window.nights_begun(until))
            if any(near_night.opens < until and near_night.closes > night.closes for near_night in begun):
                raise UsageError(
                    f"desktops of {returning.name} come back from {format_minute(night.closes)} UTC on, and a window "
                    f"of {waiting.name} is open then: a return ends every night of its vCenter",
                    hint="let windows of one vCenter close together, or open after `back_by` of the others",
                )


def _nights(policy: Policy, now: datetime) -> Iterator[Night]:
    """Yield those of a year, of each window in order."""
    for window in policy.windows:
        night = window.next_night(now - timedelta(days=3))
        while night is not None and night.opens < now + _AHEAD:
            yield night
            night = window.next_night(night.opens)
