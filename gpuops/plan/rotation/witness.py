"""Judges whether this vCenter is the one of the journal or a copy of it, and whether a VM's marker can be trusted.

A journal belongs to the instance uuid of its vCenter, and a copy of that vCenter has the same uuid: a lab made from a
backup, or a disaster recovery site. In a copy every desktop may be running. If a return trusted that, it would close
the night and leave the desktops of the real vCenter suspended.

**Invariant: an original may be closed only if all of this holds:** the VM is as it was before the night, its state in
vCenter does not contradict the journal, and this is not another vCenter. gpuops assumes another vCenter if at least one
VM of an open night contradicts the journal and none agrees with it. It then closes no original, clears no marker, stops
no VM and begins no night, and reports the VMs (exit code 4). It still resumes a desktop that is not running and does
not contradict the journal: that loses nothing, and if the suspicion is wrong, every user needs a desktop.

The evidence:

- The moments of the VM (`runtime.suspendTime`, `runtime.bootTime`) come from the hosts. They agree with the night, are
  earlier than it, or prove nothing. An unknown moment contradicts only if the task history has no task of the night.
- The marker of the night on the VM proves that this vCenter, or the one it was copied from, has seen the night. Such a
  VM never contradicts. A revert to a snapshot changes the moments and keeps the marker.
- The task history of vCenter has the task of the night. It is read only if its content could change the verdict.
- Address and certificate also change in healthy vCenters, so they are not used.

Example: the night suspended vdi-07 at 20:14. Here it runs, has no marker, was last suspended on Monday, and the task
history knows no suspend about 20:14: it contradicts. Had a user resumed it at night, it would show 20:14.

`taken_vms.py` asks for the reasons not to trust the marker of a VM that the journal does not know: the VM is a copy of
another one, or the policy does not cover it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.night_record import Marker, Original, Role, parse_marker
from gpuops.model.nights.rotation_policy import LATE, Policy
from gpuops.model.time_text import format_second
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.rejection import Rejection

OriginalKey = tuple[str, str]
"""Night and managed object id of an original."""
_NOT_TOUCHED: Final = "it is not touched, and its night stays open"


class Evidence(StrEnum):
    """Whether the state of a VM of a night in this vCenter agrees with the journal."""

    AGREES = "agrees"
    SILENT = "silent"
    CONTRADICTS = "contradicts"


@dataclass(frozen=True, slots=True)
class Witness:
    """A VM that a night took according to the journal, with its state in this vCenter."""

    original: Original
    vm: Vm | None
    """None = no VM in this vCenter has its instance uuid, or several have."""
    has_task: bool | None = None
    """Whether the task history has a suspend or start of the VM within an hour of when the night took it, or a later
    start by this login (a return). None = not read yet, or this login may not read the history."""

    @property
    def evidence(self) -> Evidence:
        """What the last suspend or start of the VM shows; SILENT = it may be that of the journal, or another one."""
        moment_taken, moment_shown = moment_of_night(self.original), self._moment_shown
        if moment_taken is None or self.vm is None or not self._is_settled:
            return Evidence.SILENT
        if moment_shown is not None and abs(moment_shown - moment_taken) <= LATE:
            # a desktop that a night shut down may have been started just before
            return Evidence.SILENT if self.original.role is Role.SHUT_DOWN else Evidence.AGREES
        # Another moment proves nothing if the task history or the marker of the night shows that the night took it.
        if self.has_task or has_marker_of(self.original, self.vm):
            return Evidence.SILENT
        if moment_shown is not None and moment_shown < moment_taken:
            return Evidence.CONTRADICTS if self._is_running or self.original.role is Role.DESKTOP else Evidence.SILENT
        # No moment, the power state from before the night and no task: here the night did not suspend or start it.
        as_before = self._is_running is (self.original.role is not Role.ML)
        unknown_moment = moment_shown is None and as_before and self.original.role is not Role.SHUT_DOWN
        return Evidence.CONTRADICTS if unknown_moment and self.has_task is False else Evidence.SILENT

    @property
    def moment_to_search(self) -> datetime | None:
        """The moment near which the task history must be searched; None = it was read already or cannot change the
        verdict."""
        if self.has_task is not None:
            return None
        # Judge as if the history had no task of the night: only then can the VM contradict the journal.
        without_task = Witness(self.original, self.vm, has_task=False)
        return moment_of_night(self.original) if without_task.evidence is Evidence.CONTRADICTS else None

    @property
    def reason(self) -> str:
        """Why the VM contradicts the journal, for people."""
        moment_taken, moment_shown = moment_of_night(self.original), self._moment_shown
        night = f"night {self.original.night}"
        match self.original.role:
            case Role.DESKTOP:
                journal_text = f"{night} suspended it at {_format_utc(moment_taken)}"
                vcenter_text = (
                    f"was last suspended at {_format_utc(moment_shown)}"
                    if moment_shown is not None
                    else "shows no suspend since then"
                )
            case Role.SHUT_DOWN:
                journal_text = f"{night} shut it down after {_format_utc(moment_taken)}"
                vcenter_text = f"has been running since {_format_utc(moment_shown)}"
            case Role.ML:
                journal_text = f"{night} started it at {_format_utc(moment_taken)}"
                vcenter_text = (
                    f"has been running since {_format_utc(moment_shown)}"
                    if moment_shown is not None
                    else "shows no start since then"
                )
        return f"this may be a copy of its vCenter: {journal_text}, and here it {vcenter_text}; {_NOT_TOUCHED}"

    @property
    def _is_running(self) -> bool:
        return self.vm is not None and self.vm.power is PowerState.ON

    @property
    def _moment_shown(self) -> datetime | None:
        if self.vm is None:
            return None
        return self.vm.suspended_at if self.original.role is Role.DESKTOP else self.vm.started_at

    @property
    def _is_settled(self) -> bool:
        """Whether the night certainly took the VM and vCenter shows its current state.

        False for a VM that was registered again (its managed object id changed): that loses its moments.
        """
        original, vm = self.original, self.vm
        if vm is None or vm.power is None or vm.connected is False or vm.ref != original.vm:
            return False
        if original.stopped:
            return False  # a return has stopped it here, and cleared its marker
        return original.taken and not (original.unsure or original.returned or original.given_up)


@dataclass(frozen=True, slots=True)
class VcenterVerdict:
    """The conclusion from all witnesses."""

    is_another: bool
    """Whether this vCenter is not the one of the nights."""
    contradictions: Mapping[OriginalKey, str]
    """Why the VM of an original is not touched and the original stays open."""


def judge_vcenter(witnesses: Sequence[Witness]) -> VcenterVerdict:
    """Return which originals stay open and untouched, and whether this is another vCenter (the invariant above)."""
    contradicting = [witness for witness in witnesses if witness.evidence is Evidence.CONTRADICTS]
    is_another = bool(contradicting) and not any(witness.evidence is Evidence.AGREES for witness in witnesses)
    reasons = {key_of(witness.original): witness.reason for witness in contradicting}
    if is_another:
        names = ", ".join(witness.original.name for witness in contradicting[:3])
        common_reason = f"this may be a copy of its vCenter, because {names} contradict the journal; {_NOT_TOUCHED}"
        for witness in witnesses:
            if not _may_be_resumed(witness):
                reasons.setdefault(key_of(witness.original), common_reason)
    return VcenterVerdict(is_another, reasons)


def is_another_vcenter(originals: Iterable[Original], inventory: Inventory) -> bool:
    """Return whether this is another vCenter, for originals whose `contradiction` is already set."""
    open_originals = [original for original in originals if not original.returned]
    if not any(original.contradiction for original in open_originals):
        return False
    witnesses = (Witness(original, find_original_vm(original, inventory)) for original in open_originals)
    return not any(witness.evidence is Evidence.AGREES for witness in witnesses)


def refuse_another_vcenter(originals: Iterable[Original], inventory: Inventory) -> Rejection:
    """Return the rejection of a new night because this may be a copy of the vCenter of the open nights."""
    names = [original.name for original in originals if original.contradiction]
    return Rejection(
        inventory.vcenter,
        f"it may be a copy of the vCenter of open nights, because {', '.join(names[:3])} contradict the journal",
        hint="gpuops rotate status shows the differences; gpuops help journal explains them",
    )


def key_of(original: Original) -> OriginalKey:
    return original.night, original.vm


def find_original_vm(original: Original, inventory: Inventory) -> Vm | None:
    """Return the VM as it is now; None if it was deleted, or if several VMs have its instance uuid."""
    if original.uuid is None:
        return inventory.vms.get(original.vm)
    vms = inventory.vms_with_uuid(original.uuid)
    return vms[0] if len(vms) == 1 else None


def has_marker_of(original: Original, vm: Vm) -> bool:
    """Return whether the VM has the marker of this night, in any attribute."""
    markers = (parse_marker(text) for text in vm.attributes.values())
    return any(marker is not None and marker.night == original.night for marker in markers)


def moment_of_night(original: Original) -> datetime | None:
    """Return when the night took the VM; None = the journal has no moment."""
    return original.started_at if original.role is Role.ML else original.suspended_at


def _may_be_resumed(witness: Witness) -> bool:
    """Return whether it is a desktop that is not running: resuming it loses nothing, even in a copy."""
    return witness.original.role is not Role.ML and witness.vm is not None and not witness._is_running


def _format_utc(moment: datetime | None) -> str:
    return f"{format_second(moment.astimezone(UTC))} UTC" if moment is not None else "an unknown time"


@dataclass(frozen=True, slots=True)
class KnownNight:
    """The first moment and the lease numbers that the journal has of one night."""

    began: datetime | None
    """The first moment at which it is known to have taken a VM."""
    leases: frozenset[int]


class Doubt(NamedTuple):
    """Why a marker is not trusted, and the command that overrides this; both empty = it is trusted."""

    reason: str
    command: str


NO_DOUBT: Final = Doubt("", "")


def known_nights(originals: Iterable[Original]) -> dict[str, KnownNight]:
    """Return the nights that the journal knows, by name.

    A night that the journal knows only from markers is left out, because the journal lacks its other VMs.
    """
    originals_by_night: dict[str, list[Original]] = defaultdict(list)
    for original in originals:
        originals_by_night[original.night].append(original)
    nights: dict[str, KnownNight] = {}
    for name, originals_of_night in originals_by_night.items():
        if not all(original.is_by_marker_alone for original in originals_of_night):
            moments = (moment for original in originals_of_night if (moment := moment_of_night(original)) is not None)
            leases = frozenset(lease for original in originals_of_night for lease in original.leases)
            nights[name] = KnownNight(min(moments, default=None), leases)
    return nights


def copy_doubt(marker: Marker, vm: Vm, night: KnownNight | None, policy: Policy | None) -> Doubt | None:
    """Return the doubt that a marked VM is a copy, because the journal knows the marker's night but not this VM of it.

    None if there is no such doubt:
    - the journal does not know the night;
    - an ML VM is not powered on, or a desktop not powered off. A clone of a suspended desktop is powered off, so a
      suspended desktop is no copy, and resuming it loses nothing. A VM that is as before only has its marker cleared;
    - the policy has a lock VM, and the lease in the marker is not one of this journal: another machine took the VM;
    - the VM was created before the night, so a run whose journal was lost may have taken it.

    Nothing depends on whether a clone has the marker of its source (assumption: clone-attributes).
    """
    power_if_taken = PowerState.ON if marker.role is Role.ML else PowerState.OFF
    if night is None or vm.power is not power_if_taken:
        return None
    if policy is not None and policy.lock_vm is not None and marker.lease not in night.leases:
        return None
    if vm.created_at is not None and night.began is not None and vm.created_at < night.began:
        return None
    reason = f"carries the marker of night {marker.night}, which did not take it: it is a copy of a VM of that night"
    return Doubt(reason, command("rotate clear-marker", vm=called(vm)))


def policy_doubt(original: Original, vm: Vm) -> Doubt:
    """Return why the marker of a VM that the journal does not know is not trusted; empty = the policy covers the VM."""
    policy, only_marker = original.policy, "only its marker says that a night took it, and"
    reason = ""
    if policy is not None and original.role is Role.ML and entry_of(policy.ml, vm) is None:
        reason = f"{only_marker} no entry of the policy's queue selects it"
    elif policy is not None and original.role is not Role.ML and not policy.in_folder(vm):
        reason = f"{only_marker} it is in no folder that the policy names" + (f" ({vm.path})" if vm.path else "")
    return Doubt(reason, f"{command('rotate restore', vm=called(vm))} --policy FILE" if reason else "")
