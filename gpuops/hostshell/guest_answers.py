"""Runs the check of guests over SSH, in many guests at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Final

from gpuops.errors import GpuopsError
from gpuops.guest_scripts.guest_check import over_ssh
from gpuops.hostshell.guest_ssh import VARIABLES
from gpuops.hostshell.ssh import Ssh
from gpuops.model.guests.guest import GuestReply, GuestSystem
from gpuops.model.nights.ml_queue import SshDoor
from gpuops.model.vcenter.vm import Vm

AT_ONCE: Final = 32
LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class SshAnswers:
    """Checks guests over SSH. `key` None = the keys of the agent and of ~/.ssh; `now` is vCenter's time."""

    door: SshDoor
    known_hosts: Path
    key: Path | None
    now: Callable[[], datetime]
    address_of: Callable[[str], str] = field(default=str)
    _time_lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    """Only one thread at a time reads the time of vCenter."""

    def replies(self, guests: Sequence[tuple[Vm, GuestSystem]], frameworks: Sequence[str]) -> Mapping[str, GuestReply]:
        """Return by VM (ref) the output of each guest, or why it has none. Raises NotConnected as `now` does."""
        with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="guest-ssh") as pool:
            replies = pool.map(lambda guest: self._reply(guest[0], guest[1], frameworks), guests)
            return {vm.ref: reply for (vm, _), reply in zip(guests, replies, strict=True)}

    def _reply(self, vm: Vm, system: GuestSystem, frameworks: Sequence[str]) -> GuestReply:
        door = self.door.of(vm.name)
        ssh = Ssh(door.user, self.known_hosts.expanduser(), self.key, door.port, self.address_of, *VARIABLES)
        before = self._now()
        try:
            reply = ssh.run(door.host, over_ssh(system, frameworks), limit_s=LIMIT_S)
        except GpuopsError as error:
            return GuestReply(None, error.message, error.hint or "look at the guest, or ask it again")
        return GuestReply(reply.stdout, before=before, after=self._now())

    def _now(self) -> datetime:
        with self._time_lock:
            return self.now()
