"""Encodes and decodes `RmPVMRL`, the registry word of NVIDIA's vGPU scheduler, as each driver branch reads it.

Bits (NVIDIA open-gpu-kernel-modules 595.45.04, nvrm_registry.h): 0 scheduler on; 1 adaptive round robin off; 3 weighted
scheduler off; 7:4 policy, 0 equal share, 1 fixed share; 23:16 time slice in ms; 21:12 frequency in Hz; 31:24 averaging
factor. Time slice and frequency overlap: which is read depends on bit 1, and a branch before vGPU 15 has no bit 1 and
reads the time slice always. The forms an administrator writes, and the ranges: NVIDIA vGPU docs, scheduling policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from gpuops.model.devices.scheduler import (
    BEST_EFFORT,
    Frequency,
    RoundRobin,
    SchedulerPolicy,
    TimeSlices,
    VgpuScheduler,
)

TIME_SLICE_MS: Final = range(1, 31)
FREQUENCY_HZ: Final = range(63, 961)
AVERAGING: Final = range(1, 61)

_ON: Final = 1 << 0
_ADAPTIVE_OFF: Final = 1 << 1
_WEIGHTED_OFF: Final = 1 << 3
_POLICY: Final = 0xF << 4
_UNNAMED: Final = 0xF << 8 | 1 << 2
_SLICING: Final = 0xFFFFF << 12
_PLAIN_SLICE: Final = 0xFF << 16
_POLICIES: Final = {0: SchedulerPolicy.EQUAL_SHARE, 1: SchedulerPolicy.FIXED_SHARE}
_NUMBERS: Final = {policy: number for number, policy in _POLICIES.items()}


@dataclass(frozen=True, slots=True)
class Unread:
    """A value of RmPVMRL that cannot be decoded, and why."""

    word: str
    why: str

    def __str__(self) -> str:
        return f"{self.word} ({self.why})"


Reading = VgpuScheduler | Unread


def ambiguous(scheduler: VgpuScheduler) -> bool:
    """Whether the encoding depends on the driver branch."""
    return scheduler.policy is not SchedulerPolicy.BEST_EFFORT and scheduler.slices is not None


def encode(scheduler: VgpuScheduler, round_robin: RoundRobin | None) -> int:
    """Return the word for a scheduler. `round_robin`: how the driver branch reads it; None = unknown.

    Raises ValueError with the reason that `against` returns.
    """
    reason = against(scheduler, round_robin)
    if reason is not None:
        raise ValueError(reason)
    if scheduler.policy is SchedulerPolicy.BEST_EFFORT:
        return 0
    word = _ON | _NUMBERS[scheduler.policy] << 4 | (0 if scheduler.weighted else _WEIGHTED_OFF)
    match scheduler.slices:
        case None:
            return word
        case TimeSlices(time_slice_ms=milliseconds):
            off = _ADAPTIVE_OFF if round_robin is RoundRobin.ADAPTIVE else 0
            return word | off | (milliseconds or 0) << 16
        case Frequency(frequency_hz=hertz, averaging=averaging):
            return word | (hertz or 0) << 12 | (averaging or 0) << 24
        case _:
            assert_never(scheduler.slices)


def against(scheduler: VgpuScheduler, round_robin: RoundRobin | None) -> str | None:
    """Return why this driver branch has no word for the scheduler, with the source; None if it has one."""
    slices = scheduler.slices
    if slices is None:
        return None
    if scheduler.policy is SchedulerPolicy.BEST_EFFORT:
        return "best effort has neither time slices nor a frequency (NVIDIA vGPU docs, scheduling policies)"
    out_of_range = _out_of_range(slices)
    if out_of_range is not None:
        return out_of_range
    if round_robin is None:
        return "driver branches read time slice and frequency from the same bits, and the host's branch is not known"
    if isinstance(slices, Frequency) and round_robin is RoundRobin.PLAIN:
        return "a driver before vGPU 15 has no adaptive round robin, so no frequency (NVIDIA vGPU docs)"
    return None


def _out_of_range(slices: TimeSlices | Frequency) -> str | None:
    match slices:
        case TimeSlices(time_slice_ms=milliseconds):
            return _beyond("time slice", milliseconds, TIME_SLICE_MS, " ms")
        case Frequency(frequency_hz=hertz, averaging=averaging):
            return _beyond("frequency", hertz, FREQUENCY_HZ, " Hz") or _beyond("averaging", averaging, AVERAGING, "")
        case _:
            assert_never(slices)


def _beyond(name: str, number: int | None, allowed: range, unit: str) -> str | None:
    if number is None or number in allowed:
        return None
    return f"{name} {number}{unit} is not within {allowed[0]} to {allowed[-1]}{unit} (NVIDIA vGPU docs)"


def decode(word: int, round_robin: RoundRobin | None) -> Reading:
    """Return the scheduler that a driver of this branch uses for the word. Values out of range are returned unchanged.

    Returns `Unread` for undocumented bits, and if the branch is unknown but matters.
    """
    hexadecimal = f"0x{word:08x}"
    if not 0 <= word < 1 << 32:
        return Unread(hex(word), "no 32-bit word")
    if not word & _ON:
        return BEST_EFFORT
    policy = _POLICIES.get((word & _POLICY) >> 4)
    if policy is None or word & _UNNAMED:
        return Unread(hexadecimal, "bits that NVIDIA does not document")
    weighted = not word & _WEIGHTED_OFF
    if not word & (_SLICING | _ADAPTIVE_OFF):
        return VgpuScheduler(policy, None, weighted)
    match round_robin:
        case None:
            return Unread(hexadecimal, "driver branches read it differently, and the host's is not known")
        case RoundRobin.PLAIN:
            if word & (_ADAPTIVE_OFF | _SLICING & ~_PLAIN_SLICE):
                return Unread(hexadecimal, "a word for vGPU 15 or newer, on an older driver")
            return VgpuScheduler(policy, TimeSlices(word >> 16 & 0xFF), weighted)
        case RoundRobin.ADAPTIVE if word & _ADAPTIVE_OFF:
            return VgpuScheduler(policy, TimeSlices(word >> 16 & 0xFF or None), weighted)  # 0 = the driver's default
        case RoundRobin.ADAPTIVE:
            return VgpuScheduler(policy, Frequency(word >> 12 & 0x3FF or None, word >> 24 or None), weighted)
        case _:
            assert_never(round_robin)


def describe_clamping(scheduler: VgpuScheduler) -> str | None:
    """Return the value that the driver uses instead of one out of range: the nearest allowed (NVIDIA vGPU docs)."""
    match scheduler.slices:
        case TimeSlices(time_slice_ms=int(milliseconds)) if milliseconds not in TIME_SLICE_MS:
            return f"the driver takes {TIME_SLICE_MS[-1]} ms"
        case Frequency(frequency_hz=int(hertz)) if hertz not in FREQUENCY_HZ:
            return f"the driver takes {FREQUENCY_HZ[0] if hertz < FREQUENCY_HZ[0] else FREQUENCY_HZ[-1]} Hz"
        case _:
            return None
