"""The sources of facts about the use of a desktop, and the facts about its sessions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpuops.model.stored import stored_as


class Source(StrEnum):
    """What a verdict on a VM goes by."""

    STATE = "state"
    """That it runs, is connected, can be read whole, and has no question and no task. Required of every VM."""
    CONSOLE = "console"
    """Console connections that are open now."""
    CPU = "cpu"
    """CPU that it uses now."""
    COUNTERS = "counters"
    """Performance counters, CPU among them, in each sample of a while."""
    NVIDIA_SMI = "nvidia-smi"
    """How much its vGPUs are used, as the own nvidia-smi of its host tells it."""
    GUEST = "guest"
    """The state of the guest as VMware Tools report it."""
    SESSIONS = "sessions"
    """Sessions in the guest, as guest operations list them."""
    BROKER = "broker"
    """Sessions that a connection broker knows."""
    COMMAND = "command"
    """Sessions that the operator's own command tells."""


SESSION_SOURCES: Final = (Source.SESSIONS, Source.BROKER, Source.COMMAND)
"""The sources of facts about sessions: `Vm.sessions` has them."""

BY_DEFAULT: Final = frozenset({Source.CPU, Source.CONSOLE})
"""What must be known of a desktop where its pool does not say it."""

SESSIONS_FRESH_S: Final = 300
"""How old facts about sessions may be. Our own figure."""


VGPU_USE_FRESH_S: Final = 30 * 60
"""How old what nvidia-smi told may be: `gpuops observe` asks every 20 minutes, and keeps steps of five. Our figure."""


@stored_as("VgpuUse")
@dataclass(frozen=True, slots=True)
class VgpuUse:
    """How much the vGPUs of a VM are used, as its host's own nvidia-smi tells it."""

    percent: int | None
    """Of the one that is used most; None = it does not tell, and never a zero for that."""
    age_s: int = 0
    """How old that was at the look."""
    because: str = ""
    """Why it does not tell."""


@stored_as("SessionCount")
@dataclass(frozen=True, slots=True)
class SessionCount:
    """The sessions of a VM as one source reports them: numbers and ages, never users."""

    count: int | None
    """How many there are; None = it does not tell how many."""
    used: bool | None
    """Whether somebody uses the VM; None = it does not tell."""
    asked: datetime
    """When it was asked, by vCenter's clock as the snapshot has it."""
    age_s: int = 0
    """How old the fact was when the source reported it."""
    oldest_s: int | None = None
    """How long the oldest of the sessions is there; None = not told."""
    youngest_s: int | None = None
    disconnected_s: int | None = None
    """How long all of them are disconnected, by the one that was last; None = one is connected, or it is not told."""
    because: str = ""
    """Why it does not tell."""

    def in_use(self, disconnected_timeout_s: int | None) -> bool | None:
        """Return whether a session keeps the desktop; None = the source does not report it.

        With a timeout, sessions that are all disconnected for as long do not count, unless the facts are too old.
        """
        if not self.used or disconnected_timeout_s is None or self.disconnected_s is None:
            return self.used
        return self.disconnected_s < disconnected_timeout_s or self.age_s > SESSIONS_FRESH_S


def names(sources: Collection[Source]) -> str:
    """Return `cpu, console`: the sources in the order in which they are read."""
    return ", ".join(source for source in Source if source in sources)
