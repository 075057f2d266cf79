"""Rotation, what is ours: VMs that a night took, from the journal, from vCenter's markers, or from both.

Either source alone is enough to bring a desktop back. Neither widens the policy: a VM outside of it is named, not
touched.

Where several machines rotate under one lock VM, each with a journal of its own, a journal that knows of no start or
suspend is no proof that there was none: the marker that is still there stands for what another one did.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never

from gpuops.model.inventory import Inventory
from gpuops.model.ml_queue import entry_of
from gpuops.model.rotation import Marker, Original, Policy, Role, parse_marker
from gpuops.model.vm import PowerState, Vm

RETURN_COMMAND: Final = "gpuops rotate day"
"""Safe at any time: it only resumes suspended desktops and stops ML VMs that a night started."""


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
    """Marked, and outside this policy: named, never touched."""
    UNKNOWN = "unknown"
    """Its state cannot be read."""


@dataclass(frozen=True, slots=True)
class Ours:
    """One VM of a night and where it is now."""

    original: Original
    vm: Vm | None
    whereabouts: Whereabouts
    reason: str
    command: str = ""
    """One safe command for a VM that is not as it was; empty when there is nothing to do."""
    foreign: Marker | None = None
    """Its marker, where the journal knows of no night for it."""


def marker_of(policy: Policy | None) -> str:
    """The custom attribute that nights under this policy set; None = the one of a policy that names none."""
    return (policy or Policy(name="", pools=())).marker


def ours(policy: Policy | None, originals: Iterable[Original], inventory: Inventory) -> tuple[Ours, ...]:
    """Every VM of nights that are not over, desktops first. `policy` None asks only where they are."""
    originals = tuple(originals)
    known = {original.vm: original for original in originals if not original.returned}
    remembered = {(original.night, original.vm): original for original in originals}
    foreign: dict[str, Marker] = {}
    marker = marker_of(policy)
    for vm in inventory.vms.values():
        marked = parse_marker(vm.attributes.get(marker, ""))
        if marked is None or vm.ref in known:
            continue
        closed = remembered.get((marked.night, vm.ref))
        if closed is not None:
            known[vm.ref] = _left_over(closed)
        else:
            foreign[vm.ref] = marked
            known[vm.ref] = _from_marker(marked, vm)
    judged = ((ref, _judge(policy, original, inventory.vms.get(ref))) for ref, original in known.items())
    found = [replace(mine, foreign=foreign[ref]) if ref in foreign else mine for ref, mine in judged]
    return tuple(sorted(found, key=lambda mine: (mine.original.role, mine.original.name)))


def _left_over(closed: Original) -> Original:
    """What the journal closed, and whose marker could not be cleared: who runs such an ML VM is somebody else."""
    return replace(closed, taken=False) if closed.role is Role.ML else closed


def _from_marker(marked: Marker, vm: Vm) -> Original:
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
    )


def _judge(policy: Policy | None, original: Original, vm: Vm | None) -> Ours:
    if vm is None and not original.taken:
        return Ours(original, None, Whereabouts.UNTOUCHED, "was gone from vCenter before anything was done to it")
    if vm is None:
        return Ours(original, None, Whereabouts.GONE, "is gone from vCenter", "gpuops rotate status")
    another = _another(original, vm)
    if another is not None:
        return another
    if policy is not None and not _inside(policy, original, vm):
        reason = f"a night took it, and this policy does not cover it{_where(vm)}: not touched"
        return Ours(
            original, vm, Whereabouts.FOREIGN, reason, f"{RETURN_COMMAND} --policy FILE, the policy of that night"
        )
    if vm.power is None or vm.connected is False:
        return Ours(original, vm, Whereabouts.UNKNOWN, "is not connected, its state cannot be read", RETURN_COMMAND)
    unsettled = _unsettled(original, vm)
    if unsettled is not None:
        return Ours(original, vm, Whereabouts.CHANGING, unsettled, RETURN_COMMAND)
    match original.role:
        case Role.DESKTOP:
            return _desktop(original, vm, taken=original.taken or _taken_elsewhere(policy, original, vm))
        case Role.SHUT_DOWN:
            return _shut_down(original, vm)
        case Role.ML:
            return _ml(original, vm, taken=original.taken or _taken_elsewhere(policy, original, vm))
        case _:
            assert_never(original.role)


def _another(original: Original, vm: Vm) -> Ours | None:
    """Of a VM that is not the one that was taken, or may not be."""
    if vm.instance_uuid is None:
        reason = "its instance uuid cannot be read: it may be another VM"
        return Ours(original, vm, Whereabouts.UNKNOWN, reason, RETURN_COMMAND)
    if original.uuid is not None and vm.instance_uuid != original.uuid:
        reason = "is another VM now: its instance uuid changed"
        return Ours(original, vm, Whereabouts.GONE, reason, "gpuops rotate status")
    return None


def _where(vm: Vm) -> str:
    """It may have been moved since, or renamed, and then the policy of that night is of no help before it is back."""
    return f" where it is now ({vm.path})" if vm.path else ""


def _unsettled(original: Original, vm: Vm) -> str | None:
    """What is about to change its power, or may be; None = it is what it is."""
    under_way = changing(vm)
    if under_way is None and original.unsure and as_before(original, vm):
        return "may still be changed: what the night sent minutes ago was given up, and vCenter shows no effect of it"
    return under_way


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


def _inside(policy: Policy, original: Original, vm: Vm) -> bool:
    if original.role is Role.ML:
        return entry_of(policy.ml, vm, original.name) is not None
    return policy.pool_of(vm) is not None


def _taken_elsewhere(policy: Policy | None, original: Original, vm: Vm) -> bool:
    """Whether the night of another machine may have taken it, which this journal cannot know.

    Without a lock VM nights are of one machine: its journal knows them all, and the marker of a step that never came is
    no reason to touch a VM that somebody else has started since.
    """
    if policy is None or policy.lock_vm is None:
        return False
    marked = parse_marker(vm.attributes.get(policy.marker, ""))
    return marked is not None and marked.role is original.role


def _desktop(original: Original, vm: Vm, *, taken: bool) -> Ours:
    marked = any(parse_marker(value) is not None for value in vm.attributes.values())
    match vm.power:
        case PowerState.ON if original.taken:
            return Ours(original, vm, Whereabouts.BACK, "is running")
        case PowerState.SUSPENDED if original.taken or marked:
            return Ours(original, vm, Whereabouts.AWAY, f"suspended in night {original.night}", RETURN_COMMAND)
        case PowerState.OFF if taken:
            reason = "is powered off: its suspended state was discarded by somebody else"
            return Ours(original, vm, Whereabouts.LOST, reason, "gpuops rotate status")
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
