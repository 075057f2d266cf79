"""Which half of its rotation a policy is in now, and the moment from which a turn of it is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.rotation import Policy
from gpuops.model.runners import Half

EVERY: Final = timedelta(minutes=10)
"""How often a half is gone on with: as often as cron calls it (`gpuops help cron`)."""
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class DueTurn:
    """One turn: which half, and since when it is due. Every runner names the same moment for the same turn."""

    half: Half
    since: datetime


def due(policy: Policy, now: datetime) -> DueTurn:
    """The turn that is due now: a night while a window of the policy is open, else a return.

    It is due anew with each full ten minutes, and where a window has opened or closed since.
    """
    tenth = now.replace(minute=now.minute - now.minute % 10, second=0, microsecond=0)
    half = half_of(policy, now)
    moment = now.replace(second=0, microsecond=0)
    while moment > tenth and half_of(policy, moment - _MINUTE) is half:
        moment -= _MINUTE
    return DueTurn(half, moment)


def half_of(policy: Policy, now: datetime) -> Half:
    """Night while a window is open; a return ends what a night has left, at any other hour."""
    night = policy.night_at(now)
    return Half.NIGHT if night is not None and night.takes_at(now) else Half.DAY


def refuse_other_modes(policy: Policy) -> None:
    """Raises UsageError for a policy that no clock can call."""
    if policy.spare is not None:
        raise UsageError(
            f"policy {policy.name} says `mode: {policy.mode}`: a runner plays nights",
            hint="gpuops help watch: its own service runs beside the runner",
        )
    if not policy.windows:
        raise UsageError(
            f"policy {policy.name} has no windows: nobody can tell when its night begins",
            hint="give it `windows` (gpuops help windows)",
        )
