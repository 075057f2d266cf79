"""A notice: what is told by mail, chat or webhook when a run ended, died, or left something to see to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class NoticeKind(StrEnum):
    """What a notice tells of."""

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
    """One event. Its key is the same whoever tells of it, and however often."""

    kind: NoticeKind
    vcenter: str
    """The target's name in the configuration file."""
    about: tuple[str, ...]
    """What makes it another event than those of the same kind and vCenter."""
    at: datetime
    headline: str
    names: tuple[str, ...] = ()
    """The desktops, VMs or hosts that are named, each with its reason."""
    next_move: str = ""
    """The next command."""

    @property
    def key(self) -> str:
        """32 hexadecimal digits."""
        told = json.dumps([self.vcenter, self.kind, *self.about])
        return hashlib.sha256(told.encode("utf-8", "backslashreplace")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of notices at one receiver."""

    receiver: str
    """Its scheme and, where that is one, its host."""
    accepted: int
    """How many it took."""
    trouble: str = ""
    """Why it did not take one; empty = it took all that there was."""


@dataclass(frozen=True, slots=True)
class NoticeText:
    """The subject, which is one line, and the text of a notice; both without control characters except line ends."""

    key: str
    subject: str
    body: str
