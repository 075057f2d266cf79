"""Steps on the small vCenter, with the guard of a night that may take each idle desktop."""

from __future__ import annotations

from collections.abc import Callable

from gpuops.execute.site import catalog_of
from gpuops.model.nights.ml_queue import QueuedVm
from gpuops.model.nights.rotation_policy import IdleRule, Limits, Policy, Pool
from gpuops.model.nights.selector import Selector
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.rotation.nights.guard import Guard
from gpuops.plan.rotation.nights.night_refusals import StepCounts
from tests.execute.small_vcenter import small_world

LIMITS = Limits()
CATALOG = catalog_of(small_world().snapshot())
DESKTOPS = Pool("all", Selector(name="desktop-*"), IdleRule(500), parked=True)
QUEUE = (QueuedVm("ml-*"),)
NIGHT = Guard(Policy("small", (DESKTOPS,), ml=QUEUE), StepCounts(40), CATALOG)
"""What lets each desktop be taken that is idle, and each ML VM start."""
Do = Callable[..., tuple[Outcome, ...]]


def verdicts(outcomes: tuple[Outcome, ...]) -> dict[str, Verdict]:
    return {outcome.step.vm: outcome.verdict for outcome in outcomes}
