"""Check in vCenter whether VMs still belong to their nights: later starts, copies of VMs, a copy of the vCenter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuops.execute.runs.nights import note_later_starts
from gpuops.execute.site.ports import Vcenter
from gpuops.model.nights.night_record import Original
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.rotation.taken_vms import marked_strangers
from gpuops.plan.rotation.witness import Witness, judge_vcenter, key_of, the_vm


def note_witnesses(originals: Iterable[Original], inventory: Inventory, vcenter: Vcenter) -> tuple[Original, ...]:
    """Return the originals with later starts by other users and with what contradicts the journal, by vCenter."""
    noted = note_later_starts(originals, inventory, vcenter)
    still_open = [original for original in noted if not (original.returned or original.given_up)]
    witnesses = [_with_history(Witness(original, the_vm(original, inventory)), vcenter) for original in still_open]
    contradictions = judge_vcenter(witnesses).contradictions
    if not contradictions:
        return noted
    kept_open = {key_of(original) for original in still_open}
    return tuple(
        replace(original, contradiction=contradictions.get(key_of(original), ""))
        if key_of(original) in kept_open
        else original
        for original in noted
    )


def _with_history(witness: Witness, vcenter: Vcenter) -> Witness:
    moment = witness.asks_about
    if moment is None or witness.vm is None:
        return witness
    ref = witness.vm.ref
    has_task = vcenter.has_power_task_near(ref, moment)
    if has_task is False and witness.vm.power is PowerState.ON:
        has_task = vcenter.started_by_this_login(ref, moment)
    return replace(witness, has_task=has_task)


def with_creation_of_strangers(
    inventory: Inventory, policy: Policy | None, originals: Sequence[Original], vcenter: Vcenter
) -> Inventory:
    """Return the snapshot with the creation times of VMs whose marker names a night that did not save them."""
    strangers = marked_strangers(policy, originals, inventory)
    return vcenter.with_creation(inventory, strangers) if strangers else inventory
