"""What is kept of what a night did with a VM: an original in a journal, a marker in vCenter. And who rotates now."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.time_text import format_stamp, format_zoned_second, parse_zoned
from gpuops.model.vcenter.owner import NotedOwner
from gpuops.model.vcenter.vm import VmDrs

MOST_LEASES: Final = 999_999_999_999
"""The highest lease number that is written and read: hundredths of a second since 1970 pass it in the year 2286."""


_DRS_BY_WORD: Final = {drs.lower(): drs for drs in VmDrs}


class Role(StrEnum):
    """What the night did with a VM."""

    DESKTOP = "desktop"
    """Suspended; the morning resumes it."""
    SHUT_DOWN = "desktop-off"
    """Its guest shut down, for it cannot be suspended; the morning powers it on."""
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
    stopped: bool = False
    """An ML VM: whether a return stopped it or found it powered off, or a person started it since. A later start is not
    by the night."""
    returned: bool = False
    """Whether it was seen as it was, afterwards."""
    drs: VmDrs | None = None
    """What DRS did with it; None = the night left that alone."""
    suspended_at: datetime | None = None
    """When the night suspended it, as vCenter showed that just afterwards; of a desktop that was shut down, a moment
    before that at which it still ran. None = nothing tells."""
    started_at: datetime | None = None
    """When the night started it, as vCenter showed that just afterwards; None = unknown."""
    unsure: bool = False
    """Whether a request of the night for it was lost so lately that it may still take effect."""
    policy: Policy | None = field(default=None, repr=False)
    """The policy of its night; None = unknown."""
    leases: frozenset[int] = frozenset()
    """Numbers of the leases under which the runs of the night in this journal acted."""
    given_up: bool = False
    """Whether a person gave it up: gpuops lists it, but neither waits for it nor changes it, until it is back."""
    closes_late: bool = False
    """A request to close its gate was given up with its outcome unknown so lately that it may still come."""
    gated_as: str | None = None
    """The broker's id of its machine, if the night closed its gate, or may have, and it is not known to be open again;
    empty = the id is not known."""
    gpu_modes: tuple[tuple[str, str], ...] = ()
    """PCI address and vGPU mode of each GPU that it ran on when it was saved; empty = not known."""
    owner: NotedOwner | None = None
    """The owner of an ML VM whose policy shares by teams; None = not read, or it was saved by an older gpuops."""
    contradiction: str = ""
    """Why this vCenter cannot be the one of its night, by the facts about the VM; empty = no contradiction.
    An original with a contradiction stays open, and its VM is not changed."""

    @property
    def is_by_marker_alone(self) -> bool:
        """Return whether only the marker of the VM records that a night took it.

        `rotate abandon` writes such an original into the journal on another machine than that of the night.
        """
        return self.policy is None and not self.leases and self.suspended_at is None and self.started_at is None


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that rotates a vCenter from this machine, by its lock."""

    pid: int | None
    """None = it has only just taken the lock."""
    since: datetime | None
    doing: str = ""
    """`rotate night`, `rotate day` or `rotate restore`; empty = not a rotation, or not known."""
    seen: datetime | None = None
    """Its last sign of life; None = it gives none, or has given none yet."""
    until: datetime | None = None
    """From then on a night takes no more VMs, since its return must begin; None = it has no such time."""

    def __str__(self) -> str:
        if self.pid is None or self.since is None:
            return "another run"
        return f"pid {self.pid} since {format_zoned_second(self.since)}"


class Marker(NamedTuple):
    """The content of the marker attribute: enough to return a VM without any journal."""

    night: str
    role: Role
    drs: VmDrs | None = None
    """What DRS did with the VM before; None = the night left that alone."""
    seen: datetime | None = None
    """When `rotate day`, which knew no night for it, first saw it on an unchanged VM, by vCenter's clock."""
    lease: int | None = None
    """Number of the lease under which it was set; None = the policy had no lock VM."""


def marker_value(
    night: str, role: Role, drs: VmDrs | None = None, seen: datetime | None = None, lease: int | None = None
) -> str:
    """Return the marker as vCenter keeps it.

    For example `2026-11-20 ml`, or with all fields `2026-11-20 ml drs=cluster seen=2026-11-21T05:00:00Z lease=7`.
    """
    marker_text = f"{night} {role}" + (f" drs={drs}" if drs is not None else "")
    marker_text += f" seen={format_stamp(seen)}" if seen is not None else ""
    return marker_text + (f" lease={lease}" if lease is not None else "")


def parse_marker(text: str) -> Marker | None:
    """Return the marker in that text; None if it is empty, or gpuops cannot read it (`is_unreadable_marker`).

    White space and upper case do not matter, since people copy and repair markers. Keys that this version does not know
    are left out: a later version may write more.
    """
    if not text:
        return None  # most VMs have no marker
    words = text.split()
    try:
        night = words[0].upper()
        # only a check: a night is named by its date, or by date and time
        datetime.fromisoformat(night)
        role, *key_words = words[1:]
        pairs = (word.split("=", 1) for word in key_words)
        fields = {key.lower(): value for key, value in pairs}
        drs, seen, lease = fields.get("drs"), fields.get("seen"), fields.get("lease")
        return Marker(
            night,
            Role(role.lower()),
            _DRS_BY_WORD[drs.lower()] if drs is not None else None,
            parse_zoned(seen.upper()) if seen is not None else None,
            lease_number(lease) if lease is not None else None,
        )
    except (IndexError, KeyError, ValueError):
        return None


def is_unreadable_marker(text: str) -> bool:
    """Return whether the marker attribute holds a text that cannot be read as a marker."""
    return bool(text.strip()) and parse_marker(text) is None


def lease_number(text: str) -> int:
    """Return the number of a lease. Raises ValueError for any other text."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_LEASES))):
        raise ValueError(text)
    return int(text)
