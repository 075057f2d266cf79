"""The conditions that stop a night: too many of its steps failed, the clocks of vCenter and of this machine differ, or
desktops of a pool come back by themselves. `night.py` checks them when it plans, `guard.py` before each step that takes
something; a return does not check them.

Steps are counted by night, not by run: a run that continues after a killed one continues its counts.
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
from gpuops.plan.core.plan import Outcome, Rejection, Verdict
from gpuops.plan.core.steps import GateStep

FAILED_ON_HOST: Final = 3
"""This number of failed steps on one host stops a night,"""
FAILED_SHARE: Final = 0.10
"""or this share of all planned steps of the night,"""
FEWEST_FAILED: Final = 3
"""but at least this number of failures: one failure in a night of five steps is no pattern."""
REFUSED_IN_A_ROW: Final = 2
"""This number of refusals in a row also stops a night: the next step would be refused as well."""

NOT_DONE: Final = (Verdict.FAILED, Verdict.UNKNOWN)


@stored_as("StepCounts")
@dataclass(frozen=True, slots=True)
class StepCounts:
    """The steps of a night so far: how many were planned, ended and failed. `execute` keeps it in the journal."""

    planned: int = 0
    """Steps of its longest plan, including those that had ended before."""
    ended: int = 0
    failed: int = 0
    on_host: Mapping[str, int] = field(default_factory=dict)
    """Host ref -> steps that failed there."""
    refused: int = 0
    """Number of refusals by vCenter in a row at the end."""

    def with_plan(self, steps: int) -> StepCounts:
        """Return the counts after a plan with this number of steps has begun."""
        return replace(self, planned=max(self.planned, self.ended + steps))

    def with_end(self, *, failed: bool, refused: bool, host: str | None) -> StepCounts:
        """Return the counts with one more ended step."""
        on_host = {**self.on_host, host: self.on_host.get(host, 0) + 1} if failed and host else self.on_host
        refused_in_a_row = self.refused + 1 if refused else 0
        return StepCounts(self.planned, self.ended + 1, self.failed + failed, on_host, refused_in_a_row)


NO_STEP_COUNTS: Final = StepCounts()
"""The counts of a night without any step."""


def reason_to_stop(before: StepCounts, ended: Sequence[Outcome], inventory: Inventory) -> str | None:
    """Return why the night takes nothing more; None = it continues. `ended`: outcomes that are not in `before` yet."""
    failed_now = [outcome for outcome in ended if outcome.verdict in NOT_DONE]
    failed = before.failed + len(failed_now)
    # With 40 planned steps the fourth failure stops the night, with 30 or fewer the third.
    if failed >= max(FEWEST_FAILED, FAILED_SHARE * before.planned):
        return f"{failed} of its steps failed"
    failures_by_host = Counter(dict(before.on_host))
    for outcome in failed_now:
        vm = inventory.vms.get(outcome.step.vm)
        if vm is not None and vm.host:
            failures_by_host[vm.host] += 1
    for ref, count in failures_by_host.items():
        if count >= FAILED_ON_HOST:
            host = inventory.hosts.get(ref)
            return f"{count} steps failed on {host.name if host else ref}"
    if _count_refusals(before, ended) >= REFUSED_IN_A_ROW:
        return "vCenter refuses one step after the other"
    return None


def _count_refusals(before: StepCounts, ended: Sequence[Outcome]) -> int:
    """Count the refusals in a row at the end; skipped steps were never sent and do not count."""
    count = 0
    for outcome in reversed(ended):
        if outcome.verdict is Verdict.SKIPPED:
            continue
        if not is_refusal(outcome):
            return count
        count += 1
    return count + before.refused


def is_refusal(outcome: Outcome) -> bool:
    """Return whether vCenter refused the step because a privilege is missing, so that it would refuse the next one too.

    A refusal by a broker does not count, because it may concern only one machine.
    """
    asked_of_vcenter = not isinstance(outcome.step, GateStep)
    return asked_of_vcenter and outcome.verdict in NOT_DONE and outcome.trouble is Trouble.DENIED


MOST_CLOCK_DIFFERENCE: Final = timedelta(seconds=60)
"""The clocks of two machines that use NTP differ by less."""


def ahead_by(vcenter_time: datetime, requested: datetime, answered: datetime) -> timedelta:
    """Return how far vCenter's clock is at least ahead of this machine's; negative = behind.

    vCenter read its clock at some moment between the request and the answer, so a slow answer is no difference.
    Example: for a request at 20:00:00 and an answer at 20:00:10, the time 20:00:07 is no difference, and 20:01:10 is 60
    s ahead.
    """
    first, last = min(requested, answered), max(requested, answered)
    return vcenter_time - min(max(vcenter_time, first), last)


def clock_refusals(ahead: timedelta | None) -> list[Rejection]:
    """Return a refusal if vCenter's clock is too far `ahead` of this machine's, or behind it.

    `ahead`: None = the clocks cannot be compared. gpuops cannot find out which of the two is wrong, and a night by a
    wrong clock would end after the morning has begun. A return needs no clock.
    """
    difference = clock_trouble(ahead)
    if difference is None:
        return []
    return [Rejection("clocks", difference, hint="set both clocks by NTP; gpuops rotate day works at any time")]


def clock_trouble(ahead: timedelta | None, consequence: str = "the hours of a night cannot be told") -> str | None:
    """Return how the clocks differ, with the `consequence`; None = they agree, or cannot be compared."""
    if ahead is None or abs(ahead) <= MOST_CLOCK_DIFFERENCE:
        return None
    direction = "ahead of" if ahead > timedelta() else "behind"
    return f"vCenter's is {_text(abs(ahead))} {direction} this machine's: {consequence}"


def _text(length: timedelta) -> str:
    minutes, seconds = divmod(round(length.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


BACK_BY_THEMSELVES: Final = 3
"""If this number of desktops of a pool come back by themselves in a night, the pool is left alone."""
POOL_LEFT_ALONE: Final = (
    f"{BACK_BY_THEMSELVES} desktops of its pool came back by themselves tonight: no more of it are taken"
)


def pools_to_leave_alone(running_again: Iterable[Vm], policy: Policy) -> frozenset[str]:
    """Return the names of the pools of which too many desktops that a night took are running again."""
    pools = Counter(pool.name for vm in running_again if (pool := policy.pool_of(vm)) is not None)
    return frozenset(name for name, count in pools.items() if count >= BACK_BY_THEMSELVES)
