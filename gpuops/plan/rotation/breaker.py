"""Rotation, the breaker: when so much of a night has failed that it takes nothing more. Returning never asks it.

It is of the night, not of one run: a run that was killed and one that cron begins again go on with its count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpuops.errors import Trouble
from gpuops.model.inventory import Inventory
from gpuops.plan.core.outcome import Outcome, Verdict

PER_HOST: Final = 3
"""So many failed steps on one host stop the taking,"""
SHARE: Final = 0.10
"""or this share of what the night planned, on whatever hosts,"""
FEWEST: Final = 3
"""but never fewer than so many: one failure of a night of five steps is no pattern."""
DENIED: Final = 2
"""So many refusals in a row stop it too: the next one would be refused as well."""

BAD: Final = (Verdict.FAILED, Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Setbacks:
    """How a night went so far."""

    planned: int = 0
    """Steps of its longest plan, with those that had ended before it."""
    ended: int = 0
    failed: int = 0
    on_host: Mapping[str, int] = field(default_factory=dict)
    """Host ref -> steps that failed there."""
    refused: int = 0
    """The latest steps, one after the other, that vCenter refused."""

    def begun(self, steps: int) -> Setbacks:
        """With a plan of so many steps begun."""
        return replace(self, planned=max(self.planned, self.ended + steps))

    def with_end(self, *, failed: bool, refused: bool, host: str | None) -> Setbacks:
        """With one more step that has ended."""
        on_host = {**self.on_host, host: self.on_host.get(host, 0) + 1} if failed and host else self.on_host
        return Setbacks(self.planned, self.ended + 1, self.failed + failed, on_host, self.refused + 1 if refused else 0)


NO_SETBACKS: Final = Setbacks()
"""How a night went of which nothing is told."""


def tripped(before: Setbacks, ended: Sequence[Outcome], inventory: Inventory) -> str | None:
    """Why the night takes nothing more; None = it goes on. `ended`: outcomes that `before` does not count yet."""
    bad = [outcome for outcome in ended if outcome.verdict in BAD]
    failed = before.failed + len(bad)
    if failed >= max(FEWEST, SHARE * before.planned):
        return f"{failed} of its steps failed"
    hosts = Counter(dict(before.on_host))
    hosts.update(vm.host for outcome in bad if (vm := inventory.vms.get(outcome.step.vm)) is not None and vm.host)
    worst = next(((ref, count) for ref, count in hosts.items() if count >= PER_HOST), None)
    if worst is not None:
        host = inventory.hosts.get(worst[0])
        return f"{worst[1]} steps failed on {host.name if host else worst[0]}"
    if _refused(before, ended) >= DENIED:
        return "vCenter refuses one step after the other"
    return None


def _refused(before: Setbacks, ended: Sequence[Outcome]) -> int:
    """How many of the latest steps, one after the other, were refused."""
    count = 0
    for outcome in reversed(ended):
        if outcome.verdict is Verdict.SKIPPED:
            continue
        if not is_refusal(outcome):
            return count
        count += 1
    return count + before.refused


def is_refusal(outcome: Outcome) -> bool:
    """Whether vCenter refused it, and would refuse the next one too."""
    return outcome.verdict in BAD and outcome.trouble is Trouble.DENIED
