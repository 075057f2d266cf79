"""The way from a plan to its execution: ask for consent, lock, plan again, compare, execute, report.

No lock is held while the admin decides, so that a return of desktops can begin meanwhile. Under the lock the plan is
made again, and it is executed only if the admin has agreed to it. Otherwise the lock and its lease are given back, and
the admin is asked about the new plan.

One rule says what was agreed to: the new plan has the same deeds, which are what a plan changes; for single VMs and for
moves also the reasons that were shown. Only a rotation may do less (`no_step_more`): a desktop that is in use by then
is left out, and a return that continues after an outage of vCenter must not ask while it holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from gpuops.errors import Refused
from gpuops.plan.core.steps import SetAttribute, Step


class ProposedReport(Protocol):
    """A report that has only its plan so far: a frozen dataclass with a field `applied`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def deeds(self) -> Any:
        """What the plan changes, without its reasons. Empty = nothing is to be done, None = the plan is refused."""
        ...


Planned = TypeVar("Planned")
Proposed = TypeVar("Proposed", bound=ProposedReport)
Held = TypeVar("Held")
Done = TypeVar("Done")


def apply_agreed(
    proposal: Proposed,
    consent: Callable[[Proposed], None],
    execute: Callable[[Proposed, Held], Done],
    *,
    apply: bool,
    lock: Callable[[], AbstractContextManager[Held]],
    look_again: Callable[[Held], Proposed],
) -> Proposed | Done:
    """Execute a plan that was made without a lock, and return its report.

    Returns the plan unexecuted in a dry run (`apply` not set), if it is refused, and if it changes nothing. `execute`
    is called under the lock, with the plan that was made there and with what the lock yields.
    """
    while apply and proposal.deeds:
        consent(proposal)
        with lock() as held:
            current = look_again(held)
            if have_same_deeds(proposal, current):
                return execute(current, held)
        proposal = current  # ask about the plan that was made under the lock
    return replace(proposal, applied=apply and proposal.deeds is not None)


class PlanChanged(Refused):
    """The plan that was made under the lock is not the one that was agreed to. Nothing was changed."""


def have_same_deeds(agreed: ProposedReport, current: ProposedReport) -> bool:
    return bool(agreed.deeds == current.deeds)


@dataclass(slots=True)
class Agreement(Generic[Planned]):
    """The plan that the admin agreed to. `covers(agreed, current)` returns whether it includes a later plan."""

    plan: Planned
    covers: Callable[[Planned, Planned], bool]

    def require(self, current: Planned) -> None:
        """Return if the admin agreed to this plan, which was made under the lock. Else raise PlanChanged."""
        if not self.covers(self.plan, current):
            self.plan = current  # the next question is about this plan
            raise PlanChanged("the plan has changed since it was agreed to", hint="run the same command again")


def ask_until_agreed(
    plan: Planned,
    consent: Callable[[Planned], None],
    execute: Callable[[Agreement[Planned]], Done],
    covers: Callable[[Any, Any], bool] = have_same_deeds,
) -> Done:
    """Ask for consent to a plan that was made without a lock, and return what `execute` returns.

    `execute` takes the lock, plans again, and calls `Agreement.require` with the new plan before it changes anything.
    Use it where `apply_agreed` does not fit: the lock is taken elsewhere, or execution continues without it.
    """
    agreement = Agreement(plan, covers)
    while True:
        consent(agreement.plan)
        try:
            return execute(agreement)
        except PlanChanged:  # `require` has put the new plan into the agreement: ask about that one
            continue


def no_step_more(agreed_steps: Sequence[Step], steps: Sequence[Step]) -> bool:
    """Return whether all these steps were agreed to. Markers are not compared: they contain the lease and the night."""
    agreed_by_vm: dict[str, list[Step]] = {}
    for step in agreed_steps:
        agreed_by_vm.setdefault(step.vm, []).append(step)
    return all(isinstance(step, SetAttribute) or step in agreed_by_vm.get(step.vm, ()) for step in steps)
