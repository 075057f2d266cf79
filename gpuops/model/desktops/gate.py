"""The gate of a connection broker before a desktop. If it is closed, the machine is in maintenance: no user gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuops.model.stored import stored_as


@stored_as("Gate")
@dataclass(frozen=True, slots=True)
class Gate:
    """The gate of one VM at one moment, as the broker reports it."""

    closed: bool | None
    """Whether the broker assigns the desktop to no user; None = unknown."""
    machine: str = ""
    """The broker's id of the machine; empty = it is not known."""
    refusal: str = ""
    """Why a night cannot close it, or cannot know; empty = it can."""
    spare_machines: int = 0
    """How many unused machines of its pool the broker keeps powered on."""


NO_MACHINE: Final = Gate(closed=False, refusal="it is no machine of the connection broker")
"""There is nothing that users could be kept from, or let in to."""


def unknown_gate(why: str) -> Gate:
    """Return the gate of a VM about which the broker could not be asked."""
    return Gate(closed=None, refusal=why)
