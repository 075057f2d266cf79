"""What the counters of a VM show beside its work when something slows it down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final
from zlib import crc32

from gpuops.sim.state.vm_state import Slowdown

if TYPE_CHECKING:
    from gpuops.sim.state.vm_state import VmState

_STEP_S: Final = 300
_HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Signs:
    """Shares are 0 to 1."""

    ready: float = 0.0
    """Of the time each of its vCPUs waits for a processor."""
    ballooned: float = 0.0
    swapped: float = 0.0
    latency_ms: float = 0.0
    """By which its slowest disk is slower."""
    lost: float = 0.0
    """Of its packets."""
    more_cpu: float = 0.0
    """Of its vCPUs, beside its work."""
    more_memory: float = 0.0
    """Of its memory is active beside its work."""
    frame_buffer: float | None = None
    """Of its vGPU that is in use; None = as its work needs."""
    gpu_part: float | None = None
    """What it uses of its part of the GPU; None = as its work needs."""
    others_press: bool = False
    """Whether another VM on its GPU takes all that is left of it."""


NOTHING: Final = Signs()


def signs_of(state: VmState, moment: datetime) -> Signs:
    """What the component that slows it down shows at a moment; nothing where none does.

    Sources are those of `gpuops diagnose`: CPU ready from VMware KB 2002181 on, packets that were dropped, memory that
    its host takes back. What only a host's nvidia-smi shows (licence, heat, link, ECC errors) has no sign here, and
    remote memory is a setting of the VM.
    """
    if state.slowed_by is None:
        return NOTHING
    varies = 0.7 + 0.6 * _chance(state.name, moment, "how much")
    match state.slowed_by:
        case Slowdown.CPU_READY:
            return Signs(ready=0.2 * varies, gpu_part=0.35 * varies)
        case Slowdown.MEMORY_RECLAIMED:
            grown = (moment.timestamp() % (24 * _HOUR_S)) / (24 * _HOUR_S)
            return Signs(ballooned=0.15, swapped=0.05 + 0.2 * grown, latency_ms=25 * varies, gpu_part=0.35 * varies)
        case Slowdown.DATASTORE:
            return Signs(latency_ms=110 * varies, gpu_part=0.4 * varies)
        case Slowdown.NETWORK:
            return Signs(lost=0.06 * varies, gpu_part=0.4 * varies)
        case Slowdown.FRAME_BUFFER:
            ended = _chance(state.name, moment, "ends") < 0.3
            return Signs(frame_buffer=0.3 if ended else 0.98, gpu_part=0.05 if ended else 0.5 * varies)
        case Slowdown.NOISY_NEIGHBOUR:
            return Signs(gpu_part=0.9 * varies, others_press=True)
        case Slowdown.SCHEDULER:
            return Signs(gpu_part=1.0)
        case Slowdown.DRIVER:
            return Signs(frame_buffer=0.003, gpu_part=0.0, more_cpu=0.5 * varies)
        case _:
            return NOTHING


def _chance(name: str, moment: datetime, sign: str) -> float:
    """A number of 0 to 1 that stays for five minutes, the same in each run."""
    return crc32(f"{name} {sign} {int(moment.timestamp()) // _STEP_S}".encode()) / 2**32
