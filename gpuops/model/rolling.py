"""Rolling: how hosts are rebooted one after another, and what becomes of their VMs meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuops.model.window import Window


class Displacement(StrEnum):
    """What may be done to a VM that runs on a host that goes down. It comes back to it afterwards."""

    MOVE = "move"
    """By vMotion alone: a host with a VM that cannot be moved is refused."""
    SHUT_DOWN = "shut-down"
    """One that cannot be moved is shut down by its guest, and started again."""
    POWER_OFF = "power-off"
    """One whose guest does not shut down in time is powered off."""


class VsanMode(StrEnum):
    """What vSAN does with the data of a host that enters maintenance mode (vSphere API, VsanHostDecommissionMode)."""

    ENSURE = "ensureObjectAccessibility"
    EVACUATE = "evacuateAllData"
    NO_ACTION = "noAction"


@dataclass(frozen=True, slots=True)
class Rolling:
    """How the hosts of a change are rebooted."""

    max_hosts: int = 1
    """So many are down at once at the most."""
    window: Window | None = None
    """Only while it is open is a host taken out of service; None = at any time. Its name is how it was written."""
    vms: Displacement = Displacement.MOVE
    vsan_mode: VsanMode = VsanMode.ENSURE
