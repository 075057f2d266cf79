"""Finds which VM each machine of a connection broker is, and counts the sessions of users on each VM."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpuops.model.desktops.broker import BrokerVcenter, DesktopMachine, DesktopSession, SessionState
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.inventory import decode_name
from gpuops.model.vcenter.vm import Vm


class MachinePlace(StrEnum):
    """Whether the VM of a broker's machine is in this vCenter, the one whose VMs are matched."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class MachineMatch:
    """Which machine of a broker is which VM of a vCenter."""

    machine_of: Mapping[str, DesktopMachine]
    """VM ref -> the machine that it certainly is."""
    possible: Mapping[str, tuple[DesktopMachine, ...]]
    """VM ref -> the machines that it may be, for VMs that are not certainly one of them."""
    not_found: Mapping[str, str]
    """Machine id -> why it is not certainly a VM of this vCenter; machines of other vCenters are left out."""
    machines: Mapping[str, DesktopMachine]
    """By id, those that are not certainly in another vCenter."""
    elsewhere: frozenset[str]
    """Ids of the machines that are certainly in another vCenter."""

    def doubt(self, vm: str) -> str:
        """Return why it is not certain which machine the VM is; empty if no machine may be this VM."""
        machines = self.possible.get(vm, ())
        if not machines:
            return ""
        if len(machines) > 1:
            return f"{len(machines)} machines of the broker may be this VM: {', '.join(m.name for m in machines)}"
        return f"machine {machines[0].name} of the broker may be this VM: {self.not_found[machines[0].id]}"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return the names of the machines that are not certainly a VM of this vCenter, a line for each reason."""
        names: dict[str, list[str]] = defaultdict(list)
        for identity, why in self.not_found.items():
            names[why].append(self.machines[identity].name)
        return tuple(sorted(f"{', '.join(sorted(machine_names))}: {why}" for why, machine_names in names.items()))

    @property
    def without_vm(self) -> tuple[DesktopMachine, ...]:
        """Return the machines that are or may be in this vCenter and match no VM, for example because the VM was
        renamed."""
        claimed = {machine.id for machines in self.possible.values() for machine in machines}
        return tuple(self.machines[identity] for identity in self.not_found if identity not in claimed)


def match_machines(
    vms: Iterable[Vm], vcenter: str, machines: Sequence[DesktopMachine], vcenters: Sequence[BrokerVcenter]
) -> MachineMatch:
    """Return the match of the machines of a broker with all VMs of the vCenter of that instance uuid.

    `vcenters`: those that the broker works with; empty if it does not report them.

    A machine is looked for by its path; by its name if it has no path, or if no VM is at its path any more. It is
    certainly a VM if the broker manages it, it is certainly in this vCenter, only this VM fits it, the VM fits no other
    machine, and it was found by its path or has none: if no VM is at its path, another VM may have taken its name.
    """
    places = _Places(vcenter, machines, vcenters)
    by_path: dict[str, list[str]] = defaultdict(list)
    by_name: dict[str, list[str]] = defaultdict(list)
    for vm in vms:
        by_path[_fold(vm.path)].append(vm.ref)
        by_name[_fold(vm.name)].append(vm.ref)
    claims: dict[str, list[DesktopMachine]] = defaultdict(list)
    doubts: dict[str, str] = {}
    maybe_here = [machine for machine in machines if places.of(machine) is not MachinePlace.ELSEWHERE]
    for machine in maybe_here:
        matching_refs = _find_vms(machine, by_path, by_name)
        for ref in matching_refs:
            claims[ref].append(machine)
        doubt = places.doubt(machine) or _match_doubt(machine, len(matching_refs), by_path)
        if doubt:
            doubts[machine.id] = doubt
    machine_of = {
        ref: claimants[0] for ref, claimants in claims.items() if len(claimants) == 1 and claimants[0].id not in doubts
    }
    certain = {machine.id for machine in machine_of.values()}
    return MachineMatch(
        machine_of,
        possible={ref: tuple(claimants) for ref, claimants in claims.items() if ref not in machine_of},
        not_found={
            machine.id: doubts.get(machine.id, "another machine of the broker fits its VM too")
            for machine in maybe_here
            if machine.id not in certain
        },
        machines={machine.id: machine for machine in maybe_here},
        elsewhere=frozenset(machine.id for machine in machines) - {machine.id for machine in maybe_here},
    )


class _Places:
    """In which vCenter machines are, as far as the broker reports it."""

    def __init__(self, vcenter: str, machines: Sequence[DesktopMachine], vcenters: Sequence[BrokerVcenter]) -> None:
        self._uuid_of = {
            broker_vcenter.id: broker_vcenter.instance_uuid.strip().lower()
            for broker_vcenter in vcenters
            if broker_vcenter.instance_uuid
        }
        self._names = {broker_vcenter.id: broker_vcenter.name for broker_vcenter in vcenters}
        self._here = [identity for identity, uuid in self._uuid_of.items() if uuid == vcenter.strip().lower()]
        ids = {*self._names, *(machine.vcenter for machine in machines if machine.vcenter)}
        self._alone = len(ids) <= 1 and not set(self._uuid_of) - set(self._here)
        """Whether nothing shows that the broker works with any vCenter but this one."""

    def of(self, machine: DesktopMachine) -> MachinePlace:
        if machine.vcenter in self._here:
            return MachinePlace.HERE if len(self._here) == 1 else MachinePlace.UNCLEAR
        if machine.vcenter in self._uuid_of:
            # If none of the broker's vCenters has our uuid, the broker may know ours by an older uuid: vCenter was
            # rebuilt or restored since.
            return MachinePlace.ELSEWHERE if self._here else MachinePlace.UNCLEAR
        return MachinePlace.HERE if self._alone else MachinePlace.UNCLEAR

    def doubt(self, machine: DesktopMachine) -> str:
        """Return why the machine is not certainly in this vCenter; empty if it is."""
        if self.of(machine) is MachinePlace.HERE:
            return ""
        if machine.vcenter in self._here:
            return "two vCenters of the broker have the instance uuid of this one"
        if machine.vcenter in self._uuid_of:
            return f"it is in vCenter {self._names[machine.vcenter]}, and none of the broker's vCenters has this uuid"
        if machine.vcenter is None:
            return "the broker does not report in which of its vCenters it is"
        return "the broker does not report the uuid of its vCenter (the account needs VC_CONFIG_VIEW)"


def _find_vms(
    machine: DesktopMachine, by_path: Mapping[str, Sequence[str]], by_name: Mapping[str, Sequence[str]]
) -> Sequence[str]:
    """Return the refs of the VMs at the machine's path or, if there is none, of those with its name."""
    if refs_at_path := _refs_of(machine.path or "", by_path):
        return refs_at_path
    names = {machine.name}
    if not machine.managed:  # its name is the name of its guest in the network
        names |= {name.partition(".")[0] for name in (machine.name, machine.dns_name or "") if name}
    return list(dict.fromkeys(ref for name in sorted(names) for ref in _refs_of(name, by_name)))


