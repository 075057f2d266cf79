"""Beside: a run that is begun on the machine of another one that is under way, and what may become of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuops.errors import GpuopsError, Locked, NotConnected, Refused
from tests.nights.playing.place import Admission

if TYPE_CHECKING:
    from tests.nights.playing.played import Played


@dataclass(frozen=True)
class Beside:
    """Such a run, after its end."""

    error: GpuopsError | None
    """None = it ended without one."""
    lock: Admission
    """What the lock of the machine answered it."""
    sent: int = 0
    """How many changes it asked vCenter for; what others do to the VMs meanwhile is not its doing."""


def one_at_a_time(night: Played) -> Iterator[str]:
    """I6: of two runs on one machine, one acts; the other is refused by the lock, and asks vCenter for no change.

    A run reads vCenter before it asks for the lock: one that vCenter does not answer, or that does not find its lock VM
    there, may end without having asked.
    """
    lock_vm = night.site.policy.lock_vm
    for process in night.beside:
        refused = process.lock is Admission.REFUSED and isinstance(process.error, Locked)
        unfound = (
            lock_vm is not None
            and isinstance(process.error, Refused)
            and f"are called {lock_vm} " in process.error.message
        )
        could_not_read = process.lock is Admission.NOT_ASKED and (isinstance(process.error, NotConnected) or unfound)
        if process.sent or not (refused or could_not_read):
            ended = f"{type(process.error).__name__}: {process.error.message}" if process.error is not None else "done"
            yield f"I6: a run beside another ended as {ended}; the lock: {process.lock}; {process.sent} changes sent"
