"""Predicts what each step of a run does, and compares that with the look that settles it.

The comparison is `plan/placement/predicted.py`, on looks that the run makes anyway. More is asked only in two cases:

* where a misprediction would be noted, vCenter's task history is asked for what others did meanwhile, as
  `task_history.py` says: what came and went between two looks is shown by neither;
* where a host's nvidia-smi told how vGPUs lie before a start, it is asked once more after it.

A prediction is there to tell of, and nothing waits for it: whatever goes wrong at making or comparing one, an error of
gpuops itself too, is why it cannot be said, and the step and its run go on as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from gpuops.errors import GpuopsError
from gpuops.execute.site import catalog_of
from gpuops.execute.steps.task_history import TaskHistory
from gpuops.model.devices.catalog import Catalog
from gpuops.model.prediction import Compared, Predicted, Prediction
from gpuops.model.stored import stored_name
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import GpuTask
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, Step, SuspendVm
from gpuops.plan.placement.predicted import (
    STARTS,
    STOPS,
    PredictedStep,
    compare,
    predict,
    with_known_health,
    with_known_places,
)
from gpuops.plan.rotation.nights.bounds import UNMEASURED_START_S, UNMEASURED_SUSPEND_S
from gpuops.plan.rotation.returns.return_time import UNMEASURED_RESUME_S, Durations

BY_OTHERS: Final = "somebody else started, stopped or moved a VM of its host meanwhile, as vCenter's tasks tell"
NOT_LOOKED_AT: Final = "it could not be looked at afterwards"
PREDICTING: Final = "its prediction"
COMPARING: Final = "comparing its prediction"
SMI_SILENT: Final = "the nvidia-smi of its host did not tell how vGPUs lie afterwards"

_UNMEASURED_S: Final = {
    SuspendVm: UNMEASURED_SUSPEND_S,
    PowerOnVm: UNMEASURED_START_S,
    ResumeVm: UNMEASURED_RESUME_S,
}
"""The steps whose durations a night plans by, and what it assumes where nothing was measured."""


@dataclass(slots=True)
class _UnderWay:
    """A step that was sent and has not ended."""

    sent: PredictedStep
    hosts: frozenset[str]
    """Refs of the hosts whose GPUs it is about."""
    together: list[Step] = field(default_factory=list)
    """Other steps that were under way on one of these at the same time."""


class Predictions:
    """Those of the steps of one run."""

    def __init__(
        self,
        task_history: TaskHistory,
        planned: Inventory,
        durations: Durations | None = None,
        with_vgpus: Callable[[Inventory], Inventory] | None = None,
    ) -> None:
        """`task_history`: that of the run. `durations`: what the plan went by; None = it states none. `with_vgpus` asks
        hosts' nvidia-smi how vGPUs lie; None = nobody does."""
        self._task_history = task_history
        self._planned = planned
        self._durations = durations
        self._with_vgpus = with_vgpus
        self._in_flight: dict[str, _UnderWay] = {}
        self._unpredicted: dict[str, str] = {}
        """By op id, why a step that was sent could not be predicted."""
        self._touched: set[str] = set()
        """VMs (refs) that this run has sent a step about."""

    @cached_property
    def _catalog(self) -> Catalog:
        return catalog_of(self._planned)

    def of(self, step: Step, before: Inventory) -> Prediction | str | None:
        """What the step is to do, on the last look before it; None = nothing is predicted of it, a text = why that
        failed. Raises nothing."""
        try:
            return predict(step, self._with_known(before), self._catalog, self._at_most_s(step, before))
        except Exception as error:  # whatever it is, the step is not held up by it; `compared` says it
            return failed(PREDICTING, error)

    def sent(self, op_id: str, step: Step, prediction: Prediction | str | None, before: Inventory) -> None:
        """The step goes out now, with what `of` said of it."""
        self._touched.add(step.vm)
        if isinstance(prediction, str):
            self._unpredicted[op_id] = prediction
        if not isinstance(prediction, Prediction):
            return
        vm = before.vms.get(step.vm)
        refs = (prediction.host, vm.host if vm is not None else None)
        each = _UnderWay(PredictedStep(step, prediction, before), frozenset(ref for ref in refs if ref is not None))
        if isinstance(step, (*STARTS, *STOPS)):
            for other in self._in_flight.values():
                if each.hosts & other.hosts and isinstance(other.sent.step, (*STARTS, *STOPS)):
                    other.together.append(step)
                    each.together.append(other.sent.step)
        self._in_flight[op_id] = each

    def compared(self, op_id: str, outcome: Outcome[Step], after: Inventory) -> Compared | None:
        """What was predicted beside what became of it, by a look since; None = nothing was, or it was not asked of
        vCenter. A step of an earlier process is not compared: nobody saw what happened until it was looked at again.
        Raises nothing."""
        ended, why = self._in_flight.pop(op_id, None), self._unpredicted.pop(op_id, "")
        if ended is None:
            return Compared(cannot_say=why) if why else None
        try:
            return self._compared(ended, outcome, after)
        except Exception as error:  # whatever it is, what became of the step goes into the journal
            return Compared(cannot_say=failed(COMPARING, error))

    def _compared(self, ended: _UnderWay, outcome: Outcome[Step], after: Inventory) -> Compared | None:
        sent, unread, look = ended.sent, "", after
        if after is sent.before:
            return Compared(cannot_say=NOT_LOOKED_AT)
        after = with_known_health(after, self._planned)
        if outcome.verdict is Verdict.DONE and any(gpu.starts is not None for gpu in sent.prediction.gpus or ()):
            after, unread = self._with_starts(sent, after)
        found = compare(sent, outcome, after, ended.together, self._catalog)
        if found is None or not found.wrong:
            return found if found is None or found.cannot_say or not unread else Compared(cannot_say=unread)
        return self._unless_others(sent, look, found)

    def _with_known(self, before: Inventory) -> Inventory:
        before = with_known_health(before, self._planned)
        return with_known_places(before, self._planned) if self._with_vgpus is not None else before

    def _with_starts(self, sent: PredictedStep, after: Inventory) -> tuple[Inventory, str]:
        """The look with how vGPUs lie on the host's GPUs, or why that is not known."""
        host = after.hosts.get(sent.prediction.host or "")
        if self._with_vgpus is None or host is None:
            return after, SMI_SILENT
        try:
            told = self._with_vgpus(replace(after, hosts={host.ref: host}))
        except GpuopsError:  # its start is done, whatever becomes of the question where it lies
            return after, SMI_SILENT
        return after.with_hosts([told.hosts[host.ref]]), ""

    def _unless_others(self, sent: PredictedStep, after: Inventory, found: Compared) -> Compared:
        """The mispredictions, unless somebody else was at its host meanwhile; how long a task runs says itself."""
        slow = tuple(each for each in found.wrong if each.what is Predicted.DURATION)
        if slow == found.wrong:
            return found
        others = (each.sent.before.taken_at for each in self._in_flight.values())
        tasks = self._task_history.since(sent.before.taken_at, after, others)
        if isinstance(tasks, str):
            return Compared(slow, tasks)
        return Compared(slow, BY_OTHERS) if self._are_there(tasks, sent, after) else found

    def _are_there(self, tasks: Sequence[GpuTask], sent: PredictedStep, after: Inventory) -> bool:
        """Whether one of the tasks that is none of this run's may have changed what runs on the host of the step."""
        host = sent.prediction.host
        for task in tasks:
            ref = task.ref
            if task.own is not False and ref in self._touched:
                continue
            vms = [vm for inventory in (sent.before, after) if (vm := inventory.vms.get(ref)) is not None]
            if ref == host or (ref not in after.hosts and (not vms or any(vm.host == host for vm in vms))):
                return True
        return False

    def _at_most_s(self, step: Step, before: Inventory) -> float | None:
        unmeasured_s, vm = _UNMEASURED_S.get(type(step)), before.vms.get(step.vm)
        if self._durations is None or unmeasured_s is None or vm is None:
            return None
        return self._durations.at_most_s(stored_name(type(step)), vm.host, unmeasured_s)


def failed(at: str, error: Exception) -> str:
    """Why a prediction cannot be judged that failed by a bug, or by what nobody foresaw: its class and its message."""
    message = " ".join(str(error).split())[:200]
    return f"{at} failed: {type(error).__name__}" + (f": {message}" if message else "")
