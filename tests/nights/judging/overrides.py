"""Overrides of DRS: a night makes them for ML VMs of its queue alone, and leaves none behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuops.model.nights.rotation import DrsOverride
from gpuops.plan.core.plan import Verdict
from gpuops.sim.state.vm_state import Power
from tests.nights.judging.doings import chosen_as, effects
from tests.nights.playing.played import OVERRIDE, Played

_NOT_DONE = (Verdict.FAILED, Verdict.UNKNOWN)


def only_the_queue(night: Played) -> Iterator[str]:
    """I7: an override that is changed is one of a VM of the queue, under a policy that wants them."""
    is_wanted = night.site.policy.drs_override is not DrsOverride.NONE
    queue = {queued.names[0] for queued in night.site.policy.ml}
    for entry in effects(night, OVERRIDE):
        before, after = entry.before["overrides"], entry.after["overrides"]
        changed = {ref for ref in {*before, *after} if before.get(ref) != after.get(ref)}
        for ref in sorted(changed):
            name = chosen_as(night, ref)
            if not is_wanted or name not in queue:
                yield f"I7: DRS of {name} was changed, and the policy does not want that"


def put_back(night: Played) -> Iterator[str]:
    """I23: when nothing goes wrong any more, DRS does with an ML VM that is back what it did before: here, as its
    cluster says. A cluster with a task that hangs takes no other, and the last return names the VM. With its host a VM
    that is added again has lost its override."""
    named = (
        {outcome.step.vm for outcome in night.last.outcomes if outcome.verdict in _NOT_DONE} if night.last else set()
    )
    overridden_vms: dict[str, set[str]] = {}
    for change in night.world.ledger:
        if change.method == OVERRIDE:
            overridden_vms[change.moid] = set(change.after["overrides"])
        elif "moid" in change.after:
            overridden_vms = {moid: refs - {change.moid} for moid, refs in overridden_vms.items()}
    for moid, ref in sorted((moid, ref) for moid, refs in overridden_vms.items() for ref in refs):
        vm: Any = night.world.find(ref)
        cluster: Any = night.world.find(moid)
        if ref in named and night.world.tasks.running(cluster) is not None:
            continue
        if vm is not None and vm.state.power is not Power.ON:
            yield f"I23: DRS is still kept off {chosen_as(night, ref)}"
