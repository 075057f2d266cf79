"""When a night takes nothing more: too many of its steps failed, the clocks of vCenter and of this machine differ, or
desktops of a pool come back by themselves. `night.py` asks when it plans, `guard.py` before each step that takes
something; a return never asks.

Steps are counted by night, not by run: a run that was killed and one that cron begins again go on with the same counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from gpuops.errors import Trouble
from gpuops.model.nights.rotation import Policy
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import GateStep

FAILED_ON_HOST: Final = 3
"""So many failed steps on one host stop the taking,"""
FAILED_SHARE: Final = 0.10
"""or this share of what the night planned, on whatever hosts,"""
FEWEST_FAILED: Final = 3
"""but never fewer than so many: one failure of a night of five steps is no pattern."""
REFUSED_IN_A_ROW: Final = 2
"""So many refusals in a row stop it too: the next one would be refused as well."""

NOT_DONE: Final = (Verdict.FAILED, Verdict.UNKNOWN)


@stored_as("StepCounts", planned="planned", ended="ended", failed="failed", on_host="on_host", refused="refused")
@dataclass(frozen=True, slots=True)
class StepCounts:
    """The steps of a night so far: how many were planned, ended and failed. `execute` keeps it in the journal."""

    planned: int = 0
    """Steps of its longest plan, with those that had ended before it."""
    ended: int = 0
    failed: int = 0
    on_host: Mapping[str, int] = field(default_factory=dict)
    """Host ref -> steps that failed there."""
    refused: int = 0
    """The latest steps, one after the other, that vCenter refused."""

    def begun(self, steps: int) -> StepCounts:
        """The counts once a plan of so many steps has begun."""
        return replace(self, planned=max(self.planned, self.ended + steps))

    def with_end(self, *, failed: bool, refused: bool, host: str | None) -> StepCounts:
        """The counts with one more step that has ended."""
        on_host = {**self.on_host, host: self.on_host.get(host, 0) + 1} if failed and host else self.on_host
        refused_in_a_row = self.refused + 1 if refused else 0
        return StepCounts(self.planned, self.ended + 1, self.failed + failed, on_host, refused_in_a_row)


NO_STEP_COUNTS: Final = StepCounts()
"""The counts of a night that has not begun a step."""


def reason_to_stop(before: StepCounts, ended: Sequence[Outcome], inventory: Inventory) -> str | None:
    """Why the night takes nothing more; None = it goes on. `ended`: outcomes that `before` does not count yet."""
    failed_now = [outcome for outcome in ended if outcome.verdict in NOT_DONE]
    failed = before.failed + len(failed_now)
    # Of 40 planned steps the fourth that fails stops the night, of 30 or fewer the third.
    if failed >= max(FEWEST_FAILED, FAILED_SHARE * before.planned):
        return f"{failed} of its steps failed"
    hosts = Counter(dict(before.on_host))
    hosts.update(
        vm.host for outcome in failed_now if (vm := inventory.vms.get(outcome.step.vm)) is not None and vm.host
    )
    worst = next(((ref, count) for ref, count in hosts.items() if count >= FAILED_ON_HOST), None)
    if worst is not None:
        host = inventory.hosts.get(worst[0])
        return f"{worst[1]} steps failed on {host.name if host else worst[0]}"
    if _refused(before, ended) >= REFUSED_IN_A_ROW:
        return "vCenter refuses one step after the other"
    return None


def _refused(before: StepCounts, ended: Sequence[Outcome]) -> int:
    """How many of the latest steps, one after the other, were refused; a skipped step was never sent."""
    count = 0
    for outcome in reversed(ended):
        if outcome.verdict is Verdict.SKIPPED:
            continue
        if not is_refusal(outcome):
            return count
        count += 1
    return count + before.refused


def is_refusal(outcome: Outcome) -> bool:
    """Whether vCenter refused the step for want of a privilege, as it would the next one. What a broker says of one
    machine it need not say of the next."""
    asked_of_vcenter = not isinstance(outcome.step, GateStep)
    return asked_of_vcenter and outcome.verdict in NOT_DONE and outcome.trouble is Trouble.DENIED


MOST_CLOCK_DIFFERENCE: Final = timedelta(seconds=60)
"""The clocks of two machines that NTP sets differ by less."""


def ahead_by(told: datetime, asked: datetime, answered: datetime) -> timedelta:
    """How far vCenter's clock is ahead of this machine's, at the least; negative = behind.

    vCenter told its time at some moment between question and answer, so a slow answer alone is no difference. Example:
    asked at 20:00:00 and answered at 20:00:10, a told 20:00:07 is no difference, 20:01:10 is 60 s ahead.
    """
    first, last = min(asked, answered), max(asked, answered)
    return told - min(max(told, first), last)


def clock_refusals(ahead: timedelta | None) -> list[Rejection]:
    """A refusal where vCenter's clock is too far `ahead` of this machine's, or behind it; None = they do not compare.

    Which of the two is wrong cannot be told from here, and a night by a wrong clock would end after the morning has
    begun. A return needs no clock.
    """
    rule = clock_trouble(ahead)
    if rule is None:
        return []
    return [Rejection("clocks", rule, hint="set both by NTP; gpuops rotate day brings back at any time")]


def clock_trouble(ahead: timedelta | None, so: str = "the hours of a night cannot be told") -> str | None:
    """What is wrong with the clocks, in words, and `so` what; None = nothing, or they do not compare."""
    if ahead is None or abs(ahead) <= MOST_CLOCK_DIFFERENCE:
        return None
    which = "ahead of" if ahead > timedelta() else "behind"
    return f"vCenter's is {_text(abs(ahead))} {which} this machine's: {so}"


def _text(length: timedelta) -> str:
    minutes, seconds = divmod(round(length.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


BACK_BY_THEMSELVES: Final = 3
"""So many desktops of a pool that came back by themselves in a night, and the pool is left alone."""
POOL_LEFT_ALONE: Final = (
    f"{BACK_BY_THEMSELVES} desktops of its pool came back by themselves tonight: no more of it are taken"
)


def pools_to_leave_alone(running_again: Iterable[Vm], policy: Policy) -> frozenset[str]:
    """Names of the pools that are not parked, by these desktops: a night took them, and they run."""
    pools = Counter(pool.name for vm in running_again if (pool := policy.pool_of(vm)) is not None)
    return frozenset(name for name, count in pools.items() if count >= BACK_BY_THEMSELVES)
