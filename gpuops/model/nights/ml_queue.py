"""The ML VMs that wait for the night, in which order, and how each of them is stopped."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from gpuops.model.file_keys import NOT_IN_FILE, Key, Mistaken, Reads, Text
from gpuops.model.stored import stored_as
from gpuops.model.vcenter.vm import Vm
from gpuops.model.window import Night, checked_year
from gpuops.model.workloads.job_rules import is_pattern

NAME: Final = "{vm}"
"""Stands for the VM's name where a guest is entered over SSH."""
_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
LONGEST_GRACE_S: Final = 7200
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z]:\\")
_HOST: Final = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]*")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\-]*")


def _check_address(host: str) -> str:
    """Return the same text. Raises Mistaken if it is not a name or IP address, which may contain `{vm}`."""
    if not _HOST.fullmatch(host.replace(NAME, "vm")):
        raise Mistaken(f"{host!r} is not an address", f"write a name or an IP address; {NAME} stands for the VM's name")
    return host


def _check_user(name: str) -> str:
    if not _USER.fullmatch(name):
        raise Mistaken(f"{name!r} is not a user name", "use only letters, digits and . _ - @ \\")
    return name


def _check_program(path: str) -> str:
    if not _ABSOLUTE.match(path):
        raise Mistaken(
            f"{path!r} is not an absolute path in the guest",
            "write the complete path: gpuops knows no search path there",
        )
    return path


@stored_as("SshDoor")
@dataclass(frozen=True, slots=True)
class SshDoor:
    """How a guest is entered over SSH: as whom, at which address."""

    user: Annotated[str, Reads(_check_user, Text)]
    host: Annotated[str, Reads(_check_address, Text)] = NAME
    port: Annotated[int, Meta(ge=1, le=65535)] = 22

    def of(self, name: str) -> SshDoor:
        """Return the door for the VM of that name."""
        return replace(self, host=self.host.replace(NAME, name))

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" + (f":{self.port}" if self.port != 22 else "")


