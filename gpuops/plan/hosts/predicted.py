"""What a setting, maintenance mode or a reboot of a host is predicted to do, and whether the look after it shows that.

`execute/steps/host_executor.py` calls it. A setting is to be shown as it was made; a host that is asked to enter
maintenance mode is to do so; one that was rebooted has each GPU in the type that it was configured for, so that as many
GPUs are there for vGPUs, and for VMs whole, as the plan said.

Whatever shows that somebody else was there makes the answer *cannot say*: another value than the one before and the one
set, other VMs running on the host, another configuration of its GPUs. A host whose driver does not list its GPUs yet
tells nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuops.model.devices.gpu import GraphicsType
from gpuops.model.prediction import Compared, Misprediction, Predicted, Prediction
from gpuops.model.stored import stored_name
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.host_steps import ConfigureGraphics, ConfigureModule, HostStep, HostTask, RebootHost
from gpuops.plan.core.outcome import Outcome, Verdict
from gpuops.plan.core.step_checks import host_objection
from gpuops.plan.core.steps import AnyStep
from gpuops.plan.placement.predicted import NOT_OF_RULES, REFUSALS

FOR_VGPUS: Final = "GPUs for vGPUs"
WHOLE: Final = "GPUs for VMs whole"

GONE: Final = "its host is gone, or not connected"
NOT_SHOWN: Final = "not shown: it is as it was before"


def predict_host(step: HostStep | HostTask, before: Inventory) -> Prediction:
    """What the step is to do to its host, on the last look before it."""
    host = before.hosts.get(step.host)
    free = _uses(host, configured=True) if host is not None and isinstance(step, RebootHost) else {}
    return Prediction(admitted=True, host=step.host, free_after=free)


def compare_host(
    step: HostStep | HostTask,
    prediction: Prediction,
    before: Inventory,
    after: Inventory,
    outcome: Outcome[AnyStep],
) -> Compared | None:
    """What was predicted of a step beside what became of it; None = the host was not asked."""
    was, host = before.hosts.get(step.host), after.hosts.get(step.host)
    if outcome.verdict in (Verdict.ALREADY, Verdict.SKIPPED):
        return None
    if outcome.verdict is Verdict.FAILED and outcome.trouble is None:
        return None
    if was is None or host is None or host.connected is not True:
        return Compared(cannot_say=GONE)
    if outcome.verdict is Verdict.UNKNOWN and outcome.trouble is not None:
        return Compared(cannot_say="what became of it is not known")
    if outcome.verdict is Verdict.FAILED and (outcome.trouble not in REFUSALS or outcome.fault in NOT_OF_RULES):
        return Compared(cannot_say="it failed for a reason that is none of its host's")
    wrong = _difference(step, prediction, host, outcome)
    if wrong is None:
        return Compared()
    other = _changed_meanwhile(step, was, host, before, after)
    return Compared(cannot_say=other) if other else Compared((wrong,))


def _difference(
    step: HostStep | HostTask, prediction: Prediction, host: Host, outcome: Outcome[AnyStep]
) -> Misprediction | None:
    facts = {"step": stored_name(type(step)), "host version": host.version or "unknown"}
    if outcome.verdict is Verdict.FAILED:
        return Misprediction(Predicted.ADMISSION, "admitted", f"refused: {outcome.reason}", facts)
    if outcome.verdict is Verdict.UNKNOWN:
        return Misprediction(Predicted.EFFECT, "shown as it was set", NOT_SHOWN, facts)
    now = _uses(host, configured=False) if prediction.free_after else {}
    if now and now != prediction.free_after:
        return Misprediction(Predicted.FREE_AFTER, _text(prediction.free_after), _text(now), facts)
    return None


def _changed_meanwhile(
    step: HostStep | HostTask, was: Host, host: Host, before: Inventory, after: Inventory
) -> str | None:
    """What else has happened to the host between the two looks; None = nothing is seen."""
    if isinstance(step, ConfigureModule | ConfigureGraphics):
        return host_objection(step, host)
    if isinstance(step, RebootHost):
        same = _uses(was, configured=True) == _uses(host, configured=True)
        return None if same else "its GPUs were configured anew meanwhile"
    if isinstance(step, HostTask):
        running = ({vm.ref for vm in each.vms_on(at) if vm.may_run} for each, at in ((before, was), (after, host)))
        ran, run = running
        return None if ran >= run else "another VM came to it meanwhile"
    return None if was.settings == host.settings else "its settings were changed meanwhile"


def _uses(host: Host, *, configured: bool) -> Mapping[str, int]:
    """How many GPUs serve vGPUs, and how many are given to VMs whole, in force now or as they are configured; nothing
    where a GPU does not tell."""
    uses = {FOR_VGPUS: 0, WHOLE: 0}
    for gpu in host.gpus:
        passed = gpu.passthrough is not None and (gpu.passthrough.enabled if configured else gpu.passthrough.active)
        type_ = gpu.configured_graphics_type if configured else gpu.graphics_type
        if passed:
            uses[WHOLE] += 1
        elif type_ is None:
            return {}
        else:
            uses[FOR_VGPUS] += type_ is GraphicsType.SHARED_DIRECT
    return uses


def _text(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())
