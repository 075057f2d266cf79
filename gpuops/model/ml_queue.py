"""ML queue: which ML VMs wait for the night, in which order, and how each of them is stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import Final

from gpuops.model.vm import Vm
from gpuops.model.window import Night

_WILD = frozenset("*?[")


NAME: Final = "{vm}"
"""Stands for the VM's name where a guest is entered over SSH."""


@dataclass(frozen=True, slots=True)
class SshDoor:
    """How a guest is entered over SSH: as whom, at which address."""

    user: str
    host: str = NAME
    port: int = 22

    def of(self, name: str) -> SshDoor:
        """The door of the VM of that name."""
        return replace(self, host=self.host.replace(NAME, name))

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" + (f":{self.port}" if self.port != 22 else "")


@dataclass(frozen=True, slots=True)
class GuestCommand:
    """A program in a guest, by its path there, and its arguments (vSphere API, GuestProgramSpec)."""

    program: str
    arguments: str = ""
    ssh: SshDoor | None = None
    """None = by VMware Tools."""

    def __str__(self) -> str:
        return f"{self.program} {self.arguments}".rstrip()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a guest does to keep its work before it is stopped, and how long it is given for that."""

    grace_s: int = 0
    hook: GuestCommand | None = None
    """None = the guest is only asked to shut down."""


@dataclass(frozen=True, slots=True)
class QueuedVm:
    """One entry of the queue: ML VMs that wait for the night."""

    name: str
    """A name, an inventory path, `moid:` or `uuid:`; or a shell pattern over names."""
    relocate: bool = False
    """May be moved, cold, to another host where it fits."""
    others: tuple[str, ...] = ()
    """Further names that the entry speaks of."""
    count: int | None = None
    """So many of them run; None = all."""
    profile: str | None = None
    """Shell pattern that every vGPU of the VM must fit, or it is not started."""
    priority: int = 0
    """The higher is served first, the others in the order of the file."""
    deadline: time | datetime | None = None
    """By when its run is wanted; a clock time is the first one after the window opens."""
    minimum_run: timedelta = timedelta()
    """A start that would leave it less is not made."""
    checkpoint: Checkpoint = Checkpoint()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.others)

    @property
    def label(self) -> str:
        """What an answer about the whole entry calls it."""
        return ", ".join(self.names)

    def means(self, *names: str) -> bool:
        """Whether the entry speaks of a VM that has, or had, one of these names."""
        return any(_fits(name, wanted) for wanted in self.names for name in names)

    def carried_by(self, vm: Vm) -> bool:
        """Whether the VM has what the entry says of its vGPUs."""
        wanted = self.profile
        return wanted is None or (bool(vm.profiles) and all(fnmatchcase(name, wanted) for name in vm.profiles))

    def due(self, night: Night | None) -> datetime | None:
        """By when its run is wanted in this night; a clock time means nothing without a window."""
        if isinstance(self.deadline, time):
            return None if night is None else night.next(self.deadline)
        return self.deadline


def is_pattern(name: str) -> bool:
    """Whether a name of the queue stands for all VMs whose name fits it."""
    return not _WILD.isdisjoint(name)


def _fits(name: str, wanted: str) -> bool:
    return fnmatchcase(name, wanted) if is_pattern(wanted) else name == wanted


@dataclass(frozen=True, slots=True)
class MlStop:
    """How ML VMs are stopped in the morning: the guest is asked, then powered off if `then_off`."""

    grace_s: int = 300
    then_off: bool = True
