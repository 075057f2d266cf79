"""Handles nights of other machines, and of other vCenters in the same journal, in a return. `day.py` calls it, and
`execute` uses it to find out which leases a return needs.

**Other machines:** VMs that need a lease which another machine holds, and markers that this journal does not know. The
machine that set such a marker may have been stopped, or lost, just after it sent a suspend that vCenter has not
begun yet. If the marker were cleared then, the desktop would be suspended and nothing would show that. So the first
return that sees such a marker writes the time onto it, and a return at least ten minutes later clears it.

**Other vCenters:** VMs that are in this vCenter now, but that an open night of another vCenter took. This happens if a
vCenter is rebuilt during a night: it has the same VMs, a new instance uuid and no markers. A return names those VMs
whose power state is not as before the night, and changes none: the other vCenter may still exist, and this one may be a
copy of it. `gpuops rotate adopt` makes them VMs of nights of this vCenter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.model.nights.night_record import Original, is_unreadable_marker, marker_value
from gpuops.model.nights.rotation_policy import LATE, Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import SetAttribute
from gpuops.plan.rotation.taken_vms import TakenVm, Whereabouts, first_then, power_as_before
from gpuops.plan.rotation.witness import find_original_vm

_STEP_MAY_ARRIVE: Final = "has a marker of another machine, and is as it was: a step of that machine may still arrive"
_WAIT_HINT: Final = first_then("wait ten minutes", "run the same command again")
_CUSTOM_VALUES: Final = "customValue"
"""The property that holds a VM's custom attributes (vSphere API reference, ManagedEntity)."""
_MARKER_UNREADABLE: Final = "may be away for a night: its marker cannot be read, and there is no other record of one"
_SHOWN_MARKER_LENGTH: Final = 60
"""Number of characters of an unreadable marker that are shown."""
_AS_IT_WAS: Final = (Whereabouts.BACK, Whereabouts.UNTOUCHED)


def lock_vm_of(of_night: Policy, of_return: Policy) -> str | None:
    """Return the name of the lock VM whose lease is needed to return a night under the policy `of_night`, or None.

    A night whose policy had no lock VM needs the lease of the policy under which it is returned.
    """
    return of_night.lock_vm or of_return.lock_vm


def lock_vms(of_nights: Iterable[TakenVm], of_return: Policy) -> Mapping[str, str | None]:
    """Map the ref of each VM that is in vCenter to the name that `lock_vm_of` returns."""
    return {
        taken_vm.vm.ref: lock_vm_of(taken_vm.policy, of_return) for taken_vm in of_nights if taken_vm.vm is not None
    }


def policies_under(name: str, policies: Sequence[Policy], of_return: Policy) -> tuple[Policy, ...]:
    """Return the policies whose nights are returned under the lease on this lock VM."""
    return tuple(dict.fromkeys(policy for policy in policies if lock_vm_of(policy, of_return) == name))


def split_by_lease(
    of_nights: Iterable[TakenVm], of_return: Policy, holders: Mapping[str, str]
) -> tuple[tuple[TakenVm, ...], tuple[TakenVm, ...]]:
    """Return the VMs that may be returned, and those that may not.

    `holders`: lock VM -> who holds its lease on another machine.
    """
    all_vms = tuple(of_nights)
    leased = tuple(taken_vm for taken_vm in all_vms if lock_vm_of(taken_vm.policy, of_return) in holders)
    return tuple(taken_vm for taken_vm in all_vms if taken_vm not in leased), leased


def refused_for_lease(
    leased: Iterable[TakenVm], of_return: Policy, holders: Mapping[str, str]
) -> tuple[Rejection, ...]:
    """Return a refusal for each of these VMs that is not as it was: another machine holds its lease."""
    refusals = []
    for taken_vm in leased:
        if taken_vm.whereabouts not in _AS_IT_WAS:
            lock_vm = lock_vm_of(taken_vm.policy, of_return)
            reason = f"{taken_vm.reason}; lock VM {lock_vm}: {holders[lock_vm or '']}: not touched"
            refusals.append(Rejection(taken_vm.original.name, reason, hint=first_then("wait for that run to end")))
    return tuple(refusals)


def recently_marked(of_nights: Iterable[TakenVm], inventory: Inventory) -> list[TakenVm]:
    """Return the VMs that are as before their night and have a marker of another machine that must stay for now.

    Such a marker was first seen less than `LATE` ago by vCenter's clock: a step sent before that may still arrive.
    """
    recent = []
    for taken_vm in of_nights:
        vm, marker = taken_vm.vm, taken_vm.foreign
        if vm is None or marker is None or taken_vm.whereabouts not in _AS_IT_WAS:
            continue
        is_known_long = marker.seen is not None and abs(inventory.taken_at - marker.seen) >= LATE
        if power_as_before(taken_vm.original, vm) and not is_known_long:
            recent.append(taken_vm)
    return recent


