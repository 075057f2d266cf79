"""Finds a vCenter whose nights took VMs and have closed, and for which no return is recorded since. Pure.

A return that fails reports it itself. This module is for a return that never begins: the target was removed from every
configuration file, the cron line is missing, or no runner is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.nights.night_record import Original
from gpuops.model.time_text import format_zoned_minute
from gpuops.plan.rotation.returns.return_time import nights_called

NO_RETURN_FOR: Final = timedelta(minutes=30)
"""Time after the closing, and after the last record of a return. Runners and cron try every ten minutes."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """One vCenter whose VMs are overdue, according to its journal."""

    vcenter: str
    """Its instance uuid, the only name in a journal."""
    vms: tuple[str, ...]
    """Names of the VMs that are not known to be back."""
    closed: datetime
    """When the first of their nights closed."""
    last_return: datetime | None
    """When a return last wrote to the journal; None = there is no record of a return."""

    def __str__(self) -> str:
        named = ", ".join(self.vms[:3]) + (f" and {len(self.vms) - 3} more" if len(self.vms) > 3 else "")
        since = f"since {format_zoned_minute(self.last_return)}" if self.last_return is not None else "ever"
        return (
            f"vCenter {self.vcenter}: {named} not back; the night closed at {format_zoned_minute(self.closed)}, and no "
            f"return is recorded {since}"
        )

    @property
    def next_move(self) -> str:
        """The next command."""
        return "gpuops rotate day --yes --vcenter TARGET, of the target that has this vCenter"


def overdue(vcenter: str, originals: Sequence[Original], last_return: datetime | None, now: datetime) -> Overdue | None:
    """Return the VMs of this vCenter whose night has closed without a return.

    None if all of them are back, or if no policy says when their night closes.
    """
    # A record from the future comes from a machine whose clock is wrong: it must not hide an overdue return, hence
    # abs().
    if last_return is not None and abs(now - last_return) < NO_RETURN_FOR:
        return None
    closing_by_name: dict[str, datetime] = {}
    for original in originals:
        if original.policy is None or not original.taken or original.returned or original.given_up:
            continue
        closings = [night.closes for night in nights_called(original.night, original.policy)]
        if closings and now - max(closings) >= NO_RETURN_FOR:
            closing_by_name[original.name] = max(closings)
    return (
        Overdue(vcenter, tuple(sorted(closing_by_name)), min(closing_by_name.values()), last_return)
        if closing_by_name
        else None
    )
