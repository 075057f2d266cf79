"""Finds the VMs that nights have taken and where each is now, from the journal, from vCenter's markers, or from both.
`night.py`, `day.py` and `rotate status` call it.

A VM in the journal is found by its instance uuid and returned under the policy of its night, even if it was moved or
renamed. What a policy selects only matters when desktops are taken. A marker that the journal does not know may belong
to anybody: it is trusted for a desktop inside a folder that the policy names, and for an ML VM of its queue. Any other
VM is reported, and only changed if it is requested by name.

If several machines rotate under one lock VM, each with its own journal, a journal without a start or suspend does not
prove that there was none: a marker that is still set stands for what another machine did, unless it was set under a
lease of a run of this journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.model.nights.night_record import Marker, Original, Role, parse_marker
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.rotation.power_moments import SAME_MOMENT_TOLERANCE, is_suspended_for_desktops, replaced_state_text
from gpuops.plan.rotation.witness import NO_DOUBT, Doubt, copy_doubt, known_nights, policy_doubt

RETURN_COMMAND: Final = "gpuops rotate day"
"""Safe at any time: it only resumes suspended desktops and stops ML VMs that a night started."""

_NO_POLICY: Final = Policy(name="", pools=())
_MADE_ANEW: Final = "the broker may have a machine of its name in maintenance: check that at the broker"
"""The broker may have provisioned it anew, with the maintenance of the earlier one (assumption: broker-new-machine)."""
_GATED: Final = "the broker may still keep users from it"
_OTHER_VCENTER: Final = "return that night in its own vCenter"
_REGISTER_AGAIN: Final = "register it again if it still exists (otherwise the next night forgets it)"


class Whereabouts(StrEnum):
    """Where a VM of a night is now; a field of the JSON of `rotate status`."""

    AWAY = "away"
    """A desktop still suspended, an ML VM still running: the morning returns it."""
    CHANGING = "changing"
    """A task that changes its power state is under way: its next state is not known yet."""
    BACK = "back"
    UNTOUCHED = "untouched"
    """Planned and never taken, or another person has used it since."""
    LOST = "lost"
    """A desktop that is powered off: another person discarded its suspended state."""
    GONE = "gone"
    """Deleted, or another VM under the same id."""
    FOREIGN = "foreign"
    """Marked, not in the journal and not covered by the policy: only changed if it is requested by name."""
    GIVEN_UP = "given up"
    """A person gave it up and it is not back: gpuops does not wait for it, and only changes it if requested by name."""
    UNKNOWN = "unknown"
    """Its state cannot be read, or it cannot be identified."""


@dataclass(frozen=True, slots=True)
class TakenVm:
    """One VM that a night has taken, or was about to, and where it is now."""

    original: Original
    """Its state before the night, with the policy under which it is returned."""
    vm: Vm | None
    """The VM as it is now; None = it was deleted, or cannot be identified."""
    whereabouts: Whereabouts
    reason: str
    command: str = ""
    """One safe command for a VM that is not as it was; empty = there is nothing to do."""
    first: str = ""
    """What a person must do, or wait for, before the command has an effect; empty = nothing."""
    foreign: Marker | None = None
    """Its marker, if the journal has no night for it."""
    doubt: str = ""
    """Why such a marker is only trusted if the VM is requested by name; empty = it is trusted."""
    markers: tuple[str, ...] = ()
    """The custom attributes that its nights have set, or planned to set."""

    @property
    def policy(self) -> Policy:
        """The policy under which it is returned."""
        return self.original.policy or _NO_POLICY

    @property
    def advice(self) -> str:
        """What to do next, for people. A command after "then" has no effect before the first part is done."""
        return first_then(self.first, self.command) if self.first else self.command


def first_then(first: str, command: str = RETURN_COMMAND) -> str:
    """Return the advice to do something first and then run the command."""
    return f"{first}, then {command}"


def marker_of(policy: Policy | None) -> str:
    """Return the custom attribute that nights under this policy set; for None the default one."""
    return (policy or _NO_POLICY).marker


def taken_vms(
    policy: Policy | None, originals: Iterable[Original], inventory: Inventory, *, trusted_refs: Collection[str] = ()
) -> tuple[TakenVm, ...]:
    """Return every VM of nights that are not over, desktops first.

    `policy` applies to markers that the journal does not know; None = only the whereabouts of the VMs are needed.
    `trusted_refs`: VMs (refs) whose marker is trusted in any folder.

    Example: in the journal, tonight took vm-1, and vm-2 of yesterday is closed. vm-2 and vm-3 have a marker. The VMs
    are vm-1 from the journal, vm-2 as the journal closed it (only its marker must be cleared), and vm-3 from its
    marker.
    """
    # 1. The VMs of open nights in the journal, under the managed object id that each has now.
    recorded = tuple(originals)
    recorded_vms = [
        (replace(original, policy=original.policy or policy), vms_of(original, inventory)) for original in recorded
    ]
    still_open = [(original, vms) for original, vms in recorded_vms if not original.returned or original.given_up]
    open_originals = {_current_ref(original, vms): original for original, vms in still_open}
    known_refs = open_originals.keys() | {vm.ref for _, vms in still_open for vm in vms}
    # 2. Other markers: of a night that the journal has closed, or that it does not know. All attributes of the
    # policies in the journal are searched; a marker that the journal does not know only counts in the attribute of
    # this policy.
    closed = {(original.night, _current_ref(original, vms)): original for original, vms in recorded_vms}
    markers: dict[str, set[str]] = defaultdict(set)
    for original, vms in recorded_vms:
        markers[_current_ref(original, vms)].add(marker_of(original.policy))
    own_marker = marker_of(policy)
    foreign: dict[str, Marker] = {}
    for vm, attribute, marker in _vms_with_marker(inventory, sorted({own_marker}.union(*markers.values()))):
        closed_original = closed.get((marker.night, vm.ref))
        if vm.ref in known_refs or (closed_original is None and attribute != own_marker):
            continue
        if closed_original is None:
            foreign[vm.ref] = marker
        open_originals[vm.ref] = (
            _closed_but_marked(closed_original, vm) if closed_original is not None else _from_marker(marker, vm, policy)
        )
        markers[vm.ref].add(attribute)
    # 3. Where each VM is now, and what a return does with it.
    nights = known_nights(recorded)
    located = []
    for ref, original in open_originals.items():
        vm_with_ref = inventory.vms.get(ref)
        doubt = NO_DOUBT
        if ref in foreign and vm_with_ref is not None:
            copied = copy_doubt(foreign[ref], vm_with_ref, nights.get(original.night), policy)
            doubt = copied or policy_doubt(original, vm_with_ref)
        taken_vm = _locate(original, inventory, vm_with_ref, NO_DOUBT if ref in trusted_refs else doubt)
        if original.given_up and ref not in trusted_refs:
            taken_vm = _given_up(taken_vm)
        elif original.gated_as is not None and taken_vm.whereabouts in (Whereabouts.BACK, Whereabouts.UNTOUCHED):
            taken_vm = replace(taken_vm, reason=f"{taken_vm.reason}; {_GATED}", command=RETURN_COMMAND)
        elif original.gated_as is not None and taken_vm.whereabouts is Whereabouts.GONE:
            taken_vm = replace(taken_vm, reason=f"{taken_vm.reason}; {_MADE_ANEW}")
        located.append(
            replace(taken_vm, foreign=foreign.get(ref), doubt=doubt.reason, markers=tuple(sorted(markers[ref])))
        )
    return tuple(sorted(located, key=lambda taken_vm: (taken_vm.original.role, taken_vm.original.name)))


def possible_copies(policy: Policy | None, originals: Iterable[Original], inventory: Inventory) -> frozenset[str]:
    """Return the VMs (refs) whose marker names a night that the journal knows without them: they may be copies."""
    recorded = list(originals)
    nights = {original.night for original in recorded}
    refs = {vm.ref for original in recorded for vm in vms_of(original, inventory)}
    marked_vms = _vms_with_marker(inventory, [marker_of(policy)]) if nights else ()
    return frozenset(vm.ref for vm, _, marker in marked_vms if marker.night in nights and vm.ref not in refs)


def _given_up(taken_vm: TakenVm) -> TakenVm:
    """Return the VM as given up: it is reported until it is back."""
    if taken_vm.whereabouts in (Whereabouts.BACK, Whereabouts.UNTOUCHED):
        return taken_vm
    retry_command = (
        command("rotate restore", vm=called(taken_vm.vm)) if taken_vm.vm is not None else "gpuops rotate status"
    )
    return replace(
        taken_vm, whereabouts=Whereabouts.GIVEN_UP, reason=f"was given up; {taken_vm.reason}", command=retry_command
    )


def _vms_with_marker(inventory: Inventory, attributes: Sequence[str]) -> Iterator[tuple[Vm, str, Marker]]:
    for vm in inventory.vms.values():
        for attribute in attributes if vm.attributes else ():
            marker = parse_marker(vm.attributes.get(attribute, ""))
            if marker is not None:
                yield vm, attribute, marker


def originals_from_markers(policy: Policy | None, inventory: Inventory) -> tuple[Original, ...]:
    """Return an original for each VM with a marker in the attribute of this policy, without the journal."""
    marked_vms = _vms_with_marker(inventory, [marker_of(policy)])
    return tuple(_from_marker(marker, vm, policy) for vm, _, marker in marked_vms)


def _current_ref(original: Original, vms: Sequence[Vm]) -> str:
    """Return the managed object id of the VM now, or that of the journal if the VM is missing or ambiguous."""
    return vms[0].ref if len(vms) == 1 else original.vm


def vms_of(original: Original, inventory: Inventory) -> tuple[Vm, ...]:
    """Return the VM as it is now: none if it was deleted, several if they share its instance uuid.

    A VM that was registered again has another managed object id, so the instance uuid decides if it is known.
    """
    if original.uuid is not None:
        return inventory.vms_with_uuid(original.uuid)
    vm = inventory.vms.get(original.vm)
    return () if vm is None else (vm,)


def _closed_but_marked(closed_original: Original, vm: Vm) -> Original:
    """Return the original of a VM that is closed in the journal but still marked.

    The marker could not be cleared, or this is a copy of the vCenter. If an ML VM of such a night runs, another person
    has started it since and it is not stopped, unless it still runs since the start by its night.
    """
    if closed_original.role is Role.ML and not runs_since_its_night(closed_original, vm):
        return replace(closed_original, taken=False)
    return closed_original


def runs_since_its_night(original: Original, vm: Vm) -> bool:
    """Return whether an ML VM still runs since the start by its night, so that it was not stopped since.

    This holds even if the journal says otherwise; False if a start time is unknown.
    """
    night_start, last_start = original.started_at, vm.started_at
    if vm.power is not PowerState.ON or night_start is None or last_start is None:
        return False
    return abs(last_start - night_start) <= SAME_MOMENT_TOLERANCE


def _from_marker(marker: Marker, vm: Vm, policy: Policy | None) -> Original:
    """Return the original of a VM that is not in the journal, from its marker."""
    # An empty `gated_as`: its gate may be closed, and the broker's id of its machine is not known.
    return Original(
        marker.night,
        marker.role,
        vm.ref,
        vm.instance_uuid,
        vm.name,
        vm.host,
        vm.profiles,
        taken=True,
        drs=marker.drs,
        policy=policy,
        gated_as="" if marker.role is not Role.ML and _may_be_gated(vm, policy) else None,
    )


def _may_be_gated(vm: Vm, policy: Policy | None) -> bool:
    """Return whether a night under this policy may have closed the gate of this desktop.

    A desktop that is no longer in a pool may have been in any of them.
    """
    pool = policy.pool_of(vm) if policy is not None else None
    return pool.gated if pool is not None else policy is not None and policy.gates


def _locate(original: Original, inventory: Inventory, vm_with_its_id: Vm | None, doubt: Doubt) -> TakenVm:
    """Return where the VM is now. `vm_with_its_id`: the VM that has its managed object id now.

    The checks come in this order: which VM it is, whether its state can be read, whether its state is final. Only then
    does its power state show whether it is back.
    """
    vms = vms_of(original, inventory)
    if len(vms) > 1:
        reason = f"{' and '.join(sorted(vm.path or vm.ref for vm in vms))} have one instance uuid"
        return TakenVm(original, None, Whereabouts.UNKNOWN, reason, RETURN_COMMAND, "remove the copy")
    if not vms:
        return _locate_missing(original, vm_with_its_id)
    [vm] = vms
    if vm.instance_uuid is None:
        return _locate_without_uuid(original, vm)
    untrusted = _locate_untrusted(original, vm, doubt)
    if untrusted is not None:
        return untrusted
    if vm.power is None or vm.connected is False:
        return TakenVm(original, vm, Whereabouts.UNKNOWN, *_unreachable(vm, inventory))
    changing = _locate_changing(original, vm)
    if changing is not None:
        return changing
    match original.role:
        case Role.DESKTOP:
            return _locate_desktop(original, vm, is_taken=original.taken or _taken_by_other_machine(original, vm))
        case Role.SHUT_DOWN:
            return _locate_shut_down(original, vm)
        case Role.ML:
            # Once it was stopped, or a person started it, "taken" no longer proves that the night runs it: then only
            # one that still runs since the start by its night counts.
            is_ours = original.taken and (not original.stopped or runs_since_its_night(original, vm))
            return _locate_ml(original, vm, is_taken=is_ours or _taken_by_other_machine(original, vm))
        case _:
            assert_never(original.role)


def _locate_untrusted(original: Original, vm: Vm, doubt: Doubt) -> TakenVm | None:
    """Return the VM with the reason not to touch it; None = it is proved that a night of this vCenter took it."""
    if doubt.reason:
        return TakenVm(original, vm, Whereabouts.FOREIGN, f"{doubt.reason}: not touched", doubt.command)
    if original.contradiction:
        gives_up = command("rotate abandon", vm=called(vm))
        first = f"{_OTHER_VCENTER} (if this is it: {gives_up})"
        return TakenVm(original, vm, Whereabouts.UNKNOWN, original.contradiction, RETURN_COMMAND, first)
    return None


def _unreachable(vm: Vm, inventory: Inventory) -> tuple[str, str, str]:
    """Return why the state of the VM cannot be read, the command that brings it back, and what must be done first."""
    stores = [inventory.datastores[ref] for ref in vm.datastores if ref in inventory.datastores]
    unreachable = sorted(store.name for store in stores if store.accessible is False)
    if unreachable:
        stores_text = f"datastore{'s' if len(unreachable) > 1 else ''} {', '.join(unreachable)}"
        reason = f"its files cannot be reached: {stores_text} is not accessible"
        return reason, RETURN_COMMAND, f"bring back {stores_text}"
    host = inventory.host_of(vm)
    if host is not None and host.connected is True:
        if vm.connected is False:
            reason = "its host is connected, and vCenter does not reach the VM there"
            return reason, RETURN_COMMAND, "make its files accessible, or register it again"
        return "its state cannot be read", RETURN_COMMAND, "let this login read it"
    return "is not connected, its state cannot be read", RETURN_COMMAND, "connect its host"


def is_gone(original: Original, inventory: Inventory) -> bool:
    """Return whether the VM was removed from vCenter; False if a VM with its id has an unreadable instance uuid."""
    vm_with_its_id = inventory.vms.get(original.vm)
    has_unreadable_uuid = vm_with_its_id is not None and vm_with_its_id.instance_uuid is None
    return not has_unreadable_uuid and not vms_of(original, inventory)


def _locate_missing(original: Original, vm_with_its_id: Vm | None) -> TakenVm:
    """Return that the VM is gone, because no VM has its instance uuid, or that this is unknown.

    It is unknown if the VM with its managed object id has an instance uuid that cannot be read.
    """
    if vm_with_its_id is not None and vm_with_its_id.instance_uuid is None:
        return _locate_without_uuid(original, vm_with_its_id)
    if vm_with_its_id is None and not original.taken:
        return TakenVm(original, None, Whereabouts.UNTOUCHED, "was removed from vCenter before gpuops changed it")
    reason = "is gone from vCenter" if vm_with_its_id is None else "is another VM now: its instance uuid changed"
    return TakenVm(original, None, Whereabouts.GONE, reason, RETURN_COMMAND, _REGISTER_AGAIN)


def _locate_without_uuid(original: Original, vm: Vm) -> TakenVm:
    reason = "its instance uuid cannot be read: it may be another VM"
    return TakenVm(
        original, vm, Whereabouts.UNKNOWN, reason, RETURN_COMMAND, "connect its host, or let this login read it"
    )


def _locate_changing(original: Original, vm: Vm) -> TakenVm | None:
    """Return the VM if its power state is changing, or if a step that was sent may still change it; otherwise None."""
    under_way = power_change_under_way(vm)
    if under_way is None and original.unsure and power_as_before(original, vm):
        reason = "may still change: gpuops stopped waiting for a step minutes ago, and vCenter shows no effect of it"
        return TakenVm(original, vm, Whereabouts.CHANGING, reason, RETURN_COMMAND, "wait ten minutes")
    if under_way is None:
        return None
    has_question = vm.question is not None
    first = "answer its question in the vSphere Client" if has_question else "wait until its task has ended"
    return TakenVm(original, vm, Whereabouts.CHANGING, under_way, RETURN_COMMAND, first)


def power_as_before(original: Original, vm: Vm) -> bool:
    """Return whether the power state of the VM is as it was before the night."""
    return (vm.power is PowerState.ON) is (original.role is not Role.ML)


def is_marked(vm: Vm) -> bool:
    """Return whether the VM has a marker of a night."""
    return any(parse_marker(text) is not None for text in vm.attributes.values())


def power_change_under_way(vm: Vm) -> str | None:
    """Return what a running task, or one that waits for an answer, does to the power of the VM, or None."""
    started = "is being resumed" if vm.power is PowerState.SUSPENDED else "is being started"
    words = {"suspendvm": "is being suspended", "poweronvm": started, "poweroffvm": "is being powered off"}
    texts = (words.get(task.name.removesuffix("_Task").lower()) for task in vm.tasks)
    change = next((text for text in texts if text is not None), None)
    if change is None and vm.question is not None:
        # The task continues when the question is answered, even if vCenter no longer lists the task.
        return f"waits for an answer: {vm.question}"
    return change


def stays_running(vm: Vm) -> bool:
    """Return whether the VM runs and no task may change that: only such a VM counts towards a floor.

    A suspend that waits for an answer continues when a person answers, long after the run that sent it has ended.
    """
    return vm.power is PowerState.ON and power_change_under_way(vm) is None


def _taken_by_other_machine(original: Original, vm: Vm) -> bool:
    """Return whether a night of another machine, which is not in this journal, may have taken the VM.

    Without a lock VM, all nights are of one machine and in its journal. The marker of a step that was never sent is
    then no reason to change a VM that another person has started since, nor is a marker that a run of this journal set.
    """
    policy = original.policy
    if policy is None or policy.lock_vm is None:
        return False
    marker = parse_marker(vm.attributes.get(policy.marker, ""))
    return marker is not None and marker.role is original.role and marker.lease not in original.leases


def _locate_desktop(original: Original, vm: Vm, *, is_taken: bool) -> TakenVm:
    """Return where a desktop is that a night suspended."""
    another_suspend = replaced_state_text(original, vm)
    suffix = f"; {another_suspend}" if another_suspend else ""
    match vm.power:
        case PowerState.ON if original.taken:
            return TakenVm(original, vm, Whereabouts.BACK, f"is running{suffix}")
        case PowerState.SUSPENDED if original.taken or is_marked(vm):
            reason = f"suspended in night {original.night}{suffix}"
            return TakenVm(original, vm, Whereabouts.AWAY, reason, RETURN_COMMAND)
        case PowerState.OFF if is_taken:
            reason = "is powered off: its suspended state was discarded by somebody else"
            return TakenVm(original, vm, Whereabouts.LOST, reason, RETURN_COMMAND, "power it on in the vSphere Client")
        case _:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "has not been suspended by gpuops")


def _locate_shut_down(original: Original, vm: Vm) -> TakenVm:
    """Return where a desktop is whose guest a night shut down.

    A guest may shut down long after gpuops gave the step up, so a marker counts as well.
    """
    has_marker = is_marked(vm)
    match vm.power:
        case PowerState.ON if original.taken:
            return TakenVm(original, vm, Whereabouts.BACK, "is running")
        case PowerState.OFF if original.taken or has_marker:
            return TakenVm(original, vm, Whereabouts.AWAY, f"shut down in night {original.night}", RETURN_COMMAND)
        case PowerState.SUSPENDED if original.taken or has_marker:
            reason = f"shut down in night {original.night}; it is suspended now: somebody else did that"
            return TakenVm(original, vm, Whereabouts.AWAY, reason, RETURN_COMMAND)
        case _:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "has not been shut down by gpuops")


def _locate_ml(original: Original, vm: Vm, *, is_taken: bool) -> TakenVm:
    """Return where an ML VM is that a night started."""
    match vm.power:
        case PowerState.ON if is_taken and (manager := managed_elsewhere(vm)) is not None:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, f"runs, and {manager}; not stopped")
        case PowerState.ON if is_taken:
            return TakenVm(original, vm, Whereabouts.AWAY, f"started in night {original.night}", RETURN_COMMAND)
        case PowerState.ON if original.stopped:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "runs: somebody else has started it since")
        case PowerState.ON:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "runs, and was not started by gpuops")
        case PowerState.SUSPENDED if is_suspended_for_desktops(original, vm):
            reason = "is suspended, with its work in memory: gpuops freed its GPU for desktops"
            return TakenVm(original, vm, Whereabouts.BACK, reason)
        case PowerState.SUSPENDED:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "was suspended by somebody else; it holds no GPU")
        case PowerState.OFF if not (is_taken or original.stopped):
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "has not been started by gpuops")
        case _:
            return TakenVm(original, vm, Whereabouts.BACK, "is powered off")
