"""Finds reasons not to trust the marker of a VM that the journal does not know: the VM is a copy, or the policy does
not cover it. Called by `taken_vms.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.night_record import Marker, Original, Role
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.command_line import called, command
from gpuops.plan.rotation.witness import moment_of_night


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


BELIEVED: Final = Doubt("", "")


def nights_known(originals: Iterable[Original]) -> dict[str, KnownNight]:
    """Return the nights that the journal knows, by name.

    A night that the journal knows only from markers is left out, because the journal lacks its other VMs.
    """
    originals_by_night: dict[str, list[Original]] = defaultdict(list)
    for original in originals:
        originals_by_night[original.night].append(original)
    originals_by_night = {
        name: originals_of_night
        for name, originals_of_night in originals_by_night.items()
        if not all(original.is_by_marker_alone for original in originals_of_night)
    }
    moments = {
        name: [moment for original in originals_of_night if (moment := moment_of_night(original)) is not None]
        for name, originals_of_night in originals_by_night.items()
    }
    return {
        name: KnownNight(
            min(moments[name], default=None), frozenset().union(*(original.leases for original in originals_of_night))
        )
        for name, originals_of_night in originals_by_night.items()
    }


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
        reason = f"{only_marker} no entry of the policy's queue means it"
    elif policy is not None and original.role is not Role.ML and not policy.in_folder(vm):
        reason = f"{only_marker} it is in no folder that the policy names" + (f" ({vm.path})" if vm.path else "")
    return Doubt(reason, f"{command('rotate restore', vm=called(vm))} --policy FILE" if reason else "")
