"""Executor: a plan, wave by wave. What depends on a failed step is not tried; everything else goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpuops.execute.doer import Doer
from gpuops.execute.shutdown import shut_down
from gpuops.execute.wave import run_wave
from gpuops.model.rotation import Limits
from gpuops.plan.outcome import Outcome, Verdict
from gpuops.plan.plan import Plan, Wave
from gpuops.plan.steps import PowerOnVm, ShutDownGuest, Step, SuspendVm


def execute(plan: Plan, doer: Doer, limits: Limits, progress: Callable[[Outcome], None]) -> tuple[Outcome, ...]:
    """What became of each step of the plan.

    Raises NotConnected when vCenter is lost on the way and StateDamaged when the journal cannot be written; the run
    then stays open, and nothing was sent that is not in the journal.
    """
    outcomes: list[Outcome] = []
    for wave in plan.waves:
        for outcome in _run(wave, doer, limits, tuple(outcomes)):
            outcomes.append(outcome)
            progress(outcome)
    return tuple(outcomes)


def _run(wave: Wave, doer: Doer, limits: Limits, so_far: Sequence[Outcome]) -> Iterator[Outcome]:
    failed = [outcome for outcome in so_far if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)]
    tried: list[Step] = []
    for step in wave.steps:
        reason = _depends_on(step, failed, doer)
        if reason is None:
            tried.append(step)
        else:
            yield Outcome(step, Verdict.SKIPPED, reason)
    yield from shut_down(doer, [step for step in tried if isinstance(step, ShutDownGuest)], limits)
    yield from run_wave(doer, [step for step in tried if not isinstance(step, ShutDownGuest)], limits)


def _depends_on(step: Step, failed: Sequence[Outcome], doer: Doer) -> str | None:
    """Why a step is not tried: an earlier step of its VM failed, or one that was to free the GPU it starts on.

    Only a start (taking) waits for the GPUs of its host to be freed as planned. A resume (returning) is always tried:
    vCenter refuses it if there is no room, and nothing is lost by asking.
    """
    for outcome in failed:
        if outcome.step.vm == step.vm:
            return f"an earlier step failed: {outcome.reason}"
        if isinstance(step, PowerOnVm) and isinstance(outcome.step, SuspendVm):
            desktop = doer.planned.vms.get(outcome.step.vm)
            if desktop is not None and desktop.host is not None and desktop.host == _start_host(step, doer):
                return f"{desktop.name} was not suspended on its host: {outcome.reason}"
    return None


def _start_host(step: PowerOnVm, doer: Doer) -> str | None:
    if step.host is not None:
        return step.host
    vm = doer.inventory.vms.get(step.vm)
    return vm.host if vm else None
