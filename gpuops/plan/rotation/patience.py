"""Rotation, patience: until when a return waits for a vCenter that is away."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from gpuops.model.rotation import Policy

AFTER: Final = timedelta(hours=1)
"""How long a return goes on waiting when its desktops are due already; without a window, how long it waits at all."""


def waits_until(policy: Policy | None, now: datetime) -> datetime:
    """The moment at which a return that finds vCenter away gives up; `now` where desktops were due long ago.

    Of the nights that have opened it is the one whose desktops are due last. `policy` None = it is not known.
    """
    if policy is None or not policy.windows:
        return now + AFTER
    due = [night.back_by + AFTER for window in policy.windows for night in window.nights_begun(now)]
    return max([now, *due])
