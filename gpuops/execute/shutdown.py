"""Shutdown: guests are asked, given their grace together, and powered off after it where the plan says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuops.execute.doer import Doer, Underway
from gpuops.execute.wave import run_wave
from gpuops.model.rotation import Limits
from gpuops.model.vm import PowerState
from gpuops.plan.outcome import Outcome, Verdict
from gpuops.plan.steps import PowerOffVm, ShutDownGuest


def shut_down(doer: Doer, steps: Sequence[ShutDownGuest], limits: Limits) -> Iterator[Outcome]:
    """The outcome of each shutdown, by whatever means it came about."""
    if not steps:
        return
    doer.look([step.vm for step in steps])
    asked: list[Underway] = []
    stubborn: dict[str, tuple[ShutDownGuest, str]] = {}
    for step in steps:
        result = doer.begin(step)
        if isinstance(result, Underway):
            asked.append(result)
        elif result.verdict in (Verdict.FAILED, Verdict.UNKNOWN) and step.then_off:
            stubborn[step.vm] = (step, result.reason)
        else:
            yield result
    off = _off_in_time(doer, asked)
    by_vm = {step.vm: step for step in steps}
    for underway in asked:
        step = by_vm[underway.step.vm]
        if step.vm in off:
            yield doer.settle(underway.op_id, Outcome(step, Verdict.DONE))
            continue
        reason = f"the guest still runs after {step.grace_s} s"
        late = doer.settle(underway.op_id, Outcome(step, Verdict.FAILED, reason))
        if step.then_off:
            stubborn[step.vm] = (step, reason)
        else:
            yield late
    yield from _power_off(doer, stubborn, limits)


def _off_in_time(doer: Doer, asked: Sequence[Underway]) -> frozenset[str]:
    """Those that are off within the longest grace among them."""
    grace_s = max((u.step.grace_s for u in asked if isinstance(u.step, ShutDownGuest)), default=0)
    if not asked:
        return frozenset()
    return doer.vcenter.wait_for_power([underway.step.vm for underway in asked], PowerState.OFF, grace_s)


def _power_off(doer: Doer, stubborn: dict[str, tuple[ShutDownGuest, str]], limits: Limits) -> Iterator[Outcome]:
    for outcome in run_wave(doer, [PowerOffVm(vm) for vm in stubborn], limits):
        step, reason = stubborn[outcome.step.vm]
        if outcome.verdict in (Verdict.DONE, Verdict.ALREADY):
            yield Outcome(step, Verdict.DONE, f"{reason}; powered off", outcome.duration_s)
        else:
            yield Outcome(step, outcome.verdict, f"{reason}; {outcome.reason}", outcome.duration_s)
