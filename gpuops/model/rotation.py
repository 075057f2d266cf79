"""Rotation: what a policy says about desktops, ML VMs and the night, and what must be put back in the morning."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from fnmatch import fnmatchcase

from gpuops.model.vm import Vm


@dataclass(frozen=True, slots=True)
class Window:
    """When a night may take GPUs: from `opens` to `closes` in `zone`, across midnight when it closes earlier."""

    opens: time
    closes: time
    zone: tzinfo

    def contains(self, now: datetime) -> bool:
        moment = now.astimezone(self.zone).time()
        if self.opens <= self.closes:
            return self.opens <= moment < self.closes
        return moment >= self.opens or moment < self.closes

    def night(self, now: datetime) -> date:
        """The local date of the evening that the night of `now` began on."""
        local = now.astimezone(self.zone)
        after_midnight = self.opens > self.closes and local.time() < self.closes
        return local.date() - timedelta(days=1) if after_midnight else local.date()


@dataclass(frozen=True, slots=True)
class Mark:
    """A sign that people put on VMs: a custom attribute (with this value, or with any), or a tag `category:name`."""

    attribute: str | None = None
    value: str | None = None
    tag: str | None = None

    def on(self, vm: Vm) -> bool | None:
        """Whether the VM carries it; None = this login cannot tell."""
        if self.tag is not None:
            return None if vm.tags is None else self.tag in vm.tags
        found = vm.attributes.get(self.attribute or "", "")
        return bool(found) if self.value is None else found == self.value

    def __str__(self) -> str:
        if self.tag is not None:
            return f"tag {self.tag}"
        return f"attribute {self.attribute}" + ("" if self.value is None else f" = {self.value}")


@dataclass(frozen=True, slots=True)
class Selector:
    """Which VMs are meant: all of the conditions that are given must hold."""

    folder: str | None = None
    """`/dc/vm/desktops` is a path from the root; `desktops/cad` any folders of these names, one in the other."""
    name: str | None = None
    """Shell pattern, case-sensitive."""
    marks: tuple[Mark, ...] = ()
    profile: str | None = None
    """Shell pattern that every vGPU of the VM must fit; a VM without a vGPU never does."""

    def selects(self, vm: Vm) -> bool:
        """Whether the VM is meant; what this login cannot tell is not meant."""
        return (
            (self.folder is None or _inside(vm.path, self.folder))
            and (self.name is None or fnmatchcase(vm.name, self.name))
            and all(mark.on(vm) is True for mark in self.marks)
            and (self.profile is None or _all_fit(vm.profiles, self.profile))
        )


def _inside(path: str, folder: str) -> bool:
    parents = path.rsplit("/", 1)[0] + "/"
    wanted = folder.strip("/") + "/"
    return parents.startswith("/" + wanted) if folder.startswith("/") else "/" + wanted in parents


def _all_fit(profiles: tuple[str, ...], pattern: str) -> bool:
    return bool(profiles) and all(fnmatchcase(profile, pattern) for profile in profiles)


@dataclass(frozen=True, slots=True)
class Pool:
    """Desktops that may be suspended at night."""

    name: str
    select: Selector
    cpu_below_mhz: int
    """A desktop that uses this much CPU or more is not idle."""
    parked: bool = False
    """The policy's word that nobody is given a desktop of this pool at night; without it none is taken."""
    floor: int = 0
    """So many desktops of the pool stay running."""
    owner: Mark | None = None
    """The second key: put on a desktop by those who own it. None = the policy alone selects."""


@dataclass(frozen=True, slots=True)
class QueuedVm:
    """An ML VM that waits for the night, in the order of the queue."""

    name: str
    relocate: bool = False
    """May be moved, cold, to another host where it fits."""


@dataclass(frozen=True, slots=True)
class MlStop:
    """How ML VMs are stopped in the morning: the guest is asked, then powered off if `then_off`."""

    grace_s: int = 300
    then_off: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """How much goes on at once, and how long one step may take."""

    in_flight: int = 8
    per_host: int = 4
    step_timeout_s: int = 1800


@dataclass(frozen=True, slots=True)
class Policy:
    """One rotation policy, as `templates/policy.yaml` describes it."""

    name: str
    pools: tuple[Pool, ...]
    ml: tuple[QueuedVm, ...] = ()
    ml_stop: MlStop = MlStop()
    window: Window | None = None
    """None = `rotate night` may run at any time, and each one after a finished one is a new night."""
    opt_out: Mark = Mark(attribute="gpuops.opt-out")
    """A desktop that carries it is never taken, whatever else holds."""
    marker: str = "gpuops.rotation"
    """The custom attribute that gpuops sets on what it takes, and clears when it is back."""
    limits: Limits = Limits()
    digest: str = ""
    """SHA-256 of the file."""
    text: str = field(default="", repr=False)
    """The file's own text: kept with the night, so that the morning obeys the same policy."""

    def pool_of(self, vm: Vm) -> Pool | None:
        """The first pool that selects the VM."""
        return next((pool for pool in self.pools if pool.select.selects(vm)), None)

    def night(self, now: datetime) -> str:
        """The night's name: the local date of its evening; without a window, this minute."""
        if self.window is not None:
            return self.window.night(now).isoformat()
        return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ")

    @property
    def needs_tags(self) -> bool:
        keys = [mark for pool in self.pools for mark in (*pool.select.marks, pool.owner) if mark is not None]
        return any(mark.tag is not None for mark in (*keys, self.opt_out))


class Role(StrEnum):
    """What the night did with a VM."""

    DESKTOP = "desktop"
    """Suspended; the morning resumes it."""
    ML = "ml"
    """Started; the morning stops it."""


@dataclass(frozen=True, slots=True)
class Original:
    """A VM as it was before a night touched it: what the morning must restore. Written once, never overwritten."""

    night: str
    role: Role
    vm: str
    """Managed object id."""
    uuid: str | None
    name: str
    host: str | None
    profiles: tuple[str, ...] = ()
    taken: bool = False
    """Whether the suspend (or the start) happened, or may have: not merely intended."""
    returned: bool = False
    """Whether it was seen as it was, afterwards."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that rotates a vCenter from this machine, as its lock says."""

    pid: int | None
    """None = it has only just taken the lock."""
    since: datetime | None

    def __str__(self) -> str:
        if self.pid is None or self.since is None:
            return "another run"
        return f"pid {self.pid} since {self.since:%Y-%m-%d %H:%M:%S %Z}"


def marker_value(night: str, role: Role) -> str:
    """What the marker attribute holds: enough to return a VM without any journal."""
    return f"{night} {role}"


def parse_marker(text: str) -> tuple[str, Role] | None:
    """(night, role) of a marker's value; None when gpuops did not write it."""
    night, _, role = text.partition(" ")
    try:
        datetime.fromisoformat(night)
        return night, Role(role)
    except ValueError:
        return None
