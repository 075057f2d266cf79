"""Which VMs nights have taken and where each is now, from the journal, from vCenter's markers, or from both.
`night.py`, `day.py` and `rotate status` ask it.

A VM that the journal knows is returned wherever it is now and whatever it is called: it is found by its instance uuid,
and returned under the policy of its night. What a policy selects matters for taking alone. A marker that the journal
knows nothing of could be anybody's: it is believed of a desktop inside a folder that the policy names, and of an ML VM
of its queue; any other VM is named, and not touched unless somebody asks for it by name.

Where several machines rotate under one lock VM, each with a journal of its own, a journal that knows of no start or
suspend is no proof that there was none: a marker that is still there stands for what another machine did, unless it was
set under a lease of this journal's own runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.model.nights.night_record import Marker, Original, Role, parse_marker
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.rotation.marker_doubts import BELIEVED, Doubt, copy_doubt, nights_known, policy_doubt
from gpuops.plan.rotation.power_moments import GRAIN, another_state, gave_way

RETURN_COMMAND: Final = "gpuops rotate day"
"""Safe at any time: it only resumes suspended desktops and stops ML VMs that a night started."""

_NO_POLICY: Final = Policy(name="", pools=())
_MADE_ANEW: Final = "a machine of its name at the broker may be in maintenance, look there"
"""The broker may have provisioned it anew, with the maintenance of the earlier one (assumption: broker-new-machine)."""
_GATED: Final = "the broker may still keep users from it"
_OTHER_VCENTER: Final = "return that night in its own vCenter"
_REGISTER_AGAIN: Final = "register it anew if it still exists (else the next night lets it go)"


class Whereabouts(StrEnum):
    """Where a VM of a night is now; a field of the JSON of `rotate status`."""

    AWAY = "away"
    """A desktop still suspended, an ML VM still running: the morning returns it."""
    CHANGING = "changing"
    """A task that changes its power state is under way: its next state is not known yet."""
    BACK = "back"
    UNTOUCHED = "untouched"
    """Planned and never taken, or taken over by somebody else since."""
    LOST = "lost"
    """A desktop that is powered off: what its guest held was discarded by somebody else."""
    GONE = "gone"
    """Deleted, or another VM under the same id."""
    FOREIGN = "foreign"
    """Marked, unknown to the journal, and not covered by the policy: not touched unless it is asked for by name."""
    GIVEN_UP = "given up"
    """A person gave it up, and it is not back: not waited for, and not touched unless it is asked for by name."""
    UNKNOWN = "unknown"
    """Its state cannot be read, or which VM it is cannot be told."""


@dataclass(frozen=True, slots=True)
class TakenVm:
    """One VM that a night has taken, or was about to, and where it is now."""

    original: Original
    """With the policy of its night, or the one under which it is returned."""
    vm: Vm | None
    """The VM as it is now; None = it is gone, or which one it is cannot be told."""
    whereabouts: Whereabouts
    reason: str
    command: str = ""
    """One safe command for a VM that is not as it was; empty when there is nothing to do."""
    first: str = ""
    """What somebody must do, or wait for, before that command gets any further; empty where it does by itself."""
    foreign: Marker | None = None
    """Its marker, where the journal knows of no night for it."""
    doubt: str = ""
    """Why such a marker is believed only where somebody asks for the VM by name; empty = it is believed."""
    markers: tuple[str, ...] = ()
    """The custom attributes that nights of it have set, or were to set."""

    @property
    def policy(self) -> Policy:
        """The policy under which it is returned."""
        return self.original.policy or _NO_POLICY

    @property
    def advice(self) -> str:
        """What to do next, for people; a command behind "then" has no effect before."""
        return first_then(self.first, self.command) if self.first else self.command


def first_then(first: str, command: str = RETURN_COMMAND) -> str:
    """The advice to do something first, and then to run the command."""
    return f"{first}, then {command}"


def marker_of(policy: Policy | None) -> str:
    """The custom attribute that nights under this policy set; None = the default one."""
    return (policy or _NO_POLICY).marker


def taken_vms(
    policy: Policy | None, originals: Iterable[Original], inventory: Inventory, *, believed: Collection[str] = ()
) -> tuple[TakenVm, ...]:
    """Every VM of nights that are not over, desktops first.

    `policy` is that of markers which the journal knows nothing of; None = only where the VMs are is asked for.
    `believed`: VMs (refs) whose marker is believed wherever they are.

    Example: the journal knows that tonight took vm-1, and closed vm-2 of yesterday. vm-2 and vm-3 carry a marker. The
    answer is vm-1 from the journal, vm-2 as the journal closed it, whose marker is left to clear, and vm-3 as its
    marker says.
    """
    # 1. What the journal knows: the VMs of open nights, under the id that each has now.
    recorded = tuple(originals)
    entries = [(replace(each, policy=each.policy or policy), vms_of(each, inventory)) for each in recorded]
    still_open = [(original, vms) for original, vms in entries if not original.returned or original.given_up]
    known = {_ref(original, vms): original for original, vms in still_open}
    known_refs = known.keys() | {vm.ref for _, vms in still_open for vm in vms}
    # 2. What markers tell beyond that: of a night that the journal has closed, or of one that it knows nothing of.
    # Markers are looked for under the attribute of each policy; one that the journal never knew counts under this
    # policy alone.
    closed = {(original.night, _ref(original, vms)): original for original, vms in entries}
    markers: dict[str, set[str]] = defaultdict(set)
    for original, vms in entries:
        markers[_ref(original, vms)].add(marker_of(original.policy))
    own_marker = marker_of(policy)
    foreign: dict[str, Marker] = {}
    for vm, name, marked in _marked(inventory, sorted({own_marker}.union(*markers.values()))):
        before = closed.get((marked.night, vm.ref))
        if vm.ref in known_refs or (before is None and name != own_marker):
            continue
        if before is None:
            foreign[vm.ref] = marked
        known[vm.ref] = _closed_but_marked(before, vm) if before is not None else _from_marker(marked, vm, policy)
        markers[vm.ref].add(name)
    # 3. Where each of them is now, and what a return does with it.
    nights = nights_known(recorded)
    located = []
    for ref, original in known.items():
        vm_then = inventory.vms.get(ref)
        doubt = BELIEVED
        if ref in foreign and vm_then is not None:
            copied = copy_doubt(foreign[ref], vm_then, nights.get(original.night), policy)
            doubt = copied or policy_doubt(original, vm_then)
        taken_vm = _judge(original, inventory, vm_then, BELIEVED if ref in believed else doubt)
        if original.given_up and ref not in believed:
            taken_vm = _given_up(taken_vm)
        elif original.gated_as is not None and taken_vm.whereabouts in (Whereabouts.BACK, Whereabouts.UNTOUCHED):
            taken_vm = replace(taken_vm, reason=f"{taken_vm.reason}; {_GATED}", command=RETURN_COMMAND)
        elif original.gated_as is not None and taken_vm.whereabouts is Whereabouts.GONE:
            taken_vm = replace(taken_vm, reason=f"{taken_vm.reason}; {_MADE_ANEW}")
        located.append(
            replace(taken_vm, foreign=foreign.get(ref), doubt=doubt.reason, markers=tuple(sorted(markers[ref])))
        )
    return tuple(sorted(located, key=lambda taken_vm: (taken_vm.original.role, taken_vm.original.name)))


def marked_strangers(policy: Policy | None, originals: Iterable[Original], inventory: Inventory) -> frozenset[str]:
    """VMs (refs) with a marker of a night that the journal knows, of which they are no original: copies perhaps."""
    known = list(originals)
    nights = {original.night for original in known}
    refs = {vm.ref for original in known for vm in vms_of(original, inventory)}
    marked_vms = _marked(inventory, [marker_of(policy)]) if nights else ()
    return frozenset(vm.ref for vm, _, marked in marked_vms if marked.night in nights and vm.ref not in refs)


def _given_up(taken_vm: TakenVm) -> TakenVm:
    """A VM that a person gave up: it is named until it is back, whatever its state."""
    if taken_vm.whereabouts in (Whereabouts.BACK, Whereabouts.UNTOUCHED):
        return taken_vm
    again = command("rotate restore", vm=called(taken_vm.vm)) if taken_vm.vm is not None else "gpuops rotate status"
    return replace(taken_vm, whereabouts=Whereabouts.GIVEN_UP, reason=f"was given up; {taken_vm.reason}", command=again)


def _marked(inventory: Inventory, names: Sequence[str]) -> Iterator[tuple[Vm, str, Marker]]:
    """Every VM with a marker in one of these custom attributes."""
    for vm in inventory.vms.values():
        for name in names if vm.attributes else ():
            marked = parse_marker(vm.attributes.get(name, ""))
            if marked is not None:
                yield vm, name, marked


def by_marker(policy: Policy | None, inventory: Inventory) -> tuple[Original, ...]:
    """What markers alone tell: an original for each VM with one in the attribute of this policy, wherever it is."""
    marked_vms = _marked(inventory, [marker_of(policy)])
    return tuple(_from_marker(marked, vm, policy) for vm, _, marked in marked_vms)


def _ref(original: Original, vms: Sequence[Vm]) -> str:
    """The managed object id that it has now, where that can be told."""
    return vms[0].ref if len(vms) == 1 else original.vm


def vms_of(original: Original, inventory: Inventory) -> tuple[Vm, ...]:
    """The VM as it is now: none where it is gone, several where these have one instance uuid.

    A VM that was registered anew has another managed object id, so the instance uuid decides where it is known.
    """
    if original.uuid is not None:
        return inventory.vms_with_uuid(original.uuid)
    vm = inventory.vms.get(original.vm)
    return () if vm is None else (vm,)


def _closed_but_marked(closed: Original, vm: Vm) -> Original:
    """An original that the journal closed, while its marker could not be cleared, or in a copy of this vCenter.

    An ML VM of such a night that runs was started by somebody else since, and is not stopped, unless it runs by the
    very start of its night.
    """
    return closed if closed.role is not Role.ML or runs_since_its_night(closed, vm) else replace(closed, taken=False)


def runs_since_its_night(original: Original, vm: Vm) -> bool:
    """Whether an ML VM runs by the very start of its night, whatever else the journal says; False where nothing tells.
    Then it was not stopped since."""
    then, now = original.started_at, vm.started_at
    return vm.power is PowerState.ON and then is not None and now is not None and abs(now - then) <= GRAIN


def _from_marker(marked: Marker, vm: Vm, policy: Policy | None) -> Original:
    """What the marker alone tells of a VM that the journal knows nothing of."""
    return Original(
        marked.night,
        marked.role,
        vm.ref,
        vm.instance_uuid,
        vm.name,
        vm.host,
        vm.profiles,
        taken=True,
        drs=marked.drs,
        policy=policy,
        gated_as="" if marked.role is not Role.ML and _may_be_gated(vm, policy) else None,
    )


def _may_be_gated(vm: Vm, policy: Policy | None) -> bool:
    """Whether a night under the policy has closed the gate of this desktop, as far as the policy tells: of one that is
    in no pool any more, any pool may have been its own."""
    pool = policy.pool_of(vm) if policy is not None else None
    return pool.gated if pool is not None else policy is not None and policy.gates


def _judge(original: Original, inventory: Inventory, under_its_id: Vm | None, doubt: Doubt) -> TakenVm:
    """Where the VM is now. `under_its_id`: the VM that has its managed object id now.

    First whether it can be told which VM it is, then whether its state can be read and is settled; only then does its
    power state say whether it is back.
    """
    vms = vms_of(original, inventory)
    if len(vms) > 1:
        reason = f"{' and '.join(sorted(vm.path or vm.ref for vm in vms))} have one instance uuid"
        return TakenVm(original, None, Whereabouts.UNKNOWN, reason, RETURN_COMMAND, "remove the copy")
    if not vms:
        return _gone(original, under_its_id)
    [vm] = vms
    if vm.instance_uuid is None:
        return _without_uuid(original, vm)
    not_ours = _not_ours(original, vm, doubt)
    if not_ours is not None:
        return not_ours
    if vm.power is None or vm.connected is False:
        return TakenVm(original, vm, Whereabouts.UNKNOWN, *_unreachable(vm, inventory))
    unsettled = _unsettled(original, vm)
    if unsettled is not None:
        return TakenVm(original, vm, Whereabouts.CHANGING, unsettled, RETURN_COMMAND, _what_to_wait_for(vm))
    match original.role:
        case Role.DESKTOP:
            return _desktop(original, vm, taken=original.taken or _taken_by_other_machine(original, vm))
        case Role.SHUT_DOWN:
            return _shut_down(original, vm)
        case Role.ML:
            ours = original.taken and (not original.stopped or runs_since_its_night(original, vm))
            return _ml(original, vm, taken=ours or _taken_by_other_machine(original, vm))
        case _:
            assert_never(original.role)


def _not_ours(original: Original, vm: Vm, doubt: Doubt) -> TakenVm | None:
    """That the VM is not touched, since nothing proves that a night of this vCenter took it; None = it did."""
    if doubt.reason:
        return TakenVm(original, vm, Whereabouts.FOREIGN, f"{doubt.reason}: not touched", doubt.command)
    if original.contradiction:
        gives_up = command("rotate abandon", vm=called(vm))
        first = f"{_OTHER_VCENTER} (if this is it: {gives_up})"
        return TakenVm(original, vm, Whereabouts.UNKNOWN, original.contradiction, RETURN_COMMAND, first)
    return None


def _unreachable(vm: Vm, inventory: Inventory) -> tuple[str, str, str]:
    """Why the state of the VM cannot be read, the command that brings it back, and what must be done first."""
    stores = [inventory.datastores[ref] for ref in vm.datastores if ref in inventory.datastores]
    lost = sorted(store.name for store in stores if store.accessible is False)
    if lost:
        named = f"datastore {lost[0]}" if len(lost) == 1 else f"datastores {', '.join(lost)}"
        return f"its files cannot be reached: {named} is not accessible", RETURN_COMMAND, f"bring back {named}"
    host = inventory.host_of(vm)
    if host is not None and host.connected is True:
        if vm.connected is False:
            reason = "its host is connected, and vCenter does not reach the VM there"
            return reason, RETURN_COMMAND, "make its files accessible, or register it again"
        return "its state cannot be read", RETURN_COMMAND, "let this login read it"
    return "is not connected, its state cannot be read", RETURN_COMMAND, "connect its host"


def is_gone(original: Original, inventory: Inventory) -> bool:
    """Whether the VM is in vCenter no more; False where a VM with its id has an instance uuid that cannot be read."""
    under_its_id = inventory.vms.get(original.vm)
    unread = under_its_id is not None and under_its_id.instance_uuid is None
    return not unread and not vms_of(original, inventory)


def _gone(original: Original, under_its_id: Vm | None) -> TakenVm:
    """The answer for an original whose instance uuid no VM has; a VM whose uuid cannot be read may be it."""
    if under_its_id is not None and under_its_id.instance_uuid is None:
        return _without_uuid(original, under_its_id)
    if under_its_id is not None:
        reason = "is another VM now: its instance uuid changed"
        return TakenVm(original, None, Whereabouts.GONE, reason, RETURN_COMMAND, _REGISTER_AGAIN)
    if not original.taken:
        return TakenVm(original, None, Whereabouts.UNTOUCHED, "was gone from vCenter before anything was done to it")
    return TakenVm(original, None, Whereabouts.GONE, "is gone from vCenter", RETURN_COMMAND, _REGISTER_AGAIN)


def _without_uuid(original: Original, vm: Vm) -> TakenVm:
    reason = "its instance uuid cannot be read: it may be another VM"
    return TakenVm(
        original, vm, Whereabouts.UNKNOWN, reason, RETURN_COMMAND, "connect its host, or let this login read it"
    )


def _unsettled(original: Original, vm: Vm) -> str | None:
    """What changes the VM's power, or may still change it; None = its power state is final."""
    under_way = power_change_under_way(vm)
    if under_way is None and original.unsure and power_as_before(original, vm):
        return "may still be changed: what the night sent was given up minutes ago, and vCenter shows no effect of it"
    return under_way


