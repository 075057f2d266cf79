"""A session with its waits and its guest operations: what the functions that change a vCenter work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gpuops.vsphere.guests.guest_login import GuestOperations
from gpuops.vsphere.session import Session
from gpuops.vsphere.waiting.states import ChangeWatch, StateWatch
from gpuops.vsphere.waiting.tasks import TaskWatch

if TYPE_CHECKING:
    from gpuops.model.vcenter.target import Target
    from gpuops.model.vcenter.task import TaskEnd, TaskRef
    from gpuops.plan.core.steps import RunInGuest


class GuestShell(Protocol):
    """Runs programs in guests over SSH, each for the time that its step gives. `hostshell.guest_ssh` implements it."""

    def no_way_in(self, hook: RunInGuest) -> str | None:
        """Return why that program cannot be run, as far as can be known without trying; None = it can."""
        ...

    def start(self, hook: RunInGuest) -> TaskRef:
        """Start the program and return a task `guest-ssh:VM:NUMBER`. An unreachable guest is an error of its end."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait for this time, or until a program ends."""
        ...

    def end(self, task: TaskRef) -> TaskEnd | None:
        """Return how the program ended; None = it runs. Programs of an earlier gpuops process are unknown."""
        ...


class ActiveSession(Session):
    """A session that waits for tasks and states, and works in guests. `Connection` adds gpuops' reads and changes."""

    def __init__(self, target: Target, guest_shell: GuestShell | None = None) -> None:
        """`guest_shell` runs the programs that are to be run in guests over SSH; None = they cannot be run.

        Raises NotConnected and its subclasses.
        """
        super().__init__(target)
        self.guest_shell = guest_shell
        self.tasks = TaskWatch(self)
        self.states = StateWatch(self)
        self.change_watch = ChangeWatch(self)
        self.guests = GuestOperations(self)
