"""Asks whether a rotation may be done before its lock is taken: while somebody thinks it over, a return may begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuops.execute.site import Consent, agreed
from gpuops.plan.core.plan import Plan, Report
from gpuops.plan.core.steps import SetAttribute, Step


class _MoreThanAgreed(Exception):
    """Under the lock there is something to do that nobody was asked about; nothing of it was sent."""


@dataclass(slots=True)
class _Agreement:
    """The consent of a run under the lock: to what was asked about, or less.

    A return that has lost vCenter and found it again asks nobody about what is left: the lock would wait
    for the answer.
    """

    plan: Plan

    def __call__(self, report: Report) -> None:
        if not _covered(report.plan.steps, self.plan.steps):
            raise _MoreThanAgreed


def asked_first(run: Callable[[bool, Consent], Report], consent: Consent) -> Report:
    """What `run` (apply, whom to ask) does, when somebody has agreed to it on a look without the lock.

    Desktops that somebody uses by then are left out; where there is more to do than was agreed to, it is asked again.
    """
    while True:
        looked = run(False, agreed)
        if looked.plan.feasible and looked.plan.steps:
            consent(looked)
        try:
            return run(True, _Agreement(looked.plan))
        except _MoreThanAgreed:
            continue


def _covered(steps: Iterable[Step], agreed_to: Iterable[Step]) -> bool:
    """Whether all of these were agreed to, but for markers: they say by which lease and which night."""
    of_vm: dict[str, list[Step]] = {}
    for step in agreed_to:
        of_vm.setdefault(step.vm, []).append(step)
    return all(isinstance(step, SetAttribute) or step in of_vm.get(step.vm, ()) for step in steps)