def _what_to_wait_for(vm: Vm) -> str:
    """What somebody must do, or wait for, before the VM's power state is final."""
    if vm.question is not None:
        return "answer its question in the vSphere Client"
    return "wait until its task has ended" if power_change_under_way(vm) is not None else "wait ten minutes"


def power_as_before(original: Original, vm: Vm) -> bool:
    """Whether the VM's power is as it was before the night."""
    return (vm.power is PowerState.ON) is (original.role is not Role.ML)


def is_marked(vm: Vm) -> bool:
    """Whether a night's marker is on the VM."""
    return any(parse_marker(value) is not None for value in vm.attributes.values())


def power_change_under_way(vm: Vm) -> str | None:
    """What a task under way, or one that waits for an answer, does to the VM's power; None = there is none."""
    started = "is being resumed" if vm.power is PowerState.SUSPENDED else "is being started"
    words = {"suspendvm": "is being suspended", "poweronvm": started, "poweroffvm": "is being powered off"}
    by_task = (words.get(task.name.removesuffix("_Task").lower()) for task in vm.tasks)
    change = next((word for word in by_task if word is not None), None)
    if change is None and vm.question is not None:
        # what waits for the answer goes on when somebody gives it, even where vCenter lists its task no more
        return f"waits for an answer: {vm.question}"
    return change


