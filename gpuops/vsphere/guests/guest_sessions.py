"""Counts the sessions in guests from their process lists, which guest operations return; the user names are not kept.

A session is counted by a process that every user needs: explorer.exe on Windows, and `systemd --user` on Linux, which
an SSH login has too. Those of display managers, which wait for a login, do not count. Each owner counts once,
disconnected or not. This is an inference of gpuops: neither VMware's API nor VMware Tools report sessions.

Source: vSphere API reference, GuestProcessManager.ListProcessesInGuest and GuestProcessInfo: name, owner, command line
and start. A login without administrator rights may see its own processes only (from memory); then the count is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.errors import GpuopsError
from gpuops.model.desktops.evidence import SESSIONS_FRESH_S, SessionCount
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

if TYPE_CHECKING:
    from gpuops.vsphere.connection import Connection

WINDOWS_SHELL: Final = "explorer.exe"
LINUX_MANAGER: Final = "systemd"
DISPLAY_MANAGERS: Final = frozenset({"gdm", "debian-gdm", "gdm-greeter", "lightdm", "sddm"})
MOST: Final = 100_000
"""More processes than a guest has."""


@dataclass(frozen=True, slots=True)
class GuestProcess:
    """One process of a guest, while sessions are counted."""

    name: str
    owner: str
    """Empty = unknown."""
    command: str
    started_at: datetime | None


class GuestSessions:
    """Implements `SessionSource` by guest operations: one call for each VM, at most five minutes in total.

    After a refused login no further guest is read: further refusals could lock the account.
    """

    def __init__(self, session: Connection, say: Callable[[str], None] = lambda line: None) -> None:
        """`say` gets a line for each different reason why guests do not answer."""
        self._session = session
        self._say = say
        self._reported_reasons: set[str] = set()
        self._login_refused = False

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        """Return the session count of each of these VMs by ref; it may be unknown."""
        started_s, asked_at = clock.passed_s(), inventory.taken_at
        counts = {}
        for vm in vms:
            reason = self._reason_not_to_read(vm, clock.passed_s() - started_s)
            counts[vm.ref] = _unknown_count(asked_at, reason) if reason else self._read_count(vm, asked_at)
        return counts

    def _reason_not_to_read(self, vm: Vm, passed_s: float) -> str:
        """Return the reason not to read the processes of this guest; '' if there is none."""
        if self._login_refused:
            return "a guest has refused the login of GPUOPS_GUEST_USERNAME"
        if vm.tools_running is None:
            return "it is not known whether VMware Tools run in its guest"
        if not vm.tools_running:
            return "VMware Tools do not run in its guest"
        return "other guests took too long" if passed_s > SESSIONS_FRESH_S else ""

    def _read_count(self, vm: Vm, asked_at: datetime) -> SessionCount:
        """Return the sessions in this guest; unknown, with the reason, if its processes cannot be read."""
        from pyVmomi import vim

        session = self._session
        try:
            call = session.guests.processes.ListProcessesInGuest
            process_infos = session.guests.read(call, vm.ref, vm.name, [])
            with session.decoding("ListProcessesInGuest"):
                processes = list(_decode_processes(process_infos or ()))
        except GpuopsError as error:
            self._login_refused = isinstance(error.__cause__, vim.fault.InvalidGuestLogin)
            if error.message not in self._reported_reasons:
                self._reported_reasons.add(error.message)
                self._say(f"sessions in guests cannot be counted: {error.message} (gpuops help idle)")
            return _unknown_count(asked_at, error.message)
        assert session.target.guest is not None, "guests.read needs it"
        return count_sessions(processes, session.target.guest.username, asked_at)


def count_sessions(processes: Sequence[GuestProcess], login: str, asked_at: datetime) -> SessionCount:
    """Return the number of users with a session, by the owners of shells, and the ages of their sessions.

    `login` is the user that listed the processes. If it sees only its own processes, the count is unknown.
    """
    shells = [process for process in processes if _is_shell(process)]
    if not any(process.owner and _account(process.owner) != _account(login) for process in processes):
        return _unknown_count(asked_at, "the login of gpuops in its guest sees only its own processes")
    starts_by_owner: dict[str, list[datetime]] = {}
    for number, shell in enumerate(shells):
        owner = shell.owner.casefold() or f"?{number}"  # a shell of unknown owner is a session of its own
        starts_by_owner.setdefault(owner, []).extend([shell.started_at] if shell.started_at is not None else [])
    # the age of a user's session is that of the first shell; an owner without any start has no age
    ages_s = [max(0, int((asked_at - min(starts)).total_seconds())) for starts in starts_by_owner.values() if starts]
    return SessionCount(
        len(starts_by_owner),
        bool(starts_by_owner),
        asked_at,
        oldest_s=max(ages_s, default=None),
        youngest_s=min(ages_s, default=None),
    )


def _is_shell(process: GuestProcess) -> bool:
    """Return whether the process is one that every session has once: explorer.exe or `systemd --user`."""
    if process.name.casefold() == WINDOWS_SHELL:
        return True
    is_user_manager = process.name == LINUX_MANAGER and "--user" in process.command.split()
    return is_user_manager and _account(process.owner) not in DISPLAY_MANAGERS


def _account(owner: str) -> str:
    """Return the user without the domain: `DESKTOP\\alice`, `alice@example.com` and `Alice` are the same."""
    return owner.rpartition("\\")[2].partition("@")[0].casefold()


def _decode_processes(process_infos: Sequence[Any]) -> Iterator[GuestProcess]:
    """Yield the running processes. Raises ValueError for a list that is too long."""
    if len(process_infos) > MOST:
        raise ValueError(f"a guest with {len(process_infos)} processes")
    for running in (process_info for process_info in process_infos if process_info.endTime is None):
        name, owner, command = (str(field or "") for field in (running.name, running.owner, running.cmdLine))
        yield GuestProcess(name, owner, command, running.startTime)


def _unknown_count(asked_at: datetime, reason: str) -> SessionCount:
    return SessionCount(None, None, asked_at, because=reason)