def note_when_seen(of_nights: Iterable[TakenVm], inventory: Inventory) -> tuple[SetAttribute, ...]:
    """Return the steps that write into the markers when they were first seen, unless it is already there."""
    steps = []
    for taken_vm in of_nights:
        marker = taken_vm.foreign
        if marker is not None and marker.seen is None:
            text = marker_value(marker.night, marker.role, marker.drs, inventory.taken_at, marker.lease)
            steps.append(SetAttribute(taken_vm.original.vm, taken_vm.policy.marker, text))
    return tuple(steps)


def with_unreadable_marker(of_nights: Iterable[TakenVm], policy: Policy, inventory: Inventory) -> Iterator[Rejection]:
    """Yield a refusal for each VM that does not run, may be a desktop of the policy, and has an unreadable
    attribute."""
    known_refs = {taken_vm.vm.ref for taken_vm in of_nights if taken_vm.vm is not None}
    for vm in inventory.vms.values():
        if vm.ref in known_refs or vm.power is PowerState.ON or _CUSTOM_VALUES not in vm.unreadable:
            continue
        if policy.in_folder(vm) or policy.pool_of(vm) is not None:
            yield Rejection(vm.name, _MARKER_UNREADABLE, hint=first_then("use a login that may read it"))


def with_unknown_marker(of_nights: Iterable[TakenVm], policy: Policy, inventory: Inventory) -> Iterator[Rejection]:
    """Yield a refusal for each VM whose marker is not empty and cannot be parsed, if there is no other record of the
    VM."""
    known_refs = {taken_vm.vm.ref for taken_vm in of_nights if taken_vm.vm is not None}
    for vm in inventory.vms.values():
        marker_text = vm.attributes.get(policy.marker, "") if vm.attributes else ""
        if vm.ref not in known_refs and is_unreadable_marker(marker_text):
            shown_text = (
                marker_text if len(marker_text) <= _SHOWN_MARKER_LENGTH else f"{marker_text[:_SHOWN_MARKER_LENGTH]}..."
            )
            clear_command = command("rotate clear-marker", vm=called(vm)) + " --policy FILE"
            first_advice = f"correct {policy.marker}, or bring the VM back in the vSphere Client"
            reason = f"may be away for a night: its marker {shown_text!r} cannot be read"
            yield Rejection(vm.name, reason, hint=first_then(first_advice, clear_command))


def recently_marked_refusal(taken_vm: TakenVm) -> Rejection:
    """Return the refusal of a VM that keeps its marker for now: a step of another machine may still arrive."""
    return Rejection(taken_vm.original.name, _STEP_MAY_ARRIVE, hint=_WAIT_HINT)


@dataclass(frozen=True, slots=True)
class NightsElsewhere:
    """The open nights of another vCenter in the same journal."""

    vcenter: str
    """Its instance uuid."""
    originals: tuple[Original, ...]
    """The VMs that they have taken and not brought back."""

    def seen_here(self, inventory: Inventory) -> Iterator[tuple[Original, Vm]]:
        """Yield those of its VMs that are also in this vCenter, found by their instance uuids."""
        for original in self.originals:
            vm = find_original_vm(original, inventory) if original.uuid is not None else None
            if vm is not None:
                yield original, vm


@dataclass(frozen=True, slots=True)
class Adoption:
    """What `gpuops rotate adopt` does, or would do."""

    from_vcenter: str
    to_vcenter: str
    adopted: tuple[str, ...]
    """Names of the VMs that this vCenter returns from then on."""
    not_here: tuple[str, ...] = ()
    """Names of the VMs that are not in this vCenter. They stay with the other one."""
    applied: bool = False

    @property
    def deeds(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the command changes; compared with what was shown before it is applied."""
        return self.adopted, self.not_here


def refuse_nights_elsewhere(
    nights: Iterable[NightsElsewhere], originals_here: Iterable[Original], inventory: Inventory
) -> tuple[Rejection, ...]:
    """Return a refusal for each VM here that a night of another vCenter took, and that is not as it was before.

    A VM that an open night of this vCenter took is left out: that night explains its power state. Two vCenters of
    one image show VMs with the same instance uuids.
    """
    taken_here = {original.vm for original in originals_here if not original.returned}
    refusals = []
    for other in nights:
        adopt_command = command("rotate adopt", **{"from": other.vcenter})
        hint = first_then("make sure that this vCenter has replaced that one", adopt_command)
        for original, vm in other.seen_here(inventory):
            if vm.ref not in taken_here and not power_as_before(original, vm):
                night = f"night {original.night} of vCenter {other.vcenter}"
                reason = f"{night} took it, and it is in this vCenter now: not touched"
                refusals.append(Rejection(original.name, reason, hint=hint))
    return tuple(refusals)


def plan_adoption(nights_elsewhere: NightsElsewhere, inventory: Inventory) -> Adoption:
    """Return which VMs of these nights this vCenter can adopt."""
    originals_here = [original for original, _ in nights_elsewhere.seen_here(inventory)]
    missing = [original for original in nights_elsewhere.originals if original not in originals_here]
    return Adoption(nights_elsewhere.vcenter, inventory.vcenter, _names(originals_here), _names(missing))


def _names(originals: Iterable[Original]) -> tuple[str, ...]:
    return tuple(sorted({original.name for original in originals}))