def stays_running(vm: Vm) -> bool:
    """Whether the VM runs and nothing is under way that may end that: only such a VM counts towards a floor.

    A suspend that waits for an answer goes on when somebody gives it, long after the run that sent it has ended.
    """
    return vm.power is PowerState.ON and power_change_under_way(vm) is None


def _taken_by_other_machine(original: Original, vm: Vm) -> bool:
    """Whether a night of another machine may have taken it, which this journal cannot know.

    Without a lock VM all nights are of one machine, whose journal knows them: the marker of a step that was never sent
    is no reason to touch a VM that somebody else has started since. Nor is a marker that a run of this journal has set.
    """
    policy = original.policy
    if policy is None or policy.lock_vm is None:
        return False
    marked = parse_marker(vm.attributes.get(policy.marker, ""))
    return marked is not None and marked.role is original.role and marked.lease not in original.leases


def _desktop(original: Original, vm: Vm, *, taken: bool) -> TakenVm:
    """Where a desktop is that a night suspended."""
    marked = is_marked(vm)
    another = another_state(original, vm)
    also = f"; {another}" if another else ""
    match vm.power:
        case PowerState.ON if original.taken:
            return TakenVm(original, vm, Whereabouts.BACK, f"is running{also}")
        case PowerState.SUSPENDED if original.taken or marked:
            reason = f"suspended in night {original.night}{also}"
            return TakenVm(original, vm, Whereabouts.AWAY, reason, RETURN_COMMAND)
        case PowerState.OFF if taken:
            reason = "is powered off: its suspended state was discarded by somebody else"
            return TakenVm(original, vm, Whereabouts.LOST, reason, RETURN_COMMAND, "power it on in the vSphere Client")
        case _:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "has not been suspended by gpuops")