def _refs_of(written: str, refs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the refs of the VMs with this name or path, which a broker may report with vCenter's escapes (`a%2fb`) or
    without (`a/b`)."""
    spellings = dict.fromkeys((_fold(written), _fold(decode_name(written))))
    return list(dict.fromkeys(ref for spelling in spellings for ref in refs.get(spelling, ()))) if written else []


def _match_doubt(machine: DesktopMachine, match_count: int, by_path: Mapping[str, Sequence[str]]) -> str:
    """Return why the machine is not certainly the VM that matches; empty if it is. `match_count`: of `_find_vms`."""
    is_path_empty = bool(machine.path) and not _refs_of(machine.path or "", by_path)
    if not match_count:
        return f"no VM is at its path {machine.path} or has its name" if is_path_empty else "no VM has its name"
    if match_count > 1:
        return f"{match_count} VMs {'are at its path' if machine.path and not is_path_empty else 'have its name'}"
    if not machine.managed:
        return "the broker knows only the name of its guest"
    return f"its name fits, but no VM is at its path {machine.path}" if is_path_empty else ""


def _fold(name: str) -> str:
    """Return the name or path in the form in which it is compared: vCenter ignores letter case."""
    return unicodedata.normalize("NFC", name).casefold().strip()


NOT_IN_LIST: Final = "the broker's list of sessions lacks the one that its machine has"
NO_AGENT: Final = "the agent of its machine does not answer the broker"
MAY_HAVE_SESSION: Final = frozenset({NOT_IN_LIST, NO_AGENT})
"""Reasons why the sessions of a VM are unknown although the broker knows its machine. A user may be at it, so the VM is
kept also where its pool does not require the broker (assumption: broker-no-agent)."""

_NEW_MACHINE: Final = "a machine that is not in its list"


@dataclass(frozen=True, slots=True)
class SessionsRead:
    """The sessions that a broker lists, by machine."""

    match: MachineMatch
    by_machine: Mapping[str, Sequence[DesktopSession]]
    asked: datetime
    """The moment for which ages are computed."""
    without_machine: int
    """Sessions on no machine of the broker's list."""
    may_be_anywhere: str
    """A machine that has a session but no known VM, so that any VM without a machine may be it; empty = none."""

    def of(self, vm: str) -> SessionCount | None:
        """Return the sessions of a VM (ref); None = it is not a machine of the broker.

        A session on a machine that may be this VM counts as one: the desktop of a connected user is never suspended
        because a name did not fit.
        """
        machine = self.match.machine_of.get(vm)
        if machine is not None:
            return _count_sessions(self.by_machine.get(machine.id, ()), machine.session, self.asked)
        possible = self.match.possible.get(vm, ())
        for candidate in possible:
            if candidate.session is not None or self.by_machine.get(candidate.id):
                why = f"machine {candidate.name} of the broker has a session, and may be this VM"
                return SessionCount(None, True, self.asked, because=f"{why}: {self.match.not_found[candidate.id]}")
        if self.may_be_anywhere:
            why = f"the broker has a session on {self.may_be_anywhere}, whose VM is not found: it may be this one"
            return SessionCount(None, True, self.asked, because=why)
        return SessionCount(None, None, self.asked, because=self.match.doubt(vm)) if possible else None


def read_sessions(match: MachineMatch, sessions: Iterable[DesktopSession], as_of: datetime) -> SessionsRead:
    """Return the sessions by machine; ages are computed for `as_of`."""
    by_machine: dict[str, list[DesktopSession]] = defaultdict(list)
    without_machine, has_new_machine = 0, False
    for session in sessions:
        if session.machine in match.machines:
            by_machine[session.machine or ""].append(session)
        elif session.machine not in match.elsewhere:
            without_machine += 1
            # a session that is not on an RDS host is on a machine made since the list was read: it may be any VM
            has_new_machine = has_new_machine or not session.on_rds_host
    used_without_vm = [
        machine.name
        for machine in match.without_vm
        if machine.managed and (machine.session is not None or machine.id in by_machine)
    ]
    may_be_anywhere = _NEW_MACHINE if has_new_machine else ""
    if used_without_vm:
        may_be_anywhere = f"machine {min(used_without_vm)}"
    return SessionsRead(match, by_machine, as_of, without_machine, may_be_anywhere)


def _count_sessions(sessions: Sequence[DesktopSession], session_in_record: str | None, as_of: datetime) -> SessionCount:
    """Return the number of sessions, with their ages.

    A disconnected session counts: its user comes back to it. The time since all were disconnected is known only if the
    broker reports it for each of them. If the list lacks the session in the machine's own record (`session_in_record`),
    the list is old or incomplete, and the number is unknown.
    """
    if session_in_record is not None and all(session.id != session_in_record for session in sessions):
        return SessionCount(None, None, as_of, because=NOT_IN_LIST)
    ages_s = [_age_s(session.started_at, as_of) for session in sessions if session.started_at is not None]
    disconnected = [session for session in sessions if session.state is SessionState.DISCONNECTED]
    disconnected_at = [session.disconnected_at for session in disconnected if session.disconnected_at is not None]
    all_disconnected = bool(disconnected_at) and len(disconnected_at) == len(sessions)
    return SessionCount(
        len(sessions),
        bool(sessions),
        as_of,
        oldest_s=max(ages_s, default=None),
        youngest_s=min(ages_s, default=None),
        disconnected_s=_age_s(max(disconnected_at), as_of) if all_disconnected else None,
    )


def _age_s(moment: datetime, as_of: datetime) -> int:
    return max(0, int((as_of - moment).total_seconds()))
