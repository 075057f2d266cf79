"""Rotation, start: one ML VM that starts, where, and the desktops that make room for it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuops.model.host import Host
from gpuops.model.ml_queue import QueuedVm
from gpuops.model.vm import Vm


@dataclass(frozen=True, slots=True)
class Start:
    """One ML VM that starts, and the desktops that make room for it."""

    vm: Vm
    queued: QueuedVm
    host: Host
    desktops: tuple[Vm, ...]

    @property
    def moves(self) -> bool:
        return self.vm.host != self.host.ref
