"""A notice by mail, chat or webhook about a run that ended, died, or left work for the admin."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class NoticeKind(StrEnum):
    """The subject of a notice."""

    NIGHT = "night ended"
    RETURN = "return ended"
    CHANGE = "change ended"
    ALARM = "alarm"
    """Desktops or hosts are named, or a run ended in an error."""
    DIED = "run died"
    SLOW = "slow VMs"
    """A component that slows VMs down is probable."""
    LEASES = "leases taken back"
    """Of an earlier gpuops, in outboxes."""
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Notice:
    """One event. Its key is the same for every run that reports it."""

    kind: NoticeKind
    vcenter: str
    """The target's name in the configuration file."""
    about: tuple[str, ...]
    """Words that distinguish the event from others of the same kind and vCenter."""
    at: datetime
    headline: str
    names: tuple[str, ...] = ()
    """The desktops, VMs or hosts that are named, each with its reason."""
    next_move: str = ""
    """The next command."""

    @property
    def key(self) -> str:
        """Return 32 hexadecimal digits that identify the event."""
        identity = json.dumps([self.vcenter, self.kind, *self.about])
        return hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of sending notices to one receiver."""

    receiver: str
    """Its scheme and, where that is one, its host."""
    accepted: int
    """The number of notices that it accepted."""
    trouble: str = ""
    """Why it did not accept a notice; empty = it accepted all."""


@dataclass(frozen=True, slots=True)
class NoticeText:
    """The subject, which is one line, and the text of a notice; both without control characters except line ends."""

    key: str
    subject: str
    body: str
