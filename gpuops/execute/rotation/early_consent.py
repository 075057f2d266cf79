"""Ask for consent to a rotation before its lock is taken, so that a return can begin while the admin decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuops.execute.site import Consent, agreed
from gpuops.plan.core.plan import Plan, Report
from gpuops.plan.core.steps import SetAttribute, Step


class _MoreThanAgreed(Exception):
    """The plan made under the lock has steps that the admin did not agree to; none of them was sent."""


@dataclass(slots=True)
class _Agreement:
    """The consent of a run under the lock: it covers the agreed steps, or fewer.

    A return that continues after an outage of vCenter does not ask again about the remaining steps: it would hold the
    lock while it waits for the answer.
    """

    plan: Plan

    def __call__(self, report: Report) -> None:
        if not _is_covered(report.plan.steps, self.plan.steps):
            raise _MoreThanAgreed


def ask_before_lock(run: Callable[[bool, Consent], Report], consent: Consent) -> Report:
    """Return the report of `run` (apply, consent), after the admin agreed to a plan that was made without the lock.

    Desktops in use by then are left out. If the plan under the lock has more steps than were agreed to, the admin is
    asked again.
    """
    while True:
        looked = run(False, agreed)
        if looked.plan.feasible and looked.plan.steps:
            consent(looked)
        try:
            return run(True, _Agreement(looked.plan))
        except _MoreThanAgreed:
            continue


def _is_covered(steps: Iterable[Step], agreed_to: Iterable[Step]) -> bool:
    """Return whether all these steps were agreed to. Markers are not compared: they contain the lease and the night."""
    of_vm: dict[str, list[Step]] = {}
    for step in agreed_to:
        of_vm.setdefault(step.vm, []).append(step)
    return all(isinstance(step, SetAttribute) or step in of_vm.get(step.vm, ()) for step in steps)