def _shut_down(original: Original, vm: Vm) -> TakenVm:
    """Where a desktop is whose guest a night shut down: a guest may do so long after the step was given up, so its
    marker counts as well."""
    marked = is_marked(vm)
    match vm.power:
        case PowerState.ON if original.taken:
            return TakenVm(original, vm, Whereabouts.BACK, "is running")
        case PowerState.OFF if original.taken or marked:
            return TakenVm(original, vm, Whereabouts.AWAY, f"shut down in night {original.night}", RETURN_COMMAND)
        case PowerState.SUSPENDED if original.taken or marked:
            reason = f"shut down in night {original.night}; it is suspended now: somebody else did that"
            return TakenVm(original, vm, Whereabouts.AWAY, reason, RETURN_COMMAND)
        case _:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "has not been shut down by gpuops")


def _ml(original: Original, vm: Vm, *, taken: bool) -> TakenVm:
    """Where an ML VM is that a night started."""
    match vm.power:
        case PowerState.ON if taken and (managed := managed_elsewhere(vm)) is not None:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, f"runs, and {managed}; not stopped")
        case PowerState.ON if taken:
            return TakenVm(original, vm, Whereabouts.AWAY, f"started in night {original.night}", RETURN_COMMAND)
        case PowerState.ON if original.stopped:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "runs: somebody else has started it since")
        case PowerState.ON:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "runs, and was not started by gpuops")
        case PowerState.SUSPENDED if gave_way(original, vm):
            return TakenVm(original, vm, Whereabouts.BACK, "is suspended, with its work in memory: it gave way")
        case PowerState.SUSPENDED:
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "was suspended by somebody else; it holds no GPU")
        case PowerState.OFF if not (taken or original.stopped):
            return TakenVm(original, vm, Whereabouts.UNTOUCHED, "has not been started by gpuops")
        case _:
            return TakenVm(original, vm, Whereabouts.BACK, "is powered off")
