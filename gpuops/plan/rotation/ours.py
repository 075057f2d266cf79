"""Rotation, what is ours: VMs that a night took, from the journal, from vCenter's markers, or from both.

What the journal knows is returned wherever the VM is now and whatever it is called: it is known by its instance uuid,
and returned under the policy of its night. Selection is for taking. A marker that the journal knows nothing of could be
anybody's: it is believed of a desktop inside a folder that the policy names, and of an ML VM of its queue; any other VM
is named, and not touched unless somebody asks for it by name.

Where several machines rotate under one lock VM, each with a journal of its own, a journal that knows of no start or
suspend is no proof that there was none: the marker that is still there stands for what another one did, unless it was
set under a lease of this journal's own runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never

from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import entry_of
from gpuops.model.rotation import Marker, Original, Policy, Role, parse_marker
from gpuops.model.vm import PowerState, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.rotation.suspended_state import another_state

RETURN_COMMAND: Final = "gpuops rotate day"
"""Safe at any time: it only resumes suspended desktops and stops ML VMs that a night started."""

_NO_POLICY: Final = Policy(name="", pools=())


_LET_GO: Final = "register it anew if it still exists (else the next night lets it go)"


class Whereabouts(StrEnum):
    """Where a VM of a night is now."""

    AWAY = "away"
    """A desktop still suspended, an ML VM still running: the morning's work."""
    CHANGING = "changing"
    """A task that changes its power state is under way: where it ends up is not known yet."""
    BACK = "back"
    UNTOUCHED = "untouched"
    """Intended, and never taken; or taken over by somebody else since."""
    LOST = "lost"
    """A desktop that is powered off: what its guest held was discarded by somebody else."""
    GONE = "gone"
    """Deleted, or another VM under the same id."""
    FOREIGN = "foreign"
    """Marked, unknown to the journal, and nowhere that the policy names: not touched unless it is asked for by name."""
    GIVEN_UP = "given up"
    """A person gave it up, and it is not back: not waited for, and touched only when it is asked for by name."""
    UNKNOWN = "unknown"
    """Its state cannot be read, or which VM it is cannot be told."""


@dataclass(frozen=True, slots=True)
class Ours:
    """One VM of a night and where it is now."""

    original: Original
    """With the policy of its night, or the one that speaks for it."""
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
        """What to do next, for people; a command behind "then" gets no further before."""
        return once_done(self.first, self.command) if self.first else self.command


def once_done(first: str, command: str = RETURN_COMMAND) -> str:
    """The advice that the command comes after what somebody must do."""
    return f"{first}, then {command}"


def marker_of(policy: Policy | None) -> str:
    """The custom attribute that nights under this policy set; None = the one of a policy that names none."""
    return (policy or _NO_POLICY).marker


def ours(
    policy: Policy | None, originals: Iterable[Original], inventory: Inventory, *, believed: Collection[str] = ()
) -> tuple[Ours, ...]:
    """Every VM of nights that are not over, desktops first. `policy` speaks for what the journal does not know; None
    asks only where they are. `believed`: VMs (refs) whose marker is believed wherever they are."""
    entries = [(replace(each, policy=each.policy or policy), vms_of(each, inventory)) for each in originals]
    still_open = [(original, vms) for original, vms in entries if not original.returned or original.given_up]
    known = {_ref(original, vms): original for original, vms in still_open}
    spoken_for = known.keys() | {vm.ref for _, vms in still_open for vm in vms}
    closed = {(original.night, _ref(original, vms)): original for original, vms in entries}
    markers: dict[str, set[str]] = defaultdict(set)
    for original, vms in entries:
        markers[_ref(original, vms)].add(marker_of(original.policy))
    asked = marker_of(policy)
    foreign: dict[str, Marker] = {}
    for vm, name, marked in _marked(inventory, sorted({asked}.union(*markers.values()))):
        before = closed.get((marked.night, vm.ref))
        if vm.ref in spoken_for or (before is None and name != asked):
            continue
        if before is None:
            foreign[vm.ref] = marked
        known[vm.ref] = _left_over(before) if before is not None else _from_marker(marked, vm, policy)
        markers[vm.ref].add(name)
    found = []
    for ref, original in known.items():
        vm_then = inventory.vms.get(ref)
        doubt = _doubt(original, vm_then) if ref in foreign and vm_then is not None else ""
        mine = _judge(original, inventory, vm_then, "" if ref in believed else doubt)
        if original.given_up and ref not in believed:
            mine = _given_up(mine)
        found.append(replace(mine, foreign=foreign.get(ref), doubt=doubt, markers=tuple(sorted(markers[ref]))))
    return tuple(sorted(found, key=lambda mine: (mine.original.role, mine.original.name)))