@dataclass(frozen=True, slots=True)
class GuestCommand:
    """A program in a guest, by its path there, and its arguments (vSphere API, GuestProgramSpec)."""

    program: Annotated[str, Reads(_check_program, Text)]
    arguments: Annotated[str, Meta(max_length=2000)] = ""
    ssh: SshDoor | None = None
    """None = by VMware Tools."""

    def __str__(self) -> str:
        return f"{self.program} {self.arguments}".rstrip()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How a guest saves its work before it is stopped, and how long that may take."""

    grace_s: Annotated[int, Meta(ge=0, le=LONGEST_GRACE_S)] = 0
    hook: GuestCommand | None = None
    """None = the guest is only asked to shut down."""
    every_s: Annotated[int, Meta(ge=1)] | None = None
    """The guest saves its work by itself at this interval, counted from its start; None = it does not, or unknown."""
    withheld: Annotated[GuestCommand | None, NOT_IN_FILE] = None
    """The hook that a shared journal names, and no policy file of this machine: it is not run."""

    def __post_init__(self) -> None:
        if self.hook is not None and self.grace_s == 0:
            raise Mistaken(
                "the `hook` has no time to run, because `grace_s` is 0",
                "set `grace_s` to the seconds that the hook may take",
            )

    def within(self, allowed_hooks: Collection[GuestCommand]) -> Checkpoint:
        """Return the same checkpoint, without its hook if that is not one of these."""
        if self.hook is None or self.hook in allowed_hooks:
            return self
        return replace(self, hook=None, withheld=self.hook)

    def lost_s(self, started: datetime | None, now: datetime) -> float | None:
        """Return the seconds of work that are lost if the VM is stopped now; None = its start is not known."""
        if self.hook is not None:
            return 0.0  # it saves its work before it is stopped
        if started is None:
            return None
        ran_s = max(0.0, (now - started).total_seconds())
        return ran_s % self.every_s if self.every_s is not None else ran_s


def _deadline(text: Any) -> time | datetime:
    """Return a clock time, or a moment. A moment without an offset is later read in the zone of the windows."""
    try:
        if not isinstance(text, str) or len(text) < len("06:00"):
            raise ValueError
        return time.fromisoformat(text) if _CLOCK.fullmatch(text) else checked_year(datetime.fromisoformat(text))
    except ValueError:
        raise Mistaken(
            f"{text!r} is neither a time of day nor a date with one", 'write it as "06:00" or "2026-11-24 06:00"'
        ) from None


_Deadline = Annotated[time | datetime, Reads(_deadline, Annotated[Any, Meta(extra_json_schema={"type": "string"})])]
_Minutes = Reads(lambda number: timedelta(minutes=number), Annotated[int, Meta(ge=0, le=24 * 60)], default=0)
OF_THE_QUEUE: Final = Checkpoint()
"""The checkpoint of an entry that has none of its own: this object, and no other one that equals it."""
_OwnCheckpoint = Reads(lambda checkpoint: checkpoint or OF_THE_QUEUE, Checkpoint | None, default=None)


@dataclass(frozen=True, slots=True)
class QueuedVm:
    """One entry of the queue: ML VMs that wait for the night."""

    removed_keys: ClassVar = {"across_sites": "name each VM in the queue of one vCenter alone, and remove the key"}

    # A name, an inventory path, `moid:` or `uuid:`; or a shell pattern over names.
    vm: Text | None = None
    # Several of them; an entry has either `vm` or `vms`.
    vms: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=1000)] | None = None
    # The number of these VMs that run; None = all.
    count: Annotated[int, Meta(ge=1)] | None = None
    # Whether a VM may be moved, cold, to another host where it fits.
    relocate: bool = False
    # Shell pattern that every vGPU of the VM must match, or it is not started.
    profile: Text | None = None
    # Entries with a higher priority are served first, entries with the same one in the order of the file.
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    # By when its run should end; a clock time is the first one after the window opens.
    deadline: _Deadline | None = None
    # A VM that would have less time is not started.
    minimum_run: Annotated[timedelta, Key("minimum_run_minutes"), _Minutes] = timedelta()
    checkpoint: Annotated[Checkpoint, _OwnCheckpoint] = OF_THE_QUEUE
    owner: Annotated[str | None, NOT_IN_FILE] = None
    """The owner of the job that the VM is started for; None = the owner is that of the VM."""
    for_jobs: Annotated[bool, NOT_IN_FILE] = False
    """Its VMs run jobs in containers: a night starts those that a job waits for, each by an entry that names it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names and patterns of its VMs."""
        return self.vms or () if self.vm is None else (self.vm,)

    @property
    def label(self) -> str:
        """Return the name of the entry in messages."""
        return ", ".join(self.names)

    def names_vm(self, vm: Vm, earlier_name: str = "") -> bool:
        """Return whether it names the VM; `earlier_name` is the VM's name before."""
        return any(name == earlier_name or vm.is_called(name) for name in self.names)

    def fits(self, *names: str) -> bool:
        """Return whether one of its shell patterns fits one of these names."""
        return any(fnmatchcase(name, pattern) for pattern in self.names if is_pattern(pattern) for name in names)

    def once_named(self, *names: str) -> bool:
        """Return whether it names, by its path, a VM of one of these names that was moved since."""
        return any(path.endswith(f"/{name}") for path in self.names for name in names)

    def carried_by(self, vm: Vm) -> bool:
        """Return whether every vGPU of the VM fits the profile of the entry."""
        pattern = self.profile
        return pattern is None or (bool(vm.profiles) and all(fnmatchcase(name, pattern) for name in vm.profiles))

    def due(self, night: Night | None) -> datetime | None:
        """Return by when its run should end in this night; a clock time counts only with a window."""
        if isinstance(self.deadline, time):
            return None if night is None else night.next(self.deadline)
        return self.deadline


def entry_of(queue: Sequence[QueuedVm], vm: Vm, earlier_name: str = "") -> QueuedVm | None:
    """Return the entry of a queue for the VM, one that names it before one whose pattern it fits; None = no entry.

    `earlier_name` is the VM's name when a night took it. Of several patterns, the one with the highest priority counts.
    """
    ordered = sorted(queue, key=lambda queued: -queued.priority)
    # entries that name the VM come before patterns; the last rule is for a VM that was moved since: the path in the
    # entry ends with its name, but the VM has another path now
    rules: tuple[Callable[[QueuedVm], bool], ...] = (
        lambda queued: queued.names_vm(vm, earlier_name),
        lambda queued: queued.fits(vm.name, earlier_name),
        lambda queued: queued.once_named(vm.name, earlier_name),
    )
    return next((queued for rule in rules for queued in ordered if rule(queued)), None)


_Then = Reads(lambda then: then == "power-off", Literal["power-off", "leave-running"], default="power-off")


@dataclass(frozen=True, slots=True)
class MlStop:
    """How `rotate day` stops ML VMs: it asks the guest to shut down, and then powers the VM off."""

    grace_s: Annotated[int, Meta(ge=0, le=LONGEST_GRACE_S)] = 300
    then_off: Annotated[bool, Key("then"), _Then] = True
