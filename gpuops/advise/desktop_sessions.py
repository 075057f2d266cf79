"""Finds the VM of each machine of a broker, and says what sessions its users have there.

A machine is found by the inventory path of its VM, or by its name where one VM alone has that name. One whose path
leads nowhere is not looked for by name: another VM may have taken the name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuops.model.broker import DesktopMachine, DesktopSession, SessionState, VmSessions
from gpuops.model.inventory import Inventory


@dataclass(frozen=True, slots=True)
class SessionsRead:
    """A snapshot whose VMs tell their sessions, and the machines of the broker that are none of its VMs."""

    inventory: Inventory
    vm_of: Mapping[str, str]
    """VM ref by the id of the machine."""
    unmatched: tuple[str, ...]
    """Names of machines for which there is no VM, or more than one machine or VM."""
    without_machine: int
    """Sessions on no machine of the broker's list."""


def matched(
    inventory: Inventory, machines: Sequence[DesktopMachine], sessions: Iterable[DesktopSession]
) -> SessionsRead:
    """The snapshot with `Vm.sessions` for each VM that is a machine; ages are as of its `taken_at`.

    A VM that two machines lay claim to has none: which of the two a user means is not known.
    """
    by_machine: dict[str, list[DesktopSession]] = defaultdict(list)
    known = {machine.id for machine in machines}
    lost = 0
    for session in sessions:
        if session.machine in known:
            by_machine[session.machine or ""].append(session)
        else:
            lost += 1
    vm_of = _vms_of(inventory, machines)
    changed = [
        replace(inventory.vms[ref], sessions=_summary(by_machine[identity], inventory.taken_at))
        for identity, ref in vm_of.items()
    ]
    unmatched = tuple(sorted(machine.name for machine in machines if machine.id not in vm_of))
    return SessionsRead(inventory.with_vms(changed), vm_of, unmatched, lost)


def _vms_of(inventory: Inventory, machines: Sequence[DesktopMachine]) -> dict[str, str]:
    by_path: dict[str, list[str]] = defaultdict(list)
    by_name: dict[str, list[str]] = defaultdict(list)
    for ref, vm in inventory.vms.items():
        by_path[vm.path].append(ref)
        by_name[vm.name].append(ref)
    claims: dict[str, list[str]] = defaultdict(list)
    for machine in machines:
        found = by_path.get(machine.path, []) if machine.path else by_name.get(machine.name, [])
        if len(found) == 1:
            claims[found[0]].append(machine.id)
    return {claimants[0]: ref for ref, claimants in claims.items() if len(claimants) == 1}


def _summary(sessions: Sequence[DesktopSession], asked_at: datetime) -> VmSessions:
    connected = [each for each in sessions if each.state is not SessionState.DISCONNECTED]
    return VmSessions(
        len(sessions),
        len(connected),
        _least_age([each.started_at for each in sessions], asked_at),
        _least_age([each.disconnected_at for each in sessions if each not in connected], asked_at),
        min((each.idle_s for each in connected if each.idle_s is not None), default=None),
    )


def _least_age(moments: Iterable[datetime | None], asked_at: datetime) -> float | None:
    ages = [max(0.0, (asked_at - moment).total_seconds()) for moment in moments if moment is not None]
    return min(ages, default=None)
