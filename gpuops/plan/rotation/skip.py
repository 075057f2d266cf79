"""Rotation, a night that is skipped: which one is next, when somebody says that the next one is not to be taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpuops.errors import Refused, UsageError
from gpuops.model.rotation import Original, Policy
from gpuops.model.window import Night


@dataclass(frozen=True, slots=True)
class Skip:
    """What was asked of one night."""

    policy: str
    night: Night
    skipped: bool
    """False = it is taken after all."""
    changed: bool
    """False = it was so already."""


def next_to_take(policy: Policy, originals: Iterable[Original], now: datetime) -> Night:
    """The night that is open and has not taken anything, or else the first to open.

    Raises UsageError for a policy without windows, Refused where no night opens within a year.
    """
    if not policy.windows:
        raise UsageError(f"{policy.name}: a policy without a window has no next night", hint="give it `windows`")
    tonight = policy.night_at(now)
    begun = {original.night for original in originals if original.taken}
    if tonight is not None and tonight.takes_at(now) and tonight.id not in begun:
        return tonight
    coming = policy.next_night(now)
    if coming is None:
        raise Refused(f"{policy.name}: no night opens within a year")
    return coming
