"""Finds the VM of each machine of a broker, and says what sessions its users have there.

A machine is found by the inventory path of its VM, or by its name where one VM alone has that name. One whose path
leads nowhere is not looked for by name: another VM may have taken the name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuops.model.desktops.broker import DesktopMachine, DesktopSession, SessionState
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.vm import Vm

NOT_IN_LIST: Final = "the broker's list of sessions lacks the one that its machine has"


@dataclass(frozen=True, slots=True)
class SessionsRead:
    """What a broker tells of VMs, and the machines of the broker that are none of them."""

    of_vm: Mapping[str, SessionCount]
    """By VM ref; a VM that is no machine of the broker is missing."""
    vm_of: Mapping[str, str]
    """VM ref by the id of the machine."""
    unmatched: tuple[str, ...]
    """Names of machines for which there is no VM, or more than one machine or VM."""
    without_machine: int
    """Sessions on no machine of the broker's list."""


def matched(
    vms: Iterable[Vm], machines: Sequence[DesktopMachine], sessions: Iterable[DesktopSession], asked: datetime
) -> SessionsRead:
    """The sessions of each VM that is a machine; ages are as of `asked`.

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
    vm_of = _vms_of(vms, machines)
    named = {machine.id: machine.session for machine in machines}
    of_vm = {ref: _count(by_machine[identity], named[identity], asked) for identity, ref in vm_of.items()}
    unmatched = tuple(sorted(machine.name for machine in machines if machine.id not in vm_of))
    return SessionsRead(of_vm, vm_of, unmatched, lost)


def _vms_of(vms: Iterable[Vm], machines: Sequence[DesktopMachine]) -> dict[str, str]:
    by_path: dict[str, list[str]] = defaultdict(list)
    by_name: dict[str, list[str]] = defaultdict(list)
    for vm in vms:
        by_path[vm.path].append(vm.ref)
        by_name[vm.name].append(vm.ref)
    claims: dict[str, list[str]] = defaultdict(list)
    for machine in machines:
        found = by_path.get(machine.path, []) if machine.path else by_name.get(machine.name, [])
        if len(found) == 1:
            claims[found[0]].append(machine.id)
    return {claimants[0]: ref for ref, claimants in claims.items() if len(claimants) == 1}


def _count(sessions: Sequence[DesktopSession], named: str | None, asked: datetime) -> SessionCount:
    """A session that is disconnected counts as well: its user finds it when they come back. How long all of them are
    is told where the broker tells it of each. A list that lacks the session which the machine's own record names
    (`named`) is old or not whole, and what it tells of this machine is not believed."""
    if named is not None and all(each.id != named for each in sessions):
        return SessionCount(None, None, asked, because=NOT_IN_LIST)
    ages_s = [
        max(0, int((asked - each.started_at).total_seconds())) for each in sessions if each.started_at is not None
    ]
    gone = [each.disconnected_at if each.state is SessionState.DISCONNECTED else None for each in sessions]
    since = [moment for moment in gone if moment is not None]
    return SessionCount(
        len(sessions),
        bool(sessions),
        asked,
        oldest_s=max(ages_s, default=None),
        youngest_s=min(ages_s, default=None),
        disconnected_s=max(0, int((asked - max(since)).total_seconds())) if since and len(since) == len(gone) else None,
    )