def _given_up(mine: Ours) -> Ours:
    """One that a person gave up: named until it is back, whatever it is now."""
    if mine.whereabouts in (Whereabouts.BACK, Whereabouts.UNTOUCHED):
        return mine
    again = command("rotate restore", vm=called(mine.vm)) if mine.vm is not None else "gpuops rotate status"
    return replace(mine, whereabouts=Whereabouts.GIVEN_UP, reason=f"was given up; {mine.reason}", command=again)


def _marked(inventory: Inventory, names: Sequence[str]) -> Iterator[tuple[Vm, str, Marker]]:
    """Every VM with a marker under one of these names."""
    for vm in inventory.vms.values():
        for name in names if vm.attributes else ():
            marked = parse_marker(vm.attributes.get(name, ""))
            if marked is not None:
                yield vm, name, marked


def by_marker(policy: Policy | None, inventory: Inventory) -> tuple[Original, ...]:
    """What markers alone tell, wherever they are: the VMs with one under the attribute of this policy."""
    found = _marked(inventory, [marker_of(policy)])
    return tuple(_from_marker(marked, vm, policy) for vm, _, marked in found)


def _ref(original: Original, vms: Sequence[Vm]) -> str:
    """The managed object id that it has now, where that can be told."""
    return vms[0].ref if len(vms) == 1 else original.vm


def vms_of(original: Original, inventory: Inventory) -> tuple[Vm, ...]:
    """The VM now, whatever its managed object id is: one that was registered anew has another. None where it is gone,
    several where its instance uuid is that of several."""
    if original.uuid is not None:
        return inventory.vms_with_uuid(original.uuid)
    vm = inventory.vms.get(original.vm)
    return () if vm is None else (vm,)


def _left_over(closed: Original) -> Original:
    """What the journal closed, and whose marker could not be cleared: who runs such an ML VM is somebody else."""
    return replace(closed, taken=False) if closed.role is Role.ML else closed


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
    )


def _judge(original: Original, inventory: Inventory, under_its_id: Vm | None, doubt: str) -> Ours:
    vms = vms_of(original, inventory)
    if len(vms) > 1:
        reason = f"{' and '.join(sorted(vm.path or vm.ref for vm in vms))} have one instance uuid"
        return Ours(original, None, Whereabouts.UNKNOWN, reason, RETURN_COMMAND, "remove the copy")
    if not vms:
        return _gone(original, under_its_id)
    [vm] = vms
    if vm.instance_uuid is None:
        return _without_uuid(original, vm)
    if doubt:
        asked = f"{command('rotate restore', vm=called(vm))} --policy FILE"
        return Ours(original, vm, Whereabouts.FOREIGN, f"{doubt}: not touched", asked)
    if vm.power is None or vm.connected is False:
        reason = "is not connected, its state cannot be read"
        return Ours(original, vm, Whereabouts.UNKNOWN, reason, RETURN_COMMAND, "connect its host")
    unsettled = _unsettled(original, vm)
    if unsettled is not None:
        return Ours(original, vm, Whereabouts.CHANGING, unsettled, RETURN_COMMAND, _awaited(vm))
    match original.role:
        case Role.DESKTOP:
            return _desktop(original, vm, taken=original.taken or _taken_elsewhere(original, vm))
        case Role.SHUT_DOWN:
            return _shut_down(original, vm)
        case Role.ML:
            return _ml(original, vm, taken=original.taken or _taken_elsewhere(original, vm))
        case _:
            assert_never(original.role)


def is_gone(original: Original, inventory: Inventory) -> bool:
    """Whether it is in vCenter no more; of a VM whose instance uuid cannot be read nobody can tell."""
    under_its_id = inventory.vms.get(original.vm)
    unread = under_its_id is not None and under_its_id.instance_uuid is None
    return not unread and not vms_of(original, inventory)


def _gone(original: Original, under_its_id: Vm | None) -> Ours:
    """Of a VM whose instance uuid no VM has; one of which that cannot be read may be it."""
    if under_its_id is not None and under_its_id.instance_uuid is None:
        return _without_uuid(original, under_its_id)
    if under_its_id is not None:
        reason = "is another VM now: its instance uuid changed"
        return Ours(original, None, Whereabouts.GONE, reason, RETURN_COMMAND, _LET_GO)
    if not original.taken:
        return Ours(original, None, Whereabouts.UNTOUCHED, "was gone from vCenter before anything was done to it")
    return Ours(original, None, Whereabouts.GONE, "is gone from vCenter", RETURN_COMMAND, _LET_GO)


def _without_uuid(original: Original, vm: Vm) -> Ours:
    reason = "its instance uuid cannot be read: it may be another VM"
    return Ours(
        original, vm, Whereabouts.UNKNOWN, reason, RETURN_COMMAND, "connect its host, or let this login read it"
    )


def _unsettled(original: Original, vm: Vm) -> str | None:
    """What is about to change its power, or may be; None = it is what it is."""
    under_way = changing(vm)
    if under_way is None and original.unsure and as_before(original, vm):
        return "may still be changed: what the night sent was given up minutes ago, and vCenter shows no effect of it"
    return under_way


