"""Reads what runs in guests: their system, their addresses, and the output of the check that `gpuops guest` runs there.

The check runs in many guests at once through VMware Tools. vCenter returns no output of a program: the output goes to a
file, which is fetched. Another program removes the file, because that needs no further privilege.

Source: vSphere API reference, GuestInfo.guestFamily and GuestNicInfo (reported by VMware Tools), and
VirtualMachineConfigInfo.guestId (configured for the VM), whose names begin with `win` for Windows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gpuops import clock
from gpuops.errors import GpuopsError, NotConnected, Refused
from gpuops.guest_scripts import script_commands
from gpuops.model.guests.guest import GuestReply, GuestSystem
from gpuops.model.vcenter.inventory import decode_name
from gpuops.plan.core.steps import RunInGuest
from gpuops.vsphere.guests import guest_commands
from gpuops.vsphere.guests.guest_commands import NO_LOGIN, POLL_S, HostUnreached, read_guest_file
from gpuops.vsphere.guests.guest_login import NO_LOGIN_HINT

if TYPE_CHECKING:
    from gpuops.model.vcenter.task import TaskRef
    from gpuops.model.vcenter.vm import Vm
    from gpuops.vsphere.connection import Connection
    from gpuops.vsphere.session import Session

_FAMILIES: Final = {"linuxGuest": GuestSystem.LINUX, "windowsGuest": GuestSystem.WINDOWS}
_LINUX_IDS: Final = (
    "ubuntu", "debian", "rhel", "centos", "rockylinux", "almalinux", "sles", "oracleLinux", "vmwarePhoton",
)  # fmt: skip
"""Beginnings of guest ids of Linux that do not contain `Linux`."""
_PATHS: Final = ["guest.guestFamily", "config.guestId"]


def guest_systems(session: Session, vms: Sequence[str]) -> Mapping[str, GuestSystem]:
    """Return the system by VM (ref), without unknown and other systems. Raises NotConnected and its subclasses."""
    properties_by_vm = session.read_properties([session.vm(ref) for ref in vms], _PATHS, subject="guests")
    systems = {ref: _system(properties) for ref, properties in properties_by_vm.items()}
    return {ref: system for ref, system in systems.items() if system is not None}


def guest_id(session: Session, vm: str) -> str:
    """Return the configured guest id (`ubuntu64Guest`); empty if unreadable. Raises NotConnected and its subclasses."""
    guest_vm = session.vm(vm)
    config = session.read(lambda: guest_vm.config, subject=vm)
    return str(config.guestId or "") if config is not None else ""


def _system(properties: Mapping[str, Any]) -> GuestSystem | None:
    """Return the system that VMware Tools report, else the one that the VM is configured for; None for any other."""
    family, configured_id = properties.get("guest.guestFamily"), str(properties.get("config.guestId") or "")
    if family in _FAMILIES:
        return _FAMILIES[family]
    if configured_id.startswith("win"):
        return GuestSystem.WINDOWS
    return GuestSystem.LINUX if "Linux" in configured_id or configured_id.startswith(_LINUX_IDS) else None


def vcenter_time(session: Session) -> datetime:
    """Return vCenter's time. Raises NotConnected and its subclasses."""
    with session.decoding("CurrentTime"):
        now: datetime = session.read(session.instance.CurrentTime).astimezone(UTC)
    return now


def guest_addresses(session: Session, vm: str) -> Mapping[str, tuple[str, ...]]:
    """Return the unchecked addresses that the guest reports, by network name; none while VMware Tools do not run.

    Raises VmNotFound for a VM that does not exist any more.
    """
    target = session.vm(vm)
    guest = session.read(lambda: target.guest, subject=vm)
    addresses: dict[str, tuple[str, ...]] = {}
    with session.decoding("guest.net"):
        for nic in (guest.net or ()) if guest is not None else ():
            if nic.network:
                network = decode_name(nic.network)
                addresses[network] = (*addresses.get(network, ()), *map(str, nic.ipAddress or ()))
    return addresses


AT_ONCE: Final = 32
"""Guests in which the check runs at the same time."""
LIMIT_S: Final = 120.0
"""The longest run of the check in one guest. nvidia-smi takes seconds; it can hang in a broken driver."""
_GUEST_HINT: Final = "look at the guest, then run the command again"
_LOGIN_HINT: Final = "check GPUOPS_GUEST_USERNAME and its password: gpuops does not try again, because accounts lock"


@dataclass(slots=True)
class _RunningCheck:
    """A guest in which the check runs."""

    vm: Vm
    system: GuestSystem
    path: str
    """The file in the guest that the output goes to."""
    before: datetime
    """vCenter's time just before the start."""
    waited_s: float = 0.0


