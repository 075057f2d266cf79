"""What is needed to run a program in a guest over SSH. `hostshell` implements it."""

from __future__ import annotations

from typing import Protocol

from gpuops.model.task import TaskEnd, TaskRef
from gpuops.plan.core.steps import RunInGuest


class GuestShell(Protocol):
    """Programs in guests, each with the time that its step gives it. No method raises but what it says."""

    def no_way_in(self, hook: RunInGuest) -> str | None:
        """Why that program cannot be run, as far as can be known without trying; None = it can."""
        ...

    def start(self, hook: RunInGuest) -> TaskRef:
        """The program on its way, as a task `guest-ssh:VM:NUMBER`; whether its guest is reached shows in its end."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Lets so much time pass, or less when one ends."""
        ...

    def end(self, task: TaskRef) -> TaskEnd | None:
        """How it ended; None = it runs. One of an earlier process is not known any more."""
        ...