def _awaited(vm: Vm) -> str:
    """What a VM whose power is not settled waits for."""
    if vm.question is not None:
        return "answer its question in the vSphere Client"
    return "wait until its task has ended" if changing(vm) is not None else "wait ten minutes"


def as_before(original: Original, vm: Vm) -> bool:
    """Whether its power is what it was before the night."""
    return (vm.power is PowerState.ON) is (original.role is not Role.ML)


def changing(vm: Vm) -> str | None:
    """What a task that is under way does to the VM's power; None = there is none."""
    started = "is being resumed" if vm.power is PowerState.SUSPENDED else "is being started"
    words = {"suspendvm": "is being suspended", "poweronvm": started, "poweroffvm": "is being powered off"}
    done = (words.get(task.name.removesuffix("_Task").lower()) for task in vm.tasks)
    found = next((word for word in done if word is not None), None)
    if found is None and vm.question is not None:
        # what waits for the answer goes on when somebody gives it, even where vCenter has forgotten its task
        return f"waits for an answer: {vm.question}"
    return found


def stays_running(vm: Vm) -> bool:
    """Whether it runs and nothing is under way that may end that: only such a one counts towards a floor.

    A suspend that waits for an answer goes on when somebody gives it, long after its run has ended.
    """
    return vm.power is PowerState.ON and changing(vm) is None


def _doubt(original: Original, vm: Vm) -> str:
    """Why the policy does not speak for a VM of which a marker alone tells; empty = it does."""
    policy, alone = original.policy, "only its marker says that a night took it, and"
    if policy is None:
        return ""
    if original.role is Role.ML:
        return "" if entry_of(policy.ml, vm) is not None else f"{alone} no entry of the policy's queue means it"
    if policy.in_folder(vm):
        return ""
    return f"{alone} it is in no folder that the policy names" + (f" ({vm.path})" if vm.path else "")


def _taken_elsewhere(original: Original, vm: Vm) -> bool:
    """Whether the night of another machine may have taken it, which this journal cannot know.

    Without a lock VM nights are of one machine: its journal knows them all, and the marker of a step that never came is
    no reason to touch a VM that somebody else has started since. Nor is a marker that this journal's own run has set.
    """
    policy = original.policy
    if policy is None or policy.lock_vm is None:
        return False
    marked = parse_marker(vm.attributes.get(policy.marker, ""))
    return marked is not None and marked.role is original.role and marked.lease not in original.leases


def _desktop(original: Original, vm: Vm, *, taken: bool) -> Ours:
    marked = any(parse_marker(value) is not None for value in vm.attributes.values())
    another = another_state(original, vm)
    also = f"; {another}" if another else ""
    match vm.power:
        case PowerState.ON if original.taken:
            return Ours(original, vm, Whereabouts.BACK, f"is running{also}")
        case PowerState.SUSPENDED if original.taken or marked:
            reason = f"suspended in night {original.night}{also}"
            return Ours(original, vm, Whereabouts.AWAY, reason, RETURN_COMMAND)
        case PowerState.OFF if taken:
            reason = "is powered off: its suspended state was discarded by somebody else"
            return Ours(original, vm, Whereabouts.LOST, reason, RETURN_COMMAND, "power it on in the vSphere Client")
        case _:
            return Ours(original, vm, Whereabouts.UNTOUCHED, "has not been suspended by gpuops")


def _shut_down(original: Original, vm: Vm) -> Ours:
    """A guest may shut down long after it was asked, and after the step was given up: its marker still tells."""
    marked = any(parse_marker(value) is not None for value in vm.attributes.values())
    match vm.power:
        case PowerState.ON if original.taken:
            return Ours(original, vm, Whereabouts.BACK, "is running")
        case PowerState.OFF if original.taken or marked:
            return Ours(original, vm, Whereabouts.AWAY, f"shut down in night {original.night}", RETURN_COMMAND)
        case _:
            return Ours(original, vm, Whereabouts.UNTOUCHED, "has not been shut down by gpuops")


def _ml(original: Original, vm: Vm, *, taken: bool) -> Ours:
    match vm.power:
        case PowerState.ON if taken:
            return Ours(original, vm, Whereabouts.AWAY, f"started in night {original.night}", RETURN_COMMAND)
        case PowerState.ON:
            return Ours(original, vm, Whereabouts.UNTOUCHED, "runs, and was not started by gpuops")
        case PowerState.SUSPENDED:
            return Ours(original, vm, Whereabouts.UNTOUCHED, "was suspended by somebody else; it holds no GPU")
        case PowerState.OFF if not taken:
            return Ours(original, vm, Whereabouts.UNTOUCHED, "has not been started by gpuops")
        case _:
            return Ours(original, vm, Whereabouts.BACK, "is powered off")
