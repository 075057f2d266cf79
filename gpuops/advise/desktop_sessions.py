"""Counts the sessions of users on each VM, as a connection broker lists them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuops.advise.machine_match import MachineMatch
from gpuops.model.desktops.broker import DesktopSession, SessionState
from gpuops.model.desktops.evidence import SessionCount

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
            return _count(self.by_machine.get(machine.id, ()), machine.session, self.asked)
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
    without_machine, unlisted = 0, False
    for session in sessions:
        if session.machine in match.machines:
            by_machine[session.machine or ""].append(session)
        elif session.machine not in match.elsewhere:
            without_machine += 1
            # a session that is not on an RDS host is on a machine made since the list was read: it may be any VM
            unlisted = unlisted or not session.on_rds_host
    in_use = [
        machine.name
        for machine in match.without_vm
        if machine.managed and (machine.session is not None or machine.id in by_machine)
    ]
    may_be_anywhere = f"machine {min(in_use)}" if in_use else _NEW_MACHINE if unlisted else ""
    return SessionsRead(match, by_machine, as_of, without_machine, may_be_anywhere)


def _count(sessions: Sequence[DesktopSession], named: str | None, as_of: datetime) -> SessionCount:
    """Return the number of sessions, with their ages.

    A disconnected session counts: its user comes back to it. The time since all were disconnected is known only if the
    broker reports it for each of them. If the list lacks the session in the machine's own record (`named`), the list is
    old or incomplete, and the number is unknown.
    """
    if named is not None and all(session.id != named for session in sessions):
        return SessionCount(None, None, as_of, because=NOT_IN_LIST)
    ages_s = [_age_s(session.started_at, as_of) for session in sessions if session.started_at is not None]
    disconnected = [session for session in sessions if session.state is SessionState.DISCONNECTED]
    since = [session.disconnected_at for session in disconnected if session.disconnected_at is not None]
    all_disconnected = bool(since) and len(since) == len(sessions)
    return SessionCount(
        len(sessions),
        bool(sessions),
        as_of,
        oldest_s=max(ages_s, default=None),
        youngest_s=min(ages_s, default=None),
        disconnected_s=_age_s(max(since), as_of) if all_disconnected else None,
    )


def _age_s(moment: datetime, as_of: datetime) -> int:
    return max(0, int((as_of - moment).total_seconds()))
