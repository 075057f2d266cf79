"""Why the marker of a VM that the journal does not know is not believed: the VM is a copy, or the policy does not cover
it. `taken_vms.py` asks."""

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
    """What the journal knows of one night."""

    began: datetime | None
    """The first moment at which it is known to have taken a VM."""
    leases: frozenset[int]


class Doubt(NamedTuple):
    """Why a marker is not believed, and the command for whoever knows better; both empty = it is believed."""

    reason: str
    command: str


BELIEVED: Final = Doubt("", "")


def nights_known(originals: Iterable[Original]) -> dict[str, KnownNight]:
    """The nights that the journal knows, by name."""
    by_name: dict[str, list[Original]] = defaultdict(list)
    for original in originals:
        by_name[original.night].append(original)
    moments = {
        name: [moment for each in of_night if (moment := moment_of_night(each)) is not None]
        for name, of_night in by_name.items()
    }
    return {
        name: KnownNight(min(moments[name], default=None), frozenset().union(*(each.leases for each in of_night)))
        for name, of_night in by_name.items()
    }


def copy_doubt(marked: Marker, vm: Vm, night: KnownNight | None, policy: Policy | None) -> Doubt | None:
    """That a VM is a copy: its marker is of a night that the journal knows, and that night did not take it. None = it
    may be away for that night, or it is as if it had come back, and its marker is cleared anyway.

    With a lock VM the marker names the lease of the machine that took it: only a lease of this journal is its own. A VM
    that is older than the night may have been taken by a run whose journal is lost. A suspended desktop is no copy, for
    a clone of one is powered off; resuming it loses nothing. Whether a clone has the marker of its source is not
    relied on (assumption: clone-attributes).
    """
    away = PowerState.ON if marked.role is Role.ML else PowerState.OFF
    if night is None or vm.power is not away:
        return None
    if policy is not None and policy.lock_vm is not None and marked.lease not in night.leases:
        return None
    if vm.created_at is not None and night.began is not None and vm.created_at < night.began:
        return None
    reason = f"carries the marker of night {marked.night}, which did not take it: it is a copy of a VM of that night"
    return Doubt(reason, command("rotate clear-marker", vm=called(vm)))


def policy_doubt(original: Original, vm: Vm) -> Doubt:
    """Why the marker of a VM that the journal does not know is not believed; empty = the policy covers the VM."""
    policy, alone = original.policy, "only its marker says that a night took it, and"
    reason = ""
    if policy is not None and original.role is Role.ML and entry_of(policy.ml, vm) is None:
        reason = f"{alone} no entry of the policy's queue means it"
    elif policy is not None and original.role is not Role.ML and not policy.in_folder(vm):
        reason = f"{alone} it is in no folder that the policy names" + (f" ({vm.path})" if vm.path else "")
    return Doubt(reason, f"{command('rotate restore', vm=called(vm))} --policy FILE" if reason else "")
