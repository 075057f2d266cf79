"""Which vCenter nobody seems to return: nights of it took VMs, have closed, and no return is recorded since. Pure.

A return that does not succeed tells of itself. This is for one that nobody begins: a target that was taken out of every
configuration file, a cron line that is gone, runners that none is left of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.nights.night_record import Original
from gpuops.plan.rotation.returns.return_time import nights_called

NO_RETURN_FOR: Final = timedelta(minutes=30)
"""So long after the closing, and after the last record of a return: runners and cron try every ten minutes."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """One vCenter, as its journal tells."""

    vcenter: str
    """Its instance uuid: a journal knows no other name."""
    vms: tuple[str, ...]
    """Names of those that are not known to be back."""
    closed: datetime
    """When the first of their nights closed."""
    last_return: datetime | None
    """When a return last wrote something down; None = no record tells of one."""

    def __str__(self) -> str:
        named = ", ".join(self.vms[:3]) + (f" and {len(self.vms) - 3} more" if len(self.vms) > 3 else "")
        since = f"since {self.last_return:%Y-%m-%d %H:%M %Z}" if self.last_return is not None else "ever"
        return (
            f"vCenter {self.vcenter}: {named} not back; the night closed at {self.closed:%Y-%m-%d %H:%M %Z}, and no "
            f"return is recorded {since}"
        )

    @property
    def next_move(self) -> str:
        """The next command."""
        return "gpuops rotate day --yes --vcenter TARGET, of the target that has this vCenter"


def overdue(vcenter: str, originals: Sequence[Original], last_return: datetime | None, now: datetime) -> Overdue | None:
    """What of this vCenter is past its closing and has no return; None = nothing, or no policy says when it closes."""
    # one that is recorded later than now by that much is of a machine whose clock is wrong: it must not silence this
    if last_return is not None and abs(now - last_return) < NO_RETURN_FOR:
        return None
    late: dict[str, datetime] = {}
    for each in originals:
        if each.policy is None or not each.taken or each.returned or each.given_up:
            continue
        closings = [night.closes for night in nights_called(each.night, each.policy)]
        if closings and now - max(closings) >= NO_RETURN_FOR:
            late[each.name] = max(closings)
    return Overdue(vcenter, tuple(sorted(late)), min(late.values()), last_return) if late else None
