"""The way from a plan to its execution: ask for consent, lock, plan again, compare, execute, report.

No lock is held while the admin decides, so that a return of desktops can begin meanwhile. Under the lock the plan is
made again, and it is executed only if the admin has agreed to it. Otherwise the lock and its lease are given back, and
the admin is asked about the new plan.

One rule says what was agreed to: the new plan has the same deeds, which are what a plan changes; for single VMs and for
moves also the reasons that were shown. Only a rotation may do less (`no_step_more`): a desktop that is in use by then
is left out, and a return that continues after an outage of vCenter must not ask while it holds the lock.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpuops.errors import Refused
from gpuops.plan.core.steps import SetAttribute, Step

Planned = TypeVar("Planned")
Done = TypeVar("Done")


class PlanChanged(Refused):
    """The plan made under the lock is not the one that was agreed to. Nothing of it was done."""


@dataclass(slots=True)
class Agreement(Generic[Planned]):
    """The plan that the admin agreed to, and how a later one is compared with it: see `apply_agreed`."""

    plan: Planned
    deeds: Callable[[Planned], Any]
    covers: Callable[[Any, Any], bool]

    def require(self, current: Planned) -> None:
        """Return if the admin agreed to this plan, which was made under the lock. Else raise PlanChanged."""
        if not self.covers(self.deeds(self.plan), self.deeds(current)):
            self.plan = current  # the next question is about this plan
            raise PlanChanged("the plan has changed since it was agreed to", hint="run the same command again")


def apply_agreed(
    planned: Planned,
    consent: Callable[[Planned], None],
    execute: Callable[[Agreement[Planned]], Done],
    *,
    deeds: Callable[[Planned], Any],
    covers: Callable[[Any, Any], bool] = operator.eq,
) -> Done:
    """Ask for consent to a plan that was made without a lock, and return what `execute` returns.

    `execute` takes the lock, plans again, and calls `Agreement.require` with the new plan before it changes anything.
    `deeds` returns what is compared, `covers` whether the first deeds, agreed to, include the second ones.
    """
    agreement = Agreement(planned, deeds, covers)
    while True:
        consent(agreement.plan)
        try:
            return execute(agreement)
        except PlanChanged:
            continue


def no_step_more(agreed_steps: Sequence[Step], steps: Sequence[Step]) -> bool:
    """Return whether all these steps were agreed to. Markers are not compared: they contain the lease and the night."""
    of_vm: dict[str, list[Step]] = {}
    for step in agreed_steps:
        of_vm.setdefault(step.vm, []).append(step)
    return all(isinstance(step, SetAttribute) or step in of_vm.get(step.vm, ()) for step in steps)