class ToolsAnswers:
    """Checks guests through VMware Tools. A login that one guest refuses is tried in no other."""

    def __init__(self, session: Connection, say: Callable[[str], None] = lambda line: None) -> None:
        """`say` gets a line for each file that stays in a guest. Raises Refused if there is no login for guests."""
        if session.target.guest is None:
            raise Refused(NO_LOGIN, hint=NO_LOGIN_HINT)
        self._session = session
        self._say = say
        self._login_refusal = ""
        """Why no further guest is tried; empty = no guest has refused the login."""
        self._replies: dict[str, GuestReply] = {}
        self._unreached: dict[str, HostUnreached] = {}
        """By host (ref): gpuops waits once for a host that does not answer, not once for each of its VMs."""

    def replies(self, guests: Sequence[tuple[Vm, GuestSystem]], frameworks: Sequence[str]) -> Mapping[str, GuestReply]:
        """Run the check in all guests, `AT_ONCE` at a time. Return by VM (ref) the output, or why it is missing.

        Raises NotConnected and its subclasses.
        """
        waiting = list(reversed(guests))
        running: dict[TaskRef, _RunningCheck] = {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                self._start(*waiting.pop(), frameworks, running)
            began_s = clock.passed_s()
            ends = list(guest_commands.wait(self._session, tuple(running), POLL_S) if running else ())
            waited_s = max(POLL_S, clock.passed_s() - began_s)
            ended = [(running.pop(end.task), end.error) for end in ends]
            # before outputs are fetched, so that the time of the fetches does not count for other programs
            for task, check in list(running.items()):
                check.waited_s += waited_s
                if check.waited_s >= LIMIT_S:
                    del running[task]
                    self._replies[check.vm.ref] = self._give_up(check)
            for check, error in ended:
                self._replies[check.vm.ref] = self._fetch_and_remove(check, error)
        return self._replies

    def _start(
        self, vm: Vm, system: GuestSystem, frameworks: Sequence[str], running: dict[TaskRef, _RunningCheck]
    ) -> None:
        """Start the check in this guest; if it cannot be started, its reply is the reason."""
        from pyVmomi import vim

        if self._login_refusal:
            self._replies[vm.ref] = GuestReply(None, self._login_refusal, _LOGIN_HINT)
            return
        path = script_commands.answer_path(system, secrets.token_hex(16))
        check = _RunningCheck(vm, system, path, vcenter_time(self._session))
        try:
            running[self._run(vm, script_commands.to_file(system, frameworks, path))] = check
        except NotConnected:
            raise
        except GpuopsError as error:
            self._replies[vm.ref] = GuestReply(None, error.message, error.hint or _GUEST_HINT)
            # no further guest is tried: each refusal counts towards a lockout of the account
            if isinstance(error.__cause__, vim.fault.InvalidGuestLogin):
                self._login_refusal = "another guest has refused the login of GPUOPS_GUEST_USERNAME"
                self._replies[vm.ref] = GuestReply(None, error.message, _LOGIN_HINT)

    def _run(self, vm: Vm, call: script_commands.GuestCall) -> TaskRef:
        step = RunInGuest(vm.ref, call.program, call.arguments, int(LIMIT_S))
        return guest_commands.start_program(self._session, step, vm.name, f"gpuops-guest-{secrets.token_hex(8)}")

    def _fetch_and_remove(self, check: _RunningCheck, error: GpuopsError | None) -> GuestReply:
        """Return what the program wrote, and remove its file from the guest in any case."""
        if isinstance(error, NotConnected):
            raise error
        reply = (
            self._fetch_output(check) if error is None else GuestReply(None, error.message, error.hint or _GUEST_HINT)
        )
        try:
            self._run(check.vm, script_commands.removal(check.system, check.path))
        except NotConnected:
            raise
        except GpuopsError as failed:
            self._say(
                f"{check.vm.name}: {check.path} stays in its guest, because it could not be removed: {failed.message}"
            )
        return reply

    def _fetch_output(self, check: _RunningCheck) -> GuestReply:
        """Return the output of a check that has ended, or why it cannot be fetched from the guest's ESXi host."""
        after, host = vcenter_time(self._session), check.vm.host or ""
        try:
            if host in self._unreached:
                raise self._unreached[host]  # without waiting for this host again
            text = read_guest_file(self._session, check.vm.ref, check.vm.name, check.path).decode("utf-8", "replace")
            return GuestReply(text, before=check.before, after=after)
        except NotConnected:
            raise
        except GpuopsError as error:
            if host and isinstance(error, HostUnreached):
                self._unreached[host] = error
            return GuestReply(
                None, f"the output of its check cannot be fetched: {error.message}", error.hint or _GUEST_HINT
            )

    def _give_up(self, check: _RunningCheck) -> GuestReply:
        """Report the file that stays in the guest, and return that the check did not end in time."""
        self._say(f"{check.vm.name}: {check.path} stays in its guest, because its program still runs")
        hint = "run nvidia-smi in the guest to see whether its driver hangs"
        return GuestReply(None, f"its program had not ended after {LIMIT_S:.0f} s", hint)
