"""Decides whether a `rotate day` that a timer calls must begin its return yet. Pure.

Timers repeat every week, so some calls come while a window is open: on the weekday of a holiday, or where the clocks of
the machine and those of the policy change on different days. Such a call would end the night. `execute` therefore asks
here before it takes the lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

from gpuops.model.nights.night_record import Original, Role
from gpuops.model.nights.rotation import Policy
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.window import Night
from gpuops.plan.rotation.returns.return_time import Durations, Load, ReturnTime, longest_checkpoint_s, nights_called
from gpuops.plan.rotation.taken_vms import vms_of

_BETWEEN_CALLS: Final = timedelta(minutes=10)
"""Time between two calls of a timer. If a return is due before the next call, this call begins it."""


def open_nights(
    policy: Policy | None, originals: Iterable[Original], begun_returns: Collection[str], now: datetime
) -> tuple[Night, ...]:
    """Return the open nights that a `rotate day` called by a timer must not end yet; empty if a return may begin.

    A return is due as soon as it is due for one VM that is away: at `returns_from` of its night, by the policy of that
    night, or by `policy` if that is unknown; at once if no window of that policy has the night, or if the return of the
    night has begun. `begun_returns`: names of the nights whose return has begun.
    """
    nights: dict[Night, None] = {}
    for original in originals:
        if not original.taken or original.returned or original.given_up:
            continue
        policy_of_night = original.policy or policy
        called = nights_called(original.night, policy_of_night) if policy_of_night is not None else []
        if not called or original.night in begun_returns:
            return ()
        nights.update(dict.fromkeys(called))
    tonight = policy.night_at(now) if policy is not None else None
    if tonight is not None and tonight.id not in begun_returns:
        nights[tonight] = None
    return tuple(nights) if all(now < night.returns_from for night in nights) else ()


def not_yet_due(
    nights: Iterable[Night],
    policy: Policy,
    originals: Iterable[Original],
    inventory: Inventory,
    durations: Durations,
    now: datetime,
) -> str:
    """Return why the return of these open nights need not begin yet; empty if it must begin now.

    It must begin at `returns_from`, or earlier if bringing back all desktops that are away takes longer by the measured
    `durations`. `nights` must not be empty.
    """
    away_originals = [
        original for original in originals if original.taken and not (original.returned or original.given_up)
    ]
    vms = [(original, vm) for original in away_originals for vm in vms_of(original, inventory)[:1]]
    desktops = [vm for original, vm in vms if original.role is not Role.ML]
    ml_hosts = (vm.host for original, vm in vms if original.role is Role.ML)
    load = Load.of(desktops, ml_hosts, longest_checkpoint_s(policy, away_originals))
    due: dict[Night, datetime] = {}
    for night in nights:
        time = ReturnTime(policy, durations, night.back_by)
        begins = (time.of(vm.host, load) - _BETWEEN_CALLS for vm in desktops)
        due[night] = min([night.returns_from, *begins])
    first = min(due, key=lambda night: due[night])
    if now >= due[first]:
        return ""
    return (
        f"night {first.id} is open, and its return begins at {format_zoned_minute(due[first].astimezone(first.zone))}"
    )
